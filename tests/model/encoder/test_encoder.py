"""The network against independent references: transformers, torch's own encoder, plain NumPy."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from model.encoder.attention import SelfAttention
from model.encoder.config import PRESETS, EncoderConfig, UnsupportedArchitectureError
from model.encoder.encoder import Encoder
from model.encoder.heads import TokenClassifier
from model.encoder.layers import EncoderLayer, sinusoidal_positions
from model.encoder.pooling import cls_pool, l2_normalise, mean_pool

TINY = EncoderConfig(
    vocab_size=97,
    hidden_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=40,
)
# float32 rounding over three layers of another order of operations; real errors are far larger.
TOLERANCE = 1e-5


def ragged_batch(rows: int = 4, longest: int = 13) -> tuple[Tensor, Tensor]:
    """Random ids and a mask whose rows have different lengths."""
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(1, TINY.vocab_size, (rows, longest), generator=generator)
    lengths = torch.tensor([longest, 1, longest // 2, longest - 1][:rows])
    attention_mask = (torch.arange(longest)[None] < lengths[:, None]).long()
    return input_ids * attention_mask, attention_mask


def copy_to_bert(encoder: Encoder) -> BertModel:
    """A transformers BertModel that holds our weights."""
    config = encoder.config
    reference = BertModel(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position_embeddings,
            hidden_act=config.hidden_act,
            layer_norm_eps=config.layer_norm_eps,
        ),
        add_pooling_layer=False,
    ).eval()
    pairs: list[tuple[nn.Module, nn.Module]] = [
        (reference.embeddings.word_embeddings, encoder.embeddings.word),
        (reference.embeddings.position_embeddings, encoder.embeddings.position),
        (reference.embeddings.token_type_embeddings, encoder.embeddings.token_type),
        (reference.embeddings.LayerNorm, encoder.embeddings.norm),
    ]
    for theirs, ours in zip(reference.encoder.layer, encoder.layers, strict=True):
        assert isinstance(ours, EncoderLayer)
        pairs += [
            (theirs.attention.self.query, ours.attention.query),
            (theirs.attention.self.key, ours.attention.key),
            (theirs.attention.self.value, ours.attention.value),
            (theirs.attention.output.dense, ours.attention.output),
            (theirs.attention.output.LayerNorm, ours.attention_norm),
            (theirs.intermediate.dense, ours.feed_forward.expand),
            (theirs.output.dense, ours.feed_forward.contract),
            (theirs.output.LayerNorm, ours.feed_forward_norm),
        ]
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return reference


def shake(module: nn.Module) -> None:
    """Draw every parameter afresh: zero biases and unit norms would hide a missing term."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)


@pytest.mark.parametrize("hidden_act", ["gelu", "relu"])
def test_same_weights_give_what_bert_gives(hidden_act: str) -> None:
    """Every real position of a ragged batch equals transformers' BertModel."""
    encoder = Encoder(dataclasses.replace(TINY, hidden_act=hidden_act)).eval()
    shake(encoder)
    reference = copy_to_bert(encoder)
    input_ids, attention_mask = ragged_batch()
    token_type_ids = (torch.arange(input_ids.shape[1]) > 4).long().expand_as(input_ids)
    with torch.inference_mode():
        ours = encoder(input_ids, attention_mask, token_type_ids)
        theirs = reference(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
    real = attention_mask.bool()
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("preset", ["transformer-base", "transformer-base-pre-ln"])
def test_six_layer_presets_equal_torchs_own_encoder(preset: str) -> None:
    """The founding texts' base model and its Pre-LN twin are what torch.nn.TransformerEncoder computes."""
    config = dataclasses.replace(PRESETS[preset], vocab_size=97, hidden_size=64, intermediate_size=128)
    encoder = Encoder(config).eval()
    shake(encoder)
    norm_first = config.norm_placement == "pre"
    layer = nn.TransformerEncoderLayer(
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        activation="relu",
        layer_norm_eps=config.layer_norm_eps,
        batch_first=True,
        norm_first=norm_first,
    )
    final = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if norm_first else None
    reference = nn.TransformerEncoder(
        layer, config.num_hidden_layers, norm=final, enable_nested_tensor=False
    ).eval()
    for theirs, ours in zip(reference.layers, encoder.layers, strict=True):
        assert isinstance(ours, EncoderLayer)
        projections = (ours.attention.query, ours.attention.key, ours.attention.value)
        theirs.self_attn.in_proj_weight.data = torch.cat([p.weight for p in projections])
        theirs.self_attn.in_proj_bias.data = torch.cat([p.bias for p in projections])
        theirs.self_attn.out_proj.load_state_dict(ours.attention.output.state_dict())
        theirs.linear1.load_state_dict(ours.feed_forward.expand.state_dict())
        theirs.linear2.load_state_dict(ours.feed_forward.contract.state_dict())
        theirs.norm1.load_state_dict(ours.attention_norm.state_dict())
        theirs.norm2.load_state_dict(ours.feed_forward_norm.state_dict())
    if final is not None:
        final.load_state_dict(encoder.final_norm.state_dict())
    input_ids, attention_mask = ragged_batch()
    with torch.no_grad():  # inference_mode would take torch's fused path, which is another kernel
        embedded = encoder.embeddings(input_ids, torch.zeros_like(input_ids))
        theirs_out = reference(embedded, src_key_padding_mask=~attention_mask.bool())
        ours_out = encoder(input_ids, attention_mask)
    real = attention_mask.bool()
    torch.testing.assert_close(ours_out[real], theirs_out[real], rtol=0, atol=TOLERANCE)


def test_attention_equals_a_plain_numpy_oracle() -> None:
    """Head by head, row by row, in float64 loops that share nothing with the module but its weights."""
    attention = SelfAttention(TINY).eval()
    shake(attention)
    torch.manual_seed(2)
    hidden_states = torch.randn(2, 5, TINY.hidden_size)
    attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.bool)
    with torch.inference_mode():
        ours = attention(hidden_states, attention_mask[:, None, None])

    def apply(linear: nn.Linear, vector: np.ndarray) -> np.ndarray:
        return linear.weight.detach().double().numpy() @ vector + linear.bias.detach().double().numpy()

    states, size = hidden_states.double().numpy(), TINY.head_dim
    for row in range(2):
        real = int(attention_mask[row].sum())
        for position in range(real):
            context = []
            for head in range(TINY.num_attention_heads):
                part = slice(head * size, (head + 1) * size)
                query = apply(attention.query, states[row, position])[part]
                scores = np.array(
                    [query @ apply(attention.key, states[row, j])[part] / np.sqrt(size) for j in range(real)]
                )
                weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
                context.append(
                    sum(weights[j] * apply(attention.value, states[row, j])[part] for j in range(real))
                )
            expected = apply(attention.output, np.concatenate(context))
            np.testing.assert_allclose(ours[row, position].numpy(), expected, rtol=0, atol=TOLERANCE)


def test_padding_never_changes_a_real_token() -> None:
    """Whatever stands at padded positions, real tokens come out the same."""
    encoder = Encoder(TINY).eval()
    input_ids, attention_mask = ragged_batch()
    noise = torch.randint_like(input_ids, 1, TINY.vocab_size)
    altered = torch.where(attention_mask.bool(), input_ids, noise)
    with torch.inference_mode():
        before, after = (encoder(ids, attention_mask) for ids in (input_ids, altered))
    real = attention_mask.bool()
    torch.testing.assert_close(after[real], before[real], rtol=0, atol=0)


def test_batching_never_changes_a_text() -> None:
    """Alone and unpadded, or beside longer texts: the same vectors."""
    encoder = Encoder(TINY).eval()
    shake(encoder)
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        together = encoder(input_ids, attention_mask)
        for row, length in enumerate(attention_mask.sum(1).tolist()):
            alone = encoder(input_ids[row : row + 1, :length], attention_mask[row : row + 1, :length])
            torch.testing.assert_close(together[row, :length], alone[0], rtol=0, atol=TOLERANCE)


def test_a_fully_padded_row_stays_finite() -> None:
    """An empty row in a batch must not turn into NaN and then into a null vector."""
    encoder = Encoder(TINY).eval()
    attention_mask = torch.tensor([[1, 1], [0, 0]])
    with torch.inference_mode():
        hidden_states = encoder(torch.tensor([[5, 6], [0, 0]]), attention_mask)
        pooled = l2_normalise(mean_pool(hidden_states, attention_mask))
    assert torch.isfinite(hidden_states).all()
    assert torch.isfinite(pooled).all()
    assert pooled[1].abs().sum() == 0


def test_sinusoidal_table_is_the_papers_formula() -> None:
    """PE(pos, 2i) and PE(pos, 2i+1), entry by entry."""
    table = sinusoidal_positions(60, 16)
    for position in (0, 1, 7, 59):
        for i in range(8):
            angle = position / 10000 ** (2 * i / 16)
            assert table[position, 2 * i].item() == pytest.approx(np.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1].item() == pytest.approx(np.cos(angle), abs=1e-7)


def test_position_offset_moves_the_table() -> None:
    """RoBERTa's first token takes row pad + 1 of the position table."""
    config = dataclasses.replace(TINY, position_offset=2)
    encoder = Encoder(config).eval()
    plain = Encoder(dataclasses.replace(TINY, max_position_embeddings=38)).eval()
    state = encoder.state_dict()
    state["embeddings.position.weight"] = state["embeddings.position.weight"][2:]
    plain.load_state_dict(state)
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        torch.testing.assert_close(encoder(input_ids, attention_mask), plain(input_ids, attention_mask))
    assert config.max_tokens == 38


def test_pooling_ignores_padding() -> None:
    """The mean is over real tokens; CLS is the first; both against a loop."""
    torch.manual_seed(3)
    hidden_states = torch.randn(3, 5, 8)
    attention_mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])
    pooled = mean_pool(hidden_states, attention_mask)
    for row, length in enumerate((5, 1, 3)):
        torch.testing.assert_close(pooled[row], hidden_states[row, :length].mean(0))
        assert torch.equal(cls_pool(hidden_states)[row], hidden_states[row, 0])
    torch.testing.assert_close(l2_normalise(pooled).norm(dim=-1), torch.ones(3))


def test_attention_maps_are_the_weights_that_were_used() -> None:
    """Rows sum to one, padding gets nothing, and the maps belong to the same forward pass."""
    encoder = Encoder(TINY).eval()
    input_ids, attention_mask = ragged_batch()
    with torch.inference_mode():
        maps = encoder.attention_maps(input_ids, attention_mask)
    assert maps.shape == (3, 4, 4, 13, 13)
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 4, 4, 13))
    padded = ~attention_mask.bool()[None, :, None, None, :].expand_as(maps)
    assert maps[padded].abs().max() == 0


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_have_their_published_sizes(preset: str) -> None:
    """Parameters as the papers count them (BERT without its pooler)."""
    with torch.device("meta"):
        encoder = Encoder(PRESETS[preset])
    millions = sum(parameter.numel() for parameter in encoder.parameters()) / 1e6
    published = {
        "transformer-base": 34.8,
        "transformer-base-pre-ln": 34.8,
        "bert-base": 108.9,
        "bert-large": 334.1,
        "minilm-l6": 22.6,
    }
    assert millions == pytest.approx(published[preset], abs=0.1)


def test_token_classifier_scores_every_label() -> None:
    """One row of L scores a token, and it learns: the loss falls on a handful of steps."""
    torch.manual_seed(4)
    classifier = TokenClassifier(TINY, ["O", "B-PER", "I-PER"])
    input_ids, attention_mask = ragged_batch()
    labels = input_ids % 3
    optimizer = torch.optim.AdamW(classifier.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        logits = classifier(input_ids, attention_mask)
        assert logits.shape == (4, 13, 3)
        loss = nn.functional.cross_entropy(logits[attention_mask.bool()], labels[attention_mask.bool()])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 25}, ["25", "4"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"position_offset": 40}, ["40"]),
        ({"pad_token_id": 97}, ["97", "96"]),
        ({"hidden_dropout_prob": 1.0}, ["hidden_dropout_prob", "1.0"]),
    ],
)
def test_impossible_numbers_are_named(change: dict[str, float], words: list[str]) -> None:
    """The message carries the offending numbers."""
    with pytest.raises(ValueError, match=words[0]) as caught:
        dataclasses.replace(TINY, **change)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu_new"}, "gelu_new"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
    ],
)
def test_unsupported_architectures_are_refused_by_name(change: dict[str, object], named: str) -> None:
    """Nothing that computes something else is loaded as if it were BERT."""
    hf_config = BertConfig(model_type="bert").to_dict() | change
    with pytest.raises(UnsupportedArchitectureError, match=named) as caught:
        EncoderConfig.from_hf_config(hf_config)
    assert "support" in str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "pad", "offset"), [("bert", 0, 0), ("roberta", 1, 2), ("xlm-roberta", 1, 2)]
)
def test_padding_defaults_are_the_familys(model_type: str, pad: int, offset: int) -> None:
    """A config that does not say is read as transformers reads it; RoBERTa's positions hang on it."""
    hf_config = {**BertConfig().to_dict(), "model_type": model_type, "pad_token_id": None}
    config = EncoderConfig.from_hf_config(hf_config)
    assert (config.pad_token_id, config.position_offset) == (pad, offset)

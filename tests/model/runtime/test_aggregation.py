"""The pipeline's strategies, against the pipeline itself and where it goes wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers, processors
from tokenizers import Tokenizer as LibraryTokenizer
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
    TokenClassificationPipeline,
)

from model.runtime.aggregation import PipelineStrategy, aggregate
from model.runtime.label_schemes import LabelScheme
from model.runtime.tokenization import TokenizedText, Tokenizer
from tests.bundles import LABELS, tiny_tokenizer

SCHEME = LabelScheme.from_labels(LABELS)
STRATEGIES: tuple[PipelineStrategy, ...] = ("none", "simple", "first", "average", "max")
TEXTS = [
    "Tim Cooking works in Parisian shops, and John Smithson does not.",
    "We visited Paris, London and New Yorkers; Apple Incorporated paid.",
    "abcdef ghijkl mnopqr stuvwx yzabcd efghij klmnop qrstuv",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3,
    "张三在北京工作 and 李明 in Shenzhen",
]


@pytest.fixture(scope="module", params=[0, 1, 2])
def pipeline(request: pytest.FixtureRequest) -> TokenClassificationPipeline:
    """Of the tiny bundles' tokenizer."""
    return seeded_pipeline(request.param, tiny_tokenizer())


def seeded_pipeline(seed: int, tokenizer: LibraryTokenizer) -> TokenClassificationPipeline:
    """A tiny model whose labels change from token to token."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    model = BertForTokenClassification(config).eval()
    torch.nn.init.normal_(model.classifier.weight, std=0.5)  # or all tokens get much the same label
    return TokenClassificationPipeline(model=model, tokenizer=fast)


def logits_of(pipeline: TokenClassificationPipeline, tokenized: TokenizedText) -> NDArray[np.float32]:
    """The same model on the same tokens."""
    with torch.inference_mode():
        answer: NDArray[np.float32] = (
            pipeline.model(torch.from_numpy(tokenized.input_ids)[None]).logits[0].numpy()
        )
    return answer


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", TEXTS)
def test_ordinary_text_gives_what_the_pipeline_gives(
    pipeline: TokenClassificationPipeline, text: str, strategy: PipelineStrategy
) -> None:
    """Names and meaning are the pipeline's; scores to float32's last digits."""
    (tokenized,) = Tokenizer(tiny_tokenizer()).tokenize([text])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted: Sequence[Any] = pipeline(text, aggregation_strategy=strategy)
    found = aggregate(text, tokenized, logits_of(pipeline, tokenized), SCHEME, strategy)
    assert [(e.label, e.start, e.end) for e in found] == [
        (e.get("entity", e.get("entity_group")), e["start"], e["end"]) for e in wanted
    ]
    np.testing.assert_allclose([e.score for e in found], [e["score"] for e in wanted], rtol=0, atol=2e-6)


def test_the_models_here_give_enough_to_compare(pipeline: TokenClassificationPipeline) -> None:
    """Equal empty lists would prove nothing."""
    found = pipeline(TEXTS[0], aggregation_strategy="first")
    assert len(found) >= 3
    assert len({entity["entity_group"] for entity in found}) >= 2


def marked_tokenizer() -> LibraryTokenizer:
    """As the shipped tagger's: one token per Han character, so that a word-start mark may stand alone."""
    pieces = ["[PAD]", "[UNK]", "\u2581", *"张三在北京ab", "\u2581ab"]
    tokenizer = LibraryTokenizer(models.Unigram([(piece, -len(piece)) for piece in pieces], unk_id=1))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(),
            pre_tokenizers.Split(Regex(r"\p{Han}"), "isolated"),
        ]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    return tokenizer


def byte_tokenizer() -> LibraryTokenizer:
    """As RoBERTa's, without merges: a Han character is three tokens."""
    pieces = ["[PAD]", "[UNK]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = LibraryTokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens(["[PAD]", "[UNK]"])
    return tokenizer


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("make", [marked_tokenizer, byte_tokenizer])
def test_a_character_of_several_tokens_is_in_each_as_in_the_pipeline(
    make: Callable[[], LibraryTokenizer], seed: int
) -> None:
    """Under ``none``; whoever joins the tokens by their labels needs the first, which may be a bare mark."""
    text = "张三 ab 北京"
    pipeline = seeded_pipeline(seed, make())
    (tokenized,) = Tokenizer(make()).tokenize([text])
    wanted = pipeline(text, aggregation_strategy="none", ignore_labels=[])
    found = aggregate(text, tokenized, logits_of(pipeline, tokenized), SCHEME, "none")
    spans = [(e["start"], e["end"]) for e in wanted]
    assert len(set(spans)) < len(spans)
    assert [(e.label, e.start, e.end) for e in found] == [
        (e["entity"], e["start"], e["end"]) for e in wanted if e["entity"] != "O" and e["start"] < e["end"]
    ]


def tokens(*cuts: tuple[int, int, int]) -> TokenizedText:
    """Given as (start, end, word)."""
    return TokenizedText(
        input_ids=np.zeros(len(cuts), dtype=np.int64),
        offsets=np.array([cut[:2] for cut in cuts], dtype=np.int64),
        word_ids=[cut[2] for cut in cuts],
        special=np.zeros(len(cuts), dtype=np.bool_),
    )


def test_an_accent_does_not_fuse_neighbours() -> None:
    """Decomposed, "Réne" is longer than its token: guessing by length makes one word of it and "john"."""
    text = "john Re\u0301ne"
    logits = np.log(np.array([[0.1, 0.8, 0.1], [0.6, 0.3, 0.1]]))
    scheme = LabelScheme.from_labels(["O", "B-PER", "I-PER"])
    found = aggregate(text, tokens((0, 4, 0), (5, 10, 1)), logits, scheme, "first")
    assert [(e.start, e.end, e.score) for e in found] == [(0, 4, pytest.approx(0.8))]


def test_ends_and_singles_end_an_entity() -> None:
    """The pipeline knows B- and I- only, and tears BIOES to pieces."""
    scheme = LabelScheme.from_labels(["O", "B-A", "I-A", "E-A", "S-A"])
    logits = 9.0 * np.eye(5)[[1, 2, 3, 4, 4, 0, 3]]
    text = "a b c d e f g"
    found = aggregate(text, tokens(*((2 * i, 2 * i + 1, i) for i in range(7))), logits, scheme, "simple")
    assert [text[e.start : e.end] for e in found] == ["a b c", "d", "e", "g"]


def test_borders_are_widened_to_whole_characters() -> None:
    """A token may end before the accent of its last letter."""
    text = "Rene\u0301 x"
    scheme = LabelScheme.from_labels(["O", "B-A"])
    logits = 9.0 * np.eye(2)[[1, 0]]
    for strategy in STRATEGIES:
        (found,) = aggregate(text, tokens((0, 4, 0), (6, 7, 1)), logits, scheme, strategy)
        assert text[found.start : found.end] == "Rene\u0301"

"""Low-rank changes: nothing at first, little to learn, nothing left behind."""

import torch
from torch import nn

from model.encoder.config import EncoderConfig
from model.encoder.encoder import Encoder
from model.training.lora import LoraLinear, add_lora, merge_lora

CONFIG = EncoderConfig(
    vocab_size=20,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=8,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def test_the_first_step_sees_the_encoder_as_it_was() -> None:
    """``up`` is zero."""
    torch.manual_seed(0)
    encoder, ids = Encoder(CONFIG).eval(), torch.randint(0, 20, (2, 6))
    before = encoder(ids, torch.ones_like(ids))
    add_lora(encoder, rank=4, alpha=8)
    torch.testing.assert_close(encoder(ids, torch.ones_like(ids)), before, rtol=0, atol=0)


def test_only_the_changes_are_learned() -> None:
    """All six matrices of each layer; tables, norms and biases stay."""
    encoder = Encoder(CONFIG)
    add_lora(encoder, rank=4, alpha=8)
    learned = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert len(learned) == 2 * 6 * 2
    assert all(name.endswith((".down", ".up")) for name in learned)


def test_merging_keeps_what_is_computed_and_the_names() -> None:
    """The bundle is an ordinary one."""
    torch.manual_seed(1)
    encoder, ids = Encoder(CONFIG).eval(), torch.randint(0, 20, (2, 6))
    names = list(encoder.state_dict())
    add_lora(encoder, rank=4, alpha=8)
    for module in encoder.modules():
        if isinstance(module, LoraLinear):
            nn.init.normal_(module.up, std=0.1)
    changed = encoder(ids, torch.ones_like(ids))
    merge_lora(encoder)
    assert list(encoder.state_dict()) == names
    assert not any(isinstance(module, LoraLinear) for module in encoder.modules())
    torch.testing.assert_close(encoder(ids, torch.ones_like(ids)), changed, rtol=1e-5, atol=1e-5)

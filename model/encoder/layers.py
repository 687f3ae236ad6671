"""The parts of the encoder around attention: embeddings, the feed-forward block, one whole layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.encoder.attention import SelfAttention

if TYPE_CHECKING:
    from model.encoder.config import EncoderConfig


def sinusoidal_positions(length: int, hidden_size: int) -> Tensor:
    """The fixed position table: PE(pos, 2i) = sin(pos / 10000^(2i/H)), PE(pos, 2i+1) = cos(same).

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    Returns:
        [length, hidden_size], float32. Computed in float64: at position 500 float32 angles
        are already off in the fifth digit.
    """
    position = torch.arange(length, dtype=torch.float64)[:, None]  # [length, 1]
    pair = torch.arange(0, hidden_size, 2, dtype=torch.float64)  # [H / 2]
    angle = position * torch.exp(pair * (-math.log(10000.0) / hidden_size))  # [length, H / 2]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).float()


class Embeddings(nn.Module):
    """Token + position (+ segment) embeddings, summed, normalised where the model does that.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; Devlin et al. 2019, arXiv:1810.04805, figure 2.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position_offset = config.position_offset
        self.scale = math.sqrt(config.hidden_size) if config.scale_embeddings else 1.0
        self.word = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        if config.position_embedding == "sinusoidal":
            self.position.weight = nn.Parameter(
                sinusoidal_positions(config.max_position_embeddings, config.hidden_size), requires_grad=False
            )
        self.token_type = (
            nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        )
        self.norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            if config.embedding_layer_norm
            else nn.Identity()
        )
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Look up and add.

        Args:
            input_ids: [B, S], int64.
            token_type_ids: [B, S], int64; ignored by a model without segments.

        Returns:
            [B, S, H], float.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device) + self.position_offset  # [S]
        embedded = self.word(input_ids) * self.scale + self.position(positions)  # [B, S, H]
        if self.token_type is not None:
            embedded = embedded + self.token_type(token_type_ids)
        normalised: Tensor = self.dropout(self.norm(embedded))
        return normalised


class FeedForward(nn.Module):
    """Two linear maps per token with a non-linearity between them.

    Source: Vaswani et al. 2017, section 3.3 (ReLU); Hendrycks and Gimpel 2016, arXiv:1606.08415 (GELU).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = nn.ReLU() if config.hidden_act == "relu" else nn.GELU(approximate="none")
        self.contract = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, H], each token by itself."""
        contracted: Tensor = self.contract(self.activation(self.expand(hidden_states)))
        return contracted


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual connection and a LayerNorm.

    ``post``: norm(x + sublayer(x)), Vaswani et al. 2017, section 3.1, and BERT.
    ``pre``: x + sublayer(norm(x)), Xiong et al. 2020, arXiv:2002.04745, figure 1 (b).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_placement == "pre"
        self.attention = SelfAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """One station: same shape in and out.

        Args:
            hidden_states: [B, S, H], float.
            attention_mask: [B, 1, 1, S], bool; True = attend.

        Returns:
            [B, S, H].
        """
        if self.norm_first:
            attended = self.attention(self.attention_norm(hidden_states), attention_mask)
            hidden_states = hidden_states + self.dropout(attended)
            transformed: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(hidden_states)))
            return hidden_states + transformed
        attended = self.attention(hidden_states, attention_mask)
        hidden_states = self.attention_norm(hidden_states + self.dropout(attended))
        transformed = self.dropout(self.feed_forward(hidden_states))
        normalised: Tensor = self.feed_forward_norm(hidden_states + transformed)
        return normalised

"""Bidirectional multi-head self-attention, written out so that it can be read and looked at."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from model.encoder.config import EncoderConfig


class SelfAttention(nn.Module):
    """Scaled dot-product attention over H features in N heads, with its output projection.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
    Shapes: B batch, S tokens, N heads, D head_dim, H = N * D.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Mix each token with the tokens it may attend to.

        Args:
            hidden_states: [B, S, H], float.
            attention_mask: [B, 1, 1, S], bool; True = attend, False = padding.

        Returns:
            [B, S, H]. Rows at padding positions are meaningless; pooling drops them.
        """
        probabilities = self.dropout(self.probabilities(hidden_states, attention_mask))  # [B, N, S, S]
        context = probabilities @ self._split_heads(self.value(hidden_states))  # [B, N, S, D]
        mixed: Tensor = self.output(context.transpose(1, 2).flatten(2))  # [B, S, H]
        return mixed

    def probabilities(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """How much each token attends to each other, which is what a heat map shows.

        Args:
            hidden_states: [B, S, H], float.
            attention_mask: [B, 1, 1, S], bool; True = attend.

        Returns:
            [B, N, S, S]; each row sums to 1, columns at padding are 0.
        """
        query = self._split_heads(self.query(hidden_states))  # [B, N, S, D]
        key = self._split_heads(self.key(hidden_states))  # [B, N, S, D]
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.head_dim)  # [B, N, S, S]
        # The dtype's minimum, not -inf: a fully padded row must stay finite, not become NaN.
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        return scores.softmax(dim=-1)

    def _split_heads(self, projected: Tensor) -> Tensor:
        """[B, S, H] -> [B, N, S, D]."""
        batch, tokens, _ = projected.shape
        return projected.view(batch, tokens, self.num_attention_heads, self.head_dim).transpose(1, 2)

"""The encoder: token ids in, one vector per token out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.encoder.layers import Embeddings, EncoderLayer

if TYPE_CHECKING:
    from model.encoder.config import EncoderConfig


class Encoder(nn.Module):
    """Embeddings and ``num_hidden_layers`` identical layers, every token seeing every other.

    Source: Vaswani et al. 2017, arXiv:1706.03762, figure 1 (left); Devlin et al. 2019, arXiv:1810.04805.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_hidden_layers))
        # Pre-LN leaves the last sum unnormalised, so the stack closes with one LayerNorm.
        self.final_norm = (
            nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            if config.norm_placement == "pre"
            else nn.Identity()
        )
        self.apply(self._initialise)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Run the whole stack.

        Args:
            input_ids: [B, S], int64, S at most ``config.max_tokens``.
            attention_mask: [B, S], int64; 1 = token, 0 = padding.
            token_type_ids: [B, S], int64; None = all 0.

        Returns:
            last hidden state, [B, S, H]. Rows at padding positions are meaningless.
        """
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        may_attend = attention_mask.bool()[:, None, None, :]  # [B, 1, 1, S]
        hidden_states = self.embeddings(input_ids, token_type_ids)  # [B, S, H]
        for layer in self.layers:
            hidden_states = layer(hidden_states, may_attend)
        normalised: Tensor = self.final_norm(hidden_states)
        return normalised

    def attention_maps(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Attention weights of every layer and head, for looking at.

        Args:
            input_ids: [B, S], int64.
            attention_mask: [B, S], int64; 1 = token.

        Returns:
            [layers, B, N, S, S]; rows sum to 1.
        """
        may_attend = attention_mask.bool()[:, None, None, :]
        hidden_states = self.embeddings(input_ids, torch.zeros_like(input_ids))
        maps = []
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)  # noqa: S101 - tells mypy what ModuleList holds
            seen = layer.attention_norm(hidden_states) if layer.norm_first else hidden_states
            maps.append(layer.attention.probabilities(seen, may_attend))
            hidden_states = layer(hidden_states, may_attend)
        return torch.stack(maps)

    def _initialise(self, module: nn.Module) -> None:
        """Draw fresh weights as BERT does: N(0, initializer_range), zero biases."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding) and module.weight.requires_grad:
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            if module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx].detach())

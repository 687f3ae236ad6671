"""Low-rank changes to frozen matrices (LoRA), added in place and merged before export."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoraLinear(nn.Linear):
    """A linear layer with frozen weights W, computing with W + scale * up @ down.

    ``up`` begins at zero, so the first step sees the layer as it was.

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """

    def __init__(self, frozen: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__(frozen.in_features, frozen.out_features, bias=frozen.bias is not None)
        self.weight, self.bias = frozen.weight, frozen.bias
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.requires_grad_(False)
        self.scale = alpha / rank
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        changed = nn.functional.linear(nn.functional.linear(hidden_states, self.down), self.up)
        return super().forward(hidden_states) + self.scale * changed

    def merged(self) -> nn.Linear:
        """An ordinary layer that computes the same."""
        layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight, layer.bias = self.weight, self.bias
        with torch.no_grad():
            layer.weight += self.scale * self.up @ self.down
        return layer


def add_lora(module: nn.Module, *, rank: int, alpha: float) -> None:
    """Freeze all of ``module`` and give each of its linear layers a low-rank change to learn."""
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    for parent, name, layer in _linear_layers(module):
        setattr(parent, name, LoraLinear(layer, rank=rank, alpha=alpha))


def merge_lora(module: nn.Module) -> None:
    """Turn each :class:`LoraLinear` of ``module`` back into an ordinary layer with the change added."""
    for parent, name, layer in _linear_layers(module):
        if isinstance(layer, LoraLinear):
            setattr(parent, name, layer.merged())


def _linear_layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    ]
    yield from found

"""From one vector per token to one vector per text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def cls_pool(hidden_states: Tensor) -> Tensor:
    """The first token's vector.

    Args:
        hidden_states: [B, S, H].

    Returns:
        [B, H].
    """
    return hidden_states[:, 0]


def mean_pool(hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean over real tokens; padding has no say.

    Source: Reimers and Gurevych 2019, arXiv:1908.10084, section 3.

    Args:
        hidden_states: [B, S, H], float.
        attention_mask: [B, S], int64; 1 = token, 0 = padding.

    Returns:
        [B, H]. A row without any token pools to zeros, not to NaN.
    """
    weights = attention_mask.to(hidden_states.dtype).unsqueeze(-1)  # [B, S, 1]
    # Padding rows may hold anything finite; multiplying by 0 removes them.
    return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def l2_normalise(embeddings: Tensor) -> Tensor:
    """Scale each row to length one.

    Args:
        embeddings: [B, H], float.

    Returns:
        [B, H]; a zero row stays zero, since the norm is floored at 1e-12.
    """
    norms: Tensor = embeddings.norm(dim=-1, keepdim=True)
    return embeddings / norms.clamp(min=1e-12)

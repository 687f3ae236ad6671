"""Losses of single tokens: cross-entropy, with options for labels that are rare or easy; consistency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from model.training.spans import IGNORED_LABEL

if TYPE_CHECKING:
    from collections.abc import Sequence

_BETA: Final = 0.999


def balanced_weights(counts: Sequence[int]) -> Tensor:
    """How much each label counts, so that the rare ones are heard.

    The weight is the inverse of the "effective number" of tokens, (1 - b^n) / (1 - b) with b = 0.999: about
    1/n up to a few hundred tokens and level above some thousands. Plain 1/n would make one token of a rare
    label outweigh thousands of O.

    Source: Cui et al. 2019, arXiv:1901.05555, equation 2.

    Args:
        counts: Training tokens of each label; one without any is treated as if it had one.

    Returns:
        [L] float32; the mean over all training tokens is 1.
    """
    tokens = torch.tensor(counts, dtype=torch.float64).clamp(min=1)
    weights = (1 - _BETA) / (1 - _BETA**tokens)
    return (weights * tokens.sum() / (weights * tokens).sum()).float()


def token_loss(
    logits: Tensor,
    label_ids: Tensor,
    *,
    class_weights: Tensor | None = None,
    focal_gamma: float = 0.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Mean over the labelled tokens of the batch.

    Args:
        logits: [B, S, L], float32.
        label_ids: [B, S], int64; ``IGNORED_LABEL`` where there is none.
        class_weights: [L]; None = all alike.
        focal_gamma: A token counts (1 - p)^gamma, p = the probability of its label. Source: Lin et al. 2017,
            arXiv:1708.02002, equation 4.
        label_smoothing: See ``torch.nn.functional.cross_entropy``.

    Returns:
        A scalar; 0 if the batch has no labelled token.
    """
    labelled = label_ids != IGNORED_LABEL
    logits, label_ids = logits[labelled], label_ids[labelled]
    if not len(label_ids):
        return logits.sum()
    losses = nn.functional.cross_entropy(logits, label_ids, reduction="none", label_smoothing=label_smoothing)
    if focal_gamma:
        certainty = logits.softmax(-1).gather(1, label_ids[:, None]).squeeze(1)
        losses = losses * (1 - certainty) ** focal_gamma
    if class_weights is None:
        return losses.mean()
    weights = class_weights[label_ids]
    return (losses * weights).sum() / weights.sum()


def disagreement(first: Tensor, second: Tensor, labelled: Tensor) -> Tensor:
    """How far two readings of the same tokens are apart: the mean of both Kullback-Leibler divergences.

    With dropout no two readings are the same; a network that is to read alike both times learns to lean on no
    single hidden value. Source: Wu et al. 2021 ("R-Drop"), arXiv:2106.14448, equation 2.

    Args:
        first: [B, S, L] logits, float32.
        second: The same of the other reading.
        labelled: [B, S], bool: the tokens that count.

    Returns:
        A scalar, the mean over the tokens that count, 0 or more; 0 if there are none.
    """
    if not labelled.any():
        return (first + second).sum() * 0.0
    one, other = first[labelled].log_softmax(-1), second[labelled].log_softmax(-1)
    return ((one.exp() - other.exp()) * (one - other)).sum(-1).mean() / 2

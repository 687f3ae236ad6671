"""A linear-chain conditional random field: scores of label sequences on top of scores of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from model.runtime.crf import LinearChainCrf

if TYPE_CHECKING:
    from model.runtime.label_schemes import LabelScheme

# Not -inf: a gradient through a sum of nothing but -inf is not a number.
_FORBIDDEN: Final = -1e4


class CrfLayer(nn.Module):
    """Learned scores for a label at the start, for a label after another, and for a label at the end.

    A sequence's score is the sum of those, and of what the network gives each label. What the label scheme
    forbids is forbidden here as well, so that probability is shared among the sequences that decoding
    chooses from.

    Source: Lafferty, McCallum and Pereira 2001; Lample et al. 2016, arXiv:1603.01360, section 2.2.
    Shapes: B batch, W words, L labels.
    """

    may_follow: Tensor
    may_start: Tensor
    may_end: Tensor

    def __init__(self, scheme: LabelScheme) -> None:
        super().__init__()
        count = len(scheme.labels)
        self.start = nn.Parameter(torch.zeros(count))
        self.end = nn.Parameter(torch.zeros(count))
        self.transitions = nn.Parameter(torch.zeros(count, count))
        self.register_buffer("may_start", torch.from_numpy(scheme.may_start.copy()), persistent=False)
        self.register_buffer("may_end", torch.from_numpy(scheme.may_end.copy()), persistent=False)
        self.register_buffer("may_follow", torch.from_numpy(scheme.may_follow.copy()), persistent=False)

    def negative_log_likelihood(self, emissions: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        """Of the given sequences, each by itself.

        Args:
            emissions: [B, W, L], float32.
            labels: [B, W], int64, allowed by the scheme; anything at padding.
            mask: [B, W], bool; True = a word. Words come first; a row may be empty.

        Returns:
            [B]; 0 for an empty row.
        """
        start = self.start.masked_fill(~self.may_start, _FORBIDDEN)
        end = self.end.masked_fill(~self.may_end, _FORBIDDEN)
        transitions = self.transitions.masked_fill(~self.may_follow, _FORBIDDEN)
        labels = labels.masked_fill(~mask, 0)
        given = emissions.gather(2, labels[:, :, None]).squeeze(2)  # [B, W]
        score = start[labels[:, 0]] + given[:, 0]
        total = start + emissions[:, 0]  # [B, L]: log of the sum over all sequences that end so
        for index in range(1, emissions.shape[1]):
            here = mask[:, index]
            step = transitions[labels[:, index - 1], labels[:, index]] + given[:, index]
            score = score + step * here
            arriving = torch.logsumexp(total[:, :, None] + transitions, dim=1) + emissions[:, index]
            total = torch.where(here[:, None], arriving, total)
        last = labels.gather(1, mask.sum(1, keepdim=True).clamp(min=1) - 1).squeeze(1)
        return (torch.logsumexp(total + end, dim=1) - score - end[last]) * mask[:, 0]

    def learned(self) -> LinearChainCrf:
        """The scores in the form in which a bundle keeps them and decoding takes them."""
        scores = (self.start, self.end, self.transitions)
        return LinearChainCrf(*(score.detach().numpy().astype(np.float64) for score in scores))

"""Labelled text, and laying its spans over tokens."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

IGNORED_LABEL: Final = -100
"""Label id of tokens that the loss leaves out: special tokens and padding."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Span:
    """A labelled stretch of text; ``[start, end)`` in code points."""

    start: int
    end: int
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its spans, in order and without overlaps."""

    text: str
    spans: tuple[Span, ...]


def bio_labels(types: Iterable[str]) -> list[str]:
    """``O``, then ``B-X`` and ``I-X`` for each type, in the order given."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def count_spans(texts: Iterable[LabelledText]) -> dict[str, int]:
    """Spans by label, most frequent first."""
    counts: dict[str, int] = {}
    for text in texts:
        for span in text.spans:
            counts[span.label] = counts.get(span.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def align(spans: Sequence[Span], offsets: NDArray[np.int64], label_ids: dict[str, int]) -> list[int]:
    """Give each token its BIO label; a token that a span covers in part is labelled too.

    Args:
        spans: Ordered, without overlaps; labels without ``B-`` and ``I-``.
        offsets: [S, 2], code points of the same text; (x, x) = a token of no text.
        label_ids: ``B-X`` and ``I-X`` for every label, and ``O``.

    Returns:
        One label id a token; ``IGNORED_LABEL`` for tokens of no text.
    """
    label_of = [label_ids["O"] if start < end else IGNORED_LABEL for start, end in offsets.tolist()]
    for span in spans:
        covered = [
            index
            for index, (start, end) in enumerate(offsets.tolist())
            if start < span.end and end > span.start and start < end
        ]
        for rank, index in enumerate(covered):
            label_of[index] = label_ids[("B-" if rank == 0 else "I-") + span.label]
    return label_of

"""Gold spans against predicted ones: which belong together, and what is wrong with each pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from model.training.spans import Span


class Kind(StrEnum):
    """What is wrong with a pair of spans; nothing, if it is ``RIGHT``."""

    RIGHT = "right"
    BORDER = "border"
    TYPE = "type"
    BORDER_AND_TYPE = "border and type"
    MISSED = "missed"
    SPURIOUS = "spurious"


MISTAKES = tuple(kind for kind in Kind if kind is not Kind.RIGHT)


@dataclass(frozen=True, slots=True)
class Pair:
    """A gold span and the predicted one that is taken for it; one of the two may be missing."""

    gold: Span | None
    predicted: Span | None

    @property
    def kind(self) -> Kind:
        """Missed, spurious, or how the two differ."""
        if self.predicted is None:
            return Kind.MISSED
        if self.gold is None:
            return Kind.SPURIOUS
        same_label = self.gold.label == self.predicted.label
        if (self.gold.start, self.gold.end) == (self.predicted.start, self.predicted.end):
            return Kind.RIGHT if same_label else Kind.TYPE
        return Kind.BORDER if same_label else Kind.BORDER_AND_TYPE

    @property
    def start(self) -> int:
        """Where the first of the two begins."""
        return min(span.start for span in (self.gold, self.predicted) if span is not None)


def pair_spans(gold: Sequence[Span], predicted: Sequence[Span]) -> list[Pair]:
    """Pair the spans of one text, each with one of the other side at most.

    Those that overlap are paired: first those with the same borders, then the ones that share most, of the
    same label before others. So every span is in one pair: right, wrong in one way, missed or spurious.

    Args:
        gold: In any order, without overlaps among themselves.
        predicted: Likewise.
    """
    candidates = sorted(
        (
            (not _same_borders(one, other), -_shared(one, other), one.label != other.label, one, other)
            for one, other in _overlapping(gold, predicted)
        ),
    )
    partners: dict[Span, Span] = {}
    taken: set[Span] = set()
    for *_, one, other in candidates:
        if one not in partners and other not in taken:
            partners[one] = other
            taken.add(other)
    pairs = [Pair(span, partners.get(span)) for span in gold]
    pairs += [Pair(None, span) for span in predicted if span not in taken]
    return sorted(pairs, key=lambda pair: pair.start)


def _overlapping(gold: Sequence[Span], predicted: Sequence[Span]) -> Iterable[tuple[Span, Span]]:
    mine, theirs = sorted(gold), sorted(predicted)
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if _shared(mine[i], theirs[j]) > 0:
            yield mine[i], theirs[j]
        if mine[i].end <= theirs[j].end:
            i += 1
        else:
            j += 1


def _same_borders(one: Span, other: Span) -> bool:
    return (one.start, one.end) == (other.start, other.end)


def _shared(one: Span, other: Span) -> int:
    """Characters in both."""
    return min(one.end, other.end) - max(one.start, other.start)

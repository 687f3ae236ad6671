"""Span precision, recall and F1: exact borders and label, micro-averaged (as seqeval counts)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from model.training.spans import Span


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Counts of one label, or of all together."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Share of the predicted spans that are right, 0..1; 0 when nothing was predicted."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold spans that were found, 0..1; 0 when there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of the two, 0..1."""
        total = self.predicted + self.gold
        return 2 * self.correct / total if total else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Average:
    """Precision, recall and F1 averaged over labels, 0..1; the F1 is the mean of theirs."""

    precision: float
    recall: float
    f1: float


def score_spans(
    gold: Sequence[Sequence[Span]], predicted: Sequence[Sequence[Span]]
) -> tuple[Score, dict[str, Score]]:
    """Count exact matches text by text.

    Args:
        gold: Spans of each text.
        predicted: Spans found in the same texts, in the same order.

    Returns:
        The score over all labels, and that of each label that occurs in ``gold`` or ``predicted``.

    Raises:
        ValueError: The two differ in length.
    """
    pairs = [(set(g), set(p)) for g, p in zip(gold, predicted, strict=True)]
    labels = sorted({span.label for g, p in pairs for span in g | p})

    def count(label: str | None) -> Score:
        def kept(spans: set[Span]) -> set[Span]:
            return {span for span in spans if label is None or span.label == label}

        return Score(
            correct=sum(len(kept(g & p)) for g, p in pairs),
            predicted=sum(len(kept(p)) for _, p in pairs),
            gold=sum(len(kept(g)) for g, _ in pairs),
        )

    return count(None), {label: count(label) for label in labels}


def averages(per_label: Mapping[str, Score]) -> tuple[Average, Average]:
    """The macro average (each label alike) and the weighted one (each by its gold spans); 0 of none."""
    scores = list(per_label.values())
    gold = [score.gold for score in scores]
    return _mean(scores, [1] * len(scores)), _mean(scores, gold)


def _mean(scores: Sequence[Score], weights: Sequence[int]) -> Average:
    total = sum(weights) or 1
    weighted = list(zip(scores, weights, strict=True))
    return Average(
        precision=sum(score.precision * weight for score, weight in weighted) / total,
        recall=sum(score.recall * weight for score, weight in weighted) / total,
        f1=sum(score.f1 * weight for score, weight in weighted) / total,
    )


def score_summary(overall: Score, per_label: Mapping[str, Score]) -> dict[str, float | int]:
    """F1 of all and of each label in percent, rounded as a manifest keeps it."""
    return {
        "f1": round(100 * overall.f1, 2),
        "precision": round(100 * overall.precision, 2),
        "recall": round(100 * overall.recall, 2),
        "spans": overall.gold,
        **{f"f1_{label}": round(100 * score.f1, 2) for label, score in per_label.items()},
    }

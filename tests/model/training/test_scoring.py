"""Span scores by hand."""

import pytest

from model.training.scoring import score_spans
from model.training.spans import Span

A, B, C = Span(0, 2, "PER"), Span(3, 5, "LOC"), Span(3, 6, "LOC")


def test_counts_are_exact_matches_text_by_text() -> None:
    """A right span in the wrong text is wrong; a border off by one is wrong."""
    overall, per_label = score_spans([[A, B], [A]], [[A, C], [B]])
    assert (overall.correct, overall.predicted, overall.gold) == (1, 3, 3)
    assert overall.precision == overall.recall == overall.f1 == pytest.approx(1 / 3)
    assert per_label["PER"].recall == 0.5
    assert per_label["PER"].precision == 1.0
    assert per_label["LOC"].correct == 0


def test_nothing_found_scores_zero_and_nothing_to_find_too() -> None:
    """No division by zero, and no perfect score for an empty set."""
    overall, per_label = score_spans([[]], [[]])
    assert overall.f1 == overall.precision == overall.recall == 0.0
    assert per_label == {}


def test_unequal_lengths_are_an_error() -> None:
    """Scores of misaligned lists would mean nothing."""
    with pytest.raises(ValueError, match="zip"):
        score_spans([[A]], [])

"""Span scores by hand, and against seqeval."""

import warnings

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from seqeval.metrics import classification_report

from model.training.scoring import averages, score_spans
from model.training.spans import Span
from model.training.tag_schemes import entities_of_tags

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


TAGS = st.sampled_from(["O", "O", *(f"{part}-{label}" for part in "BIES" for label in ("PER", "LOC", "ORG"))])


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12), min_size=1, max_size=5))
def test_scores_are_those_of_seqeval(sentences: list[list[tuple[str, str]]]) -> None:
    """Of each label, micro, macro and weighted; over sequences most of which are valid in no scheme."""
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    overall, per_label = score_spans(*([_spans(tags) for tags in side] for side in (gold, predicted)))
    macro, weighted = averages(per_label)
    assume(per_label)  # seqeval fails on nothing at all
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of divisions by zero, for which it gives 0 as we do
        expected = classification_report(gold, predicted, output_dict=True, zero_division=0)
    ours = {**per_label, "micro avg": overall, "macro avg": macro, "weighted avg": weighted}
    assert ours.keys() == expected.keys()
    for name, score in ours.items():
        assert score.precision == pytest.approx(expected[name]["precision"])
        assert score.recall == pytest.approx(expected[name]["recall"])
        assert score.f1 == pytest.approx(expected[name]["f1-score"])
    assert {name: score.gold for name, score in per_label.items()} == {
        name: expected[name]["support"] for name in per_label
    }


def _spans(tags: list[str]) -> list[Span]:
    return [Span(run.first, run.last + 1, run.label) for run in entities_of_tags(tags)]

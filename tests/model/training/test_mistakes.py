"""Every span is in one pair, and each pair is wrong in one way."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.mistakes import Kind, Pair, pair_spans
from model.training.scoring import score_spans
from model.training.spans import Span


@pytest.mark.parametrize(
    ("predicted", "kind"),
    [
        (Span(3, 8, "LOC"), Kind.RIGHT),
        (Span(3, 7, "LOC"), Kind.BORDER),
        (Span(0, 9, "LOC"), Kind.BORDER),
        (Span(3, 8, "ORG"), Kind.TYPE),
        (Span(4, 9, "ORG"), Kind.BORDER_AND_TYPE),
    ],
)
def test_the_kind_says_what_differs(predicted: Span, kind: Kind) -> None:
    """Borders, label or both."""
    gold = Span(3, 8, "LOC")
    assert pair_spans([gold], [predicted]) == [Pair(gold, predicted)]
    assert Pair(gold, predicted).kind is kind


def test_spans_that_only_touch_are_missed_and_spurious() -> None:
    """They share no character."""
    assert [pair.kind for pair in pair_spans([Span(0, 3, "A")], [Span(3, 5, "A")])] == ["missed", "spurious"]


def test_of_two_halves_the_larger_is_the_match() -> None:
    """The other is spurious, so that counts add up."""
    gold, small, large = Span(0, 10, "A"), Span(0, 3, "A"), Span(4, 10, "B")
    assert pair_spans([gold], [small, large]) == [Pair(gold, large), Pair(None, small)]
    assert pair_spans([gold], [Span(0, 5, "B"), Span(5, 10, "A")])[0].predicted == Span(5, 10, "A")


def test_the_same_borders_come_before_a_larger_overlap() -> None:
    """A long wrong span does not take the place of a right one."""
    assert Pair(Span(0, 2, "A"), Span(0, 2, "A")) in pair_spans(
        [Span(0, 2, "A"), Span(2, 9, "A")], [Span(0, 2, "A"), Span(2, 8, "A")]
    )


@st.composite
def spans_of_a_text(draw: st.DrawFn) -> list[Span]:
    """Spans without overlaps, in any order."""
    cuts = sorted(draw(st.sets(st.integers(0, 20), max_size=8)))
    pairs = list(itertools.pairwise(cuts))
    kept = [pair for pair in pairs if draw(st.booleans())]
    return draw(st.permutations([Span(*pair, draw(st.sampled_from("AB"))) for pair in kept]))


@given(spans_of_a_text(), spans_of_a_text())
def test_counts_add_up(gold: list[Span], predicted: list[Span]) -> None:
    """To those of the scores: right ones are the correct ones, and nothing is counted twice or left out."""
    pairs = pair_spans(gold, predicted)
    assert Counter(pair.gold for pair in pairs if pair.gold) == Counter(gold)
    assert Counter(pair.predicted for pair in pairs if pair.predicted) == Counter(predicted)
    overall, _ = score_spans([gold], [predicted])
    assert sum(pair.kind is Kind.RIGHT for pair in pairs) == overall.correct
    unmatched = [pair for pair in pairs if pair.kind is Kind.MISSED]
    left = [pair for pair in pairs if pair.kind is Kind.SPURIOUS]
    for one in unmatched:
        for other in left:
            assert one.gold
            assert other.predicted
            assert min(one.gold.end, other.predicted.end) <= max(one.gold.start, other.predicted.start)

"""Order and score, against a plain reading of their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.ranking import LEXICAL_WEIGHT, mix, rank

Signals = tuple[list[float], list[float]]


@st.composite
def signals(draw: st.DrawFn) -> Signals:
    """Cosines and BM25 scores of the same one to twelve entries, with ties."""
    size = draw(st.integers(1, 12))
    dense = draw(st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=size, max_size=size))
    lexical = draw(st.lists(st.integers(0, 6).map(float), min_size=size, max_size=size))
    return dense, lexical


def plain_order(dense: list[float], lexical: list[float]) -> list[int]:
    """The mix worked out entry by entry, then a stable sort."""
    low, high, most = min(dense), max(dense), max(lexical)
    keys = []
    for cosine, words in zip(dense, lexical, strict=True):
        closeness = (cosine - low) / (high - low) if high > low else 0.0
        keys.append((1 - LEXICAL_WEIGHT) * closeness + LEXICAL_WEIGHT * (words / most) if most else closeness)
    return sorted(range(len(keys)), key=lambda position: -keys[position])


@given(signals(), st.integers(1, 15))
def test_order_equals_the_plain_definition(both: Signals, top_k: int) -> None:
    """The partial sort, with its ties at the cut, finds what a whole sort finds."""
    dense, lexical = both
    ranked = rank(np.asarray(dense), np.asarray(lexical), unrelated=0.0, top_k=top_k)
    assert ranked.positions.tolist() == plain_order(dense, lexical)[:top_k]


@given(signals(), st.floats(-1, 0.99))
def test_scores_fall_and_stay_within_the_best_cosine(both: Signals, unrelated: float) -> None:
    """Scaling over the bank must not lift anything: no score says more than the best cosine does."""
    dense, lexical = both
    scores = rank(np.asarray(dense), np.asarray(lexical), unrelated=unrelated, top_k=len(dense)).scores
    best = min(1.0, max(0.0, (max(dense) - unrelated) / (1 - unrelated)))
    assert ((scores >= 0) & (scores <= best + 1e-12)).all()
    assert (np.diff(scores) <= 0).all()
    assert scores.max() <= 1.0


def test_the_best_of_a_hopeless_bank_scores_low() -> None:
    """The fault this guards against: minmax gives the least bad entry 1.0."""
    ranked = rank(np.array([0.80, 0.79, 0.78]), np.array([0.0, 0.2, 0.0]), unrelated=0.78, top_k=1)
    assert ranked.scores[0] < 0.1


def test_without_words_in_common_the_cosine_alone_is_scored() -> None:
    """A query in the other language has no lexical signal; that says nothing against its hits."""
    ranked = rank(np.array([0.5, 0.9]), np.zeros(2), unrelated=0.0, top_k=2)
    assert ranked.positions.tolist() == [1, 0]
    assert ranked.scores.tolist() == pytest.approx([0.9, 0.5])


def test_one_entry_is_scored_by_its_cosine() -> None:
    """With one entry there is no spread to scale by."""
    assert rank(np.array([0.7]), np.array([3.0]), unrelated=0.4, top_k=5).scores.tolist() == pytest.approx(
        [0.5]
    )


def test_equal_cosines_leave_the_order_to_the_words() -> None:
    """Otherwise a division by no spread would decide it."""
    assert mix(np.array([0.7, 0.7]), np.array([1.0, 2.0])).argmax() == 1


def test_no_entries_rank_to_nothing() -> None:
    """An empty bank is not an error."""
    assert rank(np.zeros(0), np.zeros(0), unrelated=0.0, top_k=3).positions.size == 0

"""Scores and the choice of candidates, against a plain reading of their definitions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.ranking import LEXICAL_WEIGHT, closeness, leaders, lifted

CLOSE = st.floats(-4, 1)
SHARE = st.floats(0, 1)


def score(close: float, share: float) -> float:
    """Score one entry."""
    return float(lifted(np.array(close), np.array(share)))


@given(CLOSE, CLOSE, SHARE, SHARE)
def test_more_of_either_never_lowers_a_score(close: float, closer: float, share: float, more: float) -> None:
    """An entry that is better in every respect must stand above."""
    low, high = sorted([close, closer])
    few, many = sorted([share, more])
    assert score(low, few) <= score(high, few) + 1e-12
    assert score(low, few) <= score(low, many) + 1e-12


@given(CLOSE, SHARE)
def test_words_lift_towards_one_and_never_past_it(close: float, share: float) -> None:
    """Nor do they lower anything: a query in the other language shares no words, which says nothing."""
    assert close <= score(close, share) <= max(close, 1.0)
    assert score(close, 0.0) == close
    assert score(1.0, share) == 1.0


@pytest.mark.parametrize(
    ("close", "share", "expected"), [(0.5, 1.0, 0.5875), (0.0, 0.5, 0.175), (-1, 1, -0.65)]
)
def test_the_lift_is_the_documented_one(close: float, share: float, expected: float) -> None:
    """Worked out by hand for the weight of 0.35 that was measured."""
    assert LEXICAL_WEIGHT == 0.35
    assert score(close, share) == pytest.approx(expected)


def test_closeness_is_anchored_at_unrelated_texts() -> None:
    """So that a score means the same for a model whose cosines start at 0.8 as for one whose start at 0."""
    assert closeness(np.array([0.8, 0.9, 1.0, 0.6]), 0.8).tolist() == pytest.approx([0.0, 0.5, 1.0, -1.0])


@given(st.lists(st.integers(0, 5).map(lambda n: n / 5), max_size=12), st.integers(1, 15))
def test_leaders_are_the_highest_with_their_ties(keys: list[float], count: int) -> None:
    """The partial sort finds what a whole sort finds; who of equals comes first is settled by the caller."""
    last = sorted(keys, reverse=True)[:count][-1] if keys else 0.0
    expected = [position for position, key in enumerate(keys) if key >= last]
    assert leaders(np.asarray(keys), count).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.floats(-1, 1)), min_size=1, max_size=20), st.integers(1, 21)
)
def test_rounding_never_hides_a_leader(rounded: list[tuple[int, float]], count: int) -> None:
    """Whatever is truly among the best is kept, though every key is off by up to the tolerance."""
    true = np.array([key / 100 for key, _ in rounded])
    seen = true + np.array([error for _, error in rounded]) * 0.01
    best = set(np.argsort(-true, kind="stable")[:count].tolist())
    assert best <= set(leaders(seen, count, tolerance=0.01 + 1e-12).tolist())


def test_what_must_not_be_found_is_no_leader() -> None:
    """Even where there are fewer others than asked for."""
    assert leaders(np.array([0.1, -np.inf, 0.3]), 3).tolist() == [0, 2]
    assert leaders(np.array([0.1, -np.inf, -np.inf]), 2, tolerance=0.5).tolist() == [0]
    assert leaders(np.zeros(0), 3).size == 0


@pytest.mark.parametrize("count", [1, 7, 300, 4_999])
@pytest.mark.parametrize("order", ["mixed", "rising", "falling", "all equal"])
def test_leaders_of_many_are_those_of_a_whole_sort(count: int, order: str) -> None:
    """Most are passed over by the highest of their neighbours; wherever the best stand, none may be."""
    keys = np.random.default_rng(count).integers(0, 900, 5_000) / 900
    keys = {"mixed": keys, "rising": np.sort(keys), "falling": np.sort(keys)[::-1]}.get(order, keys * 0)
    last = np.sort(keys)[-count]
    assert leaders(keys, count).tolist() == np.flatnonzero(keys >= last).tolist()
    keys[::2] = -np.inf
    least = max(np.sort(keys)[-count], 0.0)
    assert leaders(keys, count).tolist() == np.flatnonzero(keys >= least).tolist()

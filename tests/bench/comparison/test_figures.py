"""Quantiles, spreads and ratios on numbers whose answers are known."""

import pytest
from comparison.figures import Spread, quantile, ratio, readable, spread


def test_a_quantile_is_an_observed_value() -> None:
    """Nearest rank: nothing is read in between two latencies that nobody saw."""
    values = [4.0, 1.0, 3.0, 2.0]
    assert [quantile(values, share) for share in (0, 0.25, 0.26, 0.5, 0.75, 0.99, 1)] == [1, 1, 2, 2, 3, 4, 4]


def test_p99_of_a_hundred_is_the_second_greatest() -> None:
    """0.99 * 100 is a little above 99 in floats and must not become the 100th."""
    assert quantile([float(value) for value in range(1, 101)], 0.99) == 99


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_there_is_no_quantile_of_nothing(values: list[float], share: float) -> None:
    """A contestant that answered nothing has no latency, not one of 0."""
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, share)


def test_rounds_have_a_median_and_a_range() -> None:
    """The order of rounds does not matter."""
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)


def test_a_ratio_is_taken_round_by_round() -> None:
    """A slow machine in the second round slows both; the ratio stays what it is."""
    assert ratio([800.0, 80.0, 400.0], [100.0, 10.0, 50.0]) == Spread(8.0, 8.0, 8.0)
    assert ratio([10.0, 30.0], [10.0, 10.0]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.parametrize(("ours", "theirs"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0])])
def test_a_ratio_needs_rounds_of_both(ours: list[float], theirs: list[float]) -> None:
    """Else a round that failed would shift all others against each other."""
    with pytest.raises(ValueError, match=r"round|ratio"):
        ratio(ours, theirs)


@pytest.mark.parametrize(
    ("value", "written"),
    [(1234.56, "1,235"), (123.4, "123"), (12.34, "12.3"), (1.0456, "1.05"), (0.01234, "0.0123"), (0.0, "0")],
)
def test_three_digits_are_shown(value: float, written: str) -> None:
    """More would claim an accuracy that no round has."""
    assert readable(value) == written


def test_a_spread_of_one_round_is_a_number() -> None:
    """A range of nothing is not shown."""
    assert str(Spread(2.0, 2.0, 2.0)) == "2.00"
    assert str(Spread(2.0, 1.5, 210.0)) == "2.00 (1.50 to 210)"

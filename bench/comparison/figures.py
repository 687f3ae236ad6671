"""What lists of measured numbers come to: quantiles, medians with their spread, ratios."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Spread:
    """Several rounds of one measurement.

    Attributes:
        median: of the rounds.
        low, high: least and greatest of them.
    """

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Three significant digits, with the spread where there is one."""
        if self.low == self.high:
            return readable(self.median)
        return f"{readable(self.median)} ({readable(self.low)} to {readable(self.high)})"


def readable(value: float) -> str:
    """Write a number with three significant digits and no exponent; whole from 100 on."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least of ``values`` that at least ``share`` of them do not exceed (nearest rank).

    An observed value, never one in between: a p99 of twenty latencies is the worst of them.

    Raises:
        ValueError: no values, or a share outside 0..1.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError(f"no quantile {share} of {len(values)} values")
    rank = math.ceil(share * len(values) - 1e-9)  # 0.99 * 100 is a little more than 99 in floats
    return sorted(values)[max(rank, 1) - 1]


def spread(values: Sequence[float]) -> Spread:
    """Median and range of the rounds.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no rounds")
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """How many times theirs ours is, round by round.

    Both of a pair were measured within moments of each other, so what slowed the machine down meanwhile
    slowed both; the ratio of two medians would not know.

    Args:
        ours: by round.
        theirs: of the same rounds, above 0.

    Raises:
        ValueError: different numbers of rounds, none, or a round in which theirs is not above 0.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds beside {len(theirs)}")
    if any(value <= 0 for value in theirs):
        raise ValueError("a ratio to nothing")
    return spread([our / their for our, their in zip(ours, theirs, strict=True)])

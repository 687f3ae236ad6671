"""Scores through a bundle's calibration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.runtime.bundle import ScoreCalibration
from model.runtime.calibration import AS_IT_IS, calibrated


def test_an_entity_is_as_sure_as_its_least_sure_word() -> None:
    """Without a line of its own."""
    assert calibrated(np.array([0.9, 0.6, 0.99]), AS_IT_IS) == pytest.approx(0.6)


def test_the_line_goes_through_the_log_odds() -> None:
    """By hand: odds of 4 to 1, to the power of a half, times e."""
    odds = 4**0.5 * np.e
    found = calibrated(np.array([0.8]), ScoreCalibration(slope=0.5, intercept=1.0))
    assert found == pytest.approx(odds / (1 + odds))


@given(st.lists(st.floats(0, 1), min_size=2, max_size=2).map(sorted), st.floats(0.01, 10), st.floats(-20, 20))
def test_order_and_range_are_kept(scores: list[float], slope: float, intercept: float) -> None:
    """So that a threshold cuts the same spans, elsewhere; 0 and 1 included."""
    line = ScoreCalibration(slope=slope, intercept=intercept)
    low, high = (calibrated(np.array([score]), line) for score in scores)
    assert 0.0 <= low <= high <= 1.0

"""Scores and the share that is right: measured by hand, and fitted back from known lines."""

from __future__ import annotations

import numpy as np
import pytest

from model.runtime.bundle import ScoreCalibration
from model.runtime.tagging import Entity
from model.training.reliability import (
    Judged,
    TooFewSpansError,
    bins_of,
    calibration_error,
    fit_calibration,
    judge,
)
from model.training.spans import LabelledText, Span


def drawn(calibration: ScoreCalibration, count: int) -> Judged:
    """Spans whose chance to be right is exactly what ``calibration`` makes of their scores."""
    rng = np.random.default_rng(11)
    scores = rng.uniform(0.3, 0.999, count)
    chance = Judged(scores, np.zeros(count, dtype=np.bool_)).calibrated(calibration).scores
    return Judged(scores, rng.uniform(size=count) < chance)


def test_a_span_is_right_with_its_borders_and_label() -> None:
    """One character or another label, and it is wrong."""
    texts = [LabelledText("Tim Cook", (Span(0, 8, "PER"),)), LabelledText("Paris", (Span(0, 5, "LOC"),))]
    found = [
        [Entity(0, 8, "PER", 0.9), Entity(0, 3, "PER", 0.8)],
        [Entity(0, 5, "ORG", 0.7), Entity(0, 5, "LOC", 0.6)],
    ]
    judged = judge(found, texts)
    assert judged.scores.tolist() == [0.9, 0.8, 0.7, 0.6]
    assert judged.right.tolist() == [True, False, False, True]


def test_the_error_is_the_mean_distance_of_score_and_share() -> None:
    """By hand: two bins, of three spans and one."""
    judged = Judged(np.array([0.95, 0.95, 0.92, 0.55]), np.array([True, False, True, True]))
    assert [(each.spans, each.right) for each in bins_of(judged)] == [(1, 1.0), (3, pytest.approx(2 / 3))]
    assert calibration_error(judged) == pytest.approx(3 / 4 * (0.94 - 2 / 3) + 1 / 4 * 0.45)


def test_a_score_of_one_falls_into_the_last_bin() -> None:
    """It would make a bin of its own."""
    judged = Judged(np.array([1.0, 0.99]), np.array([True, True]))
    assert [each.spans for each in bins_of(judged)] == [2]


def test_nothing_found_has_no_error() -> None:
    """No division by zero."""
    assert calibration_error(Judged(np.zeros(0), np.zeros(0, dtype=np.bool_))) == 0.0


@pytest.mark.parametrize(("slope", "intercept"), [(0.7, -0.9), (1.0, 0.0), (1.5, 0.4)])
def test_the_line_that_made_the_data_is_found_again(slope: float, intercept: float) -> None:
    """Within what 20,000 draws leave open."""
    wanted = ScoreCalibration(slope=slope, intercept=intercept)
    judged = drawn(wanted, 20_000)
    fitted = fit_calibration(judged)
    assert fitted.slope == pytest.approx(slope, abs=0.05)
    assert fitted.intercept == pytest.approx(intercept, abs=0.08)
    assert calibration_error(judged.calibrated(fitted)) < 0.015


def test_scores_close_to_one_do_not_lead_the_fit_astray() -> None:
    """Most scores of a real tagger: Newton's full steps run away there (slope 4815 was seen)."""
    rng = np.random.default_rng(4)
    scores = np.concatenate([np.full(700, 0.99), rng.uniform(0.4, 0.99, 300), np.full(20, 1.0 - 1e-9)])
    judged = Judged(scores, rng.uniform(size=1020) < 0.8 * scores)
    fitted = fit_calibration(judged)
    assert 0.1 < fitted.slope < 2
    assert calibration_error(judged.calibrated(fitted)) < calibration_error(judged)


@pytest.mark.parametrize("right", [[True] * 150, [False] * 150, [True, False] * 20])
def test_too_little_to_learn_from_is_refused(right: list[bool]) -> None:
    """A line through nothing would be written as if it were one."""
    with pytest.raises(TooFewSpansError, match="at least 100"):
        fit_calibration(Judged(np.full(len(right), 0.9), np.array(right)))


def test_scores_that_mislead_are_refused() -> None:
    """A falling line would turn every threshold around."""
    scores = np.concatenate([np.full(200, 0.99), np.full(200, 0.5)])
    with pytest.raises(TooFewSpansError, match="less it is right"):
        fit_calibration(Judged(scores, np.array([False] * 190 + [True] * 210)))

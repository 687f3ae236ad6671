"""Scores that mean what they say: of the spans with score s, a share of s is right.

A raw score is a mean of label probabilities, which a fine-tuned network gives too high. A line through its
log-odds corrects that: the order of scores stays, so a threshold still cuts the same spans, elsewhere.

Source: Platt 1999, "Probabilistic outputs for support vector machines".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import ScoreCalibration

_LEAST_ODDS = 1e-6  # scores are kept this far from 0 and 1, whose log-odds are infinite


def calibrated(score: float, calibration: ScoreCalibration) -> float:
    """The share of spans of this raw score that are right; both 0..1."""
    log_odds = calibration.slope * float(log_odds_of(np.array([score]))[0]) + calibration.intercept
    return float(1.0 / (1.0 + np.exp(-log_odds)))


def log_odds_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Finite log-odds of scores from 0 to 1."""
    inside = np.clip(scores, _LEAST_ODDS, 1.0 - _LEAST_ODDS)
    log_odds: NDArray[np.float64] = np.log(inside / (1.0 - inside))
    return log_odds

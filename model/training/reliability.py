"""Whether entity scores mean what they say, and the calibration that makes them.

A span is right if its borders and label are those of a labelled one. Needs no torch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from model.runtime.bundle import ScoreCalibration
from model.runtime.calibration import AS_IT_IS, log_odds_of, share_right
from model.training.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from model.runtime.bundle import Bundle
    from model.runtime.tagging import Entity
    from model.training.spans import LabelledText

LEAST_SPANS: Final = 100
"""Fewer predicted spans make no calibration."""

_STEPS: Final = 100
_ENOUGH: Final = 1e-10
# Pulls towards scores as they are; keeps the line finite where scores part right from wrong completely.
_PRIOR: Final = 1.0
_IDENTITY: Final = np.array([1.0, 0.0])


class TooFewSpansError(ValueError):
    """Too little was found, or all of it right or all wrong."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """Spans that a tagger found, judged; n spans.

    Attributes:
        scores: [n] float64, 0..1.
        right: [n] bool.
    """

    scores: NDArray[np.float64]
    right: NDArray[np.bool_]

    def calibrated(self, calibration: ScoreCalibration) -> Judged:
        """The same spans, with calibrated scores."""
        return Judged(share_right(self.scores, calibration), self.right)


@dataclasses.dataclass(frozen=True, slots=True)
class Bin:
    """Spans of like scores: how many, their mean score, and the share that is right."""

    spans: int
    score: float
    right: float


def judge(found: Sequence[Sequence[Entity]], texts: Sequence[LabelledText]) -> Judged:
    """Compare what was found in each text with its labels."""
    scores, right = [], []
    for entities, labelled in zip(found, texts, strict=True):
        wanted = set(labelled.spans)
        for entity in entities:
            scores.append(entity.score)
            right.append(Span(entity.start, entity.end, entity.label) in wanted)
    return Judged(np.array(scores, dtype=np.float64), np.array(right, dtype=np.bool_))


def bins_of(judged: Judged, count: int = 10) -> list[Bin]:
    """Spans by score, in ``count`` bins of equal width from 0 to 1; empty ones are left out."""
    places = np.minimum((judged.scores * count).astype(np.int64), count - 1)
    return [
        Bin(int(own.sum()), float(judged.scores[own].mean()), float(judged.right[own].mean()))
        for own in (places == place for place in range(count))
        if own.any()
    ]


def calibration_error(judged: Judged, count: int = 10) -> float:
    """Expected calibration error: by how much scores miss the share that is right, on average; 0..1.

    Source: Guo et al. 2017, arXiv:1706.04599, equation 3.
    """
    bins = bins_of(judged, count)
    total = sum(each.spans for each in bins)
    return sum(each.spans * abs(each.score - each.right) for each in bins) / total if total else 0.0


def without_calibration(bundle: Bundle) -> Bundle:
    """The same tagger with scores as ``calibrate`` wants them."""
    return dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"calibration": AS_IT_IS}))


def calibrate(sets: Mapping[str, Judged]) -> tuple[ScoreCalibration, dict[str, dict[str, float]]]:
    """A calibration for all sets together, and what it does for each.

    Args:
        sets: By name; see ``fit_calibration`` for their scores.

    Returns:
        The calibration, and for each set its ``spans`` and its ``calibration_error``, ``ece_before`` and
        ``ece_after``; a manifest's ``quality`` has them as ``calibration``.

    Raises:
        TooFewSpansError: see ``fit_calibration``.
    """
    calibration = fit_calibration(
        Judged(
            np.concatenate([judged.scores for judged in sets.values()]),
            np.concatenate([judged.right for judged in sets.values()]),
        )
    )
    return calibration, {
        name: {
            "spans": len(judged.scores),
            "ece_before": round(calibration_error(judged), 3),
            "ece_after": round(calibration_error(judged.calibrated(calibration)), 3),
        }
        for name, judged in sets.items()
    }


def fit_calibration(judged: Judged) -> ScoreCalibration:
    """The likeliest line through the log-odds of the scores (logistic regression, by Newton's method).

    Args:
        judged: spans of texts that the model was not trained on; scores not calibrated, which means by
            ``calibration.AS_IT_IS``.

    Raises:
        TooFewSpansError: fewer than ``LEAST_SPANS``, or all right, or all wrong, or the surer a span is the
            less it is right.
    """
    count = len(judged.scores)
    if count < LEAST_SPANS or judged.right.all() or not judged.right.any():
        raise TooFewSpansError(
            f"{count} spans were found, {int(judged.right.sum())} of them right; a calibration takes at "
            f"least {LEAST_SPANS}, some right and some wrong"
        )
    features = np.stack([log_odds_of(judged.scores), np.ones(count)], axis=1)
    signs = np.where(judged.right, 1.0, -1.0)

    def loss(line: NDArray[np.float64]) -> float:
        pull = _PRIOR / 2 * float(((line - _IDENTITY) ** 2).sum())
        return float(np.logaddexp(0.0, -signs * (features @ line)).sum()) + pull

    line = _IDENTITY
    for _ in range(_STEPS):
        share = 1.0 / (1.0 + np.exp(-np.clip(features @ line, -500.0, 500.0)))
        gradient = features.T @ (share - judged.right) + _PRIOR * (line - _IDENTITY)
        curvature = (features * (share * (1.0 - share))[:, None]).T @ features + _PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(line - step) > loss(line):  # far from the least loss, a full step may overshoot it
            step = step / 2
        line = line - step
        if float(np.abs(step).max()) < _ENOUGH:
            break
    if line[0] <= 0:
        raise TooFewSpansError("the surer a span is, the less it is right: scores tell nothing here")
    return ScoreCalibration(slope=round(float(line[0]), 4), intercept=round(float(line[1]), 4))

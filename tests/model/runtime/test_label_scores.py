"""Scores are those of the textbook, and stay finite where it overflows."""

import numpy as np
import pytest

from model.runtime.label_scores import label_scores


def test_functions_are_those_of_the_textbook() -> None:
    """Each row by itself."""
    logits = np.array([[1.0, -2.0, 0.5], [0.0, 0.0, 3.0]], np.float32)
    wide = logits.astype(np.float64)
    powers = np.exp(wide)
    np.testing.assert_allclose(label_scores(logits, "softmax"), powers / powers.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(label_scores(logits, "sigmoid"), 1 / (1 + np.exp(-wide)))
    np.testing.assert_array_equal(label_scores(logits, "none"), wide)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_large_logits_of_either_sign_stay_scores(activation: str) -> None:
    """A maximum taken by absolute value, or a bare exponential, would give NaN."""
    logits = np.array([[-2e4, -3e4], [2e4, -2e4], [3e38, 0.0]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        scores = label_scores(logits, activation)  # type: ignore[arg-type]
    assert np.isfinite(scores).all()
    assert ((scores >= 0) & (scores <= 1)).all()
    assert scores[1].tolist() == [1.0, 0.0]

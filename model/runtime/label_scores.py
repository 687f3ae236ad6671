"""From a classifier's logits to scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import LabelActivation


def label_scores(logits: NDArray[np.float32], activation: LabelActivation) -> NDArray[np.float64]:
    """Scores of the labels of each text, as transformers' text-classification pipeline has them.

    Args:
        logits: [n, L], finite.
        activation: ``softmax`` over the labels, of which one is right; ``sigmoid`` of each by itself, where
            any number may be; ``none`` for the logits themselves.

    Returns:
        [n, L]; in [0, 1] but for ``none``.
    """
    wide = logits.astype(np.float64)
    match activation:
        case "softmax":
            # Less the largest, so that no exponential overflows.
            powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
        case "sigmoid":
            return np.exp(-np.logaddexp(0.0, -wide))
        case "none":
            return wide

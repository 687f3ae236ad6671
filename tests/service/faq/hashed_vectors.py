"""Vectors for tests: the same for the same text, closer for texts that share letters."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 24


def hashed_vectors(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return [T, DIMENSIONS], unit length: one random direction per character, and one of all texts."""
    vectors = np.zeros((len(texts), DIMENSIONS))
    for row, text in enumerate(texts):
        vectors[row] = 0.3 * _direction("")
        for char in text.casefold():
            vectors[row] += _direction(char)
        vectors[row] /= np.linalg.norm(vectors[row])
    return vectors.astype(np.float32)


def _direction(char: str) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(char.encode()).digest()[:8])
    return np.random.default_rng(seed).standard_normal(DIMENSIONS)

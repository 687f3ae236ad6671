"""Puts entries in order from their cosines and their BM25 scores; pure functions over arrays.

Order and score are two things. The order comes from a weighted mix of both signals, each scaled over the
bank; it was measured against rank fusion, which let BM25 push right answers down. Such a mix gives some
entry about 1 for every query, answerable or not, so the reported score is the mix put back on the scale of
the query's own cosines, and that scale is anchored where the model puts texts that have nothing to do with
each other.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEXICAL_WEIGHT: Final = 0.2


@dataclass(frozen=True, slots=True)
class Ranked:
    """The best entries of one query, best first; K of them.

    Attributes:
        positions: [K], which entries.
        scores: [K] in 0..1, falling.
    """

    positions: NDArray[np.intp]
    scores: NDArray[np.float64]


def mix(
    dense: NDArray[np.float64], lexical: NDArray[np.float64], lexical_weight: float = LEXICAL_WEIGHT
) -> NDArray[np.float64]:
    """Combine both signals of one query into the key that entries are ordered by.

    Args:
        dense: [N], cosines.
        lexical: [N], BM25 scores, not negative.
        lexical_weight: the share of the lexical signal, 0..1.

    Returns:
        [N] in 0..1: (1 - w) * (cosine scaled to the bank's lowest and highest) + w * (BM25 / the bank's
        highest). Where no entry has a word of the query, or the cosines are all the same, the other signal
        decides alone.
    """
    spread = _spread(dense)
    closeness = (dense - dense.min(initial=np.inf)) / spread if spread > 0 else np.zeros_like(dense)
    highest = float(lexical.max(initial=0.0))
    if highest <= 0:
        return closeness
    return (1 - lexical_weight) * closeness + lexical_weight * (lexical / highest)


def rank(
    dense: NDArray[np.float64],
    lexical: NDArray[np.float64],
    *,
    unrelated: float,
    top_k: int,
    lexical_weight: float = LEXICAL_WEIGHT,
) -> Ranked:
    """Order the entries of one query and score the best ``top_k``.

    The score is ``(c - unrelated) / (1 - unrelated)``, held within 0..1, with ``c`` the entry's place in
    the mix laid over the query's own range of cosines: the best mix there can be gets the best cosine of
    the bank, no more. So 0 says no closer than unrelated texts, 1 the same text, and it falls along the
    list.

    Args:
        dense: [N], cosines.
        lexical: [N], BM25 scores, not negative.
        unrelated: the model's cosine for unrelated texts, below 1.
        top_k: at least 1; more than N gives N.
        lexical_weight: the share of the lexical signal in the mix, 0..1.

    Returns:
        Ties keep the order of the entries.
    """
    key = mix(dense, lexical, lexical_weight)
    positions = _best(key, top_k)
    cosines = dense.min(initial=1.0) + _spread(dense) * key[positions]
    scores = np.clip((cosines - unrelated) / (1 - unrelated), 0.0, 1.0)
    return Ranked(positions, scores)


def _spread(dense: NDArray[np.float64]) -> float:
    return float(np.ptp(dense)) if dense.size else 0.0


def _best(key: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return the positions of the ``count`` highest, best first, equal ones by position."""
    if count < key.size:
        # Everything that ties with the last place is kept until the sort has settled who comes first.
        threshold = np.partition(key, key.size - count)[key.size - count]
        candidates = np.flatnonzero(key >= threshold)
    else:
        candidates = np.arange(key.size)
    return candidates[np.argsort(-key[candidates], kind="stable")][:count]

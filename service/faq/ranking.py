"""Puts entries in order by closeness of meaning and words shared with the query; pure functions over arrays.

Both signals are put on scales that do not depend on the other entries: closeness is the cosine with the
model's unrelated texts as 0, and the share says how much of the query's words an entry has, weighted by how
rare they are. Words then lift an entry towards 1, the more the less close it is:

    score = closeness + 0.35 * share * (1 - closeness)^2

So a sure match by meaning is hardly moved, and a score is never changed by what else is in the collection or
by a filter, as it is where signals are scaled to the lowest and highest of the bank. Rank fusion and such
scaling were measured as well, and let words push right answers down; with closeness alone right more often,
this form with its weight was chosen on half the queries of three evaluation sets and two models, and is
never below closeness alone on either half. Weights from 0.2 to 0.4 all hold there.
"""

from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", float, NDArray[np.float32])

LEXICAL_WEIGHT: Final = 0.35

# Runs of keys for each place that is sought: the more, the fewer keys are left to choose from.
_RUNS: Final = 32

# What a word's presence in the answer alone counts for; answers are long, and hold many words by the way.
ANSWER_WORD: Final = 0.5


def closeness(cosines: Numbers, unrelated: float) -> Numbers:
    """Return the cosines with ``unrelated``, the model's cosine for unrelated texts, as 0, and 1 as 1.

    Args:
        cosines: one or an array of any shape.
        unrelated: below 1.

    Returns:
        Of the same shape, at most 1; below 0 for texts further apart than unrelated ones.
    """
    return (cosines - unrelated) / (1 - unrelated)


def lifted(close: Numbers, share: Numbers) -> Numbers:
    """Return the score of a hybrid search, not yet held within 0 and 1.

    Rises with either argument.

    Args:
        close: as `closeness` gives them.
        share: of the same shape, 0..1.
    """
    # Held at 1 below 0, where the square would make less close entries gain more than they lost.
    room = np.minimum(1.0 - close, 1.0)
    score: Numbers = close + LEXICAL_WEIGHT * share * room * room
    return score


def leaders(keys: NDArray[np.floating[Any]], count: int, tolerance: float = 0.0) -> NDArray[np.intp]:
    """Return the positions that may be among the ``count`` highest, in rising order.

    Args:
        keys: [N], each within ``tolerance`` of its true value; -inf for what must not be found.
        count: at least 1.
        tolerance: not negative.

    Returns:
        All that can be among the highest, those that tie with the last place included.
    """
    threshold = -np.inf
    if count < keys.size:
        threshold = _highest(keys, count) - 2 * tolerance
    return np.flatnonzero((keys >= threshold) & (keys > -np.inf))


def _highest(keys: NDArray[np.floating[Any]], count: int) -> float:
    """Return the ``count``-th highest key; -inf if fewer are above that."""
    # Each run's highest is a key, so what is sought is no lower than the ``count``-th highest of those. That
    # leaves a handful to choose from; choosing among all takes ten times as long.
    runs = np.arange(0, keys.size, max(1, keys.size // (_RUNS * count)))
    tops = np.maximum.reduceat(keys, runs)
    least = np.partition(tops, tops.size - count)[tops.size - count]
    some = keys[(keys >= least) & (keys > -np.inf)]
    return float(np.partition(some, some.size - count)[some.size - count]) if some.size >= count else -np.inf

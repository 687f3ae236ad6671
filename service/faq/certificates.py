"""When a few candidates are enough: what an entry that was not looked at could score at most.

In the manner of Fagin's threshold algorithm. An entry's score rises with its cosines and with its share of
the query's words; two lists in order of cosine and the number of entries that hold a word bound what is left.

Source: Fagin, Lotem and Naor 2003, "Optimal aggregation algorithms for middleware", section 4.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.faq.index import Hit, Mode
from service.faq.lexical import K1, B, idf
from service.faq.ranking import closeness, lifted

# A server's cosines are float32, and summed in another order than ours.
_ROUNDING: Final = 1e-5


@dataclass(frozen=True, slots=True)
class NearestList:
    """A list of the rows nearest to a query.

    Attributes:
        lowest: cosine of the last row; meaningless in an empty list.
        complete: there are no more rows.
    """

    lowest: float
    complete: bool


@dataclass(frozen=True, slots=True)
class WordPlan:
    """Which words of a query all holders are fetched of, the rarest first.

    Attributes:
        chosen: those words.
        share_left: 0..1, at most so much of the query's words an entry has that holds none of them.
        bm25_left: the same of BM25, from 0.
    """

    chosen: tuple[str, ...]
    share_left: float
    bm25_left: float


NO_PLAN: Final = WordPlan((), 1.0, math.inf)
"""Nobody knows who holds the query's words."""


def most_dense(phrasings: NearestList, wholes: NearestList, *, whole_of_each: bool) -> float:
    """Return the highest mean of cosines that an entry in neither list can have; -inf if there is no entry.

    Args:
        phrasings: rows of questions and alternates.
        wholes: rows of question and answer.
        whole_of_each: every entry has a row among the latter; of one that has none, the question stands in.
    """
    if phrasings.complete:
        return -math.inf
    if not whole_of_each:
        both = phrasings.lowest if wholes.complete else (phrasings.lowest + wholes.lowest) / 2
        return max(phrasings.lowest, both) + _ROUNDING
    return -math.inf if wholes.complete else (phrasings.lowest + wholes.lowest) / 2 + _ROUNDING


def plan_words(holding: Mapping[str, int], entries: int, mean_length: float, budget: int) -> WordPlan:
    """Choose words whose holders are few enough to be fetched.

    Args:
        holding: by word of the query, how many entries hold it.
        entries: enabled ones of the collection.
        mean_length: of their texts, in words.
        budget: holders that may be fetched.
    """
    chosen: list[str] = []
    left: list[float] = []
    squares = 0.0
    fetched = 0
    for count, word in sorted((count, word) for word, count in holding.items()):
        weight = idf(entries, count)
        squares += weight**2
        # Rarest first: once one is too much, all that follow are.
        if not left and fetched + count <= budget:
            fetched += count
            if count:
                chosen.append(word)
        else:
            left.append(weight)
    # However often an entry holds a word: it is then at least as long, if not longer than the others.
    saturation = 1 / (1 + K1 * B / mean_length) if mean_length else 0.0
    return WordPlan(
        chosen=tuple(chosen),
        share_left=sum(weight**2 for weight in left) / squares if squares else 0.0,
        bm25_left=sum(left) * saturation,
    )


def proven(
    hits: Sequence[Hit], top_k: int, mode: Mode, unrelated: float, *, dense_left: float, words: WordPlan
) -> bool:
    """Tell whether no entry that was not looked at belongs among ``hits``.

    Args:
        hits: best first, at most ``top_k``, of all that was looked at.
        top_k: how many were wanted.
        mode: what decided their order.
        unrelated: the model's cosine for unrelated texts.
        dense_left: `most_dense`.
        words: all holders of the words chosen were looked at.
    """
    if dense_left == -math.inf:
        return True
    if mode == "lexical":
        if words.bm25_left == 0:
            return True
        return len(hits) == top_k and hits[-1].lexical >= words.bm25_left + _ROUNDING
    if len(hits) < top_k:
        return False
    last = hits[-1]
    if mode == "dense":
        return last.dense >= dense_left
    # Not the hit's own score, which is held within 0 and 1.
    worst = lifted(closeness(last.dense, unrelated), last.share)
    return bool(worst >= lifted(closeness(min(1.0, dense_left), unrelated), words.share_left))

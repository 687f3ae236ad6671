"""From queries to hits in Milvus: candidates are read until nothing better is left, or a bound ends it."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.faq.certificates import NO_PLAN, WordPlan, most_dense, plan_words, proven
from service.faq.filters import Filter
from service.faq.index import FaqIndex, Hit, Mode, WordStatistics
from service.faq.lexical import lexical_terms
from service.faq.milvus_candidates import MilvusCandidates, Moment
from service.faq.milvus_schema import MAX_ROWS_A_QUERY

# Queries whose first candidates are read together.
_BLOCK: Final = 16
# Rows of each kind of vectors, and holders of words, that are looked at first and at most; times what from
# one step to the next.
_FIRST_ROWS: Final = 64
_MOST_ROWS: Final = 1_024
_FIRST_HOLDERS: Final = 128
_MOST_HOLDERS: Final = 2_048
_STEP: Final = 4
# Rows of holders that were superseded and are not yet removed.
_LEFT_OVER: Final = 256
_WORDS_KEPT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of each query; see `service.faq.index.FaqIndex.search`."""

    mode: Mode
    unrelated: float
    top_k: int
    filter: Filter | None


@dataclass(slots=True)
class Facts:
    """What is known of a collection's content; the same as long as its revision is.

    Attributes:
        at: as of when entries are counted: what the write of the revision removed is gone by then.
        holding: by term, how many entries hold it.
        whole_of_each: see `certificates.most_dense`; None = not asked yet.
    """

    at: int | None
    holding: dict[str, int] = field(default_factory=dict)
    whole_of_each: bool | None = None


@dataclass(frozen=True, slots=True)
class _Depth:
    """How much is looked at: rows of each kind of vectors, and holders of words."""

    rows: int
    holders: int

    def deeper(self) -> "_Depth":
        """The next step; the last one is its own."""
        return _Depth(
            max(self.rows, min(_STEP * self.rows, _MOST_ROWS)),
            max(self.holders, min(_STEP * self.holders, _MOST_HOLDERS)),
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found for a query: candidates, and what any other entry has at most.

    Attributes:
        ids: of candidates.
        dense: `certificates.most_dense` of the rest.
        words: what the rest may hold of the query's words.
    """

    ids: frozenset[str]
    dense: float
    words: WordPlan


@dataclass(frozen=True, slots=True)
class _Query:
    """A query with its lexical terms, each once, and its vector, [1, d]."""

    text: str
    terms: Sequence[str]
    vector: NDArray[np.float32]


class MilvusLookup:
    """Searches one moment of an FAQ collection.

    Args:
        candidates: reads.
        pool: runs calls beside each other.
        bm25: whether the server makes BM25 vectors.
        moment: what is searched; the collection has vectors.
        facts: of its content; added to.
        wish: what is wanted.
    """

    def __init__(
        self,
        candidates: MilvusCandidates,
        pool: Executor,
        *,
        bm25: bool,
        moment: Moment,
        facts: Facts,
        wish: Wish,
    ) -> None:
        self._candidates = candidates
        self._pool = pool
        self._bm25 = bm25
        self._moment = moment
        self._facts = facts
        self._wish = wish
        head = moment.head
        self._entries = head.enabled_entries
        self._mean_length = head.lexical_terms / head.enabled_entries

    def hits(self, queries: Sequence[str], vectors: NDArray[np.float32]) -> tuple[list[list[Hit]], int]:
        """Return each query's hits, and of how many queries they are not proven to be the best.

        Args:
            queries: Q texts.
            vectors: [Q, d].

        Raises:
            TornReadError: the head is no longer the newest one.
        """
        hits: list[list[Hit]] = []
        unproven = 0
        for first in range(0, len(queries), _BLOCK):
            found, missed = self._block(queries[first : first + _BLOCK], vectors[first : first + _BLOCK])
            hits += found
            unproven += missed
        return hits, unproven

    def _block(self, queries: Sequence[str], vectors: NDArray[np.float32]) -> tuple[list[list[Hit]], int]:
        terms = [sorted(set(lexical_terms(query))) for query in queries]
        rows = min(max(_FIRST_ROWS, 2 * self._wish.top_k), MAX_ROWS_A_QUERY)
        depth = _Depth(rows, _FIRST_HOLDERS)
        looks = self._look(terms, vectors, depth)
        holding = self._holding([word for words in terms for word in words])
        statistics = WordStatistics(self._entries, self._mean_length, holding)
        looked_at = frozenset[str]().union(*(look.ids for look in looks))
        index = self._with(FaqIndex.empty(statistics=statistics), looked_at)
        hits = self._ranked(index, queries, vectors)
        unproven = 0
        for number, look in enumerate(looks):
            if not self._proven(hits[number], look):
                one = _Query(queries[number], terms[number], vectors[number : number + 1])
                hits[number], done = self._deeper(index, looked_at, one, depth)
                unproven += not done
        return hits, unproven

    def _deeper(
        self,
        index: FaqIndex,
        looked_at: frozenset[str],
        query: _Query,
        depth: _Depth,
    ) -> tuple[list[Hit], bool]:
        """Look further for one query; return its hits and whether they are proven."""
        while True:
            depth = depth.deeper()
            [look] = self._look([query.terms], query.vector, depth)
            index = self._with(index, look.ids - looked_at)
            looked_at |= look.ids
            [hits] = self._ranked(index, [query.text], query.vector)
            if self._proven(hits, look):
                return hits, True
            if depth.deeper() == depth:
                return hits, False

    def _look(
        self, terms: Sequence[Sequence[str]], vectors: NDArray[np.float32], depth: _Depth
    ) -> list[_Look]:
        """Find each query's candidates, and what bounds the rest."""
        read = self._candidates
        near, near_whole = (
            self._pool.submit(read.nearest, self._moment, vectors, depth.rows, whole=whole)
            for whole in (False, True)
        )
        holding = self._holding([word for words in terms for word in words])
        plans = [
            plan_words(
                {word: holding[word] for word in words}, self._entries, self._mean_length, depth.holders
            )
            for words in terms
        ]
        limit = depth.holders + _LEFT_OVER
        held = [self._pool.submit(read.holders, self._moment, plan.chosen, limit) for plan in plans]
        # Of words that too many hold, the entries that the server itself prefers.
        preferred = [
            self._pool.submit(
                read.by_bm25, self._moment, words if self._bm25 and plan.share_left else [], depth.rows
            )
            for words, plan in zip(terms, plans, strict=True)
        ]
        whole_of_each = self._whole_of_each()
        looks = []
        for phrasings, wholes, plan, holders, others in zip(
            near.result(), near_whole.result(), plans, held, preferred, strict=True
        ):
            ids = holders.result()
            looks.append(
                _Look(
                    ids=phrasings.ids | wholes.ids | (ids or frozenset()) | others.result(),
                    dense=most_dense(phrasings.bound, wholes.bound, whole_of_each=whole_of_each),
                    words=NO_PLAN if ids is None else plan,
                )
            )
        return looks

    def _holding(self, words: Iterable[str]) -> Mapping[str, int]:
        """How many entries hold each of ``words``."""
        known = self._facts.holding
        asked = {
            word: self._pool.submit(self._candidates.holding, self._moment.head, word, self._facts.at)
            for word in set(words).difference(known)
        }
        learnt = {word: future.result() for word, future in asked.items()}
        found = known | learnt
        self._facts.holding = found if len(found) <= _WORDS_KEPT else learnt
        return found

    def _whole_of_each(self) -> bool:
        if self._facts.whole_of_each is None:
            self._facts.whole_of_each = self._candidates.whole_of_each(self._moment.head)
        return self._facts.whole_of_each

    def _with(self, index: FaqIndex, ids: frozenset[str]) -> FaqIndex:
        entries, vectors = self._candidates.fetch(self._moment, ids)
        return index.with_changes(entries, vectors=vectors)

    def _ranked(
        self, index: FaqIndex, queries: Sequence[str], vectors: NDArray[np.float32]
    ) -> list[list[Hit]]:
        wish = self._wish
        return index.search(
            queries,
            vectors,
            unrelated=wish.unrelated,
            top_k=wish.top_k,
            mode=wish.mode,
            filter=wish.filter,
        )

    def _proven(self, hits: Sequence[Hit], look: _Look) -> bool:
        wish = self._wish
        return proven(hits, wish.top_k, wish.mode, wish.unrelated, dense_left=look.dense, words=look.words)

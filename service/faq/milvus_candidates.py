"""Which entries in Milvus may be among a query's best, and what BM25 has to know of all entries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.faq.certificates import NearestList
from service.faq.entries import FaqEntry
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_entries import MilvusEntries
from service.faq.milvus_schema import QUESTION_AND_ANSWER, Head, Names, quoted, readable_at, term_key, visible
from service.faq.store import Vector

# HNSW looks at so many times as many rows as it is asked for, at least at so many, and at most at as many as
# Milvus allows.
_EF_FACTOR: Final = 8
_LEAST_EF: Final = 512
_MOST_EF: Final = 32_768


@dataclass(frozen=True, slots=True)
class Nearest:
    """What one query's search of one kind of vectors gave.

    Attributes:
        ids: of entries; perhaps of ones that are no longer there.
        bound: of what was not found.
    """

    ids: frozenset[str]
    bound: NearestList


@dataclass(frozen=True, slots=True)
class Moment:
    """What is read: an FAQ collection as of one head.

    Attributes:
        head: of the collection.
        where: which rows may be found, in Milvus's words; None = all.
    """

    head: Head
    where: str | None = None

    @property
    def at(self) -> int | None:
        """As of when rows are read; see `consistency`."""
        return readable_at(self.head)

    @property
    def rows(self) -> str:
        """The filter of rows, of entries or of vectors, that may be found."""
        return visible(self.head) + ("" if self.where is None else f" and {self.where}")


class MilvusCandidates:
    """Reads candidates; which of them are best is not decided here.

    Args:
        milvus: connected.
        names: of this Conche.
        entries: reads entries.
    """

    def __init__(self, milvus: MilvusConnection, names: Names, entries: MilvusEntries) -> None:
        self._milvus = milvus
        self._names = names
        self._entries = entries

    def nearest(
        self, moment: Moment, vectors: NDArray[np.float32], count: int, *, whole: bool
    ) -> list[Nearest]:
        """The nearest rows to each query.

        Args:
            moment: what is read, with vectors.
            vectors: [Q, d].
            count: rows.
            whole: rows of question and answer; else those of phrasings.
        """
        kind = f"phrasing == {QUESTION_AND_ANSWER}" if whole else f"phrasing != {QUESTION_AND_ANSWER}"
        lists = self._milvus.search(
            self._names.vectors(vectors.shape[1]),
            "vector",
            list(vectors),
            f"{moment.rows} and generation == {moment.head.generation} and {kind}",
            limit=count,
            options={"ef": min(max(_LEAST_EF, _EF_FACTOR * count), _MOST_EF)},
            at=moment.at,
        )
        return [
            Nearest(
                frozenset(identifier for identifier, _ in found),
                NearestList(
                    lowest=min((cosine for _, cosine in found), default=0.0), complete=len(found) < count
                ),
            )
            for found in lists
        ]

    def whole_of_each(self, head: Head) -> bool:
        """Whether every entry has a row of question and answer; one without an answer has none."""
        questions, wholes = (
            self._milvus.count(
                self._names.vectors(head.dimensions or 0),
                f"{visible(head)} and generation == {head.generation} and phrasing == {number}",
                at=readable_at(head),
            )
            for number in (0, QUESTION_AND_ANSWER)
        )
        return questions == wholes

    def tidy(self, head: Head, at: int | None) -> bool:
        """Whether all superseded rows of entries are gone, so that counts are of entries that are there."""
        rows = self._milvus.count(
            self._names.entries, f"{visible(head)} and part == 0 and deleted == false", at=at
        )
        return rows == head.entries

    def holding(self, head: Head, term: str, at: int | None) -> int:
        """How many entries hold a lexical term, as of a time when `tidy`."""
        return self._milvus.count(
            self._names.entries, f"{visible(head)} and array_contains(terms, {quoted(term_key(term))})", at=at
        )

    def holders(self, moment: Moment, terms: Iterable[str], limit: int) -> frozenset[str] | None:
        """The ids of all entries that hold one of ``terms``; None if they have ``limit`` rows or more."""
        keys = ", ".join(quoted(term_key(term)) for term in terms)
        if not keys:
            return frozenset()
        rows = self._milvus.query(
            self._names.entries,
            f"{moment.rows} and array_contains_any(terms, [{keys}])",
            ["entry_id"],
            limit=limit,
            at=moment.at,
        )
        return None if len(rows) >= limit else frozenset(row["entry_id"] for row in rows)

    def by_bm25(self, moment: Moment, terms: Sequence[str], count: int) -> frozenset[str]:
        """The ids of entries that the server's own BM25 prefers; for servers that have it."""
        if not terms:
            return frozenset()
        [found] = self._milvus.search(
            self._names.entries,
            "terms_bm25",
            [" ".join(map(term_key, terms))],
            f"{moment.rows} and enabled == true",
            limit=count,
            options={},
            at=moment.at,
        )
        return frozenset(identifier for identifier, _ in found)

    def fetch(self, moment: Moment, ids: Iterable[str]) -> tuple[list[FaqEntry], dict[str, Vector]]:
        """Those of ``ids`` that are enabled entries, and the vectors of all of their texts.

        Raises:
            TornReadError: the head is no longer the newest one.
        """
        stored = self._entries.get(moment.head, sorted(ids))
        there = [found for found in stored.values() if not found.deleted]
        enabled = [found for found in there if found.entry().enabled]
        vectors = self._entries.vectors_of(moment.head, enabled, everything=False)
        return [found.entry() for found in enabled], dict(vectors)

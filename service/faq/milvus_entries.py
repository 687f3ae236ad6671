"""Entries and vectors out of their rows in Milvus, as of one head."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from service.faq.entries import FaqEntry
from service.faq.entry_bodies import entry_of
from service.faq.milvus_connection import MilvusConnection, Row
from service.faq.milvus_schema import Head, Names, numbered_texts, quoted, readable_at, text_digest, visible
from service.faq.store import Vector

_IDS_A_QUERY: Final = 200
_DIGESTS_A_QUERY: Final = 500
_FIELDS: Final = ("key", "entry_id", "version", "part", "parts", "deleted", "sequence", "term_count", "body")
# Entries of one range: as many as are soon read, and then more or fewer by what came back.
_FIRST_RANGE: Final = 1_024
_LARGEST_RANGE: Final = 1 << 20


class TornReadError(Exception):
    """Rows are missing: a later write removed them, or something else did."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """The newest version of an entry, or its tombstone.

    Attributes:
        id: of the entry.
        version: at which it was written.
        sequence: its place; of a tombstone, the one it had.
        body: "" = a tombstone.
        term_count: see `ENTRY_FIELDS`.
        keys: of all rows of the id, of superseded versions too.
    """

    id: str
    version: int
    sequence: int
    body: str
    term_count: int
    keys: tuple[str, ...]

    @property
    def deleted(self) -> bool:
        """Whether there is no such entry any more."""
        return not self.body

    def entry(self) -> FaqEntry:
        """The entry."""
        return entry_of(self.id, self.body)


class MilvusEntries:
    """Reads entries and vectors; see `service.faq.milvus_schema` for what may be believed.

    Args:
        milvus: connected.
        names: of this Conche.
        strong: what was removed before a call is not seen either; waits for a time tick each time.
    """

    def __init__(self, milvus: MilvusConnection, names: Names, *, strong: bool) -> None:
        self._milvus = milvus
        self._names = names
        self._strong = strong

    def get(self, head: Head, ids: Iterable[str]) -> dict[str, StoredEntry]:
        """Those of ``ids`` that are there, tombstones included.

        Raises:
            TornReadError: the head is no longer the newest one.
        """
        found: dict[str, StoredEntry] = {}
        wanted = list(dict.fromkeys(ids))
        for start in range(0, len(wanted), _IDS_A_QUERY):
            some = ", ".join(map(quoted, wanted[start : start + _IDS_A_QUERY]))
            rows = self._milvus.query(
                self._names.entries,
                f"{visible(head)} and entry_id in [{some}]",
                _FIELDS,
                at=self._at(head),
            )
            found |= {stored.id: stored for stored in _assembled(rows)}
        return found

    def in_order(self, head: Head, *, after: int = 0, since: int = 0) -> Iterator[StoredEntry]:
        """The entries by ``sequence``.

        Args:
            head: to read.
            after: only those of a greater ``sequence``.
            since: only those of a greater version.

        Raises:
            TornReadError: the head is no longer the newest one.
        """
        filter_ = f"{visible(head)} and version > {since}"
        width = _FIRST_RANGE
        start = after + 1
        while start < head.next_sequence:
            stop = min(start + width, head.next_sequence)
            rows = self._milvus.rows(
                self._names.entries, filter_, _FIELDS, start=start, stop=stop, at=self._at(head)
            )
            found = [stored for stored in _assembled(rows) if not stored.deleted]
            yield from sorted(found, key=lambda stored: stored.sequence)
            if len(found) < width // 4:  # most places are empty by now
                width = min(2 * width, _LARGEST_RANGE)
            start = stop

    def deleted_since(self, head: Head, since: int) -> list[str]:
        """The ids of the entries deleted after a version, in the order of their deletion."""
        rows = self._tombstones(head, f" and version > {since}")
        return [row["entry_id"] for row in sorted(rows, key=lambda row: (row["version"], row["entry_id"]))]

    def oldest_tombstones(self, head: Head, kept: int) -> tuple[int, list[str]]:
        """All tombstones but the newest ``kept``: the version of the last of them, and their keys."""
        rows = sorted(self._tombstones(head, ""), key=lambda row: int(row["version"]))
        if len(rows) <= kept:
            return 0, []
        version = int(rows[-kept - 1]["version"])
        return version, [row["key"] for row in rows if row["version"] <= version]

    def vectors_of(
        self, head: Head, entries: Sequence[StoredEntry], *, everything: bool
    ) -> Mapping[str, Vector]:
        """The live vectors of all texts of ``entries``, as rows of one matrix.

        Args:
            head: to read.
            entries: current ones.
            everything: they are the whole collection.

        Raises:
            TornReadError: vectors are missing.
        """
        if head.dimensions is None:
            needed = {text for stored in entries for text in numbered_texts(stored.entry())}
            if needed:
                raise TornReadError
            return {}
        collection = self._names.vectors(head.dimensions)
        filter_ = f"{visible(head)} and generation == {head.generation}"
        fields = ("digest", "vector")
        found: dict[str, Vector] = {}
        if everything:
            rows = self._milvus.rows(
                collection, filter_, fields, start=1, stop=head.next_sequence, at=self._at(head)
            )
            found = {row["digest"]: np.asarray(row["vector"], dtype=np.float32) for row in rows}
        else:
            for start in range(0, len(entries), _IDS_A_QUERY):
                some = ", ".join(quoted(stored.id) for stored in entries[start : start + _IDS_A_QUERY])
                for row in self._milvus.query(
                    collection, f"{filter_} and entry_id in [{some}]", fields, at=self._at(head)
                ):
                    found[row["digest"]] = np.asarray(row["vector"], dtype=np.float32)
        texts = list(dict.fromkeys(text for stored in entries for text in numbered_texts(stored.entry())))
        matrix = np.empty((len(texts), head.dimensions), dtype=np.float32)
        for row_number, text in enumerate(texts):
            vector = found.get(text_digest(text))
            if vector is None:
                raise TornReadError
            matrix[row_number] = vector
        matrix.flags.writeable = False
        return dict(zip(texts, matrix, strict=True))

    def vectors_by_digest(
        self,
        head: Head,
        generation: int,
        dimensions: int | None,
        digests: Iterable[str],
        fields: Sequence[str],
    ) -> list[Row]:
        """The rows of a generation that hold the vectors of texts with these digests."""
        if dimensions is None:
            return []
        wanted = list(dict.fromkeys(digests))
        rows: list[Row] = []
        for start in range(0, len(wanted), _DIGESTS_A_QUERY):
            some = ", ".join(map(quoted, wanted[start : start + _DIGESTS_A_QUERY]))
            rows += self._milvus.query(
                self._names.vectors(dimensions),
                f"{visible(head)} and generation == {generation} and digest in [{some}]",
                fields,
                at=self._at(head),
            )
        return rows

    def owners_without(
        self,
        head: Head,
        generation: int,
        dimensions: int | None,
        *,
        most: int,
        between: Callable[[], None],
    ) -> list[tuple[str, int]]:
        """Texts that the live generation has a row for and another one has not.

        Args:
            head: to read.
            generation: the other one.
            dimensions: of its vectors; None = it has none.
            most: how many are enough.
            between: called now and then.

        Returns:
            Ids and phrasings.
        """
        if head.dimensions is None:
            return []
        fields = ("entry_id", "version", "phrasing")
        missing: list[tuple[str, int]] = []
        for start in range(1, head.next_sequence, _FIRST_RANGE):
            stop = min(start + _FIRST_RANGE, head.next_sequence)

            def keys(
                number: int, dimensions: int, *, start: int = start, stop: int = stop
            ) -> set[tuple[str, int, int]]:
                return {
                    (row["entry_id"], row["version"], row["phrasing"])
                    for row in self._milvus.rows(
                        self._names.vectors(dimensions),
                        f"{visible(head)} and generation == {number}",
                        fields,
                        start=start,
                        stop=stop,
                        at=self._at(head),
                        large=False,
                    )
                }

            between()
            needed = keys(head.generation, head.dimensions)
            there = keys(generation, dimensions) if needed and dimensions is not None else set()
            missing += [(identifier, phrasing) for identifier, _, phrasing in sorted(needed - there)]
            if len(missing) >= most:
                break
        return missing[:most]

    def _at(self, head: Head) -> int | None:
        return None if self._strong else readable_at(head)

    def _tombstones(self, head: Head, more: str) -> list[Row]:
        rows = self._milvus.rows(
            self._names.entries,
            f"{visible(head)} and deleted == true{more}",
            ("key", "entry_id", "version"),
            start=1,
            stop=head.next_sequence,
            at=self._at(head),
            large=False,
        )
        return list(rows)


def _assembled(rows: Iterable[Row]) -> list[StoredEntry]:
    """Join the parts of the greatest version of each entry."""
    by_id: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_id[row["entry_id"]].append(row)
    return [_joined(identifier, versions) for identifier, versions in by_id.items()]


def _joined(identifier: str, rows: Sequence[Row]) -> StoredEntry:
    version = max(int(row["version"]) for row in rows)
    parts = sorted((row for row in rows if row["version"] == version), key=lambda row: int(row["part"]))
    if len(parts) != parts[0]["parts"]:
        raise TornReadError
    return StoredEntry(
        id=identifier,
        version=version,
        sequence=int(parts[0]["sequence"]),
        body="".join(row["body"] for row in parts),
        term_count=int(parts[0]["term_count"]),
        keys=tuple(row["key"] for row in rows),
    )

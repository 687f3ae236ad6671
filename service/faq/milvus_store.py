"""The FAQ store for many machines: FAQ collections in Milvus.

What lies where, how a write becomes visible in one step, and what a reader may believe is told in
`service.faq.milvus_schema`.
"""

import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np

from service.errors import (
    CollectionExistsError,
    DuplicateEntryError,
    EntryChangedError,
    ServiceError,
    StorageError,
    UnavailableError,
)
from service.faq.entries import FaqEntry
from service.faq.entry_bodies import body_of
from service.faq.milvus_claims import Claim, MilvusClaims
from service.faq.milvus_connection import MilvusConnection, Row
from service.faq.milvus_entries import MilvusEntries, StoredEntry, TornReadError
from service.faq.milvus_heads import MilvusHeads
from service.faq.milvus_schema import (
    FILTER_FIELDS,
    Head,
    Names,
    PendingGeneration,
    create_entries,
    create_heads,
    create_vectors,
    entry_rows,
    entry_terms,
    head_rows,
    is_milvus_lite,
    makes_bm25,
    numbered_texts,
    quoted,
    text_digest,
    tombstone_row,
    vector_key,
    vector_rows,
)
from service.faq.sqlite_copy import write_copy
from service.faq.store import (
    Changes,
    CollectionInfo,
    EntryFilter,
    MissingVectorsError,
    Vector,
    Write,
    check_collection_name,
    check_limit,
    check_settings,
    check_vectors,
    check_write,
    model_mismatch,
    not_under_way,
    place_after,
    unknown_collection,
)

logger = logging.getLogger(__name__)

# Deleted ids that are remembered for followers; one that is further behind reads the collection anew. Some
# more are let be, so that not every deletion has to look for the oldest one.
_TOMBSTONES_KEPT: Final = 10_000
_TOMBSTONES_OVER: Final = 1_000
_VOIDS_KEPT: Final = 256
_TEXTS_REPORTED: Final = 1_000
# A reader that is overtaken by a writer so often gives up.
_READS: Final = 50
_IDS_A_PURGE: Final = 200

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class MilvusParts:
    """What a store in Milvus reads through, for what searches beside it.

    Attributes:
        milvus: closed with the store.
        names: of its collections.
        heads: of the FAQ collections.
        entries: reads entries and vectors.
        bm25: whether the server makes BM25 vectors.
    """

    milvus: MilvusConnection
    names: Names
    heads: MilvusHeads
    entries: MilvusEntries
    bm25: bool


class MilvusFaqStore:
    """`service.faq.store.FaqStore` in Milvus.

    Args:
        milvus: connected; closed with the store.
        prefix: of the names of all Milvus collections and aliases.
        lease_s: after which another process's write that shows no sign of life is given up; longer than what
            one call to Milvus may take.
        wait_s: how long a writer waits for those of other processes.

    Raises:
        UnavailableError: Milvus does not answer.
        StorageError: Milvus refuses.
    """

    def __init__(
        self,
        milvus: MilvusConnection,
        *,
        prefix: str = "conche",
        lease_s: float = 30.0,
        wait_s: float = 60.0,
    ) -> None:
        self._milvus = milvus
        self._names = Names(prefix)
        self._bm25 = makes_bm25(milvus.server_version)
        self._approximate = not is_milvus_lite(milvus.server_version)
        self._heads = MilvusHeads(milvus, self._names)
        self._claims = MilvusClaims(milvus, self._names, self._heads, lease_s=lease_s, wait_s=wait_s)
        self._entries = MilvusEntries(milvus, self._names, strong=False)
        # Writers must not take what was removed a moment ago for something that is there.
        self._exact = MilvusEntries(milvus, self._names, strong=True)
        self._idle = threading.Condition()
        self._active = 0
        self._closed = False
        self._loaded: set[int] = set()
        self._swept: dict[str, int] = {}  # versions whose superseded rows this process has removed
        milvus.make(lambda client: create_heads(client, self._names.heads), self._names.heads)
        milvus.make(
            lambda client: create_entries(client, self._names.entries, bm25=self._bm25), self._names.entries
        )
        for dimensions in self._dimensions():  # a server need not load them when it starts
            self._vectors(dimensions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See `FaqStore.close`."""
        with self._idle:
            first, self._closed = not self._closed, True
            self._idle.wait_for(lambda: self._active == 0)
        if first:
            self._claims.close()
            self._milvus.close()

    @property
    def parts(self) -> MilvusParts:
        """What it reads through."""
        return MilvusParts(self._milvus, self._names, self._heads, self._entries, self._bm25)

    def in_use(self) -> AbstractContextManager[None]:
        """Keep the store open while something reads through its parts; `UnavailableError` if it is closed."""
        return self._open()

    # Collections

    def collections(self) -> list[CollectionInfo]:
        """See `FaqStore.collections`."""
        with self._open():
            heads = sorted(self._heads.heads().items())
        return [head.info() for _, head in heads if head.incarnation is not None]

    def info(self, name: str) -> CollectionInfo:
        """See `FaqStore.info`."""
        with self._open():
            return self._head(name).info()

    def create(self, name: str, *, exist_ok: bool = False) -> CollectionInfo:
        """See `FaqStore.create`."""
        check_collection_name(name)
        with self._writing(name, create=True) as (claim, before, head):
            if before is head:
                if not exist_ok:
                    raise CollectionExistsError(f"there is a collection {name} already", param="collection")
                return head.info()
            return self._commit(claim, before, head).info()

    def drop(self, name: str) -> None:
        """See `FaqStore.drop`."""
        with self._writing(name) as (claim, before, head):
            self._commit(
                claim,
                before,
                Head(
                    name=name,
                    version=claim.version,
                    revision=claim.version,
                    incarnation=None,
                    horizon=claim.version,
                    created_at=head.created_at,
                    updated_at=_now(),
                    generation=claim.version,
                    sweep=({"incarnation": head.incarnation},),
                ),
            )

    def configure(
        self, name: str, *, default_answer: str | None, min_score: float | None, create: bool = False
    ) -> CollectionInfo:
        """See `FaqStore.configure`."""
        check_settings(default_answer, min_score)
        with self._writing(name, create=create) as (claim, before, head):
            after = self._next(
                claim,
                head,
                revision=claim.version,
                default_answer=default_answer,
                min_score=None if min_score is None else float(min_score),
            )
            return self._commit(claim, before, after).info()

    # Entries

    def apply(
        self,
        name: str,
        write: Write,
        *,
        fingerprint: str | None = None,
        model_id: str | None = None,
        create: bool = False,
    ) -> int:
        """See `FaqStore.apply`."""
        check_write(write)
        # Outside the claim: others wait only while rows are written.
        prepared = {entry.id: _Prepared(body_of(entry), entry_terms(entry)) for entry in write.upserts}
        wanted = list(dict.fromkeys(text for entry in write.upserts for text in numbered_texts(entry)))
        if wanted and not (fingerprint and model_id):
            raise ValueError("entries with texts are written with their model's fingerprint and id")
        given = {text: write.vectors[text] for text in wanted if text in write.vectors}
        dimensions = check_vectors(given.values(), None)
        with self._writing(name, create=create) as (claim, before, head):
            touched = [entry.id for entry in (*write.upserts, *write.unchanged)] + list(write.deletes)
            stored = self._whole(head, lambda: self._exact.get(head, touched))
            _check_unchanged(stored, write)
            horizon = head.horizon
            settled = head
            if wanted:
                settled = _settled_model(head, fingerprint, model_id, dimensions)
                if settled.fingerprint != head.fingerprint:
                    horizon = claim.version
            change = _Change(settled, stored, prepared)
            for identifier in dict.fromkeys(write.deletes):
                change.delete(identifier)
            for position, entry in enumerate(write.upserts):
                if not (change.put(entry) or write.replace):
                    raise DuplicateEntryError(
                        f"entries[{position}] has an id that is taken", index=position, param="entries"
                    )
            if not change.changed:
                return (head if before is head else self._commit(claim, before, head)).revision
            vectors = self._vectors_for(settled, change, given)
            self._write(claim, settled, change, vectors)
            tombstones = head.tombstones + change.tombstones
            forgotten: list[str] = []
            if tombstones > _TOMBSTONES_KEPT + _TOMBSTONES_OVER:
                version, forgotten = self._exact.oldest_tombstones(head, _TOMBSTONES_KEPT)
                tombstones -= len({*forgotten} - {key for old in change.superseded for key in old.keys})
                horizon = max(horizon, version)
            after = self._next(
                claim,
                settled,
                revision=claim.version,
                horizon=horizon,
                entries=head.entries + change.entries,
                enabled_entries=head.enabled_entries + change.enabled,
                lexical_terms=head.lexical_terms + change.terms,
                next_sequence=change.next_sequence,
                tombstones=tombstones,
                sweep=(
                    {
                        "incarnation": head.incarnation,
                        "ids": [old.id for old in change.superseded],
                        "below": claim.version,
                        "keys": forgotten,
                    },
                ),
            )
            self._commit(claim, before, after, superseded=self._superseded(settled, change, forgotten))
            return after.revision

    def get(self, name: str, ids: Iterable[str]) -> dict[str, FaqEntry]:
        """See `FaqStore.get`."""
        wanted = list(ids)
        found = self._reading(name, lambda head: self._entries.get(head, wanted))
        return {
            identifier: found[identifier].entry()
            for identifier in dict.fromkeys(wanted)
            if identifier in found and not found[identifier].deleted
        }

    def page(
        self,
        name: str,
        *,
        after: str | None = None,
        limit: int,
        filter: EntryFilter | None = None,
    ) -> tuple[list[FaqEntry], str | None]:
        """See `FaqStore.page`."""
        check_limit(limit)
        start = place_after(after)

        def read(head: Head) -> tuple[list[FaqEntry], str | None]:
            found: list[tuple[int, FaqEntry]] = []
            for stored in self._entries.in_order(head, after=start):
                entry = stored.entry()
                if filter is None or filter.matches(entry):
                    if len(found) == limit:  # one more: there is a next page
                        return [entry for _, entry in found], str(found[-1][0])
                    found.append((stored.sequence, entry))
            return [entry for _, entry in found], None

        return self._reading(name, read)

    def count(self, name: str, filter: EntryFilter | None = None) -> int:
        """See `FaqStore.count`."""
        if filter is None:
            return self.info(name).entries
        return self._reading(
            name,
            lambda head: sum(filter.matches(stored.entry()) for stored in self._entries.in_order(head)),
        )

    # Following

    def revision(self, name: str) -> int:
        """See `FaqStore.revision`."""
        with self._open():
            return self._head(name).revision

    def changes(self, name: str, since: int) -> Changes:
        """See `FaqStore.changes`."""
        return self._reading(name, lambda head: self._changes(head, since))

    def _changes(self, head: Head, since: int) -> Changes:
        # A later revision than ours: the caller followed something that is no longer here.
        complete = not head.horizon <= since <= head.revision
        stored: list[StoredEntry] = []
        deleted: tuple[str, ...] = ()
        if complete:
            stored = list(self._entries.in_order(head))
        elif since < head.revision:
            stored = list(self._entries.in_order(head, since=since))
            present = {found.id for found in stored}
            gone = self._entries.deleted_since(head, since)
            deleted = tuple(identifier for identifier in gone if identifier not in present)
        return Changes(
            revision=head.revision,
            complete=complete,
            entries=tuple(found.entry() for found in stored),
            deleted=deleted,
            vectors=self._entries.vectors_of(head, stored, everything=complete),
            generation=head.generation,
            fingerprint=head.fingerprint,
        )

    # Vectors

    def missing_texts(self, name: str, texts: Iterable[str], *, generation: int | None = None) -> list[str]:
        """See `FaqStore.missing_texts`."""
        digests = {text: text_digest(text) for text in texts}

        def read(head: Head) -> list[str]:
            number, dimensions = head.generation, head.dimensions
            if generation is not None and generation != head.generation:
                pending = _pending(head, generation)
                number, dimensions = pending.generation, pending.dimensions
            rows = self._exact.vectors_by_digest(head, number, dimensions, digests.values(), ("digest",))
            there = {row["digest"] for row in rows}
            return [text for text, digest in digests.items() if digest not in there]

        return self._reading(name, read)

    def vectors(self, name: str, texts: Iterable[str]) -> dict[str, Vector]:
        """See `FaqStore.vectors`."""
        digests = {text: text_digest(text) for text in texts}

        def read(head: Head) -> dict[str, Vector]:
            rows = self._exact.vectors_by_digest(
                head, head.generation, head.dimensions, digests.values(), ("digest", "vector")
            )
            found = {row["digest"]: row["vector"] for row in rows}
            present = [text for text, digest in digests.items() if digest in found]
            matrix = np.asarray([found[digests[text]] for text in present], dtype=np.float32)
            matrix.flags.writeable = False
            return dict(zip(present, matrix, strict=True))

        return self._reading(name, read)

    def claim_reindex(self, name: str, *, fingerprint: str) -> Callable[[], None] | None:
        """See `FaqStore.claim_reindex`: anyone has it, since a lease would have to be kept for hours."""
        del name, fingerprint
        return lambda: None

    def begin_reindex(self, name: str, *, fingerprint: str, model_id: str) -> int:
        """See `FaqStore.begin_reindex`."""
        with self._writing(name) as (claim, before, head):
            if head.pending is not None and head.pending.fingerprint == fingerprint:
                return head.pending.generation
            pending = PendingGeneration(claim.version, fingerprint, model_id)
            after = self._next(claim, head, pending=pending, sweep=_given_up(head))
            self._commit(claim, before, after)
            return claim.version

    def add_vectors(self, name: str, generation: int, vectors: Mapping[str, Vector]) -> None:
        """See `FaqStore.add_vectors`."""
        by_digest = {text_digest(text): vector for text, vector in vectors.items()}
        check_vectors(by_digest.values(), None)
        with self._writing(name) as (claim, before, head):
            pending = _pending(head, generation)
            dimensions = check_vectors(by_digest.values(), pending.dimensions)
            # Who needs a text is known by its row among the live vectors.
            fields = ("entry_id", "version", "sequence", "phrasing", "digest", *FILTER_FIELDS)
            owners = self._exact.vectors_by_digest(head, head.generation, head.dimensions, by_digest, fields)
            if not owners or dimensions is None or head.incarnation is None:
                return
            incarnation = head.incarnation
            claim.dirty = True
            self._milvus.insert(
                self._vectors(dimensions),
                (
                    {name: owner[name] for name in fields}
                    | {
                        "key": vector_key(
                            incarnation, generation, owner["entry_id"], owner["version"], owner["phrasing"]
                        ),
                        "tags": list(owner["tags"]),
                        "incarnation": incarnation,
                        "generation": generation,
                        # Of the entry's version, so that they go with it. Some may be there without the
                        # others if this write does not end; a right vector that is there early does no harm.
                        "vector": by_digest[owner["digest"]].tolist(),
                    }
                    for owner in owners
                ),
            )
            after = self._next(claim, head, pending=replace(pending, dimensions=dimensions))
            self._commit(claim, before, after)

    def finish_reindex(self, name: str, generation: int) -> int:
        """See `FaqStore.finish_reindex`."""
        with self._writing(name) as (claim, before, head):
            pending = _pending(head, generation)
            missing = self._exact.owners_without(
                head, generation, pending.dimensions, most=_TEXTS_REPORTED, between=claim.beat
            )
            if missing:
                raise MissingVectorsError(self._texts(head, missing))
            after = self._next(
                claim,
                head,
                revision=claim.version,
                horizon=claim.version,
                generation=generation,
                fingerprint=pending.fingerprint,
                model_id=pending.model_id,
                dimensions=pending.dimensions,
                pending=None,
                sweep=({"incarnation": head.incarnation, "generation": head.generation},),
            )
            return self._commit(claim, before, after).revision

    def abandon_reindex(self, name: str, generation: int) -> None:
        """See `FaqStore.abandon_reindex`."""
        with self._writing(name) as (claim, before, head):
            if head.pending is not None and head.pending.generation == generation:
                self._commit(claim, before, self._next(claim, head, pending=None, sweep=_given_up(head)))

    # Copies

    def snapshot(self, target: Path) -> None:
        """See `FaqStore.snapshot`: a file of the embedded store's kind, which can be restored there.

        Each collection is as of one moment; what is written to several meanwhile may be of several moments.
        """
        with self._open():
            write_copy(self, target)

    # How a write goes

    @contextmanager
    def _writing(self, name: str, *, create: bool = False) -> Iterator[tuple[Claim, Head | None, Head]]:
        """Be the only writer of ``name``, after the rows have gone that earlier writers left.

        Args:
            name: of the collection.
            create: make one up if it is not there.

        Yields:
            The claim, the newest head, and the head to change: the same one, unless it was made up.
        """
        if create:
            check_collection_name(name)
        with self._open():
            if not create:
                self._head(name)  # a name that is none makes no alias
            with self._claims.writing(name) as claim:
                before = self._heads.head(name)
                if before is not None:
                    self._remove_leftovers(claim, before)
                head = before
                if head is None or head.incarnation is None:
                    if not create:
                        raise unknown_collection(name, self._present())
                    head = _new_head(name, claim.version)
                try:
                    yield claim, before, head
                except BaseException:
                    if claim.dirty and not (claim.sealed or claim.in_doubt):
                        self._take_back(claim, head)
                    raise

    def _take_back(self, claim: Claim, head: Head) -> None:
        """Remove the rows of a write that did not happen; nobody sees them, and the next writer tries too."""
        with suppress(ServiceError):
            self._purge(claim, f"incarnation == {head.incarnation} and version == {claim.version}")

    def _remove_leftovers(self, claim: Claim, head: Head) -> None:
        """Remove what writers left that did not come to an end, before or after their seal."""
        for version in claim.voids:
            if version not in head.voids:
                filter_ = f'name == "{head.name}" and version == {version}'
                self._milvus.purge(self._names.heads, filter_, claim.beat)
                if head.incarnation is not None:
                    self._purge(claim, f"incarnation == {head.incarnation} and version == {version}")
        if head.sweep and self._swept.get(head.name) != head.version:
            self._sweep(claim, head)

    def _next(self, claim: Claim, head: Head, **changed: Any) -> Head:
        return replace(head, version=claim.version, **({"updated_at": _now(), "sweep": ()} | changed))

    def _commit(
        self,
        claim: Claim,
        before: Head | None,
        after: Head,
        *,
        superseded: Mapping[str, Sequence[str]] | None = None,
    ) -> Head:
        """Make ``after`` the state of the collection, and remove what it has no use for.

        Args:
            claim: of this write.
            before: the head before.
            after: the new one.
            superseded: keys of the rows to remove, by Milvus collection; None = what ``after.sweep`` says.
        """
        known = before.voids if before else ()
        voids = tuple(sorted({*known, *claim.voids}))[-_VOIDS_KEPT:]
        after = replace(after, voids=voids)
        claim.dirty = True
        loaded = tuple(self._loaded)  # in one step: a write to another collection may add to it
        vectors = [self._names.vectors(number) for number in loaded]
        until = self._milvus.written_until(self._names.entries, *vectors)
        if until:  # else nobody knows, and readers have to wait for all that was ever written
            until = max(until, before.written_until if before else 0)
        after = replace(after, written_until=until)
        self._milvus.insert(self._names.heads, head_rows(after))
        claim.seal()
        self._heads.keep(after)
        try:
            if superseded is None:
                self._sweep(claim, after)
            else:
                for collection, keys in superseded.items():
                    self._milvus.delete(collection, keys)
            self._swept[after.name] = after.version
            self._claims.forget_older(after, before)
        except ServiceError as error:
            # The write is done; the next one removes what is left.
            logger.warning("superseded rows of FAQ collection %s stay for now: %s", after.name, error)
        return after

    def _write(
        self, claim: Claim, head: Head, change: "_Change", vectors: Mapping[int, Mapping[str, list[float]]]
    ) -> None:
        if head.incarnation is None:  # never: a collection that is there has one
            raise ValueError("a dropped collection takes no entries")
        incarnation = head.incarnation
        claim.dirty = True
        for generation, dimensions in _generations(head):
            if dimensions is not None and vectors[generation]:
                self._milvus.insert(
                    self._vectors(dimensions),
                    _beating(
                        claim,
                        (
                            row
                            for entry, sequence in change.written
                            for row in vector_rows(
                                entry,
                                vectors[generation],
                                incarnation=incarnation,
                                generation=generation,
                                version=claim.version,
                                sequence=sequence,
                            )
                        ),
                    ),
                )
        rows = self._entry_rows(incarnation, claim.version, change)
        self._milvus.insert(self._names.entries, _beating(claim, rows))

    def _entry_rows(self, incarnation: int, version: int, change: "_Change") -> Iterator[Row]:
        for entry, sequence in change.written:
            prepared = change.prepared[entry.id]
            yield from entry_rows(
                entry,
                prepared.body,
                prepared.terms,
                incarnation=incarnation,
                version=version,
                sequence=sequence,
                bm25=self._bm25,
            )
        for old in change.removed:
            yield tombstone_row(
                old.id, incarnation=incarnation, version=version, sequence=old.sequence, bm25=self._bm25
            )

    def _vectors_for(
        self, head: Head, change: "_Change", given: Mapping[str, Vector]
    ) -> dict[int, dict[str, list[float]]]:
        """The vectors of all texts of what is written, by generation and text.

        Raises:
            MissingVectorsError: the live generation lacks some.
        """
        texts = list(dict.fromkeys(text for entry, _ in change.written for text in numbered_texts(entry)))
        found: dict[int, dict[str, list[float]]] = {}
        for generation, dimensions in _generations(head):
            live = generation == head.generation
            known = {text: given[text].tolist() for text in texts if text in given} if live else {}
            digests = {text_digest(text): text for text in texts if text not in known}
            for row in self._exact.vectors_by_digest(
                head, generation, dimensions, digests, ("digest", "vector")
            ):
                known[digests[row["digest"]]] = [float(number) for number in row["vector"]]
            if live and len(known) < len(texts):
                missing = [text for text in texts if text not in known]
                raise MissingVectorsError(missing[:_TEXTS_REPORTED])
            found[generation] = known
        return found

    def _superseded(self, head: Head, change: "_Change", forgotten: Sequence[str]) -> dict[str, list[str]]:
        """The keys of all rows that a change takes the place of, by Milvus collection."""
        keys: dict[str, list[str]] = defaultdict(list)
        keys[self._names.entries] += forgotten
        for old in change.superseded:
            keys[self._names.entries] += old.keys
            if old.deleted or head.incarnation is None:
                continue
            for phrasing in numbered_texts(old.entry()).values():
                for generation, dimensions in _generations(head):
                    if dimensions is not None:
                        keys[self._names.vectors(dimensions)].append(
                            vector_key(head.incarnation, generation, old.id, old.version, phrasing)
                        )
        return keys

    def _sweep(self, claim: Claim, head: Head) -> None:
        """Remove what ``head.sweep`` names, wherever it is."""
        for task in head.sweep:
            rows = f"incarnation == {task['incarnation']}"
            if "ids" in task:
                self._milvus.delete(self._names.entries, task["keys"])
                for some in _batches(task["ids"]):
                    listed = ", ".join(map(quoted, some))
                    self._purge(claim, f"{rows} and version < {task['below']} and entry_id in [{listed}]")
            elif "generation" in task:
                self._purge_vectors(claim, f"{rows} and generation == {task['generation']}")
            else:
                self._purge(claim, rows)

    def _purge(self, claim: Claim, filter_: str) -> None:
        self._milvus.purge(self._names.entries, filter_, claim.beat)
        self._purge_vectors(claim, filter_)

    def _purge_vectors(self, claim: Claim, filter_: str) -> None:
        for dimensions in self._dimensions():
            # Perhaps it was made by half when its maker died.
            self._milvus.purge(self._vectors(dimensions), filter_, claim.beat)

    def _dimensions(self) -> list[int]:
        """Of which vectors there are Milvus collections."""
        start = self._names.vectors_start
        return [
            int(name.removeprefix(start)) for name in self._milvus.collections() if name.startswith(start)
        ]

    def _vectors(self, dimensions: int) -> str:
        """The Milvus collection of vectors of that length, made if need be."""
        name = self._names.vectors(dimensions)
        if dimensions not in self._loaded:
            self._milvus.make(
                lambda client: create_vectors(client, name, dimensions, approximate=self._approximate), name
            )
            self._loaded.add(dimensions)
        return name

    # How a read goes

    def _reading(self, name: str, read: Callable[[Head], Result]) -> Result:
        """Read until no write came between."""
        with self._open():
            for _ in range(_READS):
                head = self._head(name)
                try:
                    result = read(head)
                except TornReadError:
                    if self._heads.newest().get(name) == head.version:
                        raise _damaged(head) from None
                    continue
                if self._heads.newest().get(name) == head.version:
                    return result
        raise UnavailableError(f"FAQ collection {name} is written to faster than it can be read; try again")

    def _whole(self, head: Head, read: Callable[[], Result]) -> Result:
        """Read beside no other writer."""
        try:
            return read()
        except TornReadError:
            raise _damaged(head) from None

    def _head(self, name: str) -> Head:
        head = self._heads.head(name)
        if head is None or head.incarnation is None:
            raise unknown_collection(name, self._present())
        return head

    def _present(self) -> list[str]:
        return [name for name, head in self._heads.heads().items() if head.incarnation is not None]

    def _texts(self, head: Head, phrasings: Sequence[tuple[str, int]]) -> list[str]:
        stored = self._whole(head, lambda: self._exact.get(head, (identifier for identifier, _ in phrasings)))
        texts = {
            (identifier, number): text
            for identifier, found in stored.items()
            if not found.deleted
            for text, number in numbered_texts(found.entry()).items()
        }
        return list(dict.fromkeys(texts[phrasing] for phrasing in phrasings if phrasing in texts))

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._idle:
            if self._closed:
                raise UnavailableError("the FAQ store is closed")
            self._active += 1
        try:
            yield
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is worked out of an entry before the claim."""

    body: str
    terms: list[str]


class _Change:
    """Notes what a write does to a collection.

    Attributes:
        entries, enabled, terms, tombstones: by how much the head's numbers change.
        next_sequence: of the next new entry.
        changed: whether anything is different at all.
        written: entries with their places.
        removed: entries that get a tombstone.
        superseded: versions, and tombstones, that something takes the place of.
    """

    def __init__(
        self, head: Head, stored: Mapping[str, StoredEntry], prepared: Mapping[str, _Prepared]
    ) -> None:
        self._stored = stored
        self.prepared = prepared
        self.entries = self.enabled = self.terms = self.tombstones = 0
        self.next_sequence = head.next_sequence
        self.written: list[tuple[FaqEntry, int]] = []
        self.removed: list[StoredEntry] = []
        self.superseded: list[StoredEntry] = []

    @property
    def changed(self) -> bool:
        return bool(self.written or self.removed)

    def delete(self, identifier: str) -> None:
        """Delete the entry if it is there."""
        old = self._stored.get(identifier)
        if old is None or old.deleted:
            return
        self._take_away(old)
        self.tombstones += 1
        self.removed.append(old)

    def put(self, entry: FaqEntry) -> bool:
        """Add or replace an entry; return whether it was added."""
        prepared = self.prepared[entry.id]
        old = self._stored.get(entry.id)
        added = old is None or old.deleted
        if old is not None and old.body == prepared.body:
            return False
        sequence = self.next_sequence
        if added:
            self.next_sequence += 1
        if old is not None:
            if old.deleted:
                self.tombstones -= 1
                self.superseded.append(old)
            else:
                sequence = old.sequence
                self._take_away(old)
        self.entries += 1
        self.enabled += entry.enabled
        self.terms += len(prepared.terms)
        self.written.append((entry, sequence))
        return added

    def _take_away(self, old: StoredEntry) -> None:
        self.entries -= 1
        self.enabled -= old.entry().enabled
        self.terms -= old.term_count
        self.superseded.append(old)


def _beating(claim: Claim, rows: Iterable[Row]) -> Iterator[Row]:
    """Show signs of life while rows are made and sent."""
    for row in rows:
        claim.beat()
        yield row


def _new_head(name: str, version: int) -> Head:
    now = _now()
    return Head(
        name=name,
        version=version,
        revision=version,
        incarnation=secrets.randbits(62),
        horizon=version,
        created_at=now,
        updated_at=now,
        generation=version,
    )


def _generations(head: Head) -> list[tuple[int, int | None]]:
    """The generations that there are, with their dimensions: the live one, then a pending one."""
    found = [(head.generation, head.dimensions)]
    if head.pending is not None:
        found.append((head.pending.generation, head.pending.dimensions))
    return found


def _given_up(head: Head) -> tuple[Mapping[str, Any], ...]:
    if head.pending is None:
        return ()
    return ({"incarnation": head.incarnation, "generation": head.pending.generation},)


def _pending(head: Head, generation: int) -> PendingGeneration:
    if head.pending is None or head.pending.generation != generation:
        raise not_under_way(head.name)
    return head.pending


def _settled_model(head: Head, fingerprint: str | None, model_id: str | None, dimensions: int | None) -> Head:
    """See that the live generation is of this model; without any vector it becomes so."""
    if not head.enabled_entries:
        return replace(head, fingerprint=fingerprint, model_id=model_id, dimensions=dimensions)
    if head.fingerprint != fingerprint:
        raise model_mismatch(head.info(), model_id)
    if dimensions is not None and dimensions != head.dimensions:
        raise ValueError(f"the vectors have {dimensions} dimensions, those of {head.name} {head.dimensions}")
    return head


def _check_unchanged(stored: Mapping[str, StoredEntry], write: Write) -> None:
    for entry in write.unchanged:
        found = stored.get(entry.id)
        if found is None or found.body != body_of(entry):
            raise EntryChangedError("an entry was changed or deleted meanwhile; read it again", param="id")


def _damaged(head: Head) -> StorageError:
    return StorageError(
        f"collection {head.name} is damaged (rows are missing in Milvus); `conche faq reindex {head.name}` "
        "mends it if they are vectors, and restoring a backup if they are entries"
    )


def _batches(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), _IDS_A_PURGE):
        yield items[start : start + _IDS_A_PURGE]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""The embedded FAQ store: one SQLite file, shared by threads and processes of one machine.

Vectors are kept by collection, generation and SHA-256 of their text, so that equal texts are embedded once;
those that no entry needs any more go with the write that made them superfluous. Whole generations and dropped
collections are swept afterwards, a batch at a time, so that no writer waits long.
"""

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import numpy as np

from service.errors import (
    CollectionExistsError,
    DuplicateEntryError,
    EntryChangedError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.entry_bodies import body_of, entry_of
from service.faq.file_claim import claim
from service.faq.sqlite_file import SqliteFile
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

# Deleted ids that are remembered for followers; one that is further behind reads the collection anew.
_TOMBSTONES_KEPT: Final = 10_000
# Rows that one transaction of the sweep removes: some tens of milliseconds.
_SWEEP_ROWS: Final = 4_000
# Batches for which the rows are looked up at one go.
_SWEEP_BATCHES: Final = 50
_ROWS_A_READ: Final = 500
_TEXTS_REPORTED: Final = 1_000

_INFO: Final = """
    SELECT c.name, c.revision, c.entries, g.fingerprint, g.model_id, g.generation, g.dimensions,
        c.default_answer, c.min_score, c.created_at, c.updated_at,
        (SELECT p.generation FROM generations AS p WHERE p.collection_id = c.id AND p.state = 'pending')
    FROM collections AS c JOIN generations AS g ON g.collection_id = c.id AND g.state = 'live'
"""


@dataclass(frozen=True, slots=True)
class _Collection:
    """A row of ``collections``, with its live generation."""

    id: int
    name: str
    revision: int
    horizon: int
    generation: int
    fingerprint: str | None
    model_id: str | None
    dimensions: int | None


class SqliteFaqStore:
    """`service.faq.store.FaqStore` in one file.

    Args:
        path: made, with its folders, if it is not there. If it or its folder cannot be written, it is read,
            and every write raises `ReadOnlyStoreError`.
        busy_timeout_s: how long a writer waits for those of other processes.

    Raises:
        StorageError: the file is empty, damaged, not ours, of a newer Conche, or cannot be opened.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 30.0) -> None:
        self._file = SqliteFile(path, busy_timeout_s=busy_timeout_s)
        try:
            self._sweep()  # what a process left that was ended amid its sweep
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See `FaqStore.close`."""
        self._file.close()

    # Collections

    def collections(self) -> list[CollectionInfo]:
        """See `FaqStore.collections`."""
        with self._file.single() as db:
            rows = db.execute(f"{_INFO} WHERE c.name IS NOT NULL ORDER BY c.name").fetchall()
        return [CollectionInfo(*row) for row in rows]

    def info(self, name: str) -> CollectionInfo:
        """See `FaqStore.info`."""
        with self._file.reading() as db:
            return _info(db, name)

    def create(self, name: str, *, exist_ok: bool = False) -> CollectionInfo:
        """See `FaqStore.create`."""
        check_collection_name(name)
        with self._file.writing() as db:
            if db.execute("SELECT 1 FROM collections WHERE name = ?", (name,)).fetchone():
                if not exist_ok:
                    raise CollectionExistsError(f"there is a collection {name} already", param="collection")
                return _info(db, name)
            _make(db, name)
            return _info(db, name)

    def drop(self, name: str) -> None:
        """See `FaqStore.drop`."""
        with self._file.writing(grows=False) as db:
            collection = _collection(db, name)
            db.execute("UPDATE collections SET name = NULL WHERE id = ?", (collection.id,))
            db.execute("UPDATE generations SET state = 'retired' WHERE collection_id = ?", (collection.id,))
        self._sweep()

    def configure(
        self, name: str, *, default_answer: str | None, min_score: float | None, create: bool = False
    ) -> CollectionInfo:
        """See `FaqStore.configure`."""
        check_settings(default_answer, min_score)
        with self._file.writing() as db:
            collection = _collection(db, name, create=create)
            db.execute(
                "UPDATE collections SET default_answer = ?, min_score = ? WHERE id = ?",
                (default_answer, None if min_score is None else float(min_score), collection.id),
            )
            _touch(db, collection, _next_revision(db))
            return _info(db, name)

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
        # Outside the transaction: others wait only while rows are written.
        needed = {entry.id: _hashes(entry) for entry in write.upserts}
        bodies = {entry.id: body_of(entry) for entry in write.upserts}
        wanted = {digest: text for hashes in needed.values() for digest, text in hashes.items()}
        if wanted and not (fingerprint and model_id):
            raise ValueError("entries with texts are written with their model's fingerprint and id")
        vectors = {digest: write.vectors[text] for digest, text in wanted.items() if text in write.vectors}
        dimensions = check_vectors(vectors.values(), None)
        with self._file.writing(grows=bool(write.upserts)) as db:
            collection = _collection(db, name, create=create)
            _check_unchanged(db, collection, write)
            revision = _next_revision(db)
            horizon = collection.horizon
            if wanted and _settle_model(db, collection, fingerprint, model_id, dimensions):
                horizon = revision
            change = _EntryChange(db, collection.id, revision)
            for identifier in write.deletes:
                change.delete(identifier)
            for position, entry in enumerate(write.upserts):
                added = change.put(entry.id, bodies[entry.id], needed[entry.id].keys())
                if not (added or write.replace):
                    raise DuplicateEntryError(
                        f"entries[{position}] has an id that is taken", index=position, param="entries"
                    )
            if not change.changed:
                return collection.revision
            _add_vectors(db, collection.id, collection.generation, vectors)
            missing = _without_vector(db, collection.id, collection.generation, wanted)
            if missing:
                raise MissingVectorsError(missing[:_TEXTS_REPORTED])
            _drop_unused_vectors(db, collection.id, change.released)
            if write.deletes:
                horizon = max(horizon, _forget_old_tombstones(db, collection.id))
            _touch(db, collection, revision, added=change.added, horizon=horizon)
            return revision

    def get(self, name: str, ids: Iterable[str]) -> dict[str, FaqEntry]:
        """See `FaqStore.get`."""
        found = {}
        with self._file.reading() as db:
            collection = _collection(db, name)
            for identifier in ids:
                row = db.execute(
                    "SELECT body FROM entries WHERE collection_id = ? AND id = ?", (collection.id, identifier)
                ).fetchone()
                if row:
                    found[identifier] = entry_of(identifier, row[0])
        return found

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
        found: list[tuple[int, FaqEntry]] = []
        with self._file.reading() as db:
            collection = _collection(db, name)
            for sequence, entry in _in_order(db, collection.id, start):
                if filter is None or filter.matches(entry):
                    if len(found) == limit:  # one more: there is a next page
                        return [entry for _, entry in found], str(found[-1][0])
                    found.append((sequence, entry))
        return [entry for _, entry in found], None

    def count(self, name: str, filter: EntryFilter | None = None) -> int:
        """See `FaqStore.count`."""
        if filter is None:
            return self.info(name).entries
        with self._file.reading() as db:
            collection = _collection(db, name)
            return sum(filter.matches(entry) for _, entry in _in_order(db, collection.id, 0))

    # Following

    def revision(self, name: str) -> int:
        """See `FaqStore.revision`."""
        with self._file.single() as db:
            row = db.execute("SELECT revision FROM collections WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise _unknown(db, name)
            return int(row[0])

    def changes(self, name: str, since: int) -> Changes:
        """See `FaqStore.changes`."""
        with self._file.reading() as db:
            collection = _collection(db, name)
            # A later revision than ours: the caller followed something that is no longer here.
            complete = not collection.horizon <= since <= collection.revision
            entries: tuple[FaqEntry, ...]
            deleted: tuple[str, ...] = ()
            if complete:
                entries = tuple(entry for _, entry in _in_order(db, collection.id, 0))
            else:
                entries = tuple(
                    entry_of(identifier, body)
                    for identifier, body in db.execute(
                        "SELECT id, body FROM entries WHERE collection_id = ? AND revision > ? "
                        "ORDER BY sequence",
                        (collection.id, since),
                    )
                )
                deleted = tuple(
                    identifier
                    for (identifier,) in db.execute(
                        "SELECT id FROM tombstones WHERE collection_id = ? AND revision > ? "
                        "ORDER BY revision, id",
                        (collection.id, since),
                    )
                )
            vectors = _vectors(db, collection, texts_to_embed(entries), everything=complete)
        return Changes(
            revision=collection.revision,
            complete=complete,
            entries=entries,
            deleted=deleted,
            vectors=vectors,
            generation=collection.generation,
            fingerprint=collection.fingerprint,
        )

    # Vectors

    def missing_texts(self, name: str, texts: Iterable[str], *, generation: int | None = None) -> list[str]:
        """See `FaqStore.missing_texts`."""
        digests = {_sha256(text): text for text in texts}
        with self._file.reading() as db:
            collection = _collection(db, name)
            if generation is None:
                generation = collection.generation
            elif generation != collection.generation:
                _pending(db, collection, generation)
            return _without_vector(db, collection.id, generation, digests)

    def vectors(self, name: str, texts: Iterable[str]) -> dict[str, Vector]:
        """See `FaqStore.vectors`."""
        digests = {_sha256(text): text for text in texts}
        with self._file.reading() as db:
            collection = _collection(db, name)
            lacking = set(_without_vector(db, collection.id, collection.generation, digests))
            there = [text for text in digests.values() if text not in lacking]
            return _vectors(db, collection, there, everything=False)

    def claim_reindex(self, name: str, *, fingerprint: str) -> Callable[[], None] | None:
        """See `FaqStore.claim_reindex`: processes of one machine, by a lock beside the file."""
        path = self._file.path
        digest = _sha256(f"{name}\n{fingerprint}").hex()[:16]
        try:
            return claim(path.with_name(f".{path.name}.reindex-{digest}"))
        except OSError as error:  # the folder is read only, or of a kind without locks
            logger.info("nobody can be kept from reindexing %s beside this process: %s", name, error)
            return lambda: None

    def begin_reindex(self, name: str, *, fingerprint: str, model_id: str) -> int:
        """See `FaqStore.begin_reindex`."""
        with self._file.writing() as db:
            collection = _collection(db, name)
            row = db.execute(
                "SELECT generation, fingerprint FROM generations "
                "WHERE collection_id = ? AND state = 'pending'",
                (collection.id,),
            ).fetchone()
            if row and row[1] == fingerprint:
                return int(row[0])
            if row:
                _retire(db, collection.id, row[0])
            generation = _next_revision(db)  # a number that no other generation ever has
            db.execute(
                "INSERT INTO generations (collection_id, generation, state, fingerprint, model_id) "
                "VALUES (?, ?, 'pending', ?, ?)",
                (collection.id, generation, fingerprint, model_id),
            )
        self._sweep()
        return generation

    def add_vectors(self, name: str, generation: int, vectors: Mapping[str, Vector]) -> None:
        """See `FaqStore.add_vectors`."""
        by_digest = {_sha256(text): vector for text, vector in vectors.items()}
        check_vectors(by_digest.values(), None)
        with self._file.writing() as db:
            collection = _collection(db, name)
            settled = _pending(db, collection, generation)
            dimensions = check_vectors(by_digest.values(), settled)
            db.execute(
                "UPDATE generations SET dimensions = ? WHERE collection_id = ? AND generation = ?",
                (dimensions, collection.id, generation),
            )
            in_use = {digest: by_digest[digest] for digest in by_digest if _in_use(db, collection.id, digest)}
            _add_vectors(db, collection.id, generation, in_use)

    def finish_reindex(self, name: str, generation: int) -> int:
        """See `FaqStore.finish_reindex`."""
        with self._file.writing() as db:
            collection = _collection(db, name)
            _pending(db, collection, generation)
            missing = _texts_missing(db, collection.id, generation)
            if missing:
                raise MissingVectorsError(missing)
            _retire(db, collection.id, collection.generation)
            db.execute(
                "UPDATE generations SET state = 'live' WHERE collection_id = ? AND generation = ?",
                (collection.id, generation),
            )
            revision = _next_revision(db)
            _touch(db, collection, revision, horizon=revision)
        self._sweep()
        return revision

    def abandon_reindex(self, name: str, generation: int) -> None:
        """See `FaqStore.abandon_reindex`."""
        with self._file.writing(grows=False) as db:
            collection = _collection(db, name)
            if generation != collection.generation:
                _retire(db, collection.id, generation)
        self._sweep()

    # Copies

    def snapshot(self, target: Path) -> None:
        """See `FaqStore.snapshot`."""
        self._file.snapshot(target)

    @staticmethod
    def restore(source: Path, target: Path) -> None:
        """Replace all that the store at ``target`` holds by a snapshot, in one step, in use or not.

        Whoever reads meanwhile sees the old state or the new one. ``target`` is made if it is not there.

        Raises:
            StorageError: ``source`` is damaged or not a snapshot of ours, or ``target`` is not a store.
        """
        SqliteFile.check_copy(source)  # before a target is made for nothing
        file = SqliteFile(target)
        try:
            file.restore(source)
        finally:
            file.close()

    def _sweep(self) -> None:
        """Remove the vectors of retired generations and the rows of dropped collections, bit by bit."""
        if self._file.read_only:
            return
        while True:
            with self._file.single() as db:
                if not _to_sweep(db):
                    return
                rows = _retired_vectors(db)
            try:
                for start in range(0, len(rows), _SWEEP_ROWS):
                    with self._file.writing(grows=False) as db:
                        _delete_vectors(db, rows[start : start + _SWEEP_ROWS])
                if not rows:
                    with self._file.writing(grows=False) as db:
                        _sweep_rest(db)
            except (UnavailableError, StorageFullError):
                return  # what called for the sweep is done; the next one finds the rest


class _EntryChange:
    """Writes entries and notes what that does to the collection.

    Attributes:
        added: how many entries there are more than before.
        changed: whether anything is different at all.
        released: digests of texts that one entry or another needs no longer.
    """

    def __init__(self, db: sqlite3.Connection, collection_id: int, revision: int) -> None:
        self._db = db
        self._collection_id = collection_id
        self._revision = revision
        self.added = 0
        self.changed = False
        self.released: set[bytes] = set()

    def delete(self, identifier: str) -> None:
        """Delete the entry if it is there, and leave a note for followers."""
        row = self._find(identifier)
        if row is None:
            return
        self.released.update(self._texts(row[0]))
        self._db.execute("DELETE FROM entries WHERE sequence = ?", (row[0],))
        self._db.execute(
            "INSERT OR REPLACE INTO tombstones (collection_id, id, revision) VALUES (?, ?, ?)",
            (self._collection_id, identifier, self._revision),
        )
        self.added -= 1
        self.changed = True

    def put(self, identifier: str, body: str, digests: Iterable[bytes]) -> bool:
        """Add or replace an entry; return whether it was added."""
        row = self._find(identifier)
        if row is None:
            cursor = self._db.execute(
                "INSERT INTO entries (collection_id, id, revision, body) VALUES (?, ?, ?, ?)",
                (self._collection_id, identifier, self._revision, body),
            )
            sequence = cursor.lastrowid
            self._db.execute(
                "DELETE FROM tombstones WHERE collection_id = ? AND id = ?", (self._collection_id, identifier)
            )
            before: set[bytes] = set()
            self.added += 1
        elif row[1] == body:
            return False
        else:
            sequence = row[0]
            self._db.execute(
                "UPDATE entries SET revision = ?, body = ? WHERE sequence = ?",
                (self._revision, body, sequence),
            )
            before = self._texts(sequence)
        self.changed = True
        after = set(digests)
        self.released |= before - after
        self._db.executemany(
            "DELETE FROM texts WHERE sequence = ? AND sha256 = ?",
            [(sequence, digest) for digest in before - after],
        )
        self._db.executemany(
            "INSERT INTO texts (sequence, sha256, collection_id) VALUES (?, ?, ?)",
            [(sequence, digest, self._collection_id) for digest in after - before],
        )
        return row is None

    def _find(self, identifier: str) -> tuple[int, str] | None:
        row: tuple[int, str] | None = self._db.execute(
            "SELECT sequence, body FROM entries WHERE collection_id = ? AND id = ?",
            (self._collection_id, identifier),
        ).fetchone()
        return row

    def _texts(self, sequence: int) -> set[bytes]:
        return {
            digest
            for (digest,) in self._db.execute("SELECT sha256 FROM texts WHERE sequence = ?", (sequence,))
        }


def _info(db: sqlite3.Connection, name: str) -> CollectionInfo:
    row = db.execute(f"{_INFO} WHERE c.name = ?", (name,)).fetchone()
    if row is None:
        raise _unknown(db, name)
    return CollectionInfo(*row)


def _make(db: sqlite3.Connection, name: str) -> None:
    """Add a collection that is not there."""
    revision, now = _next_revision(db), _now()
    cursor = db.execute(
        "INSERT INTO collections (name, revision, horizon, entries, created_at, updated_at) "
        "VALUES (?, ?, ?, 0, ?, ?)",
        (name, revision, revision, now, now),
    )
    db.execute(
        "INSERT INTO generations (collection_id, generation, state) VALUES (?, ?, 'live')",
        (cursor.lastrowid, revision),
    )


def _collection(db: sqlite3.Connection, name: str, *, create: bool = False) -> _Collection:
    row = db.execute(
        "SELECT c.id, c.name, c.revision, c.horizon, g.generation, g.fingerprint, g.model_id, g.dimensions "
        "FROM collections AS c JOIN generations AS g ON g.collection_id = c.id AND g.state = 'live' "
        "WHERE c.name = ?",
        (name,),
    ).fetchone()
    if row is None and create:
        check_collection_name(name)
        _make(db, name)
        return _collection(db, name)
    if row is None:
        raise _unknown(db, name)
    return _Collection(*row)


def _unknown(db: sqlite3.Connection, name: str) -> Exception:
    names = [row[0] for row in db.execute("SELECT name FROM collections WHERE name IS NOT NULL")]
    return unknown_collection(name, names)


def _next_revision(db: sqlite3.Connection) -> int:
    return int(db.execute("UPDATE store SET revision = revision + 1 RETURNING revision").fetchone()[0])


def _touch(
    db: sqlite3.Connection,
    collection: _Collection,
    revision: int,
    *,
    added: int = 0,
    horizon: int | None = None,
) -> None:
    db.execute(
        "UPDATE collections SET revision = ?, updated_at = ?, entries = entries + ?, horizon = ? "
        "WHERE id = ?",
        (revision, _now(), added, collection.horizon if horizon is None else horizon, collection.id),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _check_unchanged(db: sqlite3.Connection, collection: _Collection, write: Write) -> None:
    for entry in write.unchanged:
        row = db.execute(
            "SELECT body FROM entries WHERE collection_id = ? AND id = ?", (collection.id, entry.id)
        ).fetchone()
        if row is None or row[0] != body_of(entry):
            raise EntryChangedError("an entry was changed or deleted meanwhile; read it again", param="id")


def _settle_model(
    db: sqlite3.Connection,
    collection: _Collection,
    fingerprint: str | None,
    model_id: str | None,
    dimensions: int | None,
) -> bool:
    """See that the live generation is of this model; without any vector it becomes so, which is returned."""
    key = (collection.id, collection.generation)
    held = db.execute(
        "SELECT 1 FROM vectors WHERE collection_id = ? AND generation = ? LIMIT 1", key
    ).fetchone()
    if not held:
        db.execute(
            "UPDATE generations SET fingerprint = ?, model_id = ?, dimensions = ? "
            "WHERE collection_id = ? AND generation = ?",
            (fingerprint, model_id, dimensions, *key),
        )
        return collection.fingerprint != fingerprint
    if collection.fingerprint != fingerprint:
        raise model_mismatch(_info(db, collection.name), model_id)
    if dimensions is not None and dimensions != collection.dimensions:
        raise ValueError(
            f"the vectors have {dimensions} dimensions, those of {collection.name} {collection.dimensions}"
        )
    return False


def _add_vectors(
    db: sqlite3.Connection, collection_id: int, generation: int, vectors: Mapping[bytes, Vector]
) -> None:
    # One that is there stays: it is of the same model and text.
    db.executemany(
        "INSERT OR IGNORE INTO vectors (collection_id, generation, sha256, vector) VALUES (?, ?, ?, ?)",
        (
            (collection_id, generation, digest, vector.astype("<f4").tobytes())
            for digest, vector in vectors.items()
        ),
    )


def _without_vector(
    db: sqlite3.Connection, collection_id: int, generation: int, digests: Mapping[bytes, str]
) -> list[str]:
    query = "SELECT 1 FROM vectors WHERE collection_id = ? AND generation = ? AND sha256 = ?"
    return [
        text
        for digest, text in digests.items()
        if db.execute(query, (collection_id, generation, digest)).fetchone() is None
    ]


def _in_use(db: sqlite3.Connection, collection_id: int, digest: bytes) -> bool:
    row = db.execute(
        "SELECT 1 FROM texts WHERE collection_id = ? AND sha256 = ? LIMIT 1", (collection_id, digest)
    ).fetchone()
    return row is not None


def _drop_unused_vectors(db: sqlite3.Connection, collection_id: int, released: Iterable[bytes]) -> None:
    unused = [digest for digest in released if not _in_use(db, collection_id, digest)]
    generations = db.execute(
        "SELECT generation FROM generations WHERE collection_id = ?", (collection_id,)
    ).fetchall()
    db.executemany(
        "DELETE FROM vectors WHERE collection_id = ? AND generation = ? AND sha256 = ?",
        [(collection_id, generation, digest) for (generation,) in generations for digest in unused],
    )


def _forget_old_tombstones(db: sqlite3.Connection, collection_id: int) -> int:
    """Keep the newest ones; return the revision up to which deletions are forgotten, 0 if none were."""
    row = db.execute(
        "SELECT revision FROM tombstones WHERE collection_id = ? ORDER BY revision DESC LIMIT 1 OFFSET ?",
        (collection_id, _TOMBSTONES_KEPT),
    ).fetchone()
    if row is None:
        return 0
    db.execute("DELETE FROM tombstones WHERE collection_id = ? AND revision <= ?", (collection_id, row[0]))
    return int(row[0])


def _texts_missing(db: sqlite3.Connection, collection_id: int, generation: int) -> list[str]:
    """Some of the texts that entries need and the generation lacks."""
    rows = db.execute(
        "SELECT t.sha256, e.id, e.body FROM texts AS t JOIN entries AS e ON e.sequence = t.sequence "
        "WHERE t.collection_id = ? AND NOT EXISTS (SELECT 1 FROM vectors AS v "
        "WHERE v.collection_id = t.collection_id AND v.generation = ? AND v.sha256 = t.sha256) LIMIT ?",
        (collection_id, generation, _TEXTS_REPORTED),
    ).fetchall()
    texts = {digest: _hashes(entry_of(identifier, body))[digest] for digest, identifier, body in rows}
    return list(texts.values())


def _pending(db: sqlite3.Connection, collection: _Collection, generation: int) -> int | None:
    """Return the dimensions of a generation under way, if they are settled."""
    row = db.execute(
        "SELECT dimensions FROM generations WHERE collection_id = ? AND generation = ? AND state = 'pending'",
        (collection.id, generation),
    ).fetchone()
    if row is None:
        raise not_under_way(collection.name)
    return None if row[0] is None else int(row[0])


def _retire(db: sqlite3.Connection, collection_id: int, generation: int) -> None:
    db.execute(
        "UPDATE generations SET state = 'retired' WHERE collection_id = ? AND generation = ?",
        (collection_id, generation),
    )


def _to_sweep(db: sqlite3.Connection) -> bool:
    (found,) = db.execute(
        "SELECT EXISTS (SELECT 1 FROM generations WHERE state = 'retired') "
        "OR EXISTS (SELECT 1 FROM collections WHERE name IS NULL)"
    ).fetchone()
    return bool(found)


def _retired_vectors(db: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Row, collection and generation of vectors that nobody needs, in the order in which they lie.

    In the order of their index every batch would touch pages all over the file, and write each many times.
    """
    return sorted(
        db.execute(
            "SELECT v.row, v.collection_id, v.generation FROM generations AS g "
            "JOIN vectors AS v USING (collection_id, generation) WHERE g.state = 'retired' LIMIT ?",
            (_SWEEP_ROWS * _SWEEP_BATCHES,),
        )
    )


def _delete_vectors(db: sqlite3.Connection, rows: Sequence[tuple[int, int, int]]) -> None:
    # Named in full: a snapshot restored meanwhile may hold another vector in that row.
    db.executemany("DELETE FROM vectors WHERE row = ? AND collection_id = ? AND generation = ?", rows)


def _sweep_rest(db: sqlite3.Connection) -> None:
    """Remove generations without vectors, and some entries of a dropped collection or, at last, itself."""
    db.execute(
        "DELETE FROM generations WHERE state = 'retired' AND NOT EXISTS (SELECT 1 FROM vectors AS v "
        "WHERE v.collection_id = generations.collection_id AND v.generation = generations.generation)"
    )
    # One dropped since the look for vectors still has its generations, and waits for the next round.
    dropped = db.execute(
        "SELECT id FROM collections AS c WHERE name IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM generations WHERE collection_id = c.id)"
    ).fetchone()
    if dropped:
        removed = db.execute(
            "DELETE FROM entries WHERE sequence IN "
            "(SELECT sequence FROM entries WHERE collection_id = ? LIMIT ?)",
            (*dropped, _SWEEP_ROWS),
        ).rowcount
        if removed < _SWEEP_ROWS:
            db.execute("DELETE FROM collections WHERE id = ?", dropped)


def _in_order(db: sqlite3.Connection, collection_id: int, start: int) -> Iterator[tuple[int, FaqEntry]]:
    """Yield the entries after ``start`` with their sequence numbers."""
    cursor = db.execute(
        "SELECT sequence, id, body FROM entries WHERE collection_id = ? AND sequence > ? ORDER BY sequence",
        (collection_id, start),
    )
    while rows := cursor.fetchmany(_ROWS_A_READ):
        for sequence, identifier, body in rows:
            yield sequence, entry_of(identifier, body)


def _vectors(
    db: sqlite3.Connection, collection: _Collection, texts: Sequence[str], *, everything: bool
) -> dict[str, Vector]:
    """Read the live vectors of ``texts``, as rows of one matrix."""
    key = (collection.id, collection.generation)
    rows: Iterable[tuple[bytes, bytes] | None]
    if everything:
        # In the order in which they lie in the file, not in that of their digests.
        rows = db.execute(
            "SELECT sha256, vector FROM vectors WHERE row IN "
            "(SELECT row FROM vectors WHERE collection_id = ? AND generation = ?)",
            key,
        )
    else:
        query = "SELECT sha256, vector FROM vectors WHERE collection_id = ? AND generation = ? AND sha256 = ?"
        rows = (db.execute(query, (*key, _sha256(text))).fetchone() for text in texts)
    dimensions = collection.dimensions or 0
    place_of = {_sha256(text): place for place, text in enumerate(texts)}
    # One by one to their places: the vectors are not held a second time.
    matrix = np.empty((len(texts), dimensions), dtype=np.float32)
    for row in rows:
        place = None if row is None else place_of.pop(row[0], None)
        if row is None or place is None:
            continue
        if len(row[1]) != 4 * dimensions:
            raise _unsound(collection, "a vector is of another length")
        matrix[place] = np.frombuffer(row[1], dtype="<f4")
    if place_of:
        raise _unsound(collection, "a vector is not there")
    matrix.flags.writeable = False
    return dict(zip(texts, matrix, strict=True))


def _unsound(collection: _Collection, finding: str) -> StorageError:
    return StorageError(
        f"collection {collection.name} is damaged ({finding}); "
        f"`conche faq reindex {collection.name}` mends it"
    )


def _hashes(entry: FaqEntry) -> dict[bytes, str]:
    return {_sha256(text): text for text in texts_to_embed([entry])}


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()

"""The file of the embedded FAQ store: its schema, its transactions, its checks, and copies of it.

Durable: a write-ahead log that is flushed to the disk with every commit (``synchronous=FULL``). Readers never
wait for a writer and see the state of one moment. Writers, of any process, take turns.
"""

import errno
import hashlib
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from service.errors import (
    ReadOnlyStoreError,
    ServiceError,
    StorageError,
    StorageFullError,
    UnavailableError,
)

logger = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x436F4651  # "CoFQ", in the file's header: tells our files from other people's
SCHEMA_VERSION: Final = 1
_NEEDED_SQLITE: Final = (3, 37, 0)  # STRICT tables
_HEADER: Final = b"SQLite format 3\x00"
# Five vectors of 384 dimensions fill one page of 8 KiB; two would waste a quarter of one of 4 KiB.
_PAGE_SIZE: Final = 8192
_LOG_BYTES_KEPT: Final = 64 * 1024 * 1024
# Deleting goes through the log as well: on a full disk it needs room that the log has already. As much as
# SQLite lets come together before it moves pages from the log into the file: 1,000 pages.
_LOG_BYTES_ALLOCATED: Final = 8 * 1024 * 1024
# What adds is refused before the disk is full, or the log could not be moved into the file any more.
_BYTES_LEFT_FREE: Final = 16 * 1024 * 1024

# What a snapshot's digest covers and a restore copies, parents before children, with the order of rows.
_CONTENT: Final = {
    "store": "id",
    "collections": "id",
    "generations": "collection_id, generation",
    "entries": "sequence",
    "texts": "sequence, sha256",
    "tombstones": "collection_id, id",
    "vectors": "row",
}

_SCHEMA: Final = (
    # One counter for all collections: a name that is dropped and made again never sees an old number.
    "CREATE TABLE store (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL) STRICT",
    # name: NULL = dropped, its rows are still to be swept. entries: their number. horizon: whoever has an
    # older revision must read everything.
    """CREATE TABLE collections (
        id INTEGER PRIMARY KEY,
        name TEXT UNIQUE,
        revision INTEGER NOT NULL,
        horizon INTEGER NOT NULL,
        entries INTEGER NOT NULL,
        default_answer TEXT,
        min_score REAL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE generations (
        collection_id INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
        generation INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('live', 'pending', 'retired')),
        fingerprint TEXT,
        model_id TEXT,
        dimensions INTEGER,
        PRIMARY KEY (collection_id, generation)
    ) STRICT, WITHOUT ROWID""",
    # body: the entry without its id, JSON. sequence: the order of insertion.
    """CREATE TABLE entries (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        collection_id INTEGER NOT NULL REFERENCES collections (id),
        id TEXT NOT NULL,
        revision INTEGER NOT NULL,
        body TEXT NOT NULL,
        UNIQUE (collection_id, id)
    ) STRICT""",
    "CREATE INDEX entries_by_revision ON entries (collection_id, revision)",
    "CREATE INDEX entries_in_order ON entries (collection_id, sequence)",
    # Which texts an entry needs vectors of.
    """CREATE TABLE texts (
        sequence INTEGER NOT NULL REFERENCES entries (sequence) ON DELETE CASCADE,
        sha256 BLOB NOT NULL,
        collection_id INTEGER NOT NULL,
        PRIMARY KEY (sequence, sha256)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX texts_in_use ON texts (collection_id, sha256)",
    # Deleted ids, so that others can follow.
    """CREATE TABLE tombstones (
        collection_id INTEGER NOT NULL REFERENCES collections (id) ON DELETE CASCADE,
        id TEXT NOT NULL,
        revision INTEGER NOT NULL,
        PRIMARY KEY (collection_id, id)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX tombstones_by_revision ON tombstones (collection_id, revision)",
    # vector: float32, little-endian.
    """CREATE TABLE vectors (
        row INTEGER PRIMARY KEY,
        collection_id INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        sha256 BLOB NOT NULL,
        vector BLOB NOT NULL,
        UNIQUE (collection_id, generation, sha256),
        FOREIGN KEY (collection_id, generation) REFERENCES generations (collection_id, generation)
    ) STRICT""",
    # One row in a snapshot, none in a store that is in use.
    "CREATE TABLE snapshot (taken_at TEXT NOT NULL, sha256 BLOB NOT NULL) STRICT",
    "INSERT INTO store VALUES (1, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)


class SqliteFile:
    """One connection a thread, transactions, and errors of ours.

    Attributes:
        path: of the file.
        read_only: the file or its folder cannot be written: what is there is read, and stays as it is.

    Args:
        path: made, with its folders, if it is not there.
        busy_timeout_s: how long a writer waits for those of other processes.

    Raises:
        StorageError: the file is empty, damaged, not ours, of a newer Conche, or cannot be opened.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 30.0) -> None:
        if sqlite3.sqlite_version_info < _NEEDED_SQLITE:
            raise StorageError(
                f"SQLite {sqlite3.sqlite_version} is older than 3.37, which the FAQ store needs"
            )
        self.path = path
        self.read_only = False
        self._busy_timeout_s = busy_timeout_s
        self._local = threading.local()
        self._connections: list[tuple[threading.Thread, sqlite3.Connection]] = []
        self._idle = threading.Condition()
        self._active = 0
        self._closed = False
        # Threads of one process queue here, where the next one starts at once; SQLite's own waiting polls.
        self._write_lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"FAQ store {path} cannot be made: {error.strerror}") from error
        try:
            self.read_only = _is_read_only(path)
            with _ours(f"FAQ store {path}"):
                if not path.exists():
                    _make(path)
                _check_header(path)
                with self._lent() as db:
                    self._prepare(db)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one moment, whatever others write meanwhile."""
        with _ours("the FAQ store"), self._lent() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.rollback()

    @contextmanager
    def writing(self, *, grows: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction that nobody else writes beside; on the disk when it ends, undone by an exception.

        Args:
            grows: it adds to the file; False for one that makes room in it.

        Raises:
            ReadOnlyStoreError: the file is read only.
            StorageFullError: there is no room, or so little that only deleting is allowed.
        """
        if self.read_only:
            raise ReadOnlyStoreError("the FAQ is kept in a read-only place; it can be searched, not changed")
        if grows and (free := _free_bytes(self.path.parent)) < _BYTES_LEFT_FREE:
            raise StorageFullError(
                f"{free} bytes are free on the disk of the FAQ store, {_BYTES_LEFT_FREE} are left free; "
                "nothing was written; make room on it; entries can be deleted meanwhile"
            )
        with _ours("the FAQ store"), self._lent() as db, self._write_lock, _transaction(db):
            yield db

    @contextmanager
    def single(self) -> Iterator[sqlite3.Connection]:
        """A connection for one statement, which is its own transaction."""
        with _ours("the FAQ store"), self._lent() as db:
            yield db

    def close(self) -> None:
        """Wait for what is under way, then close every thread's connection."""
        with self._idle:
            self._closed = True
            self._idle.wait_for(lambda: self._active == 0)
            while self._connections:
                self._connections.pop()[1].close()

    def snapshot(self, target: Path) -> None:
        """Write what is committed now to a new file, with a digest of all of it.

        Raises:
            StorageError: ``target`` is there already or cannot be written.
        """
        if target.exists():
            raise StorageError(f"snapshot {target.name} is there already; give another name or remove it")
        size = self.path.stat().st_size
        if target.parent.is_dir() and _free_bytes(target.parent) < size + _BYTES_LEFT_FREE:
            raise StorageFullError(
                f"snapshot {target.name} may come to {size} bytes, and {_BYTES_LEFT_FREE} are left free for "
                "the FAQ store itself; make room on the disk"
            )
        partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.partial")
        try:
            with _ours(f"snapshot {target.name}"), self._lent() as source:
                _copy(source, partial)
            _flush(partial)
            partial.replace(target)
            _flush(target.parent)
        except OSError as error:
            kind = StorageFullError if error.errno in {errno.ENOSPC, errno.EDQUOT} else StorageError
            raise kind(f"snapshot {target.name} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def restore(self, source: Path) -> None:
        """Replace all content by that of a snapshot, in one step, while others read.

        Raises:
            StorageError: ``source`` is damaged, not a snapshot of ours, or this very store.
        """
        self.check_copy(source)
        if source.samefile(self.path):
            raise StorageError(f"{source} is the store itself")
        with _ours(f"restoring {source}"), self._lent() as db, self._write_lock:
            db.execute("ATTACH ? AS source", (str(source),))
            try:
                with _transaction(db):
                    _take_over(db)
            finally:
                db.execute("DETACH source")

    @staticmethod
    def check_copy(path: Path) -> None:
        """Check a snapshot, or a copy of a store that nobody used: kind, tables, every page, every value.

        Raises:
            StorageError: it is damaged, or not ours.
        """
        what = f"snapshot {path}"
        if not path.exists():
            raise StorageError(f"{path} does not exist")
        _check_header(path)
        with _ours(what):
            db = _connect(path, 5.0)
            try:
                _check_kind(db, path)
                _check_tables(db, path)
                _check_pages(db, path, "integrity_check")
                if db.execute("PRAGMA foreign_key_check").fetchone():
                    raise _damaged(what, "rows without their parents")
                recorded = db.execute("SELECT sha256 FROM snapshot").fetchall()
                # SQLite keeps no sums: a changed letter or number inside a value passes the checks above.
                if recorded and recorded != [(_digest(db),)]:
                    raise _damaged(what, "its content is not what was written")
            finally:
                db.close()

    @contextmanager
    def _lent(self) -> Iterator[sqlite3.Connection]:
        with self._idle:
            if self._closed:
                raise UnavailableError("the FAQ store is closed")
            self._active += 1
        try:
            db: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if db is None:
                db = self._connect()
                self._local.connection = db
            yield db
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()

    def _connect(self) -> sqlite3.Connection:
        db = _connect(self.path, self._busy_timeout_s, read_only=self.read_only)
        with self._idle:
            for pair in [pair for pair in self._connections if not pair[0].is_alive()]:
                self._connections.remove(pair)
                pair[1].close()
            self._connections.append((threading.current_thread(), db))
        if self.read_only:
            return db
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES_KEPT}")
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        """See whose file it is and whether it is whole; a snapshot is taken into use."""
        _check_kind(db, self.path)
        _check_tables(db, self.path)
        _check_pages(db, self.path, "quick_check")
        if self.read_only:
            return
        self._switch_to_log(db)
        _allocate(_log(self.path))
        if db.execute("SELECT 1 FROM snapshot").fetchone():
            with _transaction(db):
                db.execute("DELETE FROM snapshot")  # a snapshot that is taken into use is none any more

    def _switch_to_log(self, db: sqlite3.Connection) -> None:
        # SQLite does not wait by itself when two processes switch a new file at once.
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
                continue
            if mode != "wal":
                raise StorageError(
                    f"FAQ store {self.path}: this file system cannot keep a write-ahead log; use a local disk"
                )
            return


def _connect(path: Path, timeout_s: float, *, read_only: bool = False) -> sqlite3.Connection:
    place = path.absolute().as_uri()
    if read_only:
        # A log beside the file may belong to a live writer elsewhere, whom SQLite then follows. Without one
        # it would have to make one, which is not possible here, unless told that nobody writes.
        place += "?mode=ro" if _log(path).exists() else "?immutable=1"
    db = sqlite3.connect(place, timeout=timeout_s, isolation_level=None, check_same_thread=False, uri=True)
    db.execute("PRAGMA temp_store = MEMORY")
    # Some builds overwrite what is deleted with zeros, which makes dropping vectors as slow as writing them.
    db.execute("PRAGMA secure_delete = OFF")
    return db


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # Some failures of SQLite have rolled back by themselves.
        if db.in_transaction:
            db.rollback()
        raise


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """Turn SQLite's errors about the file or its users into ours; errors of our statements pass."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise (_translated(error, what) or error) from error


def _translated(error: sqlite3.DatabaseError, what: str) -> ServiceError | None:
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the low byte is the primary code
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return UnavailableError(f"{what} is busy with another writer; try again")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(what, str(error))
        case sqlite3.SQLITE_FULL:
            return StorageFullError(f"{what}: there is no room on the disk; nothing was written")
        case sqlite3.SQLITE_READONLY:
            return ReadOnlyStoreError(f"{what} cannot be written: {error}")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StorageError(f"{what} cannot be read or written: {error}")
    return None


def _is_busy(error: sqlite3.Error) -> bool:
    return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _damaged(what: str, finding: str) -> StorageError:
    return StorageError(f"{what} is damaged ({finding}); move it away and restore a snapshot")


def _is_read_only(path: Path) -> bool:
    """Whether what is there can only be read; refuse a place where nothing is and nothing can be made."""
    if os.access(path.parent, os.W_OK) and (not path.exists() or os.access(path, os.W_OK)):
        return False
    if not path.exists():
        raise StorageError(f"FAQ store {path} cannot be made: its folder is read-only")
    logger.warning(
        "FAQ store %s is read-only: it can be searched, not changed; nothing may write it meanwhile", path
    )
    return True


def _log(path: Path) -> Path:
    """SQLite's log of writes that are not in the file yet."""
    return path.with_name(f"{path.name}-wal")


def _allocate(log: Path) -> None:
    """Give the log its room on the disk; SQLite passes over what is not a frame of its own."""
    try:
        descriptor = os.open(log, os.O_RDWR)
    except FileNotFoundError:  # made by the first write
        return
    try:
        os.posix_fallocate(descriptor, 0, _LOG_BYTES_ALLOCATED)
    except (AttributeError, OSError) as error:  # macOS has no such call, a full disk no such room
        logger.warning("no room is kept for deleting on a full disk: %s", error)
    finally:
        os.close(descriptor)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _make(path: Path) -> None:
    """Make a store beside its place and move it there whole, unless another process is faster.

    So an empty file is never one that is just being made.
    """
    if _log(path).exists():
        raise StorageError(
            f"FAQ store {path} is gone, and {_log(path).name} still there; restore a snapshot, or remove "
            "that file to begin anew"
        )
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        db = _connect(partial, 0.0)
        try:
            db.execute(f"PRAGMA page_size = {_PAGE_SIZE}")
            with _transaction(db):
                for statement in _SCHEMA:
                    db.execute(statement)
        finally:
            db.close()
        try:
            os.link(partial, path)  # fails where a file is, unlike renaming
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            partial.rename(path)
        _flush(path.parent)
    except OSError as error:
        raise StorageError(f"FAQ store {path} cannot be made: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _check_header(path: Path) -> None:
    """Refuse what is no SQLite file before SQLite touches it."""
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    if not header:
        raise StorageError(
            f"{path} is damaged: it has no content, as a copy that failed leaves it; restore a snapshot, or "
            "remove the file to begin anew"
        )
    if header != _HEADER:
        raise StorageError(f"{path} is not a FAQ store: not a SQLite file")


def _application_id(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA application_id").fetchone()[0])


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _check_kind(db: sqlite3.Connection, path: Path) -> None:
    if _application_id(db) != APPLICATION_ID:
        raise StorageError(f"{path} is not a FAQ store: a SQLite file of another program")
    version = _version(db)
    if version > SCHEMA_VERSION:
        raise StorageError(
            f"{path} was written by a newer Conche (layout {version}, this one reads {SCHEMA_VERSION})"
        )
    if version < SCHEMA_VERSION:
        raise StorageError(f"{path} has layout {version}, which no version of Conche wrote")


def _check_tables(db: sqlite3.Connection, path: Path) -> None:
    pattern = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statement in _SCHEMA:
            pattern.execute(statement)
        if _columns(db) != _columns(pattern):
            raise _damaged(str(path), "its tables are not those of a FAQ store")
    finally:
        pattern.close()


def _columns(db: sqlite3.Connection) -> list[tuple[str, str, str]]:
    return db.execute(
        "SELECT tables.name, columns.name, columns.type "
        "FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%' ORDER BY tables.name, columns.cid"
    ).fetchall()


def _check_pages(db: sqlite3.Connection, path: Path, check: str) -> None:
    findings = [str(finding) for (finding,) in db.execute(f"PRAGMA {check}(3)")]
    if findings != ["ok"]:
        raise _damaged(str(path), " ".join("; ".join(findings).split())[:300])
    if db.execute("SELECT count(*) FROM store").fetchone()[0] != 1:
        raise _damaged(str(path), "its revision is gone")


def _copy(source: sqlite3.Connection, partial: Path) -> None:
    partial.unlink(missing_ok=True)
    target = _connect(partial, 0.0)
    try:
        target.execute("PRAGMA synchronous = OFF")  # flushed once, at the end
        # All pages at one go: copied bit by bit, the copy would start anew after every write of others.
        # Writers go on meanwhile; the log keeps what they write apart from what is read here.
        source.backup(target, pages=-1)
        # One file, that can lie on a read-only disk.
        target.execute("PRAGMA journal_mode = DELETE")
        with _transaction(target):
            target.execute("DELETE FROM snapshot")
            target.execute(
                "INSERT INTO snapshot VALUES (?, ?)",
                (datetime.now(UTC).isoformat(timespec="seconds"), _digest(target)),
            )
    finally:
        target.close()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(db: sqlite3.Connection) -> bytes:
    """SHA-256 over every value of every row."""
    digest = hashlib.sha256()
    for table, order in _CONTENT.items():
        digest.update(f"\x00{table}\x00".encode())
        for row in db.execute(f"SELECT * FROM {table} ORDER BY {order}"):  # noqa: S608 - names of ours
            for value in row:
                data = value if isinstance(value, bytes) else repr(value).encode()
                digest.update(b"%c%d:" % (b"b" if isinstance(value, bytes) else b"v", len(data)))
                digest.update(data)
    return digest.digest()


def _take_over(db: sqlite3.Connection) -> None:
    """Copy all of the attached ``source``, as the newest revision of everything."""
    revision = 1 + max(
        db.execute("SELECT max(a.revision, b.revision) FROM main.store a, source.store b").fetchone()
    )
    for table in reversed(_CONTENT):
        db.execute(f"DELETE FROM main.{table}")  # noqa: S608 - names of our own tables
    for table in _CONTENT:
        db.execute(f"INSERT INTO main.{table} SELECT * FROM source.{table}")  # noqa: S608 - names of our own tables
    db.execute("UPDATE main.store SET revision = ?", (revision,))
    # Whoever follows a collection reads it anew.
    db.execute("UPDATE main.collections SET revision = ?, horizon = ?", (revision, revision))

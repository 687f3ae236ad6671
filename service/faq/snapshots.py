"""Snapshots of an FAQ store: files in one folder, named by their makers, never by a path."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from service.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyStoreError,
    StorageError,
    UnavailableError,
)
from service.faq.store import FaqStore

FOLDER: Final = "snapshots"
"""Below the data folder."""
SNAPSHOT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_ENDING: Final = ".sqlite3"


class SnapshotExistsError(ConflictError):
    """A snapshot of that name is there already."""

    code = "snapshot_exists"


class TooManySnapshotsError(ConflictError):
    """As many snapshots are kept as may be; delete one first."""

    code = "too_many_snapshots"


class UnknownSnapshotError(NotFoundError):
    """There is no snapshot of that name."""

    code = "unknown_snapshot"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that is kept.

    Attributes:
        name: without ending.
        path: of its file.
        size: in bytes.
        created_at: ISO 8601, UTC.
    """

    name: str
    path: Path
    size: int
    created_at: str


def list_snapshots(data_dir: Path) -> list[Snapshot]:
    """Return the snapshots below ``data_dir``, oldest first; other files there are none."""
    found = []
    for path in (data_dir / FOLDER).glob(f"*{_ENDING}"):
        name = path.name.removesuffix(_ENDING)
        try:
            status = path.stat()
        except FileNotFoundError:  # deleted meanwhile
            continue
        if SNAPSHOT_NAME.fullmatch(name):
            created_at = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="milliseconds")
            found.append(Snapshot(name, path, status.st_size, created_at))
    return sorted(found, key=lambda snapshot: (snapshot.created_at, snapshot.name))


def write_snapshot(store: FaqStore, data_dir: Path, name: str | None = None, *, most: int) -> Snapshot:
    """Write a snapshot while others read and write.

    Args:
        store: what to write.
        data_dir: it comes into a folder below this one.
        name: without ending; None = made from the time.
        most: how many are kept.

    Raises:
        InvalidInputError: not a name.
        SnapshotExistsError: the name is taken.
        TooManySnapshotsError: ``most`` are there.
        UnavailableError: another one is being written.
        StorageError: it cannot be written.
    """
    if name is None:
        name = datetime.now(UTC).strftime("%Y%m%dt%H%M%S-%f")
    path = snapshot_path(data_dir, name)
    with _one_writer(path.parent):
        if path.exists():
            raise SnapshotExistsError(f"there is a snapshot {name} already", param="name")
        if len(list_snapshots(data_dir)) >= most:
            raise TooManySnapshotsError(
                f"{most} snapshots are there, and no more are kept; delete one, or raise setting "
                "CONCHE_LIMITS__MAX_SNAPSHOTS"
            )
        store.snapshot(path)
    for snapshot in list_snapshots(data_dir):
        if snapshot.name == name:
            return snapshot
    raise StorageError(f"snapshot {name} was deleted as soon as it was written")


def delete_snapshot(data_dir: Path, name: str) -> None:
    """Delete a snapshot.

    Raises:
        InvalidInputError: not a name.
        UnknownSnapshotError: there is none of that name.
        StorageError: it cannot be deleted.
    """
    try:
        snapshot_path(data_dir, name).unlink()
    except FileNotFoundError:
        raise UnknownSnapshotError(f"there is no snapshot {name}", param="name") from None
    except OSError as error:
        raise StorageError(f"snapshot {name} cannot be deleted: {error.strerror}") from error


def snapshot_path(data_dir: Path, name: str) -> Path:
    """Where a snapshot of that name lies, or would.

    Raises:
        InvalidInputError: not a name.
    """
    if not SNAPSHOT_NAME.fullmatch(name):
        raise InvalidInputError(
            "a snapshot's name is 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or digit",
            param="name",
        )
    return data_dir / FOLDER / f"{name}{_ENDING}"


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Make the folder; in it, one snapshot is counted and written at a time, by whatever process.

    Raises:
        UnavailableError: another one is being written.
        StorageError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        kind = StorageError if os.access(folder.parent, os.W_OK) else ReadOnlyStoreError
        raise kind(f"folder {folder.name} cannot be made: {error.strerror}") from error
    try:
        # Not waited for: whoever waits holds a thread that searches need.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UnavailableError("another snapshot is being written; try again") from None
    finally:
        os.close(descriptor)  # lets go of the lock, too

"""Snapshots of an FAQ store: files in one folder, named by their makers, never by a path."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from service.errors import ConflictError, InvalidInputError
from service.faq.store import FaqStore

FOLDER: Final = "snapshots"
"""Below the data folder."""
SNAPSHOT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_ENDING: Final = ".sqlite3"


class SnapshotExistsError(ConflictError):
    """A snapshot of that name is there already."""

    code = "snapshot_exists"


def write_snapshot(store: FaqStore, data_dir: Path, name: str | None = None) -> Path:
    """Write a snapshot while others read and write.

    Args:
        store: what to write.
        data_dir: it comes into a folder below this one.
        name: without ending; None = made from the time.

    Returns:
        The file's path.

    Raises:
        InvalidInputError: not a name.
        SnapshotExistsError: the name is taken.
        StorageError: it cannot be written.
    """
    if name is None:
        name = datetime.now(UTC).strftime("%Y%m%dt%H%M%S-%f")
    if not SNAPSHOT_NAME.fullmatch(name):
        raise InvalidInputError(
            "a snapshot's name is 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or digit",
            param="name",
        )
    path = data_dir / FOLDER / f"{name}{_ENDING}"
    if path.exists():
        raise SnapshotExistsError(f"there is a snapshot {name} already", param="name")
    path.parent.mkdir(parents=True, exist_ok=True)
    store.snapshot(path)
    return path

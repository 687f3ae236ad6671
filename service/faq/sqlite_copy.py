"""A copy of any FAQ store as one file of the embedded store's kind."""

import tempfile
from pathlib import Path

from service.errors import StorageError, UnknownCollectionError
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore, Write


def write_copy(store: FaqStore, target: Path) -> None:
    """Write all collections of ``store`` to a new file, which `SqliteFaqStore` opens and restores.

    Each collection is as of one moment. Entries, their order, vectors, model and settings are kept; revisions
    are counted anew.

    Raises:
        StorageError: ``target`` is there already or cannot be written.
    """
    if target.exists():  # before the work, not after it
        raise StorageError(f"snapshot {target} is there already; give another name or remove it")
    try:
        # Beside the target: the copy may be larger than the disk of temporary files.
        with (
            tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder,
            SqliteFaqStore(Path(folder) / "copy.sqlite") as copy,
        ):
            for info in store.collections():
                try:
                    _copy_collection(store, copy, info.name)
                except UnknownCollectionError:
                    continue  # dropped meanwhile
            copy.snapshot(target)
    except OSError as error:
        raise StorageError(f"snapshot {target} cannot be written: {error.strerror}") from error


def _copy_collection(store: FaqStore, copy: SqliteFaqStore, name: str) -> None:
    changes, info = store.changes(name, 0), store.info(name)
    copy.create(name)
    copy.apply(
        name,
        Write(upserts=changes.entries, vectors=changes.vectors),
        fingerprint=changes.fingerprint,
        model_id=info.model_id,
    )
    copy.configure(name, default_answer=info.default_answer, min_score=info.min_score)

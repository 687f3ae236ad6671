"""Snapshots as files: what is listed, and who may write one."""

import threading
from pathlib import Path

import pytest

from service.errors import UnavailableError
from service.faq.snapshots import FOLDER, TooManySnapshotsError, list_snapshots, write_snapshot
from service.faq.sqlite_store import SqliteFaqStore


@pytest.fixture
def store(tmp_path: Path) -> SqliteFaqStore:
    """An empty one; what is written of it does not matter here."""
    return SqliteFaqStore(tmp_path / "faq.sqlite")


def test_only_snapshots_are_listed(store: SqliteFaqStore, tmp_path: Path) -> None:
    """Neither one that is being written, nor what somebody else put there."""
    assert list_snapshots(tmp_path) == []
    written = write_snapshot(store, tmp_path, "one", most=5)
    for name in (".two.sqlite3.1.partial", ".sqlite3", "No.sqlite3", "notes.txt"):
        (tmp_path / FOLDER / name).touch()
    assert list_snapshots(tmp_path) == [written]
    assert written.size == written.path.stat().st_size > 0


def test_one_is_written_at_a_time(
    store: SqliteFaqStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or many that begin at once would pass the limit; who comes second is told, and holds up no thread."""
    begun, go_on = threading.Event(), threading.Event()
    snapshot = store.snapshot

    def slow(target: Path) -> None:
        begun.set()
        assert go_on.wait(60)
        snapshot(target)

    monkeypatch.setattr(store, "snapshot", slow)
    writer = threading.Thread(target=write_snapshot, args=(store, tmp_path, "one"), kwargs={"most": 1})
    writer.start()
    assert begun.wait(60)
    with pytest.raises(UnavailableError, match="another snapshot is being written"):
        write_snapshot(store, tmp_path, "two", most=1)
    go_on.set()
    writer.join()
    with pytest.raises(TooManySnapshotsError):
        write_snapshot(store, tmp_path, "two", most=1)

"""The embedded store: what every store must do, and what only a file can have wrong."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from service.errors import ReadOnlyStoreError, StorageError, StorageFullError, UnavailableError
from service.faq import sqlite_file, sqlite_store
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import Write
from tests.service.faq.store_conformance import (
    OpenStore,
    StoreConformance,
    check_vectors,
    delete,
    entry,
    ids,
    put,
    vectors_of,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the tests' store lies."""
    return tmp_path / "folder" / "faq.db"


@pytest.fixture
def open_store(path: Path) -> Iterator[OpenStore]:
    """Opens the same store each time it is called."""
    opened: list[SqliteFaqStore] = []

    def open_one() -> SqliteFaqStore:
        opened.append(SqliteFaqStore(path))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> SqliteFaqStore:
    """A store with one empty collection."""
    opened = open_store()
    opened.create("faq")
    return opened


class TestSqliteFaqStore(StoreConformance):
    """The conformance suite on SQLite."""


def raw(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements behind the store's back; return the rows of the last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        rows = []
        for statement in statements:
            rows = db.execute(statement).fetchall()
        return rows


# The file


def test_commits_reach_the_disk_before_they_are_acknowledged(store: SqliteFaqStore, path: Path) -> None:
    """What makes a write survive loss of power cannot be tried here; that it is switched on can."""
    with store._file.single() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_an_empty_file_is_no_new_store(tmp_path: Path) -> None:
    """What a copy that failed leaves behind: to begin anew over it would hide that everything is gone."""
    path = tmp_path / "faq.db"
    path.touch()
    with pytest.raises(StorageError, match=r"faq\.db.*no content.*restore a snapshot, or remove the file"):
        SqliteFaqStore(path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_without_its_store_is_no_new_store(path: Path) -> None:
    """SQLite would play it into the new file, or throw away writes that were acknowledged."""
    path.parent.mkdir()
    log = path.with_name("faq.db-wal")
    log.write_bytes(b"x")
    with pytest.raises(StorageError, match=r"faq\.db is gone.*faq\.db-wal"):
        SqliteFaqStore(path)
    assert list(path.parent.iterdir()) == [log]


def test_a_new_store_is_there_as_a_whole(path: Path, open_store: OpenStore) -> None:
    """Nothing of its making is left beside it; also where the file system has no hard links."""
    open_store().close()
    assert list(path.parent.iterdir()) == [path]
    assert raw(path, "PRAGMA page_size") == [(8192,)]
    path.unlink()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "link", Mock(side_effect=PermissionError(errno.EPERM, "no links here")))
        open_store().create("faq")
    assert raw(path, "SELECT name FROM collections") == [("faq",)]


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every file look read-only: what runs the tests may write anywhere, whatever the permissions."""
    monkeypatch.setattr(os, "access", lambda *_: False)


def test_a_read_only_store_is_read_and_refuses_every_write(
    store: SqliteFaqStore, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """No file is made beside it, as on a disk on which none can be."""
    put(store, "faq", entry("a"), entry("b"))
    store.close()
    copy = tmp_path / "mounted" / "faq.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    request.getfixturevalue("read_only")
    with SqliteFaqStore(copy) as mounted:
        assert ids(mounted, "faq") == ["a", "b"]
        for write in (
            lambda: put(mounted, "faq", entry("c")),
            lambda: delete(mounted, "faq", "a"),
            lambda: mounted.drop("faq"),
            lambda: mounted.create("other"),
            lambda: mounted.begin_reindex("faq", fingerprint="f", model_id="m"),
        ):
            with pytest.raises(ReadOnlyStoreError, match="read-only"):
                write()
        assert list(copy.parent.iterdir()) == [copy]
        with mounted._file.single() as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("DELETE FROM entries")  # SQLite itself would not, either


def test_a_read_only_view_follows_a_live_writer(
    store: SqliteFaqStore, path: Path, request: pytest.FixtureRequest
) -> None:
    """One that may write has the file open: what it commits is seen."""
    put(store, "faq", entry("a"))
    request.getfixturevalue("read_only")
    with SqliteFaqStore(path) as view:
        put(store, "faq", entry("b"))
        assert ids(view, "faq") == ["a", "b"]


@pytest.mark.usefixtures("read_only")
def test_nothing_is_made_in_a_read_only_folder(path: Path) -> None:
    """And the message says what is wrong with it."""
    with pytest.raises(StorageError, match=r"faq\.db cannot be made: its folder is read-only"):
        SqliteFaqStore(path)


def test_a_full_disk_is_told_by_its_own_code(store: SqliteFaqStore) -> None:
    """What is there stays and is found; with room again, writing goes on."""
    put(store, "faq", entry("a"))
    with store._file.single() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageFullError, match="no room"):
            put(store, "faq", *(entry(f"e{number}", "q" * 500) for number in range(100)))
        assert ids(store, "faq") == ["a"]
        db.execute(f"PRAGMA max_page_count = {100 * pages}")
    put(store, "faq", entry("b"))
    check_vectors(store.changes("faq", 0))


def test_a_disk_that_is_nearly_full_lets_delete_and_no_more(
    store: SqliteFaqStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting takes no room on the disk but what the log has already, or nobody could make any."""
    put(store, "faq", *(entry(f"e{number}", f"q{number}") for number in range(300)))
    store.create("other")
    store.close()
    with SqliteFaqStore(path) as again:
        log = path.with_name(f"{path.name}-wal")
        allocated = log.stat().st_size
        monkeypatch.setattr(sqlite_file, "_free_bytes", lambda _: 4096)
        for write in (
            lambda: put(again, "faq", entry("new")),
            lambda: again.create("new"),
            lambda: again.begin_reindex("faq", fingerprint="f", model_id="m"),
        ):
            with pytest.raises(StorageFullError, match=r"4096 bytes are free .*can be deleted meanwhile"):
                write()
        delete(again, "faq", "e0")
        delete(again, "faq", *(f"e{number}" for number in range(1, 200)))
        again.drop("other")
        assert len(ids(again, "faq")) == 100
        assert log.stat().st_size == allocated >= 8 * 1024 * 1024
        assert log.stat().st_blocks * 512 >= allocated
        check_vectors(again.changes("faq", 0))


def test_a_snapshot_that_finds_no_room_says_so(
    store: SqliteFaqStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves no part of it behind."""
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StorageFullError, match=r"snap\.db cannot be written"):
        store.snapshot(tmp_path / "snap.db")
    assert not [file for file in tmp_path.iterdir() if "snap" in file.name]


@pytest.mark.parametrize("content", [b"id,question,answer\n1,a,b\n", b"SQLite format", b"\x00" * 4096])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    """A mistyped path must not cost somebody a file."""
    path = tmp_path / "faq.csv"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"faq\.csv is not a FAQ store: not a SQLite file"):
        SqliteFaqStore(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """SQLite would gladly add our tables to it."""
    path = tmp_path / "photos.db"
    raw(path, "CREATE TABLE photos (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(
        StorageError, match=r"photos\.db is not a FAQ store: a SQLite file of another program"
    ):
        SqliteFaqStore(path)
    assert path.read_bytes() == before


def test_a_newer_layout_is_refused(store: SqliteFaqStore, path: Path) -> None:
    """An old program that writes to it could lose what it does not know."""
    store.close()
    raw(path, "PRAGMA user_version = 2")
    with pytest.raises(StorageError, match="newer Conche"):
        SqliteFaqStore(path)


def test_a_store_that_lost_a_table_is_refused(store: SqliteFaqStore, path: Path) -> None:
    """At the start, not at the first deletion."""
    store.close()
    raw(path, "DROP TABLE tombstones")
    with pytest.raises(StorageError, match=r"damaged.*tables"):
        SqliteFaqStore(path)


def test_damaged_pages_are_found_at_the_start(store: SqliteFaqStore, path: Path) -> None:
    """With what to do about it."""
    put(store, "faq", *(entry(f"e{number}", "q" * 500) for number in range(100)))
    store.close()
    data = bytearray(path.read_bytes())
    for start in range(8192 * 3, len(data), 8192):
        data[start : start + 16] = b"\xff" * 16
    path.write_bytes(data)
    with pytest.raises(StorageError, match=r"faq\.db is damaged.*restore a snapshot"):
        SqliteFaqStore(path)


def test_damage_met_while_serving_is_a_storage_error(store: SqliteFaqStore, path: Path) -> None:
    """Not an exception of the library, which nobody handles."""
    put(store, "faq", *(entry(f"e{number}", "q" * 500) for number in range(300)))
    store.close()
    again = SqliteFaqStore(path)
    with path.open("r+b") as file:
        file.truncate(8192 * 6)
    with pytest.raises(StorageError, match=r"damaged|cannot be read"):
        again.changes("faq", 0)
    again.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """`CONCHE_...=/etc/passwd/faq.db`."""
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be"):
        SqliteFaqStore(tmp_path / "file" / "faq.db")
    with pytest.raises(StorageError, match="cannot be"):
        SqliteFaqStore(tmp_path)


def test_a_vector_that_is_gone_is_told_with_its_remedy(store: SqliteFaqStore, path: Path) -> None:
    """Searching on without it would hide an entry."""
    put(store, "faq", entry("a"), entry("b"))
    raw(path, "DELETE FROM vectors WHERE row = 1")
    with pytest.raises(StorageError, match="conche faq reindex faq"):
        store.changes("faq", 0)


def test_many_threads_make_one_new_store(path: Path) -> None:
    """Replicas that start at once on a new volume."""
    stores, failures = [], []

    def open_one() -> None:
        try:
            stores.append(SqliteFaqStore(path))
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stores[0].create("faq")
    assert all(store.info("faq").name == "faq" for store in stores)
    for store in stores:
        store.close()


def test_a_writer_that_waits_too_long_is_told_to_try_again(store: SqliteFaqStore, path: Path) -> None:
    """Another process that holds the file; reading goes on."""
    with SqliteFaqStore(path, busy_timeout_s=0.05) as impatient, store._file.writing():
        with pytest.raises(UnavailableError, match="busy"):
            put(impatient, "faq", entry("a"))
        assert impatient.count("faq") == 0
    put(store, "faq", entry("a"))


def test_connections_of_ended_threads_are_closed(store: SqliteFaqStore) -> None:
    """A server's pool of threads changes for as long as it runs."""
    for _ in range(20):
        thread = threading.Thread(target=store.info, args=("faq",))
        thread.start()
        thread.join()
    assert len(store._file._connections) <= 2


def test_closing_waits_for_a_call_under_way(store: SqliteFaqStore) -> None:
    """SQLite does not bear a connection closed under a running statement."""
    inside, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def matches(self, _: object, /) -> bool:
            inside.set()
            return go_on.wait(30)

    put(store, "faq", entry("a"))
    counts: list[int] = []
    counter = threading.Thread(target=lambda: counts.append(store.count("faq", Slow())))
    counter.start()
    assert inside.wait(30)
    closer = threading.Thread(target=lambda: (store.close(), closed.set()))
    closer.start()
    assert not closed.wait(0.05)
    go_on.set()
    counter.join()
    closer.join()
    assert counts == [1]


# What is left behind


def test_no_row_outlives_its_use(store: SqliteFaqStore, path: Path) -> None:
    """Deleting, dropping and reindexing leave only what is needed; from outside nobody would notice."""
    put(store, "faq", *(entry(f"e{number}", f"q{number}", "answer", "shared") for number in range(10)))
    for model in ("b", "c"):
        generation = store.begin_reindex("faq", fingerprint=f"fingerprint-{model}", model_id=f"model-{model}")
        store.add_vectors("faq", generation, vectors_of(store.changes("faq", 0).entries, model=model))
        assert raw(path, "SELECT count(*) FROM vectors") == [(42,)]
        store.finish_reindex("faq", generation)
    assert raw(path, "SELECT count(*) FROM vectors") == [(21,)]
    assert raw(path, "SELECT count(*) FROM generations") == [(1,)]
    delete(store, "faq", *(f"e{number}" for number in range(9)))
    assert raw(path, "SELECT count(*) FROM vectors") == [(3,)]
    assert raw(path, "SELECT count(*) FROM texts") == [(3,)]
    store.drop("faq")
    for table in ("collections", "generations", "entries", "texts", "tombstones", "vectors"):
        assert raw(path, f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_sweep_goes_on_after_an_end_amid_it(
    store: SqliteFaqStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches are small; whoever opens the store next finishes."""
    monkeypatch.setattr(sqlite_store, "_SWEEP_ROWS", 4)
    put(store, "faq", *(entry(f"e{number}") for number in range(30)))
    with monkeypatch.context() as patched:
        patched.setattr(SqliteFaqStore, "_sweep", lambda _: None)
        store.drop("faq")
    assert raw(path, "SELECT count(*) FROM vectors") == [(30,)]
    with SqliteFaqStore(path):
        assert raw(path, "SELECT count(*) FROM vectors") == [(0,)]
        assert raw(path, "SELECT count(*) FROM collections") == [(0,)]


def test_notes_of_deletions_do_not_pile_up(
    store: SqliteFaqStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is too far behind reads everything; who is close still gets the difference."""
    monkeypatch.setattr(sqlite_store, "_TOMBSTONES_KEPT", 3)
    start = put(store, "faq", *(entry(f"e{number}") for number in range(10)))
    revisions = [delete(store, "faq", f"e{number}") for number in range(8)]
    assert raw(path, "SELECT count(*) FROM tombstones") == [(3,)]
    behind = store.changes("faq", start)
    assert (behind.complete, [found.id for found in behind.entries]) == (True, ["e8", "e9"])
    close = store.changes("faq", revisions[-4])
    assert (close.complete, close.deleted) == (False, ("e5", "e6", "e7"))
    assert store.changes("faq", revisions[-5]).complete


# Copies


def test_a_snapshot_holds_one_moment_and_lies_in_one_file(store: SqliteFaqStore, tmp_path: Path) -> None:
    """What is written afterwards is not in it; restoring brings all of that moment back, and only that."""
    put(store, "faq", entry("a", "q", "answer"), entry("b"))
    store.configure("faq", default_answer="none", min_score=0.5)
    store.create("empty")
    before = store.changes("faq", 0)
    target = tmp_path / "backup" / "snap.db"
    target.parent.mkdir()
    store.snapshot(target)
    assert [file.name for file in target.parent.iterdir()] == ["snap.db"]
    put(store, "faq", entry("c"), entry("a", "changed"))
    store.drop("empty")
    SqliteFaqStore.restore(target, tmp_path / "new" / "faq.db")
    with SqliteFaqStore(tmp_path / "new" / "faq.db") as restored:
        assert restored.changes("faq", 0).entries == before.entries
        check_vectors(restored.changes("faq", 0))
        assert [info.name for info in restored.collections()] == ["empty", "faq"]
        assert restored.info("faq").default_answer == "none"
        put(restored, "faq", entry("d"))
        assert ids(restored, "faq") == ["a", "b", "d"]


def test_restoring_under_a_running_service_is_one_more_revision(
    store: SqliteFaqStore, open_store: OpenStore, path: Path, tmp_path: Path
) -> None:
    """Handles stay open, numbers rise, followers read anew and then go on as before."""
    put(store, "faq", entry("a"))
    store.snapshot(tmp_path / "snap.db")
    revision = put(store, "faq", entry("a", "changed"), entry("b"))
    other = open_store()
    SqliteFaqStore.restore(tmp_path / "snap.db", path)
    assert other.revision("faq") > revision
    changes = other.changes("faq", revision)
    assert (changes.complete, [found.question for found in changes.entries]) == (True, ["a"])
    check_vectors(changes)
    after = put(store, "faq", entry("c"))
    assert [found.id for found in other.changes("faq", changes.revision).entries] == ["c"]
    assert after > changes.revision


def test_snapshots_are_whole_while_others_write(store: SqliteFaqStore, tmp_path: Path) -> None:
    """Writers are not held up, and no snapshot shows half of a write."""
    stop = threading.Event()
    rounds: list[int] = []

    def write() -> None:
        while not stop.is_set():
            rounds.append(len(rounds))
            put(store, "faq", *(entry(f"e{part}", f"round {len(rounds)}") for part in range(5)))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(8):
            before = len(rounds)
            store.snapshot(tmp_path / f"{number}.db")
            with SqliteFaqStore(tmp_path / f"{number}.db") as copy:
                assert len({found.question for found in copy.changes("faq", 0).entries}) <= 1
                check_vectors(copy.changes("faq", 0))
            while len(rounds) <= before:
                assert writer.is_alive()
    finally:
        stop.set()
        writer.join()


def test_a_snapshot_never_takes_the_place_of_a_file(
    store: SqliteFaqStore, path: Path, tmp_path: Path
) -> None:
    """Least of all that of the store; a folder that is not there is named."""
    (tmp_path / "notes.txt").write_text("keep", encoding="utf-8")
    for target in (tmp_path / "notes.txt", path):
        with pytest.raises(StorageError, match="there already"):
            store.snapshot(target)
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "keep"
    with pytest.raises(StorageError, match=r"snap\.db cannot be"):
        store.snapshot(tmp_path / "nowhere" / "snap.db")


def test_a_snapshot_may_become_the_store_itself(store: SqliteFaqStore, tmp_path: Path) -> None:
    """Copied to where the store lay; a plain copy of it, made while nobody used it, restores as well."""
    put(store, "faq", entry("a"))
    store.snapshot(tmp_path / "snap.db")
    with SqliteFaqStore(tmp_path / "snap.db") as taken:
        put(taken, "faq", entry("b"))
    SqliteFaqStore.restore(tmp_path / "snap.db", tmp_path / "other.db")
    with SqliteFaqStore(tmp_path / "other.db") as other:
        assert ids(other, "faq") == ["a", "b"]


def test_every_damage_to_a_snapshot_is_found_before_anything_is_touched(
    store: SqliteFaqStore, path: Path, tmp_path: Path
) -> None:
    """A cut-off copy, a changed letter, a changed bit of a vector: SQLite alone misses the last two."""
    put(store, "faq", *(entry(f"e{number}", f"question {number}", "answer") for number in range(50)))
    store.snapshot(tmp_path / "good.db")
    good = (tmp_path / "good.db").read_bytes()
    before = store.changes("faq", 0)
    vector = before.vectors["question 7"].tobytes()
    altered = vector[:5] + bytes([vector[5] ^ 1]) + vector[6:]
    damaged = {
        "cut": good[: len(good) // 2],
        "cut-by-a-page": good[:-8192],
        "letter": good.replace(b'"question":"question 31"', b'"question":"question 13"'),
        "vector": good.replace(vector, altered),
        "header": b"\x00" * 16 + good[16:],
        "empty": b"",
    }
    for name, data in damaged.items():
        assert data != good
        source = tmp_path / f"{name}.db"
        source.write_bytes(data)
        with pytest.raises(StorageError, match=rf"{name}\.db.*(damaged|not a FAQ store)"):
            SqliteFaqStore.restore(source, path)
        with pytest.raises(StorageError, match=rf"{name}\.db"):
            SqliteFaqStore.restore(source, tmp_path / "never.db")
    assert not (tmp_path / "never.db").exists()
    assert store.changes("faq", 0).entries == before.entries
    assert store.revision("faq") == before.revision


def test_foreign_files_are_not_restored(store: SqliteFaqStore, path: Path, tmp_path: Path) -> None:
    """Each is refused by its name, and so is the store itself."""
    put(store, "faq", entry("a"))
    raw(tmp_path / "photos.db", "CREATE TABLE photos (name TEXT)")
    (tmp_path / "faq.csv").write_text("id,question\n", encoding="utf-8")
    for name, message in (
        ("photos.db", "another program"),
        ("faq.csv", "not a SQLite file"),
        ("nowhere.db", "does not exist"),
    ):
        with pytest.raises(StorageError, match=f"{name}.*{message}"):
            SqliteFaqStore.restore(tmp_path / name, path)
    with pytest.raises(StorageError, match="the store itself"):
        SqliteFaqStore.restore(path, path)
    assert ids(store, "faq") == ["a"]


def test_a_write_of_thousands_is_one_write(store: SqliteFaqStore) -> None:
    """An import is there as a whole or not at all, whatever its size."""
    many = tuple(entry(f"e{number}", f"question {number % 50}") for number in range(3000))
    revision = store.revision("faq")
    assert put(store, "faq", *many) == revision + 1
    assert store.count("faq") == 3000
    store.apply("faq", Write(deletes=tuple(found.id for found in many)))
    assert store.count("faq") == 0

"""The store in Milvus: what every store must do, on milvus-lite's server and on a real one."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.errors import StorageError, UnavailableError
from service.faq import milvus_connection, milvus_store
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import (
    MAX_ALTERNATES,
    MAX_ANSWER_CHARS,
    MAX_ID_CHARS,
    MAX_METADATA_CHARS,
    MAX_METADATA_KEYS,
    MAX_QUESTION_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
)
from service.faq.milvus_claims import Claim
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_store import MilvusFaqStore
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import Write
from tests.service.faq.hashed_vectors import DIMENSIONS
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess, milvus_lite_server
from tests.service.faq.store_conformance import (
    Follower,
    OpenStore,
    StoreConformance,
    check_vectors,
    delete,
    entry,
    ids,
    put,
)

LEASE_S = 0.3


@pytest.fixture
def open_store(server: MilvusProcess) -> Iterator[OpenStore]:
    """Opens the store of a server; afterwards it is empty again, which is quicker than another one."""
    opened: list[MilvusFaqStore] = []

    def open_one() -> MilvusFaqStore:
        opened.append(MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX, lease_s=LEASE_S))
        return opened[-1]

    yield open_one
    last = open_one()
    for info in last.collections():
        last.drop(info.name)
    for store in opened:
        store.close()


def letters(number: int, count: int) -> str:
    """So many Han characters, each of three bytes, no two numbers alike."""
    return "".join(map(chr, np.random.default_rng(number).integers(0x4E00, 0x9FFF, count).tolist()))


class MilvusConformance(StoreConformance):
    """The conformance suite, and what Milvus might have wrong."""

    ROUNDS = 15

    def test_the_largest_entry_is_taken(self, store: MilvusFaqStore) -> None:
        """Its body, metadata and terms are past what Milvus keeps in one row."""
        largest = entry(
            letters(1, MAX_ID_CHARS),
            letters(2, MAX_QUESTION_CHARS),
            letters(3, MAX_ANSWER_CHARS),
            *(letters(100 + number, MAX_QUESTION_CHARS) for number in range(MAX_ALTERNATES)),
            tags=tuple(letters(400 + number, MAX_TAG_CHARS) for number in range(MAX_TAGS)),
            metadata={
                letters(600 + number, MAX_TAG_CHARS): letters(800 + number, MAX_METADATA_CHARS)
                for number in range(MAX_METADATA_KEYS)
            },
        )
        texts = texts_to_embed([largest])
        drawn = np.random.default_rng(0).standard_normal((len(texts), DIMENSIONS)).astype(np.float32)
        vectors = dict(zip(texts, drawn / np.linalg.norm(drawn, axis=1, keepdims=True), strict=True))
        put(store, "faq", entry("a"))
        write = Write(upserts=(largest,), vectors=vectors)
        store.apply("faq", write, fingerprint="fingerprint-a", model_id="model-a")
        put(store, "faq", entry("b", language="zh-" + "-".join(["abcdefgh"] * 60)))
        assert store.get("faq", [largest.id])[largest.id] == largest
        assert [found.id for found in store.page("faq", limit=9)[0]] == ["a", largest.id, "b"]
        changes = store.changes("faq", 0)
        assert changes.entries[1] == largest
        for text, vector in vectors.items():
            np.testing.assert_array_equal(changes.vectors[text], vector)
        delete(store, "faq", largest.id)
        assert (store.count("faq"), store._head("faq").lexical_terms) == (2, 2)

    def test_more_rows_than_an_answer_holds_are_read_bit_by_bit(
        self, store: MilvusFaqStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Milvus gives no more than so many, and leaves out the rest without a word."""
        monkeypatch.setattr(milvus_connection, "_LARGE_ROWS", 8)
        monkeypatch.setattr(milvus_connection, "MAX_ROWS_A_QUERY", 16)
        monkeypatch.setattr(milvus_connection, "_KEYS_A_MESSAGE", 5)
        names = [f"e{number}" for number in range(50)]
        put(store, "faq", *(entry(name, name, "answer", f"other {name}") for name in names))
        assert ids(store, "faq") == names
        check_vectors(store.changes("faq", 0))
        revision = store.revision("faq")
        delete(store, "faq", *names[:40])
        changes = store.changes("faq", revision)
        assert sorted(changes.deleted) == sorted(names[:40])
        assert store.missing_texts("faq", names) == names[:40]
        store.drop("faq")
        store.create("faq")
        assert (store.count("faq"), ids(store, "faq")) == (0, [])

    def test_old_deletions_are_forgotten(
        self, store: MilvusFaqStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A follower from before then reads everything; the others do not."""
        monkeypatch.setattr(milvus_store, "_TOMBSTONES_KEPT", 3)
        monkeypatch.setattr(milvus_store, "_TOMBSTONES_OVER", 2)
        put(store, "faq", *(entry(f"e{number}") for number in range(10)))
        early, late = Follower(store, "faq"), Follower(store, "faq")
        early.catch_up()
        for number in range(6):
            if number == 4:
                late.catch_up()
            delete(store, "faq", f"e{number}")
        assert store._head("faq").tombstones == 4
        assert not late.catch_up().complete
        assert early.catch_up().complete
        assert list(early.entries) == list(late.entries) == ids(store, "faq")

    def test_a_writer_that_was_given_up_writes_nothing(
        self, store: MilvusFaqStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It slept, its lease ran out, another one wrote: it is told so, and its rows never come up."""
        other = open_store()
        put(store, "faq", entry("a", "old"))
        write = store._write

        def sleeping(*arguments: object) -> None:
            write(*arguments)
            put(other, "faq", entry("b", "by the other"))
            write(*arguments)  # after the other one has cleared away what was there

        monkeypatch.setattr(store, "_write", sleeping)
        with pytest.raises(UnavailableError, match="was given up"):
            put(store, "faq", entry("a", "late"), entry("c"))
        for reader in (store, other):
            assert [found.question for found in reader.changes("faq", 0).entries] == ["old", "by the other"]
        monkeypatch.undo()
        rows = store._milvus.query(
            store._names.entries, f"incarnation == {store._head('faq').incarnation}", ["version"]
        )
        assert {row["version"] for row in rows}.isdisjoint(store._head("faq").voids)
        put(store, "faq", entry("c"))
        assert ids(other, "faq") == ["a", "b", "c"]
        check_vectors(other.changes("faq", 0))

    def test_a_slow_writer_is_waited_for(
        self, store: MilvusFaqStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As long as it shows that it goes on, however long it takes."""
        other, write = open_store(), store._write
        put(other, "faq", entry("a"))
        put(store, "faq", entry("a", "changed"))
        with ThreadPoolExecutor(1) as pool:
            waiting: list[Future[int]] = []

            def slow(claim: Claim, *arguments: object) -> None:
                waiting.append(pool.submit(put, other, "faq", entry("b")))
                for _ in range(20):
                    time.sleep(LEASE_S / 5)
                    claim.beat()
                assert not waiting[0].done()
                write(claim, *arguments)

            monkeypatch.setattr(store, "_write", slow)
            revision = put(store, "faq", entry("c"))
            assert waiting[0].result(timeout=60) > revision
        assert ids(store, "faq") == ["a", "c", "b"]
        assert not [alias for alias in store._milvus.aliases() if alias.startswith(f"{PREFIX}_b_")]

    @pytest.mark.parametrize("happened", [True, False])
    def test_a_write_in_doubt_is_settled_by_the_next_one(
        self,
        store: MilvusFaqStore,
        open_store: OpenStore,
        monkeypatch: pytest.MonkeyPatch,
        happened: bool,
    ) -> None:
        """The answer to the commit is lost: it happened or not, as a whole, and nothing is written twice."""
        other = open_store()
        put(store, "faq", entry("a", "old"))
        make_alias = store._milvus.make_alias

        def unanswered(collection: str, alias: str) -> bool:
            if "_v_" not in alias:
                return make_alias(collection, alias)
            if happened:
                make_alias(collection, alias)
            raise UnavailableError("no answer")

        monkeypatch.setattr(store._milvus, "make_alias", unanswered)
        with pytest.raises(UnavailableError, match="see whether it happened"):
            put(store, "faq", entry("a", "new"), entry("b"))
        monkeypatch.undo()
        expected = ["new", "b"] if happened else ["old"]
        for reader in (store, other):
            assert [found.question for found in reader.changes("faq", 0).entries] == expected
        put(store, "faq", entry("c"))
        assert [found.question for found in other.changes("faq", 0).entries] == [*expected, "c"]
        check_vectors(other.changes("faq", 0))

    def test_a_snapshot_is_a_file_of_the_embedded_store(self, store: MilvusFaqStore, tmp_path: Path) -> None:
        """So the way back, and to one machine, needs nothing more."""
        store.create("empty-one")
        put(store, "faq", entry("b", "q", "answer", "other"), entry("a"), entry("c", enabled=False))
        put(store, "faq", entry("b", "changed"))
        store.configure("faq", default_answer="none", min_score=0.5)
        store.snapshot(tmp_path / "copy.sqlite3")
        SqliteFaqStore.restore(tmp_path / "copy.sqlite3", tmp_path / "faq.sqlite")
        with SqliteFaqStore(tmp_path / "faq.sqlite") as copy:
            assert [info.name for info in copy.collections()] == ["empty-one", "faq"]
            ours, theirs = store.changes("faq", 0), copy.changes("faq", 0)
            assert theirs.entries == ours.entries
            check_vectors(theirs)
            info = copy.info("faq")
            assert (info.model_id, info.default_answer, info.min_score) == ("model-a", "none", 0.5)
        with pytest.raises(StorageError, match="is there already"):
            store.snapshot(tmp_path / "copy.sqlite3")


class TestOnMilvusLite(MilvusConformance):
    """milvus-lite 3, behind its server."""

    SEEDS = (0, 1)

    @pytest.fixture
    def server(self, milvus_lite: MilvusProcess) -> MilvusProcess:
        """The server."""
        return milvus_lite

    def test_two_prefixes_share_a_database(self, store: MilvusFaqStore, server: MilvusProcess) -> None:
        """Names that begin alike are told apart."""
        with MilvusFaqStore(MilvusConnection(server.uri), prefix=f"{PREFIX}2") as other:
            assert [info.name for info in other.collections()] == []
            other.create("other")
            other.configure("other", default_answer="x", min_score=None)
            assert [info.name for info in store.collections()] == ["faq"]
            other.drop("other")


class TestOnMilvus(MilvusConformance):
    """Milvus 2.3.5, standalone: a second or so for each write."""

    SEEDS = (2,)

    @pytest.fixture
    def server(self, milvus: MilvusProcess) -> MilvusProcess:
        """The server."""
        return milvus


def test_a_milvus_lite_that_stops_is_told_so(tmp_path: Path) -> None:
    """Every call ends with the address, within its time limit; closing works all the same."""
    with milvus_lite_server(tmp_path) as server:
        store = MilvusFaqStore(MilvusConnection(server.uri, timeout_s=2))
        put(store, "faq", entry("a"), create=True)
        server.stop()
        for call in (
            store.collections,
            lambda: store.revision("faq"),
            lambda: store.get("faq", ["a"]),
            lambda: store.apply("faq", Write(deletes=("a",))),
            lambda: store.create("other"),
        ):
            with pytest.raises(UnavailableError, match=f"Milvus at {server.uri} does not answer"):
                call()
        store.close()
        with pytest.raises(UnavailableError, match="does not answer"):
            MilvusConnection(server.uri, timeout_s=2)


def test_a_killed_milvus_lite_comes_back_with_everything(tmp_path: Path) -> None:
    """Also for a process that opens the store and only reads: what was loaded is loaded again."""
    for start in range(2):
        with milvus_lite_server(tmp_path) as server:
            with MilvusFaqStore(MilvusConnection(server.uri)) as store:
                if start == 0:
                    put(store, "faq", entry("a", "q", "answer"), entry("b"), create=True)
                    delete(store, "faq", "b")
                changes = store.changes("faq", 0)
                assert [found.id for found in changes.entries] == ["a"]
                check_vectors(changes)
            server.stop()


def test_a_milvus_lite_that_hangs_is_not_there(tmp_path: Path) -> None:
    """It takes the call and never answers, which gRPC tells in another way than that nobody listens."""
    with milvus_lite_server(tmp_path) as server:
        connection = MilvusConnection(server.uri, timeout_s=1.0)
        os.killpg(server.process.pid, signal.SIGSTOP)
        os.waitpid(server.process.pid, os.WUNTRACED)  # all of its threads have stopped
        try:
            with pytest.raises(UnavailableError, match=f"Milvus at {server.uri} does not answer"):
                connection.aliases()
        finally:
            os.killpg(server.process.pid, signal.SIGCONT)
        connection.close()

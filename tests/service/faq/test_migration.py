"""Copying collections between stores: all of it as it was, whatever comes between, and never onto itself."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from service.errors import ConflictError, InvalidInputError, ModelMismatchError, UnknownCollectionError
from service.faq.entries import FaqEntry
from service.faq.live_indexes import LiveIndexes
from service.faq.migration import Migrated, Migration, Present
from service.faq.migration_check import check_records, check_searches
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_store import MilvusFaqStore
from service.faq.open_store import searcher_of
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore, Write
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess
from tests.service.faq.store_conformance import delete, entry, put, vectors_of

ENTRIES = [
    entry(f"e{number}", f"question {number % 40}", "" if number % 7 == 0 else f"answer {number}", *(
        [f"other wording {number}", "退货"] if number % 5 == 0 else []
    ), language="en", tags=("a",), metadata={"n": number, "x": 0.1, "t": True}, enabled=number % 11 != 0)
    for number in range(60)
]  # fmt: skip


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[SqliteFaqStore]:
    """An embedded store with a collection of 60 entries, and settings."""
    with SqliteFaqStore(tmp_path / "old" / "faq.sqlite") as store:
        put(store, "faq", *ENTRIES[:40], create=True)
        put(store, "faq", *ENTRIES[40:])
        put(store, "faq", ENTRIES[3].model_copy(update={"answer": "a new answer"}))
        store.configure("faq", default_answer="问我们。", min_score=0.25)
        yield store


@pytest.fixture
def other(tmp_path: Path) -> Iterator[SqliteFaqStore]:
    """An embedded store with nothing in it."""
    with SqliteFaqStore(tmp_path / "new" / "faq.sqlite") as store:
        yield store


class _StopError(Exception):
    """Interrupts a copy."""


def copy(source: FaqStore, target: FaqStore, present: Present = "refuse", *, sample: int = 1_000) -> Migrated:
    """Copy ``faq``."""
    return Migration(source, target, chance=random.Random(1), sample=sample).copy("faq", present=present)


async def check(source: FaqStore, target: FaqStore, done: Migrated) -> list[str]:
    """Return what differs."""
    fingerprint = source.info("faq").fingerprint or ""
    one, two = (
        (searcher_of(store) or partial(LiveIndexes, store))(fingerprint=fingerprint, model_id="")
        for store in (source, target)
    )
    asked = [each for each in source.get("faq", done.sample).values() if each.enabled]
    found = [
        check_records(source, target, "faq", done.sample),
        await check_searches(one, two, source, "faq", asked),
    ]
    return [difference for each in found for difference in each.differences]


def assert_equal(source: FaqStore, target: FaqStore) -> None:
    """Compare everything, but for revisions and times."""
    one, two = source.changes("faq", 0), target.changes("faq", 0)
    assert one.entries == two.entries
    assert one.vectors.keys() == two.vectors.keys()
    for text, vector in one.vectors.items():
        np.testing.assert_array_equal(vector, two.vectors[text])
    for name in ("entries", "default_answer", "min_score", "fingerprint", "model_id", "dimensions"):
        assert getattr(source.info("faq"), name) == getattr(target.info("faq"), name)


async def test_an_embedded_collection_moves_to_another_folder(
    embedded: SqliteFaqStore, other: SqliteFaqStore
) -> None:
    """Entries in their order, settings, model, and every vector bit for bit."""
    told: list[tuple[int, int]] = []
    done = Migration(embedded, other, chance=random.Random(1), sample=10).copy(
        "faq", progress=lambda *numbers: told.append(numbers)
    )
    assert (done.copied, done.kept, done.deleted) == (60, 0, 0)
    assert len(set(done.sample)) == 10
    assert told[-1] == (60, 60)
    assert_equal(embedded, other)
    assert await check(embedded, other, done) == []


@pytest.mark.parametrize("server", ["milvus_lite", "milvus"])
async def test_a_collection_moves_to_milvus_and_back(
    embedded: SqliteFaqStore, other: SqliteFaqStore, server: str, request: pytest.FixtureRequest
) -> None:
    """Both ways, to one and the same collection."""
    process: MilvusProcess = request.getfixturevalue(server)
    with MilvusFaqStore(MilvusConnection(process.uri), prefix=PREFIX) as milvus:
        done = copy(embedded, milvus, sample=15)  # each is searched for
        assert await check(embedded, milvus, done) == []
        assert_equal(embedded, milvus)
        back = copy(milvus, other, sample=15)
        assert await check(milvus, other, back) == []
        assert_equal(embedded, other)
        assert copy(embedded, milvus, "replace").copied == 60
        assert copy(embedded, milvus, "resume").kept == 60
        milvus.drop("faq")


def test_entries_of_the_target_are_not_mixed_in(embedded: SqliteFaqStore, other: SqliteFaqStore) -> None:
    """Unless asked to, nothing that is there is touched; afterwards it is as in the source."""
    put(other, "faq", entry("mine"), create=True)
    with pytest.raises(ConflictError, match="--replace"):
        copy(embedded, other)
    assert [each.id for each in other.page("faq", limit=9)[0]] == ["mine"]
    copy(embedded, other, "replace")
    assert_equal(embedded, other)


def test_an_interrupted_copy_goes_on(
    embedded: SqliteFaqStore, other: SqliteFaqStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is not written again; what the source lost or changed meanwhile follows."""
    monkeypatch.setattr("service.faq.migration._BATCH", 20)

    def stop(done: int, total: int) -> None:
        if done == 40:
            raise _StopError

    with pytest.raises(_StopError):
        Migration(embedded, other, chance=random.Random(1), sample=9).copy("faq", progress=stop)
    assert other.info("faq").entries == 40
    delete(embedded, "faq", "e5")
    put(embedded, "faq", ENTRIES[6].model_copy(update={"question": "changed"}))
    done = copy(embedded, other, "resume")
    assert (done.copied, done.kept, done.deleted) == (21, 38, 1)
    assert_equal(embedded, other)


def test_what_is_written_while_it_is_copied_follows(
    embedded: SqliteFaqStore, other: SqliteFaqStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed, deleted and new entries, and settings: the target ends as the source is at the end."""
    monkeypatch.setattr("service.faq.migration._BATCH", 20)

    def meanwhile(done: int, total: int) -> None:
        put(embedded, "faq", ENTRIES[0].model_copy(update={"enabled": True, "answer": f"at {done}"}))
        put(embedded, "faq", entry(f"new{done}", "another question"))
        delete(embedded, "faq", f"e{done}", "e2")
        embedded.configure("faq", default_answer=f"{done}", min_score=None)

    done = Migration(embedded, other, chance=random.Random(1), sample=9).copy("faq", progress=meanwhile)
    assert done.revision == embedded.revision("faq")
    assert_equal(embedded, other)


def test_a_source_that_is_embedded_anew_meanwhile_is_said_so(
    embedded: SqliteFaqStore, other: SqliteFaqStore
) -> None:
    """Half of the vectors would be of another model; and what is there of it cannot be resumed."""

    def reindex(done: int, total: int) -> None:
        generation = embedded.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        entries = embedded.changes("faq", 0).entries
        embedded.add_vectors("faq", generation, vectors_of(entries, model="b"))
        embedded.finish_reindex("faq", generation)

    with pytest.raises(ConflictError, match="embedded anew"):
        Migration(embedded, other, chance=random.Random(1), sample=9).copy("faq", progress=reindex)
    put(embedded, "faq", entry("e1", "changed"), model="b")
    with pytest.raises(ModelMismatchError):
        copy(embedded, other, "resume")
    copy(embedded, other, "replace")
    assert_equal(embedded, other)


def test_a_collection_is_never_copied_onto_itself(embedded: SqliteFaqStore, tmp_path: Path) -> None:
    """Under another name for the same file, either: to replace it would delete it."""
    (tmp_path / "link").symlink_to(tmp_path / "old")
    with SqliteFaqStore(tmp_path / "link" / "faq.sqlite") as same:
        for present in ("refuse", "resume", "replace"):
            with pytest.raises(InvalidInputError, match="its exact copy"):
                copy(embedded, same, present)
    assert embedded.info("faq").entries == 60


def test_what_is_not_there_cannot_be_copied(embedded: SqliteFaqStore, other: SqliteFaqStore) -> None:
    """And no empty collection is left behind by the attempt."""
    with pytest.raises(UnknownCollectionError):
        Migration(embedded, other, chance=random.Random(1), sample=9).copy("nope")
    assert other.collections() == []


async def test_each_difference_is_found(embedded: SqliteFaqStore, other: SqliteFaqStore) -> None:
    """A check that passes must mean something: one fault at a time is put into a good copy."""
    done = copy(embedded, other)
    good = other.changes("faq", 0)

    async def found() -> str:
        return "\n".join(await check(embedded, other, done))

    def mend() -> None:
        other.drop("faq")
        copy(embedded, other)

    assert await found() == ""
    delete(other, "faq", "e20")
    assert "entries: 60 in the source, 59 in the target" in await found()
    assert "entry 'e20' is not there" in await found()
    mend()
    put(other, "faq", ENTRIES[8].model_copy(update={"tags": ("b",)}))
    assert await found() == "entry 'e8' differs"
    mend()
    other.configure("faq", default_answer="else", min_score=0.25)
    assert "default_answer" in await found()
    mend()
    delete(other, "faq", "e1")
    put(other, "faq", ENTRIES[1])
    assert "the order of the first 60 entries differs" in await found()

    other.drop("faq")
    wrong = dict(good.vectors)
    wrong[ENTRIES[1].question] = wrong[ENTRIES[2].question]
    other.apply(
        "faq",
        Write(upserts=good.entries, vectors=wrong),
        fingerprint="fingerprint-a",
        model_id="model-a",
        create=True,
    )
    assert "the vector of 'question 1' differs" in await found()
    assert "search for 'question 1' finds other entries" in await found()


def test_every_entry_has_the_same_chance_to_be_looked_at() -> None:
    """The reservoir: of four entries each is chosen in half of the samples of two."""
    counts = dict.fromkeys("abcd", 0)
    for seed in range(2_000):
        migration = Migration(None, None, chance=random.Random(seed), sample=2)  # type: ignore[arg-type]
        done = Migrated("faq")
        entries = [FaqEntry(id=name, question="q", answer="") for name in counts]
        migration._choose(done, entries[:3], 0)
        migration._choose(done, entries[3:], 3)
        for identifier in done.sample:
            counts[identifier] += 1
    assert all(abs(count - 1_000) < 120 for count in counts.values())

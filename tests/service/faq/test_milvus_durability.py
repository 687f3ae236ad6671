"""Writers to Milvus that are killed at any moment, and several of them at once."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_schema import visible
from service.faq.milvus_store import MilvusFaqStore
from tests.service.faq.killed_writers import Plain, Reader, Writers
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess
from tests.service.faq.store_writer import COLLECTION, LONER, planned, vectors_of

KILLS = 12
# For what a killed writer had begun; far above what one of these writes takes.
LEASE_S = 1.0

NewWriters = Callable[[MilvusProcess], Writers]


@pytest.fixture
def new_writers() -> Iterator[NewWriters]:
    """Makes a program that starts writers to a server."""
    made: list[Writers] = []

    def make(server: MilvusProcess) -> Writers:
        made.append(Writers(server.uri, PREFIX, str(LEASE_S)))
        return made[-1]

    yield make
    for writers in made:
        writers.close()


@contextmanager
def opened(server: MilvusProcess) -> Iterator[MilvusFaqStore]:
    """Open the store that the writers write to; it is empty before and afterwards."""
    with MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX, lease_s=LEASE_S) as store:
        store.create(COLLECTION)
        yield store
        store.drop(COLLECTION)


def test_a_dozen_kills_lose_and_tear_nothing(
    milvus: MilvusProcess,
    new_writers: NewWriters,
    record_property: Callable[[str, object], None],
) -> None:
    """Killed while claiming, writing rows, sealing, removing what was superseded, reindexing."""
    rng, writers = random.Random(20), new_writers(milvus)
    plain, step, revision = Plain(), 1, 0
    tally = {"acknowledged": 0, "unacknowledged, there": 0, "unacknowledged, absent": 0}
    with opened(milvus) as store:
        for _ in range(KILLS):
            writers.start(LONER, step)
            for _ in range(rng.choice([1, 1, 2, 4])):
                word, number, acknowledged = writers.line()
                assert (word, number) == ("done", step)
                plain, step, revision = plain.after(planned(LONER, step)), step + 1, acknowledged
                tally["acknowledged"] += 1
            time.sleep(rng.uniform(0, 0.15))
            writers.kill()
            while (said := writers.line())[0] == "done":  # acknowledged between our last look and its end
                plain, step, revision = plain.after(planned(LONER, step)), step + 1, said[2]
                tally["acknowledged"] += 1
            assert said == ("gone", -signal.SIGKILL)

            changes = store.changes(COLLECTION, 0)
            assert changes.revision == store.revision(COLLECTION) >= revision
            assert store.count(COLLECTION) == len(changes.entries)
            if plain.equals(changes):
                tally["unacknowledged, absent"] += 1
            else:  # the step under way, as a whole
                plain, step = plain.after(planned(LONER, step)), step + 1
                assert plain.equals(changes)
                tally["unacknowledged, there"] += 1
        # The next writer clears away what the killed ones left, whether it was committed or not.
        store.abandon_reindex(COLLECTION, store.info(COLLECTION).pending_generation or 0)
        store.configure(COLLECTION, default_answer=None, min_score=None)
        head = store._head(COLLECTION)
        rows = store._milvus.query(store._names.entries, f"incarnation == {head.incarnation}", ["deleted"])
        assert sum(not row["deleted"] for row in rows) == len(plain.entries)
        assert sum(row["deleted"] for row in rows) == head.tombstones
        assert head.dimensions is not None
        vectors = store._names.vectors(head.dimensions)
        count = [len(vectors_of([entry], plain.model)) for entry in plain.entries.values()]
        assert len(store._milvus.query(vectors, f"incarnation == {head.incarnation}", ["key"])) == sum(count)
        assert len(store._milvus.query(vectors, visible(head), ["key"])) == sum(count)
    for what, number in tally.items():
        record_property(what, number)
    print(tally)  # noqa: T201 - for `pytest -s`


def test_two_processes_write_to_milvus_lite_and_one_is_killed(
    milvus_lite: MilvusProcess, new_writers: NewWriters
) -> None:
    """The other one goes on; a third process, reading, never sees half of a write."""
    rng, steps = random.Random(3), 40
    steady, victim = new_writers(milvus_lite), new_writers(milvus_lite)
    with opened(milvus_lite) as store:
        reader = Reader(store)
        plain, step = Plain(), 1
        steady.start("steady", 1, steps)
        for _ in range(4):
            victim.start("victim", step)
            for _ in range(rng.randint(1, 4)):
                assert victim.line()[:2] == ("done", step)
                plain, step = plain.after(planned("victim", step)), step + 1
                reader.look()
            victim.kill()
            while victim.line()[0] == "done":
                plain, step = plain.after(planned("victim", step)), step + 1
            reader.look()
            if reader.of("victim") != plain.entries:  # the step under way, as a whole
                plain, step = plain.after(planned("victim", step)), step + 1
                assert reader.of("victim") == plain.entries
        while (said := steady.line())[0] == "done":
            reader.look()
        assert said == ("gone", 0)
        other = Plain()
        for number in range(1, steps + 1):
            other = other.after(planned("steady", number))
        reader.look()
        assert reader.seen == plain.entries | other.entries
        assert {found.id: found for found in store.changes(COLLECTION, 0).entries} == reader.seen

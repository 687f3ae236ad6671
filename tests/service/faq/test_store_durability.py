"""Writers that are killed at any moment: what was acknowledged stays, what was not is whole or absent.

SIGKILL ends a process, not the machine: that commits reach the disk is `test_sqlite_store`'s to check.
"""

import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.faq.embedded_texts import texts_to_embed
from service.faq.sqlite_store import SqliteFaqStore
from tests.service.faq.killed_writers import Plain, Reader, Writers
from tests.service.faq.store_writer import COLLECTION, LONER, planned

KILLS = 100


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store lies."""
    return tmp_path / "faq.db"


@pytest.fixture
def new_writers(path: Path) -> Iterator[Callable[[], Writers]]:
    """Makes a program that starts writers."""
    made: list[Writers] = []

    def make() -> Writers:
        made.append(Writers(str(path)))
        return made[-1]

    yield make
    for writers in made:
        writers.close()


def test_a_hundred_kills_lose_and_tear_nothing(
    path: Path,
    new_writers: Callable[[], Writers],
    record_property: Callable[[str, object], None],
) -> None:
    """One file all along; killed while opening, writing, committing, sweeping, reindexing, checkpointing."""
    rng = random.Random(20)
    writers = new_writers()
    plain, step, revision = Plain(), 1, 0
    tally = {"acknowledged": 0, "unacknowledged, there": 0, "unacknowledged, absent": 0}
    for _ in range(KILLS):
        writers.start(LONER, step)
        for _ in range(rng.choice([0, 0, 1, 2, 4, 8])):
            word, number, acknowledged = writers.line()
            assert (word, number) == ("done", step)
            plain, step, revision = plain.after(planned(LONER, step)), step + 1, acknowledged
            tally["acknowledged"] += 1
        time.sleep(rng.uniform(0, 0.008))
        writers.kill()
        while (said := writers.line())[0] == "done":  # acknowledged between our last look and its end
            plain, step, revision = plain.after(planned(LONER, step)), step + 1, said[2]
            tally["acknowledged"] += 1
        assert said == ("gone", -signal.SIGKILL)

        with SqliteFaqStore(path) as store:  # checks every page
            store.create(COLLECTION, exist_ok=True)
            changes = store.changes(COLLECTION, 0)
            assert changes.revision == store.revision(COLLECTION) >= revision
            assert store.count(COLLECTION) == len(changes.entries)
        if plain.equals(changes):
            tally["unacknowledged, absent"] += 1
        else:  # the step under way, as a whole
            plain, step = plain.after(planned(LONER, step)), step + 1
            assert plain.equals(changes)
            tally["unacknowledged, there"] += 1
        revision = changes.revision
    assert tally["acknowledged"] > KILLS
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = (
            "SELECT count(*) FROM vectors JOIN generations USING (collection_id, generation) "
            "WHERE state = 'live'"
        )
        assert db.execute(query).fetchone() == (len(texts_to_embed(plain.entries.values())),)
        assert db.execute("SELECT count(*) FROM generations WHERE state = 'retired'").fetchone() == (0,)
    for what, count in tally.items():
        record_property(what, count)
    print(tally)  # noqa: T201 - for `pytest -s`


def test_two_processes_share_a_file_and_one_is_killed(path: Path, new_writers: Callable[[], Writers]) -> None:
    """The other one goes on at once; a third process, reading, never sees half of a write."""
    rng, steps = random.Random(3), 150
    steady, victim = new_writers(), new_writers()
    with SqliteFaqStore(path) as store:
        store.create(COLLECTION)
        reader = Reader(store)
        plain, step, kills = Plain(), 1, 0
        steady.start("steady", 1, steps)
        while kills < 10:
            victim.start("victim", step)
            for _ in range(rng.randint(1, 4)):
                assert victim.line()[:2] == ("done", step)
                plain, step = plain.after(planned("victim", step)), step + 1
                reader.look()
            victim.kill()
            kills += 1
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

"""Writers that are killed at any moment: what was acknowledged stays, what was not is whole or absent.

SIGKILL ends a process, not the machine: that commits reach the disk is `test_sqlite_store`'s to check.
"""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.faq.embedded_texts import texts_to_embed
from service.faq.sqlite_store import SqliteFaqStore
from tests.service.faq.killed_writers import Plain, Reader, Writers
from tests.service.faq.store_writer import COLLECTION, LONER, planned

KILLS = 100
COMMITS_KILLED = 40


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


@dataclass
class Witness:
    """Follows one writer after the other on one file, and checks what each leaves behind.

    Attributes:
        path: of the store.
        worker: whose plan it is.
        step: the next one of the plan.
        plain: what is there.
        tally: what became of the steps.
    """

    path: Path
    worker: str = LONER
    step: int = 1
    plain: Plain = field(default_factory=Plain)
    tally: Counter[str] = field(default_factory=Counter)
    revision: int = 0

    def hears(self, said: tuple[int, ...]) -> None:
        """A step was acknowledged."""
        number, self.revision = said
        assert number == self.step
        self._advance()
        self.tally["acknowledged"] += 1

    def looks(self, writers: Writers) -> None:
        """The writer was killed: hear what it still said, then look at what it left."""
        while (said := writers.line())[0] == "done":
            self.hears(said[1:])
        assert said == ("gone", -signal.SIGKILL)
        with SqliteFaqStore(self.path) as store:  # checks every page
            store.create(COLLECTION, exist_ok=True)
            changes = store.changes(COLLECTION, 0)
            assert changes.revision == store.revision(COLLECTION) >= self.revision
            assert store.count(COLLECTION) == len(changes.entries)
        if self.plain.equals(changes):
            self.tally["unacknowledged, absent"] += 1
        else:  # the step under way, as a whole
            self._advance()
            assert self.plain.equals(changes)
            self.tally["unacknowledged, there"] += 1
        self.revision = changes.revision

    def closes(self) -> None:
        """Nothing is left in the file that does not belong there."""
        with closing(sqlite3.connect(self.path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            query = (
                "SELECT count(*) FROM vectors JOIN generations USING (collection_id, generation) "
                "WHERE state = 'live'"
            )
            assert db.execute(query).fetchone() == (len(texts_to_embed(self.plain.entries.values())),)
            assert db.execute("SELECT count(*) FROM generations WHERE state = 'retired'").fetchone() == (0,)

    def _advance(self) -> None:
        self.plain, self.step = self.plain.after(planned(self.worker, self.step)), self.step + 1


def test_a_hundred_kills_lose_and_tear_nothing(
    path: Path,
    new_writers: Callable[[], Writers],
    record_property: Callable[[str, object], None],
) -> None:
    """One file all along; killed while opening, writing, committing, sweeping, reindexing, checkpointing."""
    rng = random.Random(20)
    writers, witness = new_writers(), Witness(path)
    for _ in range(KILLS):
        writers.start(LONER, witness.step)
        for _ in range(rng.choice([0, 0, 1, 2, 4, 8])):
            word, *said = writers.line()
            assert word == "done"
            witness.hears(tuple(said))
        time.sleep(rng.uniform(0, 0.008))
        writers.kill()
        witness.looks(writers)
    assert witness.tally["acknowledged"] > KILLS
    witness.closes()
    for what, count in witness.tally.items():
        record_property(what, count)
    print(witness.tally)  # noqa: T201 - for `pytest -s`


def test_a_commit_is_nothing_as_it_begins_and_all_when_it_has_returned(
    path: Path, new_writers: Callable[[], Writers]
) -> None:
    """The two ends of the moment that a random kill hardly ever finds; before any acknowledgement."""
    rng = random.Random(11)
    writers, witness = new_writers(), Witness(path, "writer")
    for share, there in ((0.0, False), (2.0, True)) * 6:
        tally = Counter(witness.tally)
        writers.start(witness.worker, witness.step, dies=(rng.randint(2, 5), share))
        witness.looks(writers)
        new = witness.tally - tally
        assert new["unacknowledged, there"] == there
    witness.closes()


def test_kills_inside_a_commit_leave_all_of_it_or_nothing(
    path: Path,
    new_writers: Callable[[], Writers],
    record_property: Callable[[str, object], None],
) -> None:
    """While pages go into the log and the log to the disk: of writes, reindexes and sweeps."""
    rng = random.Random(12)
    writers, witness = new_writers(), Witness(path)
    for _ in range(COMMITS_KILLED):
        writers.start(LONER, witness.step, dies=(rng.randint(2, 7), rng.random()))
        witness.looks(writers)
    witness.closes()
    for what, count in witness.tally.items():
        record_property(what, count)
    print(witness.tally)  # noqa: T201 - for `pytest -s`


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

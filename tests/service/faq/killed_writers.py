"""Writers in processes of their own, to be killed at any moment, and what must be there afterwards."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from service.faq.entries import FaqEntry
from service.faq.store import Changes, FaqStore, Write
from tests.service.faq import store_writer
from tests.service.faq.store_writer import COLLECTION, vectors_of

ENDLESS = 10**9
ROOT = Path(__file__).parents[3]


class Writers:
    """Starts writers, one after the other.

    Args:
        store: how `store_writer` is told what to open.
    """

    def __init__(self, *store: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, store_writer.__file__, *store],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"},
        )
        # Only so that a fault cannot hang the tests.
        self._watchdog = threading.Timer(240, self._program.kill)
        self._watchdog.start()
        self.pid = 0

    def start(
        self, worker: str, first: int, last: int = ENDLESS, *, dies: tuple[int, float] | None = None
    ) -> None:
        """Let one write steps ``first`` to ``last`` of its plan; it ``dies`` as `store_writer` says."""
        assert self._program.stdin
        moment = "" if dies is None else f" {dies[0]} {dies[1]}"
        self._program.stdin.write(f"{worker} {first} {last}{moment}\n")
        self._program.stdin.flush()
        word, self.pid = self.line()
        assert word == "started"

    def line(self) -> tuple[str, int, int] | tuple[str, int]:
        """The next thing that the program says."""
        assert self._program.stdout
        word, *numbers = self._program.stdout.readline().split()
        return (word, *map(int, numbers))

    def kill(self) -> None:
        """End the present writer as an out-of-memory killer would."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the program."""
        self._program.kill()
        self._program.communicate()
        self._watchdog.cancel()


@dataclass
class Plain:
    """What the store must hold, kept by hand."""

    entries: dict[str, FaqEntry] = field(default_factory=dict)
    model: str = "model-0"

    def after(self, step: Write | str) -> "Plain":
        """The state after one more step of a plan."""
        if isinstance(step, str):
            return Plain(self.entries, step)
        entries = {name: found for name, found in self.entries.items() if name not in step.deletes}
        return Plain(entries | {found.id: found for found in step.upserts}, self.model)

    def equals(self, changes: Changes) -> bool:
        """Whether the store holds just this: entries, their order, every vector, and of which model."""
        vectors = vectors_of(self.entries.values(), self.model)
        return (
            changes.entries == tuple(self.entries.values())
            and (changes.fingerprint or self.model) == self.model
            and changes.vectors.keys() == vectors.keys()
            and all(np.array_equal(changes.vectors[text], vector) for text, vector in vectors.items())
        )


class Reader:
    """Follows a store that others write to, and checks at every look that nothing is half there."""

    def __init__(self, store: FaqStore) -> None:
        self._store = store
        self._revision = 0
        self.seen: dict[str, FaqEntry] = {}

    def look(self) -> None:
        """Take in what changed."""
        changes = self._store.changes(COLLECTION, self._revision)
        assert changes.revision >= self._revision
        self._revision = changes.revision
        if changes.complete:
            self.seen.clear()
        for name in changes.deleted:
            self.seen.pop(name, None)
        self.seen.update({found.id: found for found in changes.entries})
        for worker in ("steady", "victim"):
            imports = {found.question for name, found in self.of(worker).items() if "-batch-" in name}
            assert len(imports) <= 1
        for text, vector in vectors_of(changes.entries, changes.fingerprint or "").items():
            np.testing.assert_array_equal(changes.vectors[text], vector)

    def of(self, worker: str) -> dict[str, FaqEntry]:
        """The entries that ``worker`` wrote."""
        return {name: found for name, found in self.seen.items() if name.startswith(f"{worker}-")}

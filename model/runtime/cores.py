"""Who has the cores of this process: runs of engines are counted, and one by itself may have all of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class Share:
    """What an engine with a pool of threads has of the cores just now.

    Attributes:
        pool_threads: threads of the pool.
        runs: of the engine.
        runs_in_pool: those of them that the pool computes.
    """

    def __init__(self, pool_threads: int) -> None:
        self.pool_threads = pool_threads
        self.runs = 0
        self.runs_in_pool = 0


class Cores:
    """Counts runs: the engines of a process share its cores, and each could use all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs = 0

    @contextmanager
    def run(self) -> Iterator[bool]:
        """Count a run; True = no other was at work when it began."""
        with self._lock:
            alone = not self._runs
            self._runs += 1
        try:
            yield alone
        finally:
            with self._lock:
                self._runs -= 1

    @contextmanager
    def run_with_pool(self, share: Share) -> Iterator[bool]:
        """Count a run of the engine that ``share`` is of; True = its caller is to compute.

        One caller of an engine does, while no other engine is at work; else its pool, until that is full.
        """
        with self._lock:
            alone = self._runs == share.runs
            full = share.runs_in_pool >= share.pool_threads
            computes = full or (alone and share.runs == share.runs_in_pool)
            share.runs += 1
            share.runs_in_pool += not computes
            self._runs += 1
        try:
            yield computes
        finally:
            with self._lock:
                share.runs -= 1
                share.runs_in_pool -= not computes
                self._runs -= 1


# One for all engines, whoever makes them: the cores are the process'. It holds nothing but a count.
CORES: Final = Cores()

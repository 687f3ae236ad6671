"""ExecutionThread: the one thread that runs models. Standard library only."""

import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class StalledError(Exception):
    """A run hangs, and with it everything that was to run after it."""


class ExecutionThread:
    """One thread, shared by all batchers of a process.

    Two models running at once would each use every core the service may have, and both would be slower for
    it; one thread makes the processor budget explicit. Each batcher has one job here at most; so they share.

    A daemon thread rather than a ``ThreadPoolExecutor``: the latter joins its threads when the interpreter
    exits, so that a hung run would keep the process from ever ending.
    """

    def __init__(self, name: str = "conche-inference") -> None:
        self._jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._progress = 0
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the thread takes no more work; None if it does."""
        return self._failure

    @property
    def progress(self) -> int:
        """Grows with each job that starts or ends; a hung job leaves it unchanged."""
        return self._progress

    def submit(self, job: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        """Run ``job`` behind those submitted before it.

        Raises:
            StalledError: the thread was given up.
        """
        if self._failure is not None:
            raise StalledError(self._failure)
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._jobs.put((future, job))
        return future

    def give_up(self, reason: str) -> None:
        """Mark the thread as lost to a run that hangs; jobs behind it fail with ``StalledError`` at once."""
        self._failure = reason
        with contextlib.suppress(queue.Empty):
            while True:
                entry = self._jobs.get_nowait()
                if entry is not None and entry[0].set_running_or_notify_cancel():
                    entry[0].set_exception(StalledError(reason))
        self._jobs.put(None)  # should the run end after all, so does the thread

    def close(self) -> None:
        """End the thread behind the jobs it has; does not wait, since a job may hang."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            self._progress += 1
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001 - the thread outlives every job; its waiter is told
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            self._progress += 1
            del entry, future, job  # or the last batch would stay in memory until the next one

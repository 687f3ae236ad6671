"""ExecutionThread: a thread that works through jobs, watched for hangs. Standard library only."""

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A hung job shows no progress in this many waits of stall_timeout_s / _STALL_CHECKS in a row. One long wait
# would not do: a process that was paused (docker pause, a debugger) comes back with one wait expired.
_STALL_CHECKS: Final = 4


class StalledError(Exception):
    """A job hangs, or its thread ended, and with it everything that was to run after it."""


class ExecutionThread:
    """One thread that runs jobs in the order they come, and can be given up should one of them hang.

    All batchers of a process share one: two models running at once would each use every core the service may
    have, and both would be slower for it. Each batcher has one job here at most; so they share.

    A daemon thread rather than a ``ThreadPoolExecutor``: the latter joins its threads when the interpreter
    exits, so that a hung run would keep the process from ever ending.
    """

    def __init__(self, name: str = "conche-inference", *, at_start: Callable[[], None] | None = None) -> None:
        self._jobs: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._progress = 0
        self._failure: str | None = None
        self._running: concurrent.futures.Future[Any] | None = None
        self._at_start = at_start  # called in the thread, once
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the thread takes no more work: a job hangs, or the thread ended; None if it does."""
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
        if self._failure is not None:  # given up just now, by another thread: nobody would come for the job
            self.give_up(self._failure)
        return future

    async def run(self, job: Callable[[], Result], *, name: str, stall_timeout_s: float) -> Result:
        """Run ``job`` behind those submitted before it, and wait as long as the thread makes progress.

        Args:
            job: what to run; if its caller is cancelled before it began, it will not begin.
            name: of the job, for the message.
            stall_timeout_s: without progress for this long, the thread is given up.

        Raises:
            StalledError: the job, or the one before it, hangs.
        """
        # Not asyncio.wrap_future and asyncio.wait, which take as long as a short text's tokenising.
        loop = asyncio.get_running_loop()
        future = self.submit(job)
        checks_without_progress = 0
        progress = self.progress
        waiter: asyncio.Future[bool] | None = None

        def wake(done: bool) -> None:
            if waiter is not None and not waiter.done():
                waiter.set_result(done)

        def tell(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
                loop.call_soon_threadsafe(wake, True)

        future.add_done_callback(tell)
        try:
            while checks_without_progress < _STALL_CHECKS:
                if future.done():  # between a check and now, when nobody was there to be woken
                    return future.result()
                waiter = loop.create_future()
                timer = loop.call_later(stall_timeout_s / _STALL_CHECKS, wake, False)
                try:
                    if await waiter:
                        return future.result()
                finally:
                    timer.cancel()
                if self.progress == progress:
                    checks_without_progress += 1
                else:  # it waited for its turn behind others
                    progress, checks_without_progress = self.progress, 0
        finally:
            future.cancel()
        reason = f"{name} made no progress for {stall_timeout_s:g} s"
        self.give_up(reason)
        raise StalledError(reason)

    def give_up(self, reason: str) -> None:
        """Mark the thread as lost to a job that hangs; those behind it fail with ``StalledError`` at once."""
        self._failure = self._failure or reason
        with contextlib.suppress(queue.Empty):
            while True:
                entry = self._jobs.get_nowait()
                if entry is not None and entry[0].set_running_or_notify_cancel():
                    entry[0].set_exception(StalledError(reason))
        self._jobs.put(None)  # should the job end after all, so does the thread

    def close(self) -> None:
        """End the thread behind the jobs it has; does not wait, since a job may hang."""
        self._jobs.put(None)

    def _work(self) -> None:
        try:
            self._do_jobs()
        except BaseException as error:
            # Without this the jobs behind would wait for as long as a hang is waited for, and then be told
            # that one hung.
            reason = f"the thread {threading.current_thread().name} ended after {type(error).__name__}"
            self.give_up(reason)
            if self._running is not None and not self._running.done():
                self._running.set_exception(StalledError(reason))
            logger.critical("%s", reason, exc_info=True)

    def _do_jobs(self) -> None:
        if self._at_start is not None:
            self._at_start()
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            self._running = future
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
            self._running = None
            del entry, future, job  # or the last batch would stay in memory until the next one

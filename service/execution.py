"""ExecutionThreads: threads that work through jobs, watched for hangs. Standard library only."""

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A hung job shows no progress in this many waits of stall_timeout_s / _STALL_CHECKS in a row. One long wait
# would not do: a process that was paused (docker pause, a debugger) comes back with one wait expired.
_STALL_CHECKS: Final = 4


_Entry = tuple[concurrent.futures.Future[Any], Callable[[], Any]] | None
"""A job and who waits for it; None = the thread is to end."""


class StalledError(Exception):
    """A job hangs, or its thread ended, and with it everything that was to run after it."""


class ExecutionThreads:
    """Threads, one unless said otherwise, that take jobs in the order they come; given up should one hang.

    All batchers of a process share some: with a thread, two models never run at once, when each would use
    every core the service may have, and both would be slower for it. Each batcher has as many jobs here at
    most as there are threads; so they share.

    Daemon threads rather than a ``ThreadPoolExecutor``: the latter joins its threads when the interpreter
    exits, so that a hung run would keep the process from ever ending.

    Args:
        name: of the thread; of several it is followed by their numbers.
        threads: how many.
        at_start: called in each thread, once.
    """

    def __init__(
        self,
        name: str = "conche-inference",
        threads: int = 1,
        *,
        at_start: Callable[[], None] | None = None,
    ) -> None:
        self.threads = 0
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()  # for a thread
        # Of the threads that have nothing to do, what each takes its jobs from. The last to have worked gets
        # the next: jobs that come one at a time stay with one thread, and it with the caches of a core.
        self._idle: list[queue.SimpleQueue[_Entry]] = []
        self._progress = 0
        self._failure: str | None = None
        self._at_start = at_start
        self.grow(threads)

    @property
    def failure(self) -> str | None:
        """Why no more work is taken: a job hangs, or a thread ended; None if it is."""
        return self._failure

    @property
    def progress(self) -> int:
        """Grows with the jobs that start or end; while all threads hang it is unchanged."""
        return self._progress

    @property
    def free(self) -> int:
        """Threads without a job, of which none waits."""
        return len(self._idle)

    def grow(self, threads: int) -> None:
        """Have so many threads at least from now on; must not be called by two threads at a time."""
        for number in range(self.threads, threads):
            name = self._name if number == 0 else f"{self._name}-{number + 1}"
            own: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
            self.threads = number + 1
            self._offer(own)
            threading.Thread(target=self._work, args=(own,), name=name, daemon=True).start()

    def submit(self, job: Callable[[], Result]) -> concurrent.futures.Future[Result]:
        """Run ``job`` behind those submitted before it.

        Raises:
            StalledError: the threads were given up.
        """
        if self._failure is not None:
            raise StalledError(self._failure)
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._put((future, job))
        if self._failure is not None:  # given up just now, by another thread: nobody would come for the job
            self.give_up(self._failure)
        return future

    async def run(self, job: Callable[[], Result], *, name: str, stall_timeout_s: float) -> Result:
        """Run ``job`` behind those submitted before it, and wait as long as there is progress.

        Args:
            job: what to run; if its caller is cancelled before it began, it will not begin.
            name: of the job, for the message.
            stall_timeout_s: if the job runs for this long, or nothing moves for this long while it waits for
                its turn, the threads are given up.

        Raises:
            StalledError: the job, or one before it, hangs.
        """
        # Not asyncio.wrap_future and asyncio.wait, which take as long as a short text's tokenising.
        loop = asyncio.get_running_loop()
        future = self.submit(job)
        checks_without_progress = 0
        seen = self._seen(future)
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
                now = self._seen(future)
                if now == seen:
                    checks_without_progress += 1
                else:  # it waited for its turn behind others
                    seen, checks_without_progress = now, 0
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():  # its caller goes while it runs
                reason = f"{name} made no progress for {stall_timeout_s:g} s"
                self._watch(future, reason, stall_timeout_s / _STALL_CHECKS, _STALL_CHECKS)
            raise
        finally:
            future.cancel()
        reason = f"{name} made no progress for {stall_timeout_s:g} s"
        self.give_up(reason)
        raise StalledError(reason)

    def _put(self, entry: _Entry) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(entry)
            else:
                self._waiting.append(entry)

    def _offer(self, own: queue.SimpleQueue[_Entry]) -> None:
        """Give the thread that takes its jobs from ``own`` the next, or note that it has nothing to do."""
        with self._lock:
            if self._waiting:
                own.put(self._waiting.popleft())
            else:
                self._idle.append(own)

    def _watch(
        self, future: concurrent.futures.Future[Any], reason: str, interval_s: float, checks: int
    ) -> None:
        """Give up in so many intervals if the job, for which nobody waits any more, has not ended by then.

        Other threads would go on, and the one that hangs be missing for good.
        """
        if future.done():
            return
        if checks:
            asyncio.get_running_loop().call_later(
                interval_s, self._watch, future, reason, interval_s, checks - 1
            )
        else:
            logger.error("%s", reason)
            self.give_up(reason)

    def _seen(self, future: concurrent.futures.Future[Any]) -> int | None:
        """What has to change as long as nothing hangs; None = the job runs, whatever others do."""
        return None if future.running() else self.progress

    def give_up(self, reason: str) -> None:
        """Mark the threads as lost to a job that hangs; those behind it fail at once (``StalledError``)."""
        self._failure = self._failure or reason
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        for entry in waiting:
            _fail(entry, reason)
        self.close()  # should the job end after all, so does the thread

    def close(self) -> None:
        """End the threads behind the jobs they have; does not wait, since a job may hang."""
        for _ in range(self.threads):
            self._put(None)

    def _work(self, own: queue.SimpleQueue[_Entry]) -> None:
        running: list[concurrent.futures.Future[Any]] = []  # the one that the thread has, if any
        try:
            self._do_jobs(own, running)
        except BaseException as error:
            # Without this the jobs behind would wait for as long as a hang is waited for, and then be told
            # that one hung.
            reason = f"the thread {threading.current_thread().name} ended after {type(error).__name__}"
            with self._lock:
                if own in self._idle:
                    self._idle.remove(own)
            self.give_up(reason)
            for future in running:
                if not future.done():
                    future.set_exception(StalledError(reason))
            while not own.empty():
                _fail(own.get(), reason)
            logger.critical("%s", reason, exc_info=True)

    def _do_jobs(self, own: queue.SimpleQueue[_Entry], running: list[concurrent.futures.Future[Any]]) -> None:
        if self._at_start is not None:
            self._at_start()
        while (entry := own.get()) is not None:
            future, job = entry
            running.append(future)
            self._progress += 1
            if future.set_running_or_notify_cancel():
                try:
                    result = job()
                except BaseException as error:  # noqa: BLE001 - the thread outlives every job; its waiter is told
                    self._offer(own)  # first: whoever is told may have the next job
                    future.set_exception(error)
                else:
                    self._offer(own)
                    future.set_result(result)
                    del result
            else:
                self._offer(own)
            self._progress += 1
            running.clear()
            del entry, future, job  # or the last batch would stay in memory until the next one


def _fail(entry: _Entry, reason: str) -> None:
    if entry is not None and entry[0].set_running_or_notify_cancel():
        entry[0].set_exception(StalledError(reason))

"""ExecutionThreads: threads that work through jobs, watched for hangs. Standard library only."""

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A hung job shows no progress in this many waits of stall_timeout_s / _STALL_CHECKS in a row. One long wait
# would not do: a process that was paused (docker pause, a debugger) comes back with one wait expired.
_STALL_CHECKS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """What is to be done, and who waits for it; see ``ExecutionThreads.submit``."""

    future: concurrent.futures.Future[Any]
    work: Callable[[], Any]
    owner: object
    exclusive: bool


_Entry = _Job | None
"""None = the thread is to end."""


class StalledError(Exception):
    """A job hangs, or its thread ended, and with it everything that was to run after it."""


class ExecutionThreads:
    """Threads, one unless said otherwise, that take jobs in the order they come; given up should one hang.

    All batchers of a process share some: two models that would use every core the service may have never run
    at once, when both would be slower for it. Each batcher has as many jobs here at most as its engine has
    streams at the moment; so they share.

    Daemon threads rather than a ``ThreadPoolExecutor``: the latter joins its threads when the interpreter
    exits, so that a hung run would keep the process from ever ending.

    Args:
        name: of the first thread; those of the others are followed by their numbers.
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
        self._growing = threading.Lock()
        self._waiting: deque[_Entry] = deque()  # for a thread, or for other jobs to end
        self._at_work: list[_Job] = []
        self._shared_seconds = 0.0
        self._shared_until = time.monotonic()
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
        return 0 if self._waiting else len(self._idle)

    def grow(self, threads: int) -> None:
        """Have so many threads at least from now on.

        Raises:
            RuntimeError: the system has no more threads; as many as there are go on.
        """
        with self._growing:
            for number in range(self.threads, threads):
                name = self._name if number == 0 else f"{self._name}-{number + 1}"
                own: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
                thread = threading.Thread(target=self._work, args=(own,), name=name, daemon=True)
                self._offer(own)
                try:
                    thread.start()
                except RuntimeError:
                    self._withdraw(own)
                    raise
                self.threads = number + 1

    def submit(
        self, job: Callable[[], Result], *, owner: object = None, exclusive: bool = False
    ) -> concurrent.futures.Future[Result]:
        """Run ``job`` behind those submitted before it.

        Args:
            job: what to run.
            owner: whose it is.
            exclusive: it uses all cores: no other owner's job is to run meanwhile.

        Raises:
            StalledError: the threads were given up.
        """
        if self._failure is not None:
            raise StalledError(self._failure)
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self._put(_Job(future, job, owner, exclusive))
        if self._failure is not None:  # given up just now, by another thread: nobody would come for the job
            self.give_up(self._failure)
        return future

    async def run(
        self,
        job: Callable[[], Result],
        *,
        name: str,
        stall_timeout_s: float,
        owner: object = None,
        exclusive: bool = False,
    ) -> Result:
        """Run ``job`` behind those submitted before it, and wait as long as there is progress.

        Args:
            job: what to run; if its caller is cancelled before it began, it will not begin.
            name: of the job, for the message.
            stall_timeout_s: if the job runs for this long, or nothing moves for this long while it waits for
                its turn, the threads are given up.
            owner: see `submit`.
            exclusive: see there.

        Raises:
            StalledError: the job, or one before it, hangs.
        """
        # Not asyncio.wrap_future and asyncio.wait, which take as long as a short text's tokenising.
        loop = asyncio.get_running_loop()
        future = self.submit(job, owner=owner, exclusive=exclusive)
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
            # An error that it holds has this frame in its trace: the two would keep each other, and what the
            # job worked on, until the garbage collector looks.
            del future
        reason = f"{name} made no progress for {stall_timeout_s:g} s"
        self.give_up(reason)
        raise StalledError(reason)

    def shared_seconds(self) -> float:
        """A clock that goes slower the more jobs are at work; what a job sees pass is its share of the time.

        The shares of all jobs come to the time in which any was at work.
        """
        with self._lock:
            return self._advance()

    def _advance(self) -> float:
        now = time.monotonic()
        self._shared_seconds += (now - self._shared_until) / max(len(self._at_work), 1)
        self._shared_until = now
        return self._shared_seconds

    def _put(self, entry: _Entry) -> None:
        with self._lock:
            self._waiting.append(entry)
            self._hand_out()

    def _offer(self, own: queue.SimpleQueue[_Entry], done: _Job | None = None) -> None:
        """Note that the thread that takes its jobs from ``own`` has nothing to do, after ``done``."""
        with self._lock:
            if done is not None:
                self._advance()
                self._at_work.remove(done)
            self._idle.append(own)
            self._hand_out()

    def _hand_out(self) -> None:
        while self._idle and self._waiting and self._may_begin(self._waiting[0]):
            entry = self._waiting.popleft()
            if entry is not None:
                self._advance()
                self._at_work.append(entry)
            self._idle.pop().put(entry)

    def _may_begin(self, entry: _Entry) -> bool:
        return entry is None or all(
            job.owner is entry.owner or not (job.exclusive or entry.exclusive) for job in self._at_work
        )

    def _withdraw(self, own: queue.SimpleQueue[_Entry]) -> None:
        """Leave what was to be done by the thread of ``own``, which there is not, to the others."""
        with self._lock:
            if own in self._idle:
                self._idle.remove(own)
            while not own.empty():
                if (entry := own.get()) is not None:
                    self._advance()
                    self._at_work.remove(entry)
                self._waiting.appendleft(entry)
            self._hand_out()

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
        running: list[_Job] = []  # the one that the thread has, if any
        try:
            self._do_jobs(own, running)
        except BaseException as error:
            # Without this the jobs behind would wait for as long as a hang is waited for, and then be told
            # that one hung.
            reason = f"the thread {threading.current_thread().name} ended after {type(error).__name__}"
            self._failure = self._failure or reason
            self._withdraw(own)
            self.give_up(reason)
            for job in running:
                if not job.future.done():
                    job.future.set_exception(StalledError(reason))
            logger.critical("%s", reason, exc_info=True)

    def _do_jobs(self, own: queue.SimpleQueue[_Entry], running: list[_Job]) -> None:
        if self._at_start is not None:
            self._at_start()
        while (job := own.get()) is not None:
            future = job.future
            running.append(job)
            self._progress += 1
            if future.set_running_or_notify_cancel():
                try:
                    result = job.work()
                except BaseException as error:  # noqa: BLE001 - the thread outlives every job; its waiter is told
                    self._offer(own, job)  # first: whoever is told may have the next job
                    future.set_exception(error)
                else:
                    self._offer(own, job)
                    future.set_result(result)
                    del result
            else:
                self._offer(own, job)
            self._progress += 1
            running.clear()
            del job, future  # or the last batch would stay in memory until the next one


def _fail(entry: _Entry, reason: str) -> None:
    if entry is not None and entry.future.set_running_or_notify_cancel():
        entry.future.set_exception(StalledError(reason))

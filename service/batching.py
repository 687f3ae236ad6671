"""DynamicBatcher: work from many callers, run together. asyncio only; no model, no HTTP, no metrics.

How a batch comes about
    Nothing waits for a timer (unless ``max_wait_s`` asks for it): when a run ends, the next batch is formed
    from whatever queued meanwhile, so an idle service adds no delay and a busy one fills its batches itself.
    A batch starts with the oldest item and takes its neighbours in length, because every row is padded to the
    longest: the budget counts padding, by what it costs. Younger items may overtake an older one, but only
    within ``max_overtake_tokens``. That bound is in work and not in seconds: under overload every item would
    be over any bound in seconds, and grouping by length would stop exactly when it is needed most.

Who gets in
    The queue is bounded in tokens and in items. A request is admitted or refused as a whole. A large one
    reserves a share of what is free and feeds the rest as its own items leave; ``Places`` has the rule, by
    which a request of any size can succeed while small ones still find room beside any number of large ones.

What can break
    ``run_batch`` raising: the batch is run again in halves, down to the row at fault, so that this row fails
    its own request only; within bounds, since a model may fail on everything. Whatever ends the worker task,
    everyone waiting fails at once, ``healthy`` turns false and later calls are refused. A run that hangs is
    given up after ``stall_timeout_s`` with the same effect, and so is a model that ``run_batch`` says is
    broken; a hung thread cannot be killed from here, and recovery takes a new process.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, NoReturn, Self, TypeVar

from service.errors import InferenceError, OverloadedError, UnavailableError
from service.execution import ExecutionThreads, StalledError
from service.places import Places
from service.waiting_room import BatchingLimits, Entry, Request, RequestLog, RunOfRequest, WaitingRoom

__all__ = [
    "BatchStats",
    "BatchingLimits",
    "BrokenModelError",
    "DynamicBatcher",
    "RequestLog",
    "RequestTimes",
    "RunOfRequest",
]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

# After so many runs for one batch, no part of it is halved further: enough to find the rows at fault where
# there are a few of them, and an end where the model fails on all.
_MOST_RUNS_OF_A_BATCH: Final = 32
_RETRY_AFTER_BOUNDS_S: Final = (1.0, 60.0)
_THROUGHPUT_SMOOTHING: Final = 0.2  # weight of the newest batch


class BrokenModelError(Exception):
    """Raised by ``run_batch``: the model fails whatever it is given."""


@dataclass(frozen=True, slots=True)
class BatchStats:
    """One run, as the ``on_batch`` observer sees it.

    Attributes:
        size: rows.
        tokens: real tokens.
        padded_tokens: for how many the layers were computed, >= tokens.
        queue_seconds: per row, from admission to the start of the run.
        run_seconds: inside ``run_batch``.
        stream_seconds: the same, counted for each stream whose share of the cores it had.
        failed: ``run_batch`` raised or broke its contract.
        trace_ids: per row, that of its request, None where it has no `RequestLog`; empty if none has.
    """

    size: int
    tokens: int
    padded_tokens: int
    queue_seconds: tuple[float, ...]
    run_seconds: float
    stream_seconds: float
    failed: bool
    trace_ids: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """What the runs of one request took.

    Attributes:
        queue_seconds: from admission to the start of a row's run, the mean over its rows; of a request that
            takes several runs, the earlier ones are part of the later rows' wait.
        run_seconds: in which a run that held rows of it was going on; other requests' rows in them included.
    """

    queue_seconds: float
    run_seconds: float


class DynamicBatcher(Generic[Item, Result]):
    """Runs items of concurrent callers in shared batches; see the module's docstring.

    Belongs to one event loop: every method is called from it.

    Args:
        run_batch: called in an execution thread with the items of a batch; returns one result for each. With
            ``BrokenModelError`` it ends the batcher.
        length: tokens of an item, >= 0; decides what is batched together.
        computed_tokens: for how many tokens ``run_batch`` computes, of rows of such lengths; None = rows
            times longest row.
        padding_cost: what a token of padding costs beside one of a text, 0 to 1.
        execution: the threads shared with the other batchers of the process.
        most_streams: batches at a time, as far as there are threads for them; None = one for each thread.
        streams: how many of them now, from 1; after a change call `streams_changed`. None = all, always.
        exclusive: whether a batch uses all cores now, and none of another batcher is to run meanwhile; None =
            it does not.
        lends_threads: whether a batch of so many rows has the threads of idle streams, too; None = it has.
        limits: bounds of the queue and of a batch.
        name: for messages and logs.
        on_batch: called after each run; what it raises is logged and goes no further.
    """

    def __init__(
        self,
        run_batch: Callable[[Sequence[Item]], Sequence[Result]],
        *,
        length: Callable[[Item], int],
        computed_tokens: Callable[[Sequence[int]], int] | None = None,
        padding_cost: float = 1.0,
        execution: ExecutionThreads,
        most_streams: int | None = None,
        streams: Callable[[], int] | None = None,
        exclusive: Callable[[], bool] | None = None,
        lends_threads: Callable[[int], bool] | None = None,
        limits: BatchingLimits | None = None,
        name: str = "model",
        on_batch: Callable[[BatchStats], None] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits or BatchingLimits()
        self._run_batch = run_batch
        self._length = length
        self._computed_tokens = computed_tokens or _padded
        self._padding_cost = padding_cost
        self._execution = execution
        self._most_streams = execution.threads if most_streams is None else most_streams
        self._streams = streams or (lambda: self._most_streams)
        self._exclusive = exclusive or (lambda: False)
        self._lends_threads = lends_threads or (lambda _rows: True)
        self._on_batch = on_batch
        self._room: WaitingRoom[Item, Result] = WaitingRoom()
        self._requests: set[Request[Item, Result]] = set()  # admitted and not yet answered
        self._items = Places(self.limits.max_queue_items)
        self._tokens = Places(self.limits.max_queue_tokens)
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._open = False
        self._failure: str | None = None
        self._tokens_per_second: float | None = None
        self._tokens_per_second_at_work: float | None = None  # of large batches, as they come when much waits
        self._runs = 0
        self._running = 0  # streams with a run, at work or in line for a thread
        self._at_work = 0  # items of those runs
        self._idle = 0  # streams that wait for work, or for their turn

    # -- state, for health and metrics -----------------------------------------------------------------------

    @property
    def healthy(self) -> bool:
        """Whether work submitted now would be run."""
        return self._open and self.failure is None

    @property
    def failure(self) -> str | None:
        """Why the batcher stopped working; None if it has not."""
        return self._failure or self._execution.failure

    @property
    def queued_items(self) -> int:
        """Places taken in the queue, out of ``limits.max_queue_items``."""
        return self._items.taken

    @property
    def queued_tokens(self) -> int:
        """Tokens taken in the queue, out of ``queue_limit_tokens``."""
        return self._tokens.taken

    @property
    def demand(self) -> int:
        """Items at work, and items that wait."""
        return self._at_work + len(self._room)

    @property
    def queue_limit_tokens(self) -> int:
        """Tokens that may wait now: ``limits.max_queue_tokens``, or fewer by ``limits.max_queue_s``."""
        return self._tokens.limit

    @property
    def retry_after_s(self) -> float:
        """The time the backlog takes at the recent rate, within bounds that suit a Retry-After header."""
        low, high = _RETRY_AFTER_BOUNDS_S
        if not self._tokens_per_second:
            return low
        backlog = sum(request.waiting_tokens for request in self._requests)
        return min(max(backlog / self._tokens_per_second, low), high)

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to take work. Call once, inside the event loop."""
        if self._worker is not None:
            raise RuntimeError(f"the batcher of {self.name} was started before")
        self._open = True
        self._worker = asyncio.get_running_loop().create_task(self._serve(), name=f"batcher of {self.name}")

    async def close(self, deadline_s: float = 30.0) -> None:
        """Refuse new work, finish what was admitted, and fail what is left after ``deadline_s``."""
        self._open = False
        self._wake.set()
        if self._worker is not None:
            done, _ = await asyncio.wait({self._worker}, timeout=deadline_s)
            if not done:
                if self._requests:
                    logger.warning("%s: %d requests given up at shutdown", self.name, len(self._requests))
                self._worker.cancel()
                await asyncio.wait({self._worker})
        # Mostly a method of whoever has this batcher: the two would keep each other, and a model of a hundred
        # megabytes, until the garbage collector looks at what is old.
        self._run_batch = _closed
        self._computed_tokens = _padded

    # -- work ------------------------------------------------------------------------------------------------

    async def submit(self, item: Item) -> Result:
        """Queue one item and wait for its result; raises as ``submit_many``."""
        return (await self.submit_many([item]))[0]

    async def submit_many(self, items: Sequence[Item]) -> list[Result]:
        """Queue the items of one request, as a whole, and wait for their results.

        Returns:
            One result per item, in the order given.

        Raises:
            OverloadedError: the queue has no room for the request; nothing of it was started.
            UnavailableError: the batcher is not running, or stopped before the last item ran.
            InferenceError: ``run_batch`` failed on one of the items.
        """
        results, _ = await self.submit_timed(items)
        return results

    async def submit_timed(
        self, items: Sequence[Item], *, log: RequestLog | None = None
    ) -> tuple[list[Result], RequestTimes]:
        """Do as `submit_many`, and tell what it took; ``log`` gets its runs, also if it fails."""
        lengths = [self._length(item) for item in items]
        shares = self._admit(len(items), sum(lengths))
        if not items:
            return [], RequestTimes(0.0, 0.0)
        future: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        request: Request[Item, Result] = Request(items, lengths, future, log)
        request.share_items, request.share_tokens = shares
        self._requests.add(request)
        self._feed(request)
        self._wake.set()
        try:
            results = await request.future
        finally:  # answered, failed or cancelled: what it still has waiting is not to be run
            self._abandon(request)
            self._requests.discard(request)
        return results, RequestTimes(request.waited_seconds / len(items), request.run_seconds)

    def streams_changed(self) -> None:
        """Look anew at how many batches may run at a time; those at work go on."""
        self._wake.set()

    def ensure_room(self, items: int, tokens: int) -> None:
        """Raise what ``submit_many`` would for a request of this size; cheap, to be asked before tokenising.

        Raises:
            OverloadedError: the queue has no room.
            UnavailableError: the batcher is not running.
        """
        self._admit(items, tokens)

    def ensure_likely_room(self, tokens: int) -> None:
        """Raise where a request of about so many tokens, or more, finds no room.

        Raises:
            OverloadedError: the queue has no room.
        """
        if self._tokens.lack(tokens):
            raise self._overloaded()

    # -- admission -------------------------------------------------------------------------------------------

    def _admit(self, items: int, tokens: int) -> tuple[int, int]:
        """The most items and tokens that a request of this size may have in the waiting room."""
        if not self.healthy:
            raise UnavailableError(self.failure or f"{self.name} is not accepting work")
        share_items, share_tokens = self._items.share(items), self._tokens.share(tokens)
        if share_items is None or share_tokens is None:
            raise self._overloaded()
        return share_items, share_tokens

    def _overloaded(self) -> OverloadedError:
        by_time = self._tokens.limit < self.limits.max_queue_tokens
        return OverloadedError(
            f"the queue of {self.name} has no room: {self._items.taken} of {self._items.limit} texts "
            f"(CONCHE_BATCHING__MAX_QUEUE_ITEMS) and {self._tokens.taken} of {self._tokens.limit} tokens "
            + (
                f"({self.limits.max_queue_s:g} s of work, CONCHE_BATCHING__MAX_QUEUE_SECONDS) are waiting"
                if by_time
                else "(CONCHE_BATCHING__MAX_QUEUE_TOKENS) are waiting"
            ),
            retry_after_s=self.retry_after_s,
        )

    def _feed(self, request: Request[Item, Result]) -> None:
        """Move upcoming entries into the waiting room as far as the request's share allows."""
        max_items, max_tokens = request.share_items, request.share_tokens
        while request.upcoming:
            entry = request.upcoming[0]
            fits = len(request.room) < max_items and request.room_tokens + entry.length <= max_tokens
            if request.room and not fits:
                break
            request.upcoming.popleft()
            self._room.add(entry)
            request.room[entry.ticket] = entry
            request.room_tokens += entry.length
        self._reserve(request)

    def _reserve(self, request: Request[Item, Result]) -> None:
        """Bring the queue's totals up to what this request has waiting."""
        items = min(request.waiting_items, request.share_items)
        tokens = min(request.waiting_tokens, request.share_tokens)
        self._items.taken += items - request.reserved_items
        self._tokens.taken += tokens - request.reserved_tokens
        request.reserved_items, request.reserved_tokens = items, tokens

    def _leave(self, entry: Entry[Item, Result]) -> None:
        """Take an entry out of the waiting room."""
        request = entry.request
        self._room.remove(entry)
        del request.room[entry.ticket]
        request.room_tokens -= entry.length
        request.waiting_items -= 1
        request.waiting_tokens -= entry.length

    def _abandon(self, request: Request[Item, Result]) -> None:
        """Forget what a request still has waiting, and free its places at once."""
        for entry in list(request.room.values()):
            self._leave(entry)
        self._items.taken -= request.reserved_items
        self._tokens.taken -= request.reserved_tokens
        request.forget()

    # -- the worker ------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        reason = f"the batcher of {self.name} stopped"
        try:
            await self._run_streams()
        except asyncio.CancelledError:
            reason = f"{self.name} is shutting down"
            raise
        except StalledError as error:
            reason = str(error)
            logger.error("%s", reason)  # noqa: TRY400 - this trace says nothing about the run that hangs
        except BrokenModelError as error:
            reason = str(error)
            logger.critical("%s", reason, exc_info=error.__cause__)
        except BaseException as error:
            reason = f"the batcher of {self.name} stopped after {type(error).__name__}"
            logger.critical("%s", reason, exc_info=True)
            if not isinstance(error, Exception):
                raise
        finally:  # whatever ends this task, nobody is left waiting
            if self._open or any(not request.future.done() for request in self._requests):
                self._failure = reason
            self._open = False
            # The waiting room is thrown away, not emptied: it may be what broke.
            self._room = WaitingRoom()
            self._items.taken = self._tokens.taken = 0
            for request in self._requests:  # one cancelled just now as well: it has yet to leave the room
                request.forget()
                request.fail(UnavailableError(reason))

    async def _run_streams(self) -> None:
        """Have a task for each stream run batches until nothing is left after the end, or one fails."""
        loop = asyncio.get_running_loop()
        streams = [
            loop.create_task(self._run_batches(), name=f"stream {number + 1} of {self.name}")
            for number in range(self._most_streams)
        ]
        waiting = set(streams)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for stream in done:
                    if (error := stream.result()) is not None:
                        raise error
        finally:
            for stream in waiting:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)

    async def _run_batches(self) -> BaseException | None:
        """Run batches; what ends it before its time is returned.

        Raised in a task, SystemExit and its like would end the event loop before anybody is told.
        """
        try:
            while await self._work_waits():
                await self._run(self._form())
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for this task
            return error
        return None

    async def _work_waits(self) -> bool:
        """Wait until a batch is due; False = closing and nothing is left."""
        while True:
            if not self._room:
                if not self._open:
                    return False
                await self._wait()
                continue
            if self._running >= self._streams():
                await self._wait()
                continue
            left = self._room.oldest.request.admitted_at + self.limits.max_wait_s - time.monotonic()
            full = (
                self._room.tokens >= self.limits.max_batch_tokens
                or len(self._room) >= self.limits.max_batch_size
            )
            if left <= 0 or full or not self._open:
                return True
            await self._wait(left)

    async def _wait(self, most_seconds: float | None = None) -> None:
        """Wait until something changes."""
        self._wake.clear()
        self._idle += 1
        try:
            if most_seconds is None:
                await self._wake.wait()
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(most_seconds):
                    await self._wake.wait()
        finally:
            self._idle -= 1

    def _form(self) -> list[Entry[Item, Result]]:
        share = self.limits.max_batch_tokens
        # Idle streams are awake by now and come for the rest, as far as another model leaves them a thread.
        others = min(self._idle, self._execution.free - 1, self._streams() - self._running - 1)
        if others > 0:
            share = min(share, math.ceil(self._room.tokens / (1 + others)))
        batch = self._room.choose(self.limits, self._padding_cost, max_tokens=share)
        for entry in batch:
            self._leave(entry)
        for request in {entry.request for entry in batch}:
            self._feed(request)
        return batch

    async def _run(self, batch: list[Entry[Item, Result]]) -> None:
        """Run one batch in an execution thread and answer its callers, and nobody else.

        Raises:
            StalledError: the run, or one before it, hangs.
            BrokenModelError: the model fails on everything.
        """
        parts, runs_left = [batch], _MOST_RUNS_OF_A_BATCH
        while parts:
            # Who has been answered by an earlier part, or has gone, needs no run.
            part = [entry for entry in parts.pop() if not entry.request.future.done()]
            if not part:
                continue
            error = await self._run_once(part)
            runs_left -= 1
            if error is None:
                continue
            logger.error("%s failed on a batch of %d", self.name, len(part), exc_info=error)
            if len(part) > 1 and runs_left > 0:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            else:
                self._fail(part, error)

    async def _run_once(self, batch: list[Entry[Item, Result]]) -> Exception | None:
        """Run a batch, or a part of one; hand out its results, or return what went wrong."""
        items = [entry.item for entry in batch]
        dispatched_at = time.monotonic()
        self._running += 1
        self._at_work += len(items)
        at_a_time: float = self._running
        try:
            run = await self._execution.run(
                lambda: _call(self._run_batch, items, self._execution.shared_seconds),
                name=f"a run of {self.name}",
                stall_timeout_s=self.limits.stall_timeout_s,
                owner=self,
                exclusive=self._exclusive(),
            )
        finally:
            at_a_time = (at_a_time + self._running) / 2
            self._running -= 1
            self._at_work -= len(items)
            # It may be the turn of a stream that had to wait for this one, or that one's end.
            if self._idle and (self._room or not self._open):
                self._wake.set()
        error = run.error
        if isinstance(error, BrokenModelError):
            self._note(batch, run, dispatched_at, at_a_time, failed=True)
            raise error
        if error is not None and not isinstance(error, Exception):
            raise error  # SystemExit and its like are meant for the process, not for one caller
        if error is None and len(run.results) != len(batch):
            error = RuntimeError(f"{len(run.results)} results for {len(batch)} items")
        if error is None:
            for request in {entry.request for entry in batch}:
                request.add_run(run.started_at, run.ended_at)
            for entry, result in zip(batch, run.results, strict=True):
                entry.request.waited_seconds += max(run.started_at - entry.request.admitted_at, 0.0)
                entry.request.finish(entry.position, result)
        self._note(batch, run, dispatched_at, at_a_time, failed=error is not None)
        return error

    def _fail(self, batch: list[Entry[Item, Result]], error: Exception) -> None:
        for request in {entry.request for entry in batch}:
            failure = InferenceError(f"{self.name} failed on a batch; the log has the cause")
            failure.__cause__ = error
            request.fail(failure)
            self._abandon(request)

    def _bound_queue_by_time(self, rate: float) -> None:
        """Let so much wait as runs within ``limits.max_queue_s``; small batches would say too little."""
        if self.limits.max_queue_s is None:
            return
        previous = self._tokens_per_second_at_work or rate
        self._tokens_per_second_at_work = previous + _THROUGHPUT_SMOOTHING * (rate - previous)
        by_time = int(self._tokens_per_second_at_work * self.limits.max_queue_s)
        self._tokens.limit = min(self.limits.max_queue_tokens, max(by_time, 2 * self.limits.max_batch_tokens))

    def _note(
        self,
        batch: list[Entry[Item, Result]],
        run: "_Run[Result]",
        dispatched_at: float,
        at_a_time: float,
        *,
        failed: bool,
    ) -> None:
        """Update the throughput, of so many runs at a time, and tell the observer."""
        tokens = sum(entry.length for entry in batch)
        # From dispatch, not from the start of the run: time spent behind another model is time all the same.
        rate = at_a_time * tokens / max(run.ended_at - dispatched_at, 1e-6)
        previous = rate if self._tokens_per_second is None else self._tokens_per_second
        self._tokens_per_second = previous + _THROUGHPUT_SMOOTHING * (rate - previous)
        large = 2 * tokens >= self.limits.max_batch_tokens or 2 * len(batch) >= self.limits.max_batch_size
        if large and not failed:
            self._bound_queue_by_time(rate)
        padded_tokens = self._computed_tokens([entry.length for entry in batch])
        self._runs += 1
        logs = [entry.request.log for entry in batch]
        trace_ids: tuple[str | None, ...] = ()
        if any(logs):
            trace_ids = tuple(None if log is None else log.trace_id for log in logs)
            of_request = Counter(entry.request for entry in batch if entry.request.log is not None)
            for request, rows in of_request.items():
                assert request.log is not None  # noqa: S101 - those with one were counted
                request.log.add(
                    RunOfRequest(
                        number=self._runs,
                        formed_at=dispatched_at,
                        started_at=run.started_at,
                        ended_at=run.ended_at,
                        done_at=time.monotonic(),
                        rows=rows,
                        size=len(batch),
                        tokens=tokens,
                        padded_tokens=padded_tokens,
                        failed=failed,
                    )
                )
        if self._on_batch is None:
            return
        run_seconds = run.ended_at - run.started_at
        lent = self._lends_threads(len(batch))
        stats = BatchStats(
            size=len(batch),
            tokens=tokens,
            padded_tokens=padded_tokens,
            queue_seconds=tuple(max(run.started_at - entry.request.admitted_at, 0.0) for entry in batch),
            run_seconds=run_seconds,
            stream_seconds=self._streams() * run.share_seconds if lent else run_seconds,
            failed=failed,
            trace_ids=trace_ids,
        )
        try:
            self._on_batch(stats)
        except Exception:
            logger.exception("the batch observer of %s failed", self.name)


@dataclass(frozen=True, slots=True)
class _Run(Generic[Result]):
    """What came of one call of ``run_batch``; times on the monotonic clock, and its share of them."""

    results: Sequence[Result]
    error: BaseException | None
    started_at: float
    ended_at: float
    share_seconds: float


def _padded(lengths: Sequence[int]) -> int:
    return len(lengths) * max(lengths)


def _closed(items: Sequence[object]) -> NoReturn:
    raise RuntimeError(f"the batcher is closed; {len(items)} items came afterwards")


def _call(
    run_batch: Callable[[Sequence[Item]], Sequence[Result]],
    items: Sequence[Item],
    shared_seconds: Callable[[], float],
) -> _Run[Result]:
    """Call ``run_batch``; what it raises is returned, as a future cannot carry a StopIteration."""
    started_at, share_from = time.monotonic(), shared_seconds()
    results: Sequence[Result] = ()
    error: BaseException | None = None
    try:
        results = run_batch(items)
    except BaseException as raised:  # noqa: BLE001 - judged by the worker
        error = raised
    return _Run(results, error, started_at, time.monotonic(), shared_seconds() - share_from)

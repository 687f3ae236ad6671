"""Who waits for a run, and who goes next: the data structures of ``service.batching``.

Nothing here waits, runs or decides on admission; every rule about the order and the shape of batches is in
``WaitingRoom.choose``.
"""

import asyncio
import bisect
import itertools
import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from service.errors import ServiceError

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BatchingLimits:
    """What the batcher may hold and build. Tokens of a batch count padding; tokens of the queue do not.

    Attributes:
        max_batch_tokens: rows x longest row, or less where padding costs less; only a single longer row may
            exceed it, alone.
        max_batch_size: rows.
        max_queue_tokens: tokens waiting, over all requests.
        max_queue_items: items waiting, over all requests.
        max_queue_s: what may wait is also what runs within this time at the rate of recent large batches, two
            full batches at least; None = no such bound. The rate, of all runs at a time, is from dispatch to
            end, so that it is lower while other models have the threads: their runs are waited for, too.
        max_wait_s: how long the oldest item may be held back for company; 0 = never.
        max_overtake_tokens: how far behind an item, in tokens, a younger one may stand and still run before
            it; None = 16 full batches.
        max_padding_ratio: padded size of a batch over its real tokens that a neighbour may cause, >= 1;
            padding that costs less counts for less.
        free_padding_tokens: padding always accepted, counted in the same way, since one more run would cost
            more than it (bench/batching.py).
        stall_timeout_s: a run without progress for this long counts as hung.
    """

    max_batch_tokens: int = 2048
    max_batch_size: int = 256
    max_queue_tokens: int = 131_072
    max_queue_items: int = 8192
    max_queue_s: float | None = None
    max_wait_s: float = 0.0
    max_overtake_tokens: int | None = None
    max_padding_ratio: float = 1.05
    free_padding_tokens: int = 16
    stall_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("max_batch_tokens", "max_batch_size", "max_queue_tokens", "max_queue_items"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_wait_s", "free_padding_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        if self.max_overtake_tokens is not None and self.max_overtake_tokens < 0:
            raise ValueError(f"max_overtake_tokens must not be negative, but is {self.max_overtake_tokens}")
        if self.max_padding_ratio < 1:
            raise ValueError(f"max_padding_ratio must be at least 1, not {self.max_padding_ratio}")
        if self.max_queue_s is not None and self.max_queue_s <= 0:
            raise ValueError(f"max_queue_s must be positive, not {self.max_queue_s}")
        if self.stall_timeout_s <= 0:
            raise ValueError(f"stall_timeout_s must be positive, not {self.stall_timeout_s}")

    @property
    def overtake_tokens(self) -> int:
        """``max_overtake_tokens``, or its default."""
        return 16 * self.max_batch_tokens if self.max_overtake_tokens is None else self.max_overtake_tokens


# Runs that are told of one request; a request of thousands of texts takes no more memory for it.
_MOST_RUNS_TOLD: Final = 32


@dataclass(frozen=True, slots=True)
class RunOfRequest:
    """One run that held rows of a request; times in seconds of ``time.monotonic``.

    Attributes:
        number: of the run, counted by the batcher; the same for all requests that shared it.
        formed_at: its rows were chosen.
        started_at, ended_at: inside ``run_batch``; before that it may have waited for another model's run.
        done_at: its results were handed out.
        rows: of the request.
        size, tokens, padded_tokens: of the whole batch, as of `service.batching.BatchStats`.
        failed: ``run_batch`` raised or broke its contract.
    """

    number: int
    formed_at: float
    started_at: float
    ended_at: float
    done_at: float
    rows: int
    size: int
    tokens: int
    padded_tokens: int
    failed: bool


@dataclass(slots=True)
class RequestLog:
    """How the runs of one request went, written down for a caller that wants to know.

    Attributes:
        trace_id: of the request, for observers of batches.
        admitted_at: in seconds of ``time.monotonic``; None if it was refused.
        runs: the first ones.
        more_runs: how many came after those.
    """

    trace_id: str
    admitted_at: float | None = None
    runs: list[RunOfRequest] = field(default_factory=list)
    more_runs: int = 0

    def add(self, run: RunOfRequest) -> None:
        """Note a run, or count it if there were many."""
        if len(self.runs) < _MOST_RUNS_TOLD:
            self.runs.append(run)
        else:
            self.more_runs += 1


class Request(Generic[Item, Result]):
    """Items admitted together, and the one future their caller waits for.

    ``share_items`` and ``share_tokens`` are the most it may have in the waiting room at a time; all of it,
    unless said otherwise.
    """

    __slots__ = (
        "admitted_at",
        "future",
        "log",
        "reserved_items",
        "reserved_tokens",
        "results",
        "room",
        "room_tokens",
        "run_ended_at",
        "run_seconds",
        "share_items",
        "share_tokens",
        "unfinished",
        "upcoming",
        "waited_seconds",
        "waiting_items",
        "waiting_tokens",
    )

    def __init__(
        self,
        items: Sequence[Item],
        lengths: Sequence[int],
        future: asyncio.Future[list[Result]],
        log: RequestLog | None = None,
    ) -> None:
        self.future = future
        self.log = log
        self.admitted_at = time.monotonic()
        if log is not None:
            log.admitted_at = self.admitted_at
        self.results: list[Any] = [None] * len(items)
        self.unfinished = len(items)
        self.upcoming = deque(
            Entry(self, position, item, length)
            for position, (item, length) in enumerate(zip(items, lengths, strict=True))
        )
        self.room: dict[int, Entry[Item, Result]] = {}  # of this request in the waiting room, by ticket
        self.room_tokens = 0
        self.waiting_items = len(items)  # in the room or upcoming
        self.waiting_tokens = sum(lengths)
        self.share_items = self.waiting_items
        self.share_tokens = self.waiting_tokens
        self.reserved_items = 0
        self.reserved_tokens = 0
        self.waited_seconds = 0.0  # of all rows that have run, from admission to the start of their run
        self.run_seconds = 0.0  # in which a run was going on that held rows of it
        self.run_ended_at = 0.0  # the last of them

    def add_run(self, started_at: float, ended_at: float) -> None:
        """Note a run that held rows of it; what it has in common with the one before counts once."""
        self.run_seconds += max(0.0, ended_at - max(started_at, self.run_ended_at))
        self.run_ended_at = max(self.run_ended_at, ended_at)

    def finish(self, position: int, result: Result) -> None:
        """Note one result; the caller is answered with the last."""
        self.results[position] = result
        self.unfinished -= 1
        if not self.unfinished and not self.future.done():
            self.future.set_result(self.results)

    def forget(self) -> None:
        """Note that nothing of it waits any more."""
        self.upcoming.clear()
        self.room.clear()
        self.room_tokens = self.waiting_items = self.waiting_tokens = 0
        self.reserved_items = self.reserved_tokens = 0

    def fail(self, error: ServiceError) -> None:
        """Answer the caller with ``error``, unless it has been answered or has gone."""
        if not self.future.done():
            self.future.set_exception(error)


class Entry(Generic[Item, Result]):
    """One item; ``ticket`` is the count of tokens that had entered the waiting room before it."""

    __slots__ = ("item", "length", "position", "request", "ticket")

    def __init__(self, request: "Request[Item, Result]", position: int, item: Item, length: int) -> None:
        self.request = request
        self.position = position
        self.item = item
        self.length = length
        self.ticket = -1


class WaitingRoom(Generic[Item, Result]):
    """Entries in order of arrival and, beside it, by length."""

    def __init__(self) -> None:
        self._by_age: OrderedDict[int, Entry[Item, Result]] = OrderedDict()
        self._by_length: dict[int, OrderedDict[int, Entry[Item, Result]]] = {}
        self._lengths: list[int] = []  # the keys of _by_length, ascending
        self._next_ticket = 0
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._by_age)

    @property
    def oldest(self) -> "Entry[Item, Result]":
        """The entry that has been here longest; the room must not be empty."""
        return next(iter(self._by_age.values()))

    def add(self, entry: "Entry[Item, Result]") -> None:
        """Let an entry in, and give it its ticket."""
        entry.ticket = self._next_ticket
        self._next_ticket += max(entry.length, 1)  # tickets are unique
        self._by_age[entry.ticket] = entry
        same_length = self._by_length.get(entry.length)
        if same_length is None:
            same_length = self._by_length[entry.length] = OrderedDict()
            bisect.insort(self._lengths, entry.length)
        same_length[entry.ticket] = entry
        self.tokens += entry.length

    def remove(self, entry: "Entry[Item, Result]") -> None:
        """Let an entry out, chosen or abandoned."""
        del self._by_age[entry.ticket]
        same_length = self._by_length[entry.length]
        del same_length[entry.ticket]
        if not same_length:
            del self._by_length[entry.length]
            self._lengths.pop(bisect.bisect_left(self._lengths, entry.length))
        self.tokens -= entry.length

    def choose(
        self, limits: BatchingLimits, padding_cost: float = 1.0, *, max_tokens: int | None = None
    ) -> "list[Entry[Item, Result]]":
        """The next batch: the oldest entry, then its neighbours in length; nothing is removed yet.

        Args:
            limits: of a batch, and of who may overtake.
            padding_cost: what a token of padding costs beside one of a text, 0 to 1; for so much of one it
                counts.
            max_tokens: of this batch; None = as ``limits`` say.
        """
        max_tokens = limits.max_batch_tokens if max_tokens is None else max_tokens
        anchor = self.oldest
        batch = [anchor]
        longest = real_tokens = anchor.length
        horizon = anchor.ticket + limits.overtake_tokens
        middle = bisect.bisect_left(self._lengths, anchor.length)
        shorter = self._walk(reversed(self._lengths[: middle + 1]), horizon)
        longer = self._walk(self._lengths[middle + 1 :], horizon)
        next(shorter)  # the anchor itself: the oldest of its length
        down, up = next(shorter, None), next(longer, None)
        while len(batch) < limits.max_batch_size and not (down is None and up is None):
            # The side that adds less padding: a shorter row pads itself, a longer one pads all the others.
            down_padding = math.inf if down is None else longest - down.length
            up_padding = math.inf if up is None else (up.length - longest) * len(batch)
            entry = down if down_padding <= up_padding else up
            assert entry is not None  # noqa: S101 - one side is finite
            new_longest = max(longest, entry.length)
            new_tokens = real_tokens + entry.length
            padding = padding_cost * ((len(batch) + 1) * new_longest - new_tokens)
            fits = new_tokens + padding <= max_tokens and padding <= max(
                limits.free_padding_tokens, (limits.max_padding_ratio - 1) * new_tokens
            )
            if fits:
                batch.append(entry)
                longest, real_tokens = new_longest, new_tokens
            # What lies beyond an entry that does not fit is further off in length still: that side is closed.
            if entry is down:
                down = next(shorter, None) if fits else None
            else:
                up = next(longer, None) if fits else None
        return batch

    def _walk(
        self, lengths: "Iterator[int] | Sequence[int]", horizon: int
    ) -> "Iterator[Entry[Item, Result]]":
        """Entries of these lengths in order, the oldest of each length first, up to the horizon."""
        for length in lengths:
            yield from itertools.takewhile(
                lambda entry: entry.ticket <= horizon, self._by_length[length].values()
            )

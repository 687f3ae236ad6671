"""StreamFollower: models run several batches at a time while there are several texts, and one for one text.

Which is better depends on the load: a text by itself ends sooner with all threads, batches beside each other
get more done. Where an engine has to be compiled for either (OpenVINO), it has one form at a time here, since
two cost up to 70 MiB a model.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

from model.runtime.bundle import BundleError
from model.runtime.stream_changes import StreamChanges
from service.execution import ExecutionThreads, StalledError

logger = logging.getLogger(__name__)

_TICK_S: Final = 0.1
# So many of the last ticks decide, and in so large a part of them there is to have been work for several
# runs, at least or at most.
_RISE_TICKS: Final = 5
_RISE_AT_LEAST: Final = 0.8
_FALL_TICKS: Final = 20
_FALL_AT_MOST: Final = 0.1
# A change is some tenths of a second of a core. Where load comes back within so many seconds, the next fall
# takes twice as long as the last one, up to so many ticks.
_SOON_S: Final = 30.0
_MOST_FALL_TICKS: Final = 600
# Two texts, at work or waiting: one batch of several could as well be two beside each other.
_CONTENDED: Final = 2
_STALL_S: Final = 120.0
# What is being compiled when the service ends is waited for: a process that exits meanwhile may crash.
_END_S: Final = 10.0
# What comes of bundles, engines and disks; anything else is a fault of ours, and is shown with its trace.
_EXPECTED: Final = (BundleError, RuntimeError, MemoryError, OSError)


class FollowedModel(Protocol):
    """A served model; ``service.loaded_models.LoadedModel`` is one."""

    @property
    def name(self) -> str:
        """Of its bundle."""
        ...

    @property
    def demand(self) -> int:
        """Texts at work, and texts that wait."""
        ...

    @property
    def stream_changes(self) -> StreamChanges | None:
        """What changes its streams; None = it has them for good."""
        ...

    def streams_changed(self) -> None:
        """Its engine has other streams than before."""
        ...


@dataclass(frozen=True, slots=True)
class _Look:
    """What one tick found: whether there was work for several runs, and the models that had some."""

    contended: bool
    at_work: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Change:
    """One that could be made."""

    model: FollowedModel
    changes: StreamChanges
    streams: int


class StreamFollower:
    """Looks at the models ten times a second, and changes one at a time.

    Belongs to one event loop. A model that cannot be changed stays as it is until the load has fallen, and
    risen again.

    Args:
        models: those served, whenever they are asked for.
        paused: whether nothing is to be changed just now.
    """

    def __init__(
        self, models: Iterable[FollowedModel], *, paused: Callable[[], bool] = lambda: False
    ) -> None:
        self._models = models
        self._paused = paused
        self._looks: deque[_Look] = deque(maxlen=_MOST_FALL_TICKS)
        self._fall_ticks = _FALL_TICKS
        self._fell_at = -math.inf
        self._looks_since_rise = 0
        self._thread: ExecutionThreads | None = None
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def start(self) -> None:
        """Begin to follow. Call once, inside the event loop."""
        self._task = asyncio.get_running_loop().create_task(self._follow(), name="stream follower")

    async def close(self) -> None:
        """Follow no more; a change that has begun is waited for."""
        self._ending.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_END_S)
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._thread is not None:
            self._thread.close()

    async def _follow(self) -> None:
        try:
            while not self._ending.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await self._ending.wait()
                        return
                if not self._paused():
                    self._looks.append(self._look())
                    self._looks_since_rise += 1
                    await self._change_what_is_due()
        except StalledError as error:
            logger.error("%s; models keep the streams they have", error)  # noqa: TRY400 - nothing of ours

    async def _change_what_is_due(self) -> None:
        # A method of its own, so that no model is kept until the next tick.
        if (due := self._due()) is not None:
            await self._change(due)

    def _look(self) -> _Look:
        demands = {model.name: model.demand for model in self._models}
        at_work = frozenset(name for name, demand in demands.items() if demand)
        return _Look(sum(demands.values()) >= _CONTENDED, at_work)

    def _due(self) -> _Change | None:
        """The next change."""
        changing = [
            _Change(model, changes, changes.most if changes.wanted == 1 else 1)
            for model in self._models
            if (changes := model.stream_changes) is not None
        ]
        low = [one for one in changing if one.changes.wanted == 1 and one.changes.most > 1]
        high = [one for one in changing if one.changes.wanted > 1]
        latest = self._latest(_RISE_TICKS)
        if sum(look.contended for look in latest) >= _RISE_AT_LEAST * _RISE_TICKS:
            for one in low:
                if 2 * sum(one.model.name in look.at_work for look in latest) >= len(latest):
                    if not high:
                        self._note_rise()
                    return one
        if high and self._looks_since_rise >= self._fall_ticks:
            contended = sum(look.contended for look in self._latest(self._fall_ticks))
            if contended <= _FALL_AT_MOST * self._fall_ticks:
                self._fell_at = time.monotonic()
                return high[0]
        return None

    def _latest(self, ticks: int) -> list[_Look]:
        return list(islice(reversed(self._looks), ticks))

    def _note_rise(self) -> None:
        """Of the first model: the others follow it, and it says whether load was away for long."""
        self._looks_since_rise = 0
        soon = time.monotonic() - self._fell_at <= _SOON_S
        self._fall_ticks = min(2 * self._fall_ticks, _MOST_FALL_TICKS) if soon else _FALL_TICKS

    async def _change(self, change: _Change) -> None:
        """Make one; what fails is logged.

        Raises:
            StalledError: it hangs.
        """
        model, changes, streams = change.model, change.changes, change.streams
        if self._thread is None:
            self._thread = ExecutionThreads("conche-streams")
        failure = await self._thread.run(
            lambda: _failure_of(lambda: changes.change(streams)),
            name=f"compiling {model.name} for {streams} batches at a time",
            stall_timeout_s=_STALL_S,
        )
        if failure is None:
            logger.debug("%s runs %d batches at a time from now on", model.name, streams)
        elif changes in [there.stream_changes for there in self._models]:  # it was not unloaded meanwhile
            logger.warning("%s cannot run %d batches at a time: %s", model.name, streams, failure)
        model.streams_changed()


def _failure_of(work: Callable[[], None]) -> str | None:
    """What went wrong with ``work``, in words: an error's frames would keep an engine and what it read."""
    try:
        work()
    except _EXPECTED as error:
        return str(error) or type(error).__name__
    except Exception as error:
        logger.exception("a change of streams failed")
        return type(error).__name__
    return None

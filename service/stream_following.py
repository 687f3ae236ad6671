"""StreamFollower: models run several batches at a time while there is always work, and one when there is not.

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
from collections.abc import Iterable
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


class StreamFollower:
    """Looks at the models ten times a second, and changes one at a time.

    Belongs to one event loop. A model that cannot be changed stays as it is until the load has fallen, and
    risen again.

    Args:
        models: those served, whenever they are asked for.
    """

    def __init__(self, models: Iterable[FollowedModel]) -> None:
        self._models = models
        self._looks: deque[_Look] = deque(maxlen=_MOST_FALL_TICKS)
        self._fall_ticks = _FALL_TICKS
        self._fell_at = self._rose_at = -math.inf
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
                self._looks.append(self._look())
                if (due := self._due()) is not None:
                    await self._change(*due)
        except StalledError as error:
            logger.error("%s; models keep the streams they have", error)  # noqa: TRY400 - nothing of ours

    def _look(self) -> _Look:
        demands = {model.name: model.demand for model in self._models}
        at_work = frozenset(name for name, demand in demands.items() if demand)
        return _Look(sum(demands.values()) >= _CONTENDED, at_work)

    def _due(self) -> tuple[FollowedModel, StreamChanges, int] | None:
        """The next model to change, and to how many streams."""
        latest = self._latest(_RISE_TICKS)
        if sum(look.contended for look in latest) >= _RISE_AT_LEAST * _RISE_TICKS:
            for model in self._models:
                changes = model.stream_changes
                busy = sum(model.name in look.at_work for look in latest) * 2 >= len(latest)
                if busy and changes is not None and changes.wanted < changes.most:
                    return model, changes, changes.most
        raised = [
            (model, changes)
            for model in self._models
            if (changes := model.stream_changes) is not None and changes.wanted > 1
        ]
        if raised and len(self._looks) >= self._fall_ticks:
            contended = sum(look.contended for look in self._latest(self._fall_ticks))
            if contended <= _FALL_AT_MOST * self._fall_ticks:
                return (*raised[0], 1)
        return None

    def _latest(self, ticks: int) -> list[_Look]:
        return list(islice(reversed(self._looks), ticks))

    def _note_change(self, streams: int) -> None:
        now = time.monotonic()
        if streams == 1:
            self._fell_at = now
        elif now - self._fell_at > _SOON_S:
            self._fall_ticks = _FALL_TICKS
        elif self._fell_at > self._rose_at:
            self._fall_ticks = min(2 * self._fall_ticks, _MOST_FALL_TICKS)
        if streams > 1:
            self._rose_at = now

    async def _change(self, model: FollowedModel, changes: StreamChanges, streams: int) -> None:
        """Change one; what fails is logged.

        Raises:
            StalledError: it hangs.
        """
        self._note_change(streams)
        if self._thread is None:
            self._thread = ExecutionThreads("conche-streams")
        try:
            await self._thread.run(
                lambda: changes.change(streams),
                name=f"compiling {model.name} for {streams} batches at a time",
                stall_timeout_s=_STALL_S,
            )
        except StalledError:
            raise
        except (BundleError, RuntimeError, MemoryError, OSError) as error:
            if changes in [there.stream_changes for there in self._models]:  # it was not unloaded meanwhile
                logger.warning("%s cannot run %d batches at a time: %s", model.name, streams, error)
        else:
            logger.debug("%s runs %d batches at a time from now on", model.name, streams)
        model.streams_changed()

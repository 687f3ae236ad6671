"""A thread that ends the process when its event loop stands still, or its start does not come to an end.

Only a thread of its own can notice: whatever the loop would run is stuck behind what holds it up. Docker does
nothing about a container that is unhealthy, but starts one that ended anew, as every supervisor does.

Not noticed: native code that hangs while it holds the interpreter's lock, since no Python thread runs then.
"""

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from service.cli.process import LOST_MODEL

logger = logging.getLogger(__name__)

_LONGEST_STEP_S: Final = 1.0
_STEPS: Final = 10  # at least so many of them in the shortest limit
_LAST_WORDS_S: Final = 5.0


class Watchdog:
    """Counts time by its own looks, and no look as more than a step.

    So a time in which the process was stopped (SIGSTOP, a frozen container, a suspended machine) is a single
    step, however long it was, and afterwards the loop has its steps to show that it turns.
    """

    def __init__(
        self,
        *,
        loop_stall_s: float | None,
        startup_s: float | None,
        end: Callable[[str], None] | None = None,
    ) -> None:
        """Watch nothing before `start`.

        Args:
            loop_stall_s: how long the loop may stand still once the start is over; None = for ever.
            startup_s: how long the start may take; None = for ever.
            end: called with the reason, once, from the thread; the default logs it with the stacks of all
                threads and ends the process with exit code 70.
        """
        self._loop_stall_s = loop_stall_s
        self._startup_s = startup_s
        limits = [limit / _STEPS for limit in (loop_stall_s, startup_s) if limit is not None]
        self.step_s = min([_LONGEST_STEP_S, *limits])
        self._end = end or _end_process
        self._is_started = False
        self._turns = 0
        self._turns_seen = 0
        self._looks = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if limits:
            self._thread = threading.Thread(target=self._watch, name="conche-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch; the start begins now."""
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._over.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def started(self) -> None:
        """From now on it is the running loop that is watched, and no more the start."""
        self._turn(asyncio.get_running_loop())  # first, so that the loop's first look finds one
        self._is_started = True

    def look(self) -> str | None:
        """Take a step for over; what is wrong, if anything is."""
        self._looks += 1
        if not self._is_started:
            return self._overdue(self._startup_s, "the start has not come to an end in")
        if self._turns != self._turns_seen:
            self._turns_seen = self._turns
            self._looks = 0
            return None
        return self._overdue(self._loop_stall_s, "the event loop has stood still for")

    def _overdue(self, limit_s: float | None, what: str) -> str | None:
        if limit_s is None or self._looks * self.step_s < limit_s:
            return None
        return f"{what} {limit_s:g} s"

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns += 1
        loop.call_later(self.step_s, self._turn, loop)

    def _watch(self) -> None:
        while not self._over.wait(self.step_s):
            reason = self.look()
            if reason is not None:
                self._end(reason)
                return


def _end_process(reason: str) -> None:
    """Say why and where, and end: soon, since a log that nobody reads may be what holds the loop up."""
    words = threading.Thread(target=_say, args=(reason,), daemon=True)
    words.start()
    words.join(_LAST_WORDS_S)
    os._exit(LOST_MODEL)


def _say(reason: str) -> None:
    logger.critical("%s; ending, to be started anew", reason, extra={"stacks": _stacks()})


def _stacks() -> str:
    """Of all threads: places in the code, and nothing of what they work on.

    By way of memory: faulthandler keeps the interpreter's lock while it writes, to a full pipe for ever.
    """
    with os.fdopen(os.memfd_create("stacks"), "w+", encoding="utf-8", errors="replace") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()

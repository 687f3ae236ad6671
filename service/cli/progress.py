"""How far a long command is: a bar on a terminal; elsewhere a plain line now and then, as logs want it."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, TextIO

import click

_LINE_EVERY_S: Final = 30.0
_REDRAW_EVERY_S: Final = 0.1
_BAR: Final = 24
_CLEAR: Final = "\r\x1b[K"


@dataclass(slots=True)
class _Stage:
    """When a stage began, and at which of its steps."""

    began: float
    first: int
    done: int


class ProgressLine:
    """Tells on standard error what goes on, stage after stage; a stage may be left and come back.

    On a terminal it is one line, drawn anew as work goes on. Elsewhere a stage is named when it begins, and
    then, if it is long, about every half minute with where it stands; while the context is open also when
    nobody tells of a step for so long.

    Args:
        stream: Written to; standard error as it is then, if not said.
        clock: Seconds from any start.
    """

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._draws = self._stream.isatty()
        self._stages: dict[str, _Stage] = {}
        self._shown: str | None = None
        self._shown_at = 0.0
        self._last = ("", 0, 0)  # stage, done, total
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._beat_on, name="conche-progress", daemon=True)

    def __enter__(self) -> Self:
        if not self._draws:
            self._heart.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._closed.set()
        if not self._draws:
            self._heart.join()
        if self._draws and self._shown is not None:
            self._write("\n")

    def show(self, stage: str, done: int, total: int, facts: str = "") -> None:
        """Say that ``done`` of the ``total`` steps of a stage are done.

        Args:
            stage: Its name; the same name with fewer steps done is the stage begun again.
            done: 0 to ``total``.
            total: More than 0.
            facts: Shown with it, such as a loss.
        """
        with self._lock:
            self._show(stage, done, total, facts)

    def beat(self) -> None:
        """Say that the last stage goes on, if nothing was written for half a minute: a step may be long."""
        with self._lock:
            stage, done, total = self._last
            now = self._clock()
            if self._shown is not None and now - self._shown_at >= _LINE_EVERY_S:
                self._write(f"{stage}: still at {done} of {total}\n")
                self._shown_at = now

    def _beat_on(self) -> None:
        while not self._closed.wait(_LINE_EVERY_S / 2):
            self.beat()

    def _show(self, stage: str, done: int, total: int, facts: str) -> None:
        now = self._clock()
        self._last = stage, done, total
        known = self._stages.get(stage)
        if known is None or done < known.done:
            self._stages[stage] = _Stage(now, done, done)
        else:
            known.done = done
        since = now - self._shown_at
        if self._draws:
            if stage != self._shown or since >= _REDRAW_EVERY_S or done == total:
                self._write(_CLEAR + self._drawn(stage, done, total, facts, now))
                self._shown, self._shown_at = stage, now
        elif known is None or since >= _LINE_EVERY_S:
            said = f"{stage}: {done} of {total}{self._rest(stage, total, facts, now)}" if known else stage
            self._write(said + "\n")
            self._shown, self._shown_at = stage, now

    def say(self, line: str) -> None:
        """Print a line on standard output, above the one that is drawn."""
        if self._draws and self._shown is not None:
            self._write(_CLEAR)
            self._shown = None
        click.echo(line)

    def _drawn(self, stage: str, done: int, total: int, facts: str, now: float) -> str:
        full = _BAR * done // total
        bar = "#" * full + "." * (_BAR - full)
        line = f"{stage} [{bar}] {done}/{total}{self._rest(stage, total, facts, now)}"
        return line[: shutil.get_terminal_size().columns - 1]

    def _rest(self, stage: str, total: int, facts: str, now: float) -> str:
        known = self._stages[stage]
        said = f", {facts}" if facts else ""
        if known.done > known.first:
            left = (now - known.began) / (known.done - known.first) * (total - known.done)
            said += f", {left:.0f} s left"
        return said

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

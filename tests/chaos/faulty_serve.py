"""``conche serve`` with engines, a loop and a clock that go wrong when a file says so; run as a program.

The folder in ``CHAOS_FOLDER`` holds the files, each of one word:

``engine``
    what the next runs do: ``hang``, ``raise``, ``starve`` (find no memory), ``nan``, ``exit``, or ``hold``
    (wait until the file has gone).
``loop``
    ``hang``: the event loop turns no more.
``recycle``
    ``now``: the time that a lost model is shown for, before the process ends, is over.
``clock``
    seconds by which the wall clock is off, as ``time.time`` and ``time.time_ns`` tell it.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.runtime import engine, onnxruntime_engine, threads
from model.runtime.engine import TokenBatch
from service.cli import main
from service.cli.server import Server
from service.settings import Settings

FOLDER = Path(os.environ["CHAOS_FOLDER"])
_STEP_S = 0.01
_run = onnxruntime_engine.OnnxRuntimeEngine.run
_on_tick = Server.on_tick
_recycle_after_s = Settings.recycle_after_s
_time, _time_ns = time.time, time.time_ns


class Ended(BaseException):
    """What no handler of errors takes."""


def word(name: str) -> str:
    """What the file says; nothing if it is not there."""
    try:
        return (FOLDER / name).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def faulty_run(
    self: onnxruntime_engine.OnnxRuntimeEngine, batch: TokenBatch, outputs: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """Run, or fail as the file says."""
    match word("engine"):
        case "hang":
            while True:
                time.sleep(3600)
        case "raise":
            raise RuntimeError("out of order")
        case "starve":
            raise MemoryError
        case "exit":
            raise Ended
        case "nan":
            return {name: np.full_like(value, np.nan) for name, value in _run(self, batch, outputs).items()}
        case "hold":
            (FOLDER / "held").touch()
            while word("engine") == "hold":
                time.sleep(_STEP_S)
    return _run(self, batch, outputs)


async def faulty_tick(self: Server, counter: int) -> bool:
    """What the server does ten times a second, or the last that its loop does."""
    while word("loop") == "hang":
        time.sleep(3600)  # noqa: ASYNC251 - that is the fault
    return await _on_tick(self, counter)


def recycle_after_s(self: Settings) -> float | None:
    """As set, or none left."""
    return 0.0 if word("recycle") == "now" else _recycle_after_s(self)


# Threads that give way would have the tests wait for whatever else the machine is at.
threads.give_way = engine.give_way = lambda: None
onnxruntime_engine.OnnxRuntimeEngine.run = faulty_run  # type: ignore[method-assign]
Server.on_tick = faulty_tick  # type: ignore[method-assign]
Settings.recycle_after_s = recycle_after_s  # type: ignore[method-assign]
time.time = lambda: _time() + float(word("clock") or 0)
time.time_ns = lambda: _time_ns() + int(float(word("clock") or 0) * 1e9)
main(sys.argv[1:])

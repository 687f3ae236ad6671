"""A supervisor whose workers serve nothing and do as files say; run as a program.

Arguments: a folder, then settings as ``name=value``. A worker says ``started NUMBER PID``, and looks for the
files ``NUMBER`` and ``all`` of the folder. Of one word each, they say:

``fail``, ``crash``, ``sleep``
    at its start: return 1, end by SIGKILL, never get ready.
``lost``, ``stuck``
    once ready: return 70, turn no more.
``garble``
    once ready: send its supervisor bytes that mean nothing, and go on.
``ask``
    once ready, once: ask all for their metrics, and say what was told.
``speechless``
    has no answer to that.
``stubborn``
    pays no attention to signals.
"""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from service.cli import supervisor
from service.cli.process import LOST_MODEL
from service.cli.worker_link import WorkerLink
from service.log_config import configure_logging
from service.settings import load_settings

FOLDER = Path(sys.argv[1])
STEP_S = 0.02
COUNTED: list[object] = [["c_total", "help", "counter", "", [["c_total", {}, 1.0, None]]]]


def word(number: int) -> str:
    """What this worker is to do."""
    for name in (str(number), "all"):
        path = FOLDER / name
        if path.exists():
            return path.read_text(encoding="utf-8")
    return ""


def say(line: str) -> None:
    """Write to standard output, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def count(number: int, _: Sequence[str]) -> list[object]:
    """The worker's metrics."""
    if word(number) == "speechless":
        raise RuntimeError("no figures")
    return COUNTED


def work(link: WorkerLink) -> int:
    """The life of a worker."""
    stop = threading.Event()
    for number in supervisor.STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    say(f"started {link.number} {os.getpid()}")
    match word(link.number):
        case "fail":
            return 1
        case "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            stop.wait()
            return 0
    link.answer("metrics", partial(count, link.number))
    link.ready({"page": f"ready, said worker {link.number}"})
    while not stop.is_set() or word(link.number) == "stubborn":
        match word(link.number):
            case "lost":
                (FOLDER / str(link.number)).unlink()
                return LOST_MODEL
            case "stuck":
                (FOLDER / str(link.number)).unlink()
                time.sleep(3600)
            case "garble":
                (FOLDER / str(link.number)).unlink()
                link._connection.sendall(b"\xff" * 64)
            case "ask":
                (FOLDER / str(link.number)).unlink()
                told = asyncio.run(link.gather("metrics")).answers
                say(f"told {sorted(number for number, answer in told.items() if answer == COUNTED)}")
        link.tick()
        time.sleep(STEP_S)
    link.stopping()
    link.close()
    return 0


if __name__ == "__main__":
    values = dict(argument.split("=", 1) for argument in sys.argv[2:])
    settings = load_settings({(name,): value for name, value in values.items()})
    configure_logging("info", "text")
    supervisor._FIRST_DELAY_S = 0.01  # type: ignore[misc]
    supervisor._WATCHDOG_MARGIN_S = 0.0  # type: ignore[misc]
    supervisor._STOP_MARGIN_S = 1.0  # type: ignore[misc]
    code = supervisor.Supervisor(settings, [], work, lambda said: say(said["page"])).run()
    sys.exit(code)

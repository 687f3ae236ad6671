"""The event loop stands still, a start does not come to an end, the whole process is stopped."""

import signal
import time
from pathlib import Path

from tests.chaos.served import Served, serving

STALL_S = 3


def test_an_event_loop_that_stands_still_ends_the_process(folder: Path) -> None:
    """Nothing that it would run could say so, and Docker does nothing about a container that is unhealthy."""
    with serving(folder, "--loop-stall-seconds", str(STALL_S)) as served:
        assert served.embed().status == 200
        served.say("loop", "hang")
        assert served.wait() == 70
        served.unsay("loop")
        served.start()
        assert served.embed().status == 200
        assert served.stop() == 0


def test_a_start_that_hangs_ends_the_process(folder: Path) -> None:
    """Here the first run of a model, which no caller waits for."""
    served = Served(folder, ("--startup-seconds", "10"))
    served.say("engine", "hang")
    served.launch()
    try:
        assert served.process.stderr is not None
        assert served.wait() == 70
        assert "the start has not come to an end in 10 s" in served.process.stderr.read()
    finally:
        served.kill()


def test_a_process_that_was_stopped_goes_on(folder: Path) -> None:
    """As with a container that was frozen, or a machine that slept: nothing hung, there was no time."""
    with serving(folder, "--loop-stall-seconds", str(STALL_S)) as served:
        served.process.send_signal(signal.SIGSTOP)
        time.sleep(STALL_S + 1)
        served.process.send_signal(signal.SIGCONT)
        assert served.embed().status == 200
        assert served.stop() == 0

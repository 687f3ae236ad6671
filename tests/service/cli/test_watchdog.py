"""What ends a process whose loop stands still, and what does not."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from service.cli.watchdog import Watchdog

STUCK = """
import logging, sys, time
from service.cli.watchdog import Watchdog
from service.log_config import configure_logging
configure_logging("info", "json")
def stuck_place():
    Watchdog(loop_stall_s=None, startup_s=0.5).start()
    {while_stuck}
stuck_place()
"""
HANG_S = 60


def watchdog(*, loop_stall_s: float | None = 5.0, startup_s: float | None = 20.0) -> Watchdog:
    """One whose looks the test takes; its step is half a second."""
    return Watchdog(loop_stall_s=loop_stall_s, startup_s=startup_s)


async def _let_the_loop_turn(dog: Watchdog) -> None:
    await asyncio.sleep(2 * dog.step_s)


async def test_a_loop_that_turns_is_left_alone_however_often_it_is_looked_at() -> None:
    """What counts is a stretch without a turn, not their sum."""
    dog = watchdog()
    dog.started()
    for _ in range(3):
        assert [dog.look() for _ in range(9)] == [None] * 9
        await _let_the_loop_turn(dog)


async def test_a_loop_that_stands_still_for_its_time_is_found() -> None:
    """The first look finds a turn, and ten steps later five seconds have gone."""
    dog = watchdog()
    dog.started()
    looks = [dog.look() for _ in range(11)]
    assert looks[:10] == [None] * 10
    assert looks[10] == "the event loop has stood still for 5 s"


def test_a_start_that_takes_too_long_is_found() -> None:
    """Whether or not the loop turns meanwhile."""
    dog = watchdog()
    looks = [dog.look() for _ in range(40)]
    assert looks[:39] == [None] * 39
    assert looks[39] == "the start has not come to an end in 20 s"


async def test_what_the_start_took_is_not_held_against_the_loop() -> None:
    """A start of hours is followed by a loop that has its whole time."""
    dog = watchdog(startup_s=None)
    assert [dog.look() for _ in range(100)] == [None] * 100
    dog.started()
    assert [dog.look() for _ in range(10)] == [None] * 10


def test_without_limits_there_is_no_thread() -> None:
    """`none` for both is for whoever wants to look at a process that hangs."""
    before = threading.active_count()
    dog = watchdog(loop_stall_s=None, startup_s=None)
    dog.start()
    assert threading.active_count() == before
    dog.stop()


def test_it_tells_once_and_stops() -> None:
    """From its own thread, which ends."""
    told: list[str] = []
    over = threading.Event()

    def end(reason: str) -> None:
        told.append(reason)
        over.set()

    dog = Watchdog(loop_stall_s=None, startup_s=0.1, end=end)
    dog.start()
    assert over.wait(HANG_S)
    dog.stop()
    assert told == ["the start has not come to an end in 0.1 s"]


def test_the_end_says_where_each_thread_was_and_has_the_code_that_asks_for_a_new_process() -> None:
    """One line of the log, for whoever has to find out."""
    program = [sys.executable, "-c", STUCK.format(while_stuck="time.sleep(3600)")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 70
    (line,) = done.stderr.splitlines()
    said = json.loads(line)
    assert said["level"] == "critical"
    assert said["message"] == "the start has not come to an end in 0.5 s; ending, to be started anew"
    assert "in stuck_place" in said["stacks"]


@pytest.mark.parametrize("held", ["logging.getLogger().handlers[0].acquire(); time.sleep(3600)", ""])
def test_a_log_that_nobody_reads_does_not_keep_it(held: str) -> None:
    """It may be what the loop hangs at: a lock of the log, or a pipe that is full."""
    fill = "import os; os.set_blocking(2, True)\n    while True: os.write(2, bytes(4096))"
    program = [sys.executable, "-c", STUCK.format(while_stuck=held or fill)]
    with subprocess.Popen(program, stderr=subprocess.PIPE) as process:
        assert process.wait(HANG_S) == 70

"""service.cli.supervisor, with workers that do as they are told and serve nothing."""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.cli import supervisor
from service.cli.awake_clock import AwakeClock
from service.cli.supervisor import Supervisor, restart_delay_s
from service.cli.worker_messages import Kind, Message
from service.settings import load_settings

PROGRAM = Path(__file__).with_name("scripted_workers.py")
ROOT = Path(__file__).parents[3]
HANG_S = 60  # only stops a hang


class Supervised:
    """A supervisor that runs, and what was said of its workers so far.

    Attributes:
        pids: of the workers, by number, the latest last.
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), *settings],
            env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pids: dict[int, list[int]] = {}
        self.greetings: list[str] = []

    def read_until(self, over: Callable[[], bool]) -> None:
        """Read what workers say until ``over()``."""
        assert self.process.stdout is not None
        while not over():
            line = self.process.stdout.readline()
            assert line, f"it ended: {self.process.communicate(timeout=HANG_S)}"
            self._take(line)

    def _take(self, line: str) -> None:
        found = re.fullmatch(r"started (\d+) (\d+)\n", line)
        if found:
            self.pids.setdefault(int(found[1]), []).append(int(found[2]))
        else:
            self.greetings.append(line.strip())

    def ready(self) -> "Supervised":
        """Once all workers are."""
        self.read_until(lambda: bool(self.greetings))
        return self

    def started(self, number: int, times: int) -> int:
        """Once a worker was started that often: the process of the last."""
        self.read_until(lambda: len(self.pids.get(number, [])) >= times)
        return self.pids[number][-1]

    def say(self, who: str, word: str) -> None:
        """Tell a worker what to do."""
        new = self.folder / f"{who}.new"
        new.write_text(word, encoding="utf-8")
        new.replace(self.folder / who)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop it: its exit code, and its log."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit code, and its log."""
        output, errors = self.process.communicate(timeout=HANG_S)
        for line in output.splitlines(keepends=True):
            self._take(line)
        return self.process.returncode, errors

    def are_gone(self) -> bool:
        """Whether no worker is left."""
        return not any(_runs(pid) for pids in self.pids.values() for pid in pids)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # ended, and its parent has not asked


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Starts one; killed afterwards."""
    started: list[Supervised] = []

    def start(*settings: str, **words: str) -> Supervised:
        for who, word in words.items():
            (tmp_path / who.lstrip("_")).write_text(word, encoding="utf-8")
        started.append(Supervised(tmp_path, *settings))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=HANG_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_greets_once_when_all_are_ready_and_stops_all(
    supervise: Callable[..., Supervised], number: int
) -> None:
    """As one process would; the first worker starts by itself."""
    supervised = supervise("workers=3").ready()
    assert [len(pids) for pids in supervised.pids.values()] == [1, 1, 1]
    assert next(iter(supervised.pids)) == 1
    code, errors = supervised.end(number)
    assert code == 0
    [line] = errors.splitlines()
    assert line.endswith(f"stopping on {signal.Signals(number).name}")
    assert len(supervised.greetings) == 1
    assert supervised.are_gone()


def test_a_worker_that_is_killed_is_started_anew_and_the_others_go_on(
    supervise: Callable[..., Supervised],
) -> None:
    """Which is what several are for."""
    supervised = supervise("workers=3").ready()
    os.kill(supervised.pids[2][0], signal.SIGKILL)
    supervised.started(2, times=2)
    assert [len(supervised.pids[number]) for number in (1, 2, 3)] == [1, 2, 1]
    code, errors = supervised.end()
    assert code == 0
    assert "worker 2 has ended (died, signal 9)" in errors


def test_a_lost_model_and_an_order_to_one_worker_start_it_anew(
    supervise: Callable[..., Supervised],
) -> None:
    """Exit code 70 is for whoever supervises; so is a worker that an operator stopped by itself."""
    supervised = supervise("workers=2").ready()
    supervised.say("1", "lost")
    second = supervised.started(1, times=2)
    os.kill(second, signal.SIGTERM)
    supervised.started(1, times=3)
    code, errors = supervised.end()
    assert code == 0
    assert "worker 1 has ended (recycled, exit code 70)" in errors
    assert "worker 1 has ended (stopped, exit code 0)" in errors


def test_a_worker_whose_loop_is_stuck_is_killed(supervise: Callable[..., Supervised]) -> None:
    """Its process lives, and would be waited for for ever."""
    supervised = supervise("workers=2", "loop_stall_seconds=5").ready()
    supervised.say("2", "stuck")
    supervised.started(2, times=2)
    assert len(supervised.pids[1]) == 1
    code, errors = supervised.end()
    assert code == 0
    assert "worker 2 does not answer (silent); killing it" in errors


def test_a_worker_that_makes_no_sense_is_replaced_and_the_others_go_on(
    supervise: Callable[..., Supervised],
) -> None:
    """Its memory is spoilt; all of them would end with the process that cannot read what it sends."""
    supervised = supervise("workers=3").ready()
    supervised.say("2", "garble")
    supervised.started(2, times=2)
    assert [len(supervised.pids[number]) for number in (1, 2, 3)] == [1, 2, 1]
    code, errors = supervised.end()
    assert code == 0
    assert "worker 2 makes no sense any more (a message of kind 255 and" in errors
    assert "worker 2 has ended (garbled, signal 9)" in errors


GOOD = Message(Kind.ANSWER, content=b'[["a_total","","counter","",[["a_total",{},1,null]]]]').packed()


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"\x00" * 9, "kind 0"),
        (b"\x01\x00\x00\x00\x00\xff\xff\xff\xff", "kind 1 and 4294967295 bytes"),
        (Message(Kind.HURRY).packed(), "HURRY, which no worker says"),
        (Message(Kind.READY).packed(), "READY that is no JSON"),
        (Message(Kind.READY, content=b"[]").packed(), "READY without"),
        (Message(Kind.READY, content=b'{"page":1}').packed(), "READY without"),
        (Message(Kind.ASK, content=b"[").packed(), "ASK that is no JSON"),
        (Message(Kind.ASK, content=b"[]").packed(), "ASK without"),
        (Message(Kind.ASK, content=b'["metrics",1]').packed(), "ASK without"),
        (Message(Kind.ANSWER, content=b"\xff").packed(), "ANSWER that is no JSON"),
        (Message(Kind.ANSWER, content=b'{"a":1}').packed(), "metrics that are none"),
        (Message(Kind.ANSWER, content=b"[[]]").packed(), "metrics that are none"),
        (
            Message(Kind.ANSWER, content=b'[["a","","counter","",[["a",{"b":1},1,null]]]]').packed(),
            "metrics that are none",
        ),
    ],
)
def test_whatever_a_worker_sends_costs_that_worker_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, garbage: bytes, reason: str
) -> None:
    """It is killed and listened to no more; what it had counted before is kept."""
    killed: list[int] = []
    monkeypatch.setattr(supervisor, "_send_signal", lambda pid, _: killed.append(pid))
    one = Supervisor(load_settings({("workers",): "2"}), [], lambda _: 0, lambda _: None)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        worker = supervisor._Worker(2, 1 << 30, ours, heard_at=0.0)
        one._workers[2] = worker
        one._selector.register(ours, 1, worker)
        theirs.sendall(GOOD + garbage + GOOD)
        one._receive(worker)
        assert killed == [worker.pid]
        assert reason in caplog.text
        theirs.sendall(GOOD)
        assert not one._receive(worker)
        one._on_end(worker, -signal.SIGKILL)
    one._selector.close()
    assert one._restarts["garbled"] == 1
    assert one._ended == [["a_total", "", "counter", "", [["a_total", {}, 1, None]]]]


def test_a_start_that_never_ends_is_bounded(supervise: Callable[..., Supervised]) -> None:
    """And tried again."""
    supervised = supervise("workers=2", "startup_seconds=1", all="sleep")
    supervised.started(1, times=2)
    code, errors = supervised.end()
    assert code == 0
    assert "worker 1 does not answer (slow start); killing it" in errors
    assert 2 not in supervised.pids


def test_what_the_operator_has_to_change_is_tried_once(supervise: Callable[..., Supervised]) -> None:
    """Its exit code is the process's, and one worker said why."""
    supervised = supervise("workers=3", all="fail")
    code, errors = supervised.wait()
    assert (code, errors) == (1, "")
    assert {number: len(pids) for number, pids in supervised.pids.items()} == {1: 1}


def test_a_crash_at_the_start_is_tried_again_and_not_for_ever(
    supervise: Callable[..., Supervised],
) -> None:
    """128 + the signal's number, as of any process that a signal ended."""
    supervised = supervise("workers=3", all="crash")
    code, errors = supervised.wait()
    assert code == 128 + signal.SIGKILL
    assert "giving up" in errors
    assert {number: len(pids) for number, pids in supervised.pids.items()} == {1: 5}


def test_a_crash_loop_of_one_leaves_the_others_at_work(supervise: Callable[..., Supervised]) -> None:
    """More often than a start would be tried: there are some who serve."""
    supervised = supervise("workers=2").ready()
    supervised.say("2", "crash")
    os.kill(supervised.pids[2][0], signal.SIGKILL)
    supervised.started(2, times=7)
    assert len(supervised.pids[1]) == 1
    assert supervised.end()[0] == 0


def test_what_a_worker_counted_is_kept_when_it_has_no_answer(supervise: Callable[..., Supervised]) -> None:
    """A counter never falls, whatever goes wrong with one scrape."""
    supervised = supervise("workers=2").ready()
    supervised.say("1", "ask")
    supervised.read_until(lambda: len(supervised.greetings) == 2)
    supervised.say("2", "speechless")
    supervised.say("1", "ask")
    supervised.read_until(lambda: len(supervised.greetings) == 3)
    assert supervised.greetings[1:] == ["told [1, 2]", "told [1, 2]"]
    assert supervised.end()[0] == 0


def test_the_wait_doubles_and_ends_at_half_a_minute() -> None:
    """However long a crash loop goes on: a worker may fail for days while others serve."""
    assert [restart_delay_s(failures) for failures in range(5)] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert restart_delay_s(10_000) == 30.0


def test_a_worker_for_which_there_is_no_memory_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on; they would end with the supervisor."""

    def refuse() -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fork", refuse)
    one = Supervisor(load_settings({("workers",): "2"}), [], lambda _: 0, lambda _: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(OSError, match="memory"):  # nobody serves yet: the start has failed
        one._start_those_due()
    one._greeted = True
    one._starts[2] = 0.0
    one._start_those_due()
    one._selector.close()
    assert one._starts[2] > one._clock.now()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask


def test_who_does_not_stop_in_time_is_killed(supervise: Callable[..., Supervised]) -> None:
    """After all that a stop may take, and a little more."""
    supervised = supervise("workers=2", "shutdown_grace_seconds=0", _1="stubborn").ready()
    code, errors = supervised.end()
    assert code == 128 + signal.SIGKILL
    assert "worker 1 does not answer" in errors
    assert supervised.are_gone()


@pytest.mark.parametrize("told", ["all", "one"])
def test_a_stop_that_was_slept_through_leaves_workers_their_time(
    monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """They were frozen as well; of those that run, whoever takes too long is killed as ever."""
    told_at = [0.0]
    killed: list[int] = []

    def send(_: int, number: int) -> None:
        if number == signal.SIGKILL:
            killed.append(number)

    monkeypatch.setattr(supervisor, "_send_signal", send)
    one = Supervisor(load_settings({("workers",): "2"}), [], lambda _: 0, lambda _: None)
    one._clock = AwakeClock(lambda: told_at[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        one._workers[2] = worker = supervisor._Worker(2, 1 << 30, ours, heard_at=0.0, ready_at=0.0)
        if told == "all":
            one._stop(signal.SIGTERM)
        else:
            one._take(worker, Message(Kind.STOPPING))
        told_at[0] += 3600.0
        one._look()
        assert killed == []
        for _ in range(int(one._stop_s())):
            told_at[0] += 1.0
            one._look()
        assert killed == [signal.SIGKILL]
    one._selector.close()


def test_workers_end_when_their_supervisor_is_gone(supervise: Callable[..., Supervised]) -> None:
    """They would hold the port, and nobody could tell them to stop."""
    supervised = supervise("workers=2").ready()
    supervised.process.kill()
    supervised.wait()  # for the end of what they write to
    assert supervised.are_gone()

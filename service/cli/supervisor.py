"""Several workers behind one port: starts them, watches them, starts them anew, passes signals on.

Each worker is a whole service, forked from here before anything heavy is loaded. All accept from one
listening socket, which stays open here: what waits there when a worker dies is taken by another, or by the
next one. A worker whose loop is stuck takes nothing more. (With a socket for each, SO_REUSEPORT, the kernel
would go on to give it its share.)

The first worker starts by itself, so that what is done once (measuring engines, filling the FAQ) is done
once.
"""

import logging
import os
import selectors
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final, NoReturn

import orjson

from service.cli.awake_clock import AwakeClock
from service.cli.process import LOST_MODEL, leave
from service.cli.worker_link import WorkerLink
from service.cli.worker_messages import GarbledError, Inbox, Kind, Message
from service.metric_sums import counted, is_snapshot
from service.settings import Settings
from service.team import METRICS

logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
REASONS: Final = ("died", "garbled", "recycled", "silent", "slow_start", "stopped")
"""Why a worker was started anew."""

_LOOK_S: Final = 0.5
_PIECE: Final = 1 << 16
# A worker that lived for less is quick to fail, and is started anew ever later.
_QUICK_S: Final = 60.0
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0
_MOST_DOUBLINGS: Final = 10
_MOST_QUICK: Final = 5
# Prometheus waits for ten seconds unless told otherwise.
_GATHER_S: Final = 5.0
# A worker's own watchdog comes first: it can say where the worker stands, if it runs at all.
_WATCHDOG_MARGIN_S: Final = 10.0
# What a worker gets beyond the time that it has to stop.
_STOP_MARGIN_S: Final = 10.0


@dataclass(slots=True)
class _Worker:
    """One process.

    Attributes:
        heard_at: when its loop last turned; of one that starts, when it was started.
        ready_at: when it began to serve; None if it has not.
        stops_until: when it should have ended, since it said that it does; None if it has not.
        unsent: what it has not taken yet.
        last_metrics: the last that it told, as JSON.
        kill_reason: why it was killed; None if it was not.
        garbled: it sent what makes no sense, and is listened to no more.
    """

    number: int
    pid: int
    connection: socket.socket
    heard_at: float
    ready_at: float | None = None
    stops_until: float | None = None
    inbox: Inbox = field(default_factory=Inbox)
    unsent: bytearray = field(default_factory=bytearray)
    last_metrics: bytes = b"null"
    kill_reason: str | None = None
    garbled: bool = False


@dataclass(slots=True)
class _Round:
    """A question that is being asked."""

    asker: int  # the process
    number: int  # the asker's own
    question: str
    waits_for: set[int]  # numbers of workers
    gives_up_at: float
    answers: dict[int, bytes] = field(default_factory=dict)


class Supervisor:
    """Runs workers until told to stop, or until they cannot be kept running.

    Args:
        settings: ``workers`` of them.
        listeners: bound, shared by all.
        work: a worker's life, in its own process; returns the exit code.
        greet: told what the last worker to be ready said, once all are.
    """

    def __init__(
        self,
        settings: Settings,
        listeners: Sequence[socket.socket],
        work: Callable[[WorkerLink], int],
        greet: Callable[[dict[str, Any]], None],
    ) -> None:
        self._settings = settings
        self._listeners = listeners
        self._work = work
        self._greet = greet
        # All of us may be stopped for a while, and nobody is to blame for silence, or for not having stopped.
        self._clock = AwakeClock()
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}
        self._starts: dict[int, float] = {1: 0.0}  # when to start which
        self._quick: Counter[int] = Counter()
        self._restarts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._rounds: dict[int, _Round] = {}
        self._last_round = 0
        self._ended: list[Any] = []  # what workers had counted that are no more
        self._signals: deque[int] = deque()
        self._greeted = False
        self._stop_by: float | None = None  # when what has not stopped is killed; None = not stopping
        self._exit_code = 0

    def run(self) -> int:
        """Until all workers have ended; the exit code."""
        with self._woken_by_signals():
            while self._stop_by is None or self._workers:
                self._start_those_due()
                self._wait()
                while self._signals:
                    self._pass_on(self._signals.popleft())
                self._reap()
                self._look()
        return self._exit_code

    # -- signals ---------------------------------------------------------------------------------------------

    @contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        reads, writes = socket.socketpair()
        for end in (reads, writes):
            end.setblocking(False)
        self._selector.register(reads, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._note) for number in (*STOP_SIGNALS, signal.SIGCHLD)}
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            reads.close()
            writes.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number in STOP_SIGNALS:
            self._signals.append(number)

    def _pass_on(self, number: int) -> None:
        """Have all workers stop; the second time, at once."""
        if self._stop_by is None:
            logger.info("stopping on %s", signal.Signals(number).name)
            self._stop(number)
            return
        self._stop_by = min(self._stop_by, self._clock.now() + _STOP_MARGIN_S)
        # Not by a signal: systemd and the like send the first to every process of a service, so that a worker
        # has it twice, and would take the one passed on for the second.
        for worker in self._workers.values():
            self._send(worker, Message(Kind.HURRY, number))

    def _stop(self, number: int) -> None:
        if self._stop_by is None:
            self._stop_by = self._clock.now() + self._stop_s()
            self._starts.clear()
            # Workers go on accepting for as long as they mean to. Were it still open here after that, callers
            # would be taken in whom nobody will answer.
            for listener in self._listeners:
                listener.close()
        for worker in self._workers.values():
            _send_signal(worker.pid, number)

    def _stop_s(self) -> float:
        settings = self._settings
        return settings.shutdown_delay_seconds + settings.shutdown_grace_seconds + _STOP_MARGIN_S

    # -- starting --------------------------------------------------------------------------------------------

    def _start_those_due(self) -> None:
        for number, at in list(self._starts.items()):
            if self._stop_by is None and at <= self._clock.now():
                del self._starts[number]
                try:
                    self._start(number)
                except OSError as error:  # no memory for a process, or no files, which may change
                    if not self._greeted:
                        raise
                    logger.error(  # noqa: TRY400 - it is known where
                        "worker %d cannot be started (%s); trying again in %g s",
                        number,
                        error.strerror,
                        _LONGEST_DELAY_S,
                    )
                    self._starts[number] = self._clock.now() + _LONGEST_DELAY_S

    def _start(self, number: int) -> None:
        ours, theirs = socket.socketpair()
        # A signal between the fork and its handlers must not run ours in the new process.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGCHLD))
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(number, ours, theirs, blocked)
        except OSError:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        ours.setblocking(False)
        worker = _Worker(number, pid, ours, heard_at=self._clock.now())
        self._workers[number] = worker
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _become_worker(
        self, number: int, ours: socket.socket, theirs: socket.socket, mask: set[signal.Signals | int]
    ) -> NoReturn:
        code = 1
        try:
            # Of a group of its own: Ctrl-C is for the supervisor, who passes it on, and would come twice.
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stop in STOP_SIGNALS:  # nothing has begun
                signal.signal(stop, lambda *_: os._exit(0))
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._selector.close()
            ours.close()
            for other in self._workers.values():
                other.connection.close()
            link = WorkerLink(
                theirs, number=number, size=self._settings.workers, orphaned_after_s=self._stop_s()
            )
            link.start()
            code = self._work(link)
        except BaseException:  # nothing of this may go on to what the supervisor was about to do
            logger.exception("worker %d could not go on", number)
        leave(code)

    # -- what comes ------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        began = self._clock.now()
        due = [at - began for at in self._starts.values()]
        due += [asked.gives_up_at - began for asked in self._rounds.values()]
        timeout = max(0.0, min([_LOOK_S, *due]))
        for key, events in self._selector.select(timeout):
            worker: _Worker | None = key.data
            if worker is None:
                with suppress(BlockingIOError):
                    key.fileobj.recv(_PIECE)  # type: ignore[union-attr]  # it is a socket
                continue
            if events & selectors.EVENT_WRITE:
                self._send_rest(worker)
            if events & selectors.EVENT_READ:
                self._receive(worker)

    def _receive(self, worker: _Worker) -> bool:
        """Take what a worker sent; whether there may be more.

        One whose memory is spoilt may send anything, and the others live by this process.
        """
        if worker.garbled:
            return False
        try:
            piece = worker.connection.recv(_PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            with suppress(KeyError):  # it was told before
                self._selector.unregister(worker.connection)
            return False
        try:
            for message in worker.inbox.take(piece):
                self._take(worker, message)
        except GarbledError as error:
            worker.garbled = True
            with suppress(KeyError):
                self._selector.unregister(worker.connection)
            self._kill(worker, "garbled", f"makes no sense any more ({error})")
            return False
        return True

    def _take(self, worker: _Worker, message: Message) -> None:
        now = self._clock.now()
        match message.kind:
            case Kind.BEAT:
                worker.heard_at = now
            case Kind.READY:
                said = _said(message)
                worker.heard_at = worker.ready_at = now
                self._on_ready(said)
            case Kind.STOPPING:
                worker.stops_until = now + self._stop_s()
            case Kind.ASK:
                self._ask(worker, message)
            case Kind.ANSWER:
                self._on_answer(worker, message)
            case _:
                raise GarbledError(f"{message.kind.name}, which no worker says")

    def _on_ready(self, said: dict[str, Any]) -> None:
        if self._greeted or self._stop_by is not None:
            return
        for number in range(2, self._settings.workers + 1):
            if number not in self._workers and number not in self._starts:
                self._starts[number] = 0.0
        if len(self._ready()) == self._settings.workers:
            self._greeted = True
            self._greet(said)

    def _ready(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.ready_at is not None]

    # -- questions -------------------------------------------------------------------------------------------

    def _ask(self, asker: _Worker, message: Message) -> None:
        question = _question(message)
        self._last_round = number = self._last_round % 0xFFFFFFFF + 1
        waits_for = {worker.number for worker in self._ready()}
        self._rounds[number] = _Round(
            asker.pid, message.number, question, waits_for, self._clock.now() + _GATHER_S
        )
        for other in self._ready():
            self._send(other, Message(Kind.QUESTION, number, message.content))
        self._finish_rounds()

    def _on_answer(self, worker: _Worker, message: Message) -> None:
        asked = self._rounds.get(message.number)
        answer = _read(message)
        if answer is not None and (
            message.number == 0 or (asked is not None and asked.question == METRICS)
        ):  # nothing is no reason to forget what it had counted
            if not is_snapshot(answer):
                raise GarbledError("metrics that are none")
            worker.last_metrics = message.content
        if asked is not None:
            asked.waits_for.discard(worker.number)
            asked.answers[worker.number] = message.content
            self._finish_rounds()

    def _finish_rounds(self) -> None:
        now = self._clock.now()
        for number, asked in list(self._rounds.items()):
            if not asked.waits_for or now >= asked.gives_up_at:
                del self._rounds[number]
                self._tell(asked)

    def _tell(self, asked: _Round) -> None:
        asker = next((worker for worker in self._workers.values() if worker.pid == asked.asker), None)
        if asker is None:
            return
        answers = asked.answers
        if asked.question == METRICS:  # who does not answer has still counted what it had counted
            answers = {worker.number: worker.last_metrics for worker in self._ready()}
        told = b",".join(b'"%d":%b' % (number, content) for number, content in sorted(answers.items()))
        rest = {"ended": self._ended, "ready": len(self._ready()), "restarts": self._restarts}
        content = b'{"answers":{%b},%b' % (told, orjson.dumps(rest)[1:])
        self._send(asker, Message(Kind.ANSWERS, asked.number, content))

    def _send(self, worker: _Worker, message: Message) -> None:
        worker.unsent += message.packed()
        self._send_rest(worker)

    def _send_rest(self, worker: _Worker) -> None:
        """Send what goes through now: nobody may hold the supervisor up."""
        try:
            while worker.unsent:
                sent = worker.connection.send(worker.unsent)
                del worker.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            worker.unsent.clear()
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        with suppress(KeyError):
            self._selector.modify(worker.connection, wanted, worker)

    # -- ends ------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            worker = next((one for one in self._workers.values() if one.pid == pid), None)
            if worker is not None:  # else an orphan, which process 1 of a container gets
                self._on_end(worker, os.waitstatus_to_exitcode(status))

    def _on_end(self, worker: _Worker, code: int) -> None:
        while self._receive(worker):  # its last words
            pass
        with suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._workers[worker.number]
        self._ended = counted([self._ended, orjson.loads(worker.last_metrics) or []])
        for asked in self._rounds.values():
            asked.waits_for.discard(worker.number)
        self._finish_rounds()
        shown = code if code >= 0 else 128 - code
        if self._stop_by is not None:
            if worker.ready_at is not None:  # else it had nobody to answer, and failed nobody
                self._exit_code = max(self._exit_code, shown)
            return
        self._restart(worker, code, shown)

    def _restart(self, worker: _Worker, code: int, shown: int) -> None:
        number = worker.number
        never_ready = worker.ready_at is None
        lived_s = 0.0 if worker.ready_at is None else self._clock.now() - worker.ready_at
        reason = worker.kill_reason or {0: "stopped", LOST_MODEL: "recycled"}.get(code, "died")
        if reason == "stopped" or lived_s >= _QUICK_S:
            self._quick[number] = 0
        else:
            self._quick[number] += 1
        # What the operator has to change was said by the worker.
        hopeless = never_ready and code == 1 and not self._greeted
        worn_out = self._quick[number] >= _MOST_QUICK and not (self._greeted and self._ready())
        if hopeless or worn_out:
            if not hopeless:
                logger.error("worker %d ended %d times in a row; giving up", number, self._quick[number])
            self._exit_code = shown
            self._stop(signal.SIGTERM)
            return
        delay_s = restart_delay_s(self._quick[number])
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        level = logging.INFO if reason == "stopped" else logging.ERROR
        logger.log(
            level,
            "worker %d has ended (%s, %s); starting it anew in %g s",
            number,
            reason.replace("_", " "),
            how,
            delay_s,
        )
        self._restarts[reason] += 1
        self._starts[number] = self._clock.now() + delay_s

    def _look(self) -> None:
        """Kill whoever takes too long over something."""
        self._finish_rounds()
        now = self._clock.now()
        start_s, silent_s = self._settings.startup_s(), self._settings.loop_stall_s()
        for worker in self._workers.values():
            if self._stop_by is not None:
                if now >= self._stop_by:
                    self._kill(worker, "silent")
            elif worker.stops_until is not None:
                if now >= worker.stops_until:
                    self._kill(worker, "silent")
            elif worker.ready_at is None:
                if start_s is not None and now - worker.heard_at >= start_s + _WATCHDOG_MARGIN_S:
                    self._kill(worker, "slow_start")
            elif silent_s is not None and now - worker.heard_at >= silent_s + _WATCHDOG_MARGIN_S:
                self._kill(worker, "silent")

    def _kill(self, worker: _Worker, reason: str, fault: str | None = None) -> None:
        if worker.kill_reason is None:
            fault = fault or f"does not answer ({reason.replace('_', ' ')})"
            logger.error("worker %d %s; killing it", worker.number, fault)
            worker.kill_reason = reason
            _send_signal(worker.pid, signal.SIGKILL)


def restart_delay_s(failures: int) -> float:
    """How long to wait before a worker is started anew that was quick to fail so many times in a row."""
    if not failures:
        return 0.0
    # Bounded before it is raised: a power of a thousand is more than a float can hold.
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def _read(message: Message) -> object:
    try:
        content: object = orjson.loads(message.content)
    except orjson.JSONDecodeError as error:
        raise GarbledError(f"{message.kind.name} that is no JSON") from error
    return content


def _said(message: Message) -> dict[str, Any]:
    """What `service.cli.announcement.announce` takes."""
    said = _read(message)
    if isinstance(said, dict) and (
        isinstance(said.get("page"), str) or isinstance(said.get("summary"), dict)
    ):
        return said
    raise GarbledError("READY without anything to show")


def _question(message: Message) -> str:
    words = _read(message)
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return str(words[0])
    raise GarbledError("ASK without a question")


def _send_signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended, and is reaped in a moment
        os.kill(pid, number)

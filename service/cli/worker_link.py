"""A worker's side of the line to its supervisor; a thread keeps it, so that a busy loop holds up nobody.

The loop says that it turns by `WorkerLink.tick`; questions are answered whether it does or not.
"""

import asyncio
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

import orjson

from service.cli.awake_clock import AwakeClock
from service.cli.worker_messages import Inbox, Kind, Message
from service.team import METRICS, Gathered

logger = logging.getLogger(__name__)

_BEAT_S: Final = 0.5
_LAST_WORDS_S: Final = 1.0
_PIECE: Final = 1 << 16

Result = TypeVar("Result")


class WorkerLink:
    """The line of one worker; its `service.team.Team`.

    Args:
        connection: to the supervisor.
        number: of this worker, from 1.
        size: how many workers there are.
        orphaned_after_s: how long the process has to end in order when the supervisor is gone.
    """

    def __init__(self, connection: socket.socket, *, number: int, size: int, orphaned_after_s: float) -> None:
        self.number = number
        self.size = size
        self._connection = connection
        self._orphaned_after_s = orphaned_after_s
        self._numbering = threading.Lock()
        self._ticked = False
        self._closed = False
        self._hurry: Callable[[int], None] | None = None
        self._answers: dict[str, Callable[[Sequence[str]], Any]] = {}
        self._asked: dict[int, Future[bytes]] = {}
        self._last_asked = 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="conche-team")
        # Of its own: a supervisor that is stopped (Ctrl-Z) takes nothing, and must not hold up the loop.
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="conche-sender")
        self._thread = threading.Thread(target=self._listen, name="conche-link", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def tick(self) -> None:
        """Say that the event loop turns; costs nothing."""
        self._ticked = True

    def on_hurry(self, hurry: Callable[[int], None]) -> None:
        """Have ``hurry`` called, by the thread, with the signal that came again: to stop at once."""
        self._hurry = hurry

    def ready(self, said: dict[str, object]) -> None:
        """Say that this worker serves; ``said`` is for the supervisor to show."""
        self._send(Message(Kind.READY, content=orjson.dumps(said, default=str)))

    def stopping(self) -> None:
        """Say that this worker ends, and will tick no more."""
        self._send(Message(Kind.STOPPING))

    def close(self) -> None:
        """Leave the last figures with the supervisor, if it takes them within a second."""
        self._closed = True
        if METRICS in self._answers:
            sent = self._reply(Message(Kind.QUESTION, content=orjson.dumps([METRICS])))
            wait([sent], timeout=_LAST_WORDS_S)

    # -- the team --------------------------------------------------------------------------------------------

    def answer(self, question: str, answer: Callable[[Sequence[str]], Any]) -> None:
        """As `service.team.Team.answer`."""
        self._answers[question] = answer

    async def gather(self, question: str, *words: str) -> Gathered:
        """As `service.team.Team.gather`."""
        answers: Future[bytes] = Future()
        with self._numbering:
            self._last_asked = number = self._last_asked % 0xFFFFFFFF + 1
            self._asked[number] = answers
        self._send(Message(Kind.ASK, number, orjson.dumps([question, *words])))
        content = await asyncio.wrap_future(answers)

        def read() -> Gathered:
            told = orjson.loads(content)
            by_number = {int(number): answer for number, answer in told["answers"].items()}
            return Gathered(by_number, told["ended"], told["ready"], told["restarts"])

        return await self.run(read)

    async def run(self, work: Callable[[], Result]) -> Result:
        """As `service.team.Team.run`."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    # -- the thread ------------------------------------------------------------------------------------------

    def _send(self, message: Message) -> Future[None]:
        return self._sender.submit(self._send_now, message)

    def _send_now(self, message: Message) -> None:
        try:
            self._connection.sendall(message.packed())
        except OSError:  # the supervisor is gone; the thread that listens sees that too
            logger.debug("the supervisor cannot be told: %s", message.kind.name)

    def _listen(self) -> None:
        inbox = Inbox()
        beat_at = 0.0
        beat: Future[None] | None = None
        while True:
            readable, _, _ = select.select([self._connection], [], [], _BEAT_S)
            if readable:
                try:
                    piece = self._connection.recv(_PIECE)
                except OSError:
                    piece = b""
                if not piece:
                    self._end_orphaned()
                    return
                for message in inbox.take(piece):
                    self._take(message)
            now = time.monotonic()
            if self._ticked and now - beat_at >= _BEAT_S and (beat is None or beat.done()):
                self._ticked, beat_at = False, now
                beat = self._send(Message(Kind.BEAT))

    def _take(self, message: Message) -> None:
        if message.kind is Kind.QUESTION:
            self._pool.submit(self._reply, message)
        elif message.kind is Kind.ANSWERS:
            answers = self._asked.pop(message.number, None)
            # Whoever waited may have gone.
            if answers is not None and answers.set_running_or_notify_cancel():
                answers.set_result(message.content)
        elif message.kind is Kind.HURRY and self._hurry is not None:
            self._hurry(message.number)

    def _reply(self, message: Message) -> Future[None]:
        question, *words = orjson.loads(message.content)
        try:
            content = orjson.dumps(self._answers[question](words))
        except Exception:  # the others still want theirs, and a log line is all that helps here
            logger.exception("the question %s cannot be answered", question)
            content = b"null"
        return self._send(Message(Kind.ANSWER, message.number, content))

    def _end_orphaned(self) -> None:
        """End in order, as if told to: nobody would start this worker anew, or tell it to stop."""
        if self._closed:
            return
        logger.error("the process that supervises this worker is gone; ending")
        os.kill(os.getpid(), signal.SIGTERM)
        clock = AwakeClock()
        while clock.now() < self._orphaned_after_s:
            time.sleep(_BEAT_S)
        os._exit(1)

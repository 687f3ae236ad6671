"""The processes that are compared: started, timed meanwhile, and held still while others are measured."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_LOOKS_EVERY_S: Final = 0.02
_STOP_S: Final = 15.0
_LINES_SHOWN: Final = 3


class NotRunningError(Exception):
    """A contestant did not start, or is gone; the message has its last words."""


class Process:
    """A process and what it starts, in a session of its own.

    Args:
        command: what to run.
        environment: variables that are set beside those of this process.
        log: file for what it says on its error output, and on the other one unless that is listened to.
    """

    _listened_to = False

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._listened_to else said,
                stderr=said,
                start_new_session=True,
            )
        self.started_at = time.perf_counter()

    @property
    def pid(self) -> int:
        """Of the process itself."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """The end of its log."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-_LINES_SHOWN:]) or "no word"

    def rss_mib(self) -> float:
        """Resident memory of all its processes."""
        total = 0
        for status in _statuses(self._process.pid):
            [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")] or ["VmRSS: 0 kB"]
            total += int(line.split()[1])
        return total / 1024

    def pause(self) -> None:
        """Take the processors away from it, so that its idle threads cost the others nothing."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it, gently first."""
        self.resume()
        for ask in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, ask)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
                break
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class Server(Process):
    """A server on a port of this machine.

    Args:
        command: with ``{port}`` where its port goes.
        environment, log: as of ``Process``.
        ready_path: answers 200 when it takes requests.
    """

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path, *, ready_path: str
    ) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = int(listener.getsockname()[1])
        self._ready_path = ready_path
        filled = [str(part).replace("{port}", str(self.port)) for part in command]
        super().__init__(filled, environment, log)

    def wait_until_ready(self, patience: float) -> float:
        """Seconds from the start of the process to the first 200.

        Raises:
            NotRunningError: it ended, or took longer than ``patience`` seconds.
        """
        while time.perf_counter() - self.started_at < patience:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                try:
                    connection.request("GET", self._ready_path)
                    if connection.getresponse().status == 200:
                        return time.perf_counter() - self.started_at
                finally:
                    connection.close()
            if not self.alive():
                raise NotRunningError(f"ended before it was ready: {self.last_words()}")
            time.sleep(_LOOKS_EVERY_S)
        raise NotRunningError(f"not ready after {patience:.0f} s: {self.last_words()}")


class Worker(Process):
    """A process that answers orders in lines of JSON (``worker.py``)."""

    _listened_to = True

    def wait_until_ready(self, patience: float) -> float:
        """Seconds from the start of the process to its word that it is ready.

        Raises:
            NotRunningError: it ended. ``patience`` is its own matter: nothing else is waiting.
        """
        del patience
        self._answer()
        return time.perf_counter() - self.started_at

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order and wait for its answer.

        Raises:
            NotRunningError: it ended, or the peer raised an error.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise NotRunningError(f"ended: {self.last_words()}") from None
        answer = self._answer()
        if "error" in answer:
            raise NotRunningError(answer["error"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(_STOP_S)
            raise NotRunningError(f"ended: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _statuses(session: int) -> Iterator[str]:
    """The status files of all processes of one session."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (
                    (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
                if int(fields[3]) == session:
                    yield (folder / "status").read_text(encoding="utf-8", errors="replace")

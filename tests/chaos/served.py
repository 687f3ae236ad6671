"""A real ``conche serve`` process over tiny bundles, to be mistreated, and callers of it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HANG_S = 120.0  # only stops a hang
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("faulty_serve.py")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller got."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


def ask(port: int, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    """One request on a connection of its own.

    Raises:
        OSError, http.client.HTTPException: no whole answer came.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    try:
        content = None if body is None else json.dumps(body)
        if content is not None:
            headers["content-type"] = "application/json"
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, names, answer.read())
    finally:
        connection.close()


@dataclass
class Served:
    """A served process.

    Attributes:
        folder: holds ``models``, ``data`` and what ``faulty_serve`` reads.
        flags: of the command.
        within: a command that runs the command.
    """

    folder: Path
    flags: Sequence[str] = ()
    within: Sequence[str] = ()
    variables: dict[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[str] = field(init=False)

    def start(self) -> "Served":
        """Start it, and wait until it is ready."""
        self.launch()
        assert self.process.stderr is not None
        lines = self.process.stderr
        limit = threading.Timer(HANG_S, self.process.kill)  # which ends the lines
        limit.start()
        try:
            for line in lines:
                found = re.search(r'"url": ?"http://127\.0\.0\.1:(\d+)"', line)
                if found:
                    self.port = int(found[1])
                    # Nobody else reads it, and a full pipe would hold the process up.
                    threading.Thread(target=deque, args=(lines, 0), daemon=True).start()
                    return self
        finally:
            limit.cancel()
        raise AssertionError(f"it did not start: {self.process.wait(HANG_S)}")

    def launch(self) -> None:
        """Start it, and do not wait."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
        variables |= {
            "CONCHE_MODELS_DIR": str(self.folder / "models"),
            "CONCHE_EMBEDDING_BUNDLE": "tiny-embedding",
            "CONCHE_NER_BUNDLE": "none",
            "CONCHE_FAQ_FILE": "none",
            "CONCHE_DATA_DIR": str(self.folder / "data"),
            "CONCHE_ENGINE": "onnxruntime",
            "CONCHE_BATCHING__MAX_BATCH_TOKENS": "2048",
            "CONCHE_THREADS": "1",
            "CONCHE_LOG_FORMAT": "json",
            "CONCHE_PORT": str(self.port),
            "CHAOS_FOLDER": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [*self.within, sys.executable, str(PROGRAM), "serve", *self.flags],
            env=variables | self.variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """As `ask`."""
        return ask(self.port, method, path, body, **headers)

    def embed(self, text: str = "hello world") -> Answer:
        """Have one text embedded."""
        return self.ask("POST", "/embed", {"inputs": text})

    def write(self, *entries: dict[str, str]) -> Answer:
        """Put entries into the collection ``shop``."""
        return self.ask("POST", "/faq/shop/entries", {"entries": list(entries)})

    def ids(self) -> set[str]:
        """Of all entries of the collection ``shop``."""
        exported = self.ask("GET", "/faq/shop/export?format=jsonl")
        assert exported.status == 200, exported
        return {json.loads(line)["id"] for line in exported.body.decode().splitlines()}

    def say(self, name: str, word: str) -> None:
        """Tell `faulty_serve` something."""
        new = self.folder / f"{name}.new"
        new.write_text(word, encoding="utf-8")
        new.replace(self.folder / name)

    def unsay(self, name: str) -> None:
        """Take it back."""
        (self.folder / name).unlink(missing_ok=True)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self.process.wait(HANG_S)

    def stop(self) -> int:
        """SIGTERM, and wait."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.process.kill()
        self.process.wait(HANG_S)


@contextmanager
def serving(folder: Path, *flags: str, **fields: Any) -> Iterator[Served]:
    """One that is ready; killed afterwards, if it is still there."""
    served = Served(folder, flags, **fields).start()
    try:
        yield served
    finally:
        served.kill()


class Supervisor:
    """Starts the process anew whenever it ends, as Docker, systemd and the kubelet do.

    Attributes:
        served: the process of the moment.
        exits: exit codes so far.
    """

    def __init__(self, served: Served) -> None:
        self.served = served
        self.exits: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            code = self.served.process.wait()
            if self._over.is_set():
                return
            self.exits.append(code)
            self.served.start()

    def end(self) -> int:
        """Stop the process in order, and start no other; its exit code."""
        self._over.set()
        code = self.served.stop()
        self._thread.join(HANG_S)
        return code


def until(condition: Any, what: str) -> None:
    """Wait until ``condition()`` holds; for what happens in another process."""
    ends_at = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < ends_at, f"never: {what}"
        time.sleep(0.01)

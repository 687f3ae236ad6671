"""``conche serve`` as a process: starts, says what it serves, stops cleanly, fails in one line."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from service.app import create_app
from service.cli.server import Server
from service.settings import Settings
from tests.service.fakes_http import share_calibrations

HANG_S = 60  # only stops a hang


def _start(
    models_folder: Path, *flags: str, within: tuple[str, ...] = (), **variables: str
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    environment |= {
        "CONCHE_MODELS_DIR": str(models_folder),
        "CONCHE_EMBEDDING_BUNDLE": "tiny-embedding",
        "CONCHE_NER_BUNDLE": "tiny-ner",
        "CONCHE_FAQ_FILE": str(models_folder / "faq.jsonl"),
        "CONCHE_DATA_DIR": str(share_calibrations(models_folder / "data" / uuid.uuid4().hex)),
        "CONCHE_ENGINE": "onnxruntime",
        "CONCHE_BATCHING__MAX_BATCH_TOKENS": "2048",
        "CONCHE_PORT": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    return subprocess.Popen(
        [*within, sys.executable, "-c", "from service.cli import main; main()", "serve", *flags],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def wait_until(condition: Callable[[], bool]) -> None:
    """For what happens in another process."""
    ends_at = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < ends_at, "it never came about"
        time.sleep(0.005)


class Running:
    """A served process whose greeting has been read."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Documentation:"):
                break
        self.greeting = "".join(lines)
        found = re.search(r"Documentation: (https?://127\.0\.0\.1:\d+)/docs", self.greeting)
        assert found, f"no greeting: {process.communicate(timeout=HANG_S)}"
        self.url = found.group(1)


@pytest.fixture
def served(models_folder: Path) -> Iterator[Running]:
    """A running server."""
    process = _start(models_folder)
    yield Running(process)
    process.kill()
    process.communicate(timeout=HANG_S)


def test_the_greeting_says_what_is_served_and_its_requests_work(served: Running) -> None:
    """Models with languages, size and licence; then lines to paste, in both languages."""
    for said in ("tiny-embedding (en+zh, ", "tiny-ner", "3 entries", "MB, Apache-2.0", "threads", "ready in"):
        assert said in served.greeting
    curls = re.findall(r"curl -s (\S+) -H 'content-type: application/json' -d '(.*)'", served.greeting)
    assert [url.removeprefix(served.url) for url, _ in curls] == ["/embed", "/search", "/ner"]
    for url, body in curls:
        assert url.endswith("/search") or re.search(r"[\u4e00-\u9fff]", body)
        assert httpx.post(url, json=json.loads(body), timeout=HANG_S).status_code == 200


_COUNT_LOOKS = """
import atexit, gc, json, os
looks = [0, 0, 0]
def note(phase, info):
    looks[info["generation"]] += phase == "start"
def tell():
    with open(os.environ["LOOKS"], "w") as file:
        json.dump({"kept": gc.get_freeze_count(), "looks": looks}, file)
freeze = gc.freeze
def freeze_and_count_anew():
    freeze()
    looks[:] = [0, 0, 0]
gc.freeze = freeze_and_count_anew
gc.callbacks.append(note)
atexit.register(tell)
"""


def test_garbage_is_not_looked_for_among_what_the_start_made(models_folder: Path, tmp_path: Path) -> None:
    """That stops the event loop for a tenth of a second, and found nothing."""
    (tmp_path / "sitecustomize.py").write_text(_COUNT_LOOKS, encoding="utf-8")
    process = _start(models_folder, PYTHONPATH=str(tmp_path), LOOKS=str(tmp_path / "looks"))
    served = Running(process)
    with httpx.Client(base_url=served.url, timeout=HANG_S) as client:
        for _ in range(200):
            assert client.post("/embed", json={"inputs": "hello"}).status_code == 200
    process.terminate()
    process.communicate(timeout=HANG_S)
    told = json.loads((tmp_path / "looks").read_text(encoding="utf-8"))
    assert told["kept"] > 50_000
    assert sum(told["looks"]) < 10  # of the young ones; one a request would be 200
    assert told["looks"][2] == 0


def test_an_offer_to_speak_http_2_is_passed_over(served: Running) -> None:
    """Java's client makes it with every request; the body still counts, and nothing fills the log."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAAA"}
    answer = httpx.post(f"{served.url}/embed", json={"inputs": "hello"}, headers=offer, timeout=HANG_S)
    assert answer.status_code == 200
    assert len(answer.json()) == 1
    served.process.terminate()
    _, errors = served.process.communicate(timeout=HANG_S)
    assert _messages(errors) == ["request", "stopping on SIGTERM"]


def test_a_method_that_nobody_knows_gets_our_error(served: Running) -> None:
    """Errors are JSON on every path, for scanners too."""
    answer = httpx.request("FOO", f"{served.url}/embed", timeout=HANG_S)
    assert answer.status_code == 405
    assert answer.json()["code"] == "method_not_allowed"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_exit_code_0_and_one_line(served: Running, number: int) -> None:
    """An orderly stop is no failure, whoever asks for it, and the log says that somebody did."""
    with httpx.Client(base_url=served.url, timeout=HANG_S) as client:
        assert client.get("/readyz").status_code == 200  # and its connection stays open
        served.process.send_signal(number)
        _, errors = served.process.communicate(timeout=HANG_S)
    assert served.process.returncode == 0
    assert _messages(errors) == [f"stopping on {signal.Signals(number).name}"]


class Unfinished:
    """A request whose body never comes whole, and which is therefore in work for ever."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.connection = socket.create_connection((host, int(port)), timeout=HANG_S)
        self.connection.sendall(
            b"POST /embed HTTP/1.1\r\nHost: conche\r\nContent-Type: application/json\r\n"
            b"Content-Length: 20\r\nExpect: 100-continue\r\n\r\n"
        )
        assert b"100 Continue" in self.connection.recv(1000)  # sent when the body is asked for

    def answer(self) -> tuple[str, dict[str, str]]:
        """Head of the answer, in small letters, and its error; read until the connection closes."""
        received = b""
        while piece := self.connection.recv(65536):
            received += piece
        self.connection.close()
        head, _, body = received.partition(b"\r\n\r\n")
        return head.decode().lower(), json.loads(body)


def _messages(lines: str) -> list[str]:
    return [json.loads(line)["message"] for line in lines.splitlines()]


def _read_until(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_answers_what_is_in_work_and_ends_at_once(served: Running, number: int) -> None:
    """Nobody presses Ctrl-C twice to wait; nobody who sent a request should be left guessing either."""
    request = Unfinished(served.url)
    served.process.send_signal(number)
    assert "up to 25 s; Ctrl-C again to stop now" in _read_until(served.process, "finishing 1 request")
    served.process.send_signal(number)
    head, error = request.answer()
    _, errors = served.process.communicate(timeout=HANG_S)
    assert served.process.returncode == 128 + number
    assert head.startswith("http/1.1 503")
    assert error["code"] == "unavailable"
    assert "cutting off 1 request" in errors
    assert "Traceback" not in errors
    assert "exception" not in errors


def test_when_the_grace_period_is_over_what_is_in_work_is_answered_503(models_folder: Path) -> None:
    """In the usual body and with a hint when to come back: the next instance will answer."""
    process = _start(models_folder, "--shutdown-grace-seconds", "0")
    request = Unfinished(Running(process).url)
    process.send_signal(signal.SIGTERM)
    head, error = request.answer()
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert head.startswith("http/1.1 503")
    assert "content-type: application/json" in head
    assert "retry-after: " in head
    assert (error["code"], error["index"]) == ("unavailable", None)
    assert "exception" not in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_loading_does_not_wait_for_the_rest(
    models_folder: Path, tmp_path: Path, number: int
) -> None:
    """A large FAQ is embedded for minutes; stopping must not take as long."""
    faq = tmp_path / "endless.jsonl"
    faq.write_text(
        "".join(f'{{"id": {n}, "question": "return order {n}", "answer": ""}}\n' for n in range(50_000))
    )
    process = _start(models_folder, "--faq-file", str(faq), "--log-level", "debug")
    _read_until(process, "Started server process")
    process.send_signal(number)
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert output == ""
    assert "exception" not in errors


def test_the_greeting_is_a_log_line_where_lines_are_collected(models_folder: Path) -> None:
    """Pages of text among JSON lines are noise; the line says the same."""
    process = _start(models_folder, "--log-format", "json")
    assert process.stderr is not None
    line = json.loads(process.stderr.readline())
    process.terminate()
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert output == ""
    assert line["message"] == "ready"
    assert line["faq_entries"] == 3
    assert line["embedding"].startswith("tiny-embedding (en+zh")


def test_requests_in_work_are_answered_before_it_stops(served: Running) -> None:
    """A rolling update must not drop anything."""
    texts = ["hello world, how do I return my order " * 4] * 2000
    answers: list[httpx.Response] = []
    worker = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{served.url}/ner", json={"inputs": texts}, timeout=HANG_S))
    )
    worker.start()
    _wait_until_in_work(served)
    served.process.send_signal(signal.SIGTERM)
    worker.join(HANG_S)
    assert [answer.status_code for answer in answers] == [200]
    served.process.communicate(timeout=HANG_S)
    assert served.process.returncode == 0


def _wait_until_in_work(served: Running) -> None:
    """Until the texts of the request are queued."""

    def tokenised() -> bool:
        text = httpx.get(f"{served.url}/metrics", timeout=HANG_S).text
        found = re.search(
            r'^conche_tokenize_duration_seconds_count\{model="tiny-ner"\} (\S+)', text, re.MULTILINE
        )
        assert found
        return float(found.group(1)) > 0

    wait_until(tokenised)


def test_readiness_turns_red_before_the_sockets_close(models_folder: Path) -> None:
    """Load balancers see it coming while requests are still accepted."""
    process = _start(models_folder, "--shutdown-delay-seconds", "60")
    served = Running(process)
    with httpx.Client(base_url=served.url, timeout=HANG_S) as client:
        assert client.get("/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: client.get("/readyz").status_code != 200)
        assert "shutting down" in client.get("/readyz").text
        assert client.post("/embed", json={"inputs": "hello"}).status_code == 200
    process.send_signal(signal.SIGTERM)  # a second one cuts the delay short
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


class Lossy(Server):
    """A server whose services say what the test wants."""

    def __init__(self, lost: list[str], **changes: object) -> None:
        settings = Settings.model_validate(changes)
        super().__init__(settings, create_app(settings))
        self._app.state.services = SimpleNamespace(lost=lambda: lost)


@pytest.mark.parametrize("shown", [["tiny: hangs"], []])
async def test_it_ends_by_itself_for_a_lost_model_and_for_nothing_else(shown: list[str]) -> None:
    """With a code of its own, so that it can be told from other ends."""
    server = Lossy(shown, recycle_seconds=0)
    assert await server.on_tick(0) is bool(shown)
    assert (server.should_exit, server.exit_code) == ((True, 70) if shown else (False, 1))


async def test_a_lost_model_is_shown_by_the_probe_before_the_end() -> None:
    """As long as it takes those who look at /readyz to send requests elsewhere; unloaded, it is no reason."""
    lost = ["tiny: hangs"]
    server = Lossy(lost, recycle_seconds=3600)
    assert not await server.on_tick(0)
    server._lost_since = time.monotonic() - 3599
    lost.clear()
    assert not await server.on_tick(5)
    lost.append("tiny: hangs again")
    assert not await server.on_tick(10)
    assert server._lost_since is not None
    server._lost_since -= 3600
    assert await server.on_tick(15)


async def test_none_leaves_a_lost_model_to_somebody_else() -> None:
    """Whoever wants to look at a process that hangs has to be able to keep it."""
    server = Lossy(["tiny: hangs"], recycle_seconds="none")
    assert not await server.on_tick(0)


def test_ctrl_c_does_not_wait_for_load_balancers(models_folder: Path) -> None:
    """The delay is for those who look at /readyz; at a terminal nobody does."""
    process = _start(models_folder, "--shutdown-delay-seconds", "300")
    Running(process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 0


def test_a_port_in_use_is_one_line_and_a_failure(models_folder: Path) -> None:
    """Said before anything is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = _start(models_folder, "--port", port)
        output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert output == ""
    assert len(errors.splitlines()) == 1
    assert f"127.0.0.1:{port}" in errors
    assert "CONCHE_PORT" in errors


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"CONCHE_EMBEDDING_BUNDLE": "missing"}, "missing does not exist"),
        ({"CONCHE_FAQ_FILE": "missing.csv", "CONCHE_LOG_FORMAT": "json"}, "missing.csv cannot be read"),
        ({"CONCHE_PROT": "1"}, "did you mean CONCHE_PORT"),
    ],
)
def test_what_prevents_the_start_is_one_line_and_a_failure(
    models_folder: Path, variables: dict[str, str], said: str
) -> None:
    """The reason and nothing else: no traceback, no second-hand summary."""
    process = _start(models_folder, **variables)
    output, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert output == ""
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("Error: ")
    assert said in errors


def test_files_for_all_connections_are_allowed_or_missed_aloud(models_folder: Path) -> None:
    """The usual 1,024 are fewer than the connections that may be; raised if the system lets us."""

    def started(hard: int) -> tuple[int, list[str]]:
        limited = ("sh", "-c", f'ulimit -Sn 1024; ulimit -Hn {hard}; exec "$@"', "sh")
        process = _start(models_folder, within=limited, CONCHE_FAQ_STORE="none")
        try:
            Running(process)
            soft, _ = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=HANG_S)
        return soft, _messages(errors)

    assert started(4096) == (2048 + 256, ["stopping on SIGTERM"])
    soft, messages = started(2000)
    assert soft == 2000
    assert "CONCHE_LIMITS__MAX_CONNECTIONS" in messages[0]

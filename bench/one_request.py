"""Where the time of one short request goes: a service, asked one text at a time, beside the bare engine.

    .venv-dev/bin/python bench/one_request.py
    .venv-dev/bin/python bench/one_request.py --against ../conche-of-before --path /v1/embeddings

Starts `conche serve` with its defaults (without tagger and FAQ) on ports of its own: this checkout's, and
that of the folder `--against`, both with this environment's Python. They take turns, block by block, with
the engine in this process, which tokenises and runs the same text. Told are the least block, since what else
runs on the machine can only add to it, and the median of blocks; and CPU time, which holds while others work.
The stages come from the answers' `server-timing`. Linux only, for the CPU time of threads.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison.processes import NotRunningError, Server

from model.runtime.bundle import Bundle
from model.runtime.engine import load_gently, pad_batch
from model.runtime.engine_choice import Candidate, open_engine
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKOUT: Final = Path(__file__).resolve().parents[1]
BUNDLE: Final = "multilingual-e5-small-zh-en"
TEXT: Final = "How do I return a pair of shoes?"
FIELDS: Final = {"/embed": "inputs", "/v1/embeddings": "input"}
STAGES: Final = ("tokenize", "queue", "run")
START_S: Final = 60.0
SERVE: Final = "import sys; from service.cli import main; sys.exit(main(['serve', *sys.argv[1:]]))"


@dataclass
class Block:
    """Medians over the requests of one block, ms; the engine's has none but ``p50`` and ``cpu``.

    Attributes:
        p50: from the first byte sent to the last received.
        cpu: of the whole process, a request.
        loop: of its first thread, which has the event loop.
        stages: by the service's own account.
    """

    p50: float
    cpu: float
    loop: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)


class Service:
    """A running service and one connection to it."""

    def __init__(self, checkout: Path, folder: Path, path: str, variables: Mapping[str, str]) -> None:
        folder.mkdir()
        # -P: or the checkout that this runs in would come before the one that is meant.
        self.process = Server(
            [sys.executable, "-P", "-c", SERVE, "--port", "{port}"],
            {
                "PYTHONPATH": str(checkout),
                "CONCHE_DATA_DIR": str(folder),
                "CONCHE_MODELS_DIR": str(CHECKOUT / "models"),
                "CONCHE_NER_BUNDLE": "none",
                "CONCHE_FAQ_STORE": "none",
                "CONCHE_ENGINE": "onnxruntime",
                **variables,
            },
            folder / "log",
            ready_path="/readyz",
        )
        try:
            self.process.wait_until_ready(START_S)
        except NotRunningError as error:
            raise SystemExit(f"the service does not start: {error}") from error
        port = self.process.port
        body = orjson.dumps({FIELDS[path]: TEXT})
        self._request = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> bytes:
        """Send the request; return the answer's head."""
        self._socket.sendall(self._request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._socket.recv(65_536)
        head, _, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        left = int(_header(head, b"content-length")) - len(body)
        while left > 0:
            left -= len(self._socket.recv(65_536))
        return head

    def block(self, requests: int) -> Block:
        """Ask so often, and say what it took."""
        before = thread_seconds(self.process.pid)
        taken: list[float] = []
        stages: dict[str, list[float]] = {name: [] for name in (*STAGES, "total")}
        for _ in range(requests):
            began = time.perf_counter()
            head = self.ask()
            taken.append(1e3 * (time.perf_counter() - began))
            told = dict(re.findall(r"(\w+);dur=([\d.]+)", _header(head, b"server-timing").decode()))
            for name, values in stages.items():
                values.append(float(told[name]))
        time.sleep(0.01)  # for what comes after the answer: the log line, the metrics
        after = thread_seconds(self.process.pid)
        cpu = {thread: 1e3 * (after[thread] - before.get(thread, 0.0)) / requests for thread in after}
        medians = {name: statistics.median(values) for name, values in stages.items()}
        total = medians.pop("total")
        p50 = statistics.median(taken)
        medians["rest of the application"] = total - sum(medians.values())
        medians["HTTP and the way there and back"] = p50 - total
        return Block(p50, sum(cpu.values()), cpu[self.process.pid], medians)


def _header(head: bytes, name: bytes) -> bytes:
    found = re.search(rb"\r\n" + name + rb": ([^\r]*)", head)
    if found is None:
        raise SystemExit(f"the answer has no {name.decode()}")
    return found[1]


def thread_seconds(process: int) -> dict[int, float]:
    """CPU seconds of each thread of a process, by its number; the first has that of the process."""
    seconds = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        seconds[int(thread.name)] = int((thread / "schedstat").read_text().split()[0]) / 1e9
    return seconds


class BareEngine:
    """The engine of the services, without any: tokenising, padding and running the text."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        bundle = Bundle.load(CHECKOUT / "models" / BUNDLE, verify_hashes=False)
        self._tokenizer = Tokenizer.from_bundle(bundle)
        engine = variables.get("CONCHE_ENGINE", "onnxruntime")
        candidate = Candidate("openvino" if engine == "openvino" else "onnxruntime", "float32")
        threads = int(variables.get("CONCHE_THREADS", thread_count()))
        self._engine = load_gently(lambda: open_engine(bundle, candidate, threads=threads))
        manifest = bundle.manifest
        self._prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
        self._output = [f"embeddings_{manifest.pooling}_normalized"]

    def ask(self) -> None:
        """Embed the text."""
        rows = [text.input_ids for text in self._tokenizer.tokenize([TEXT], prefix=self._prompt)]
        self._engine.run(pad_batch(rows, self._tokenizer.pad_token_id), self._output)

    def block(self, requests: int) -> Block:
        """Ask so often, and say what it took."""
        taken = []
        before = sum(thread_seconds(os.getpid()).values())
        for _ in range(requests):
            began = time.perf_counter()
            self.ask()
            taken.append(1e3 * (time.perf_counter() - began))
        cpu = 1e3 * (sum(thread_seconds(os.getpid()).values()) - before) / requests
        return Block(statistics.median(taken), cpu)


@click.command(help=__doc__)
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A checkout.")
@click.option("--path", type=click.Choice(sorted(FIELDS)), default="/embed", show_default=True)
@click.option("--blocks", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--requests", type=click.IntRange(min=1), default=50, show_default=True, help="In a block.")
@click.option("--set", "variables", multiple=True, metavar="NAME=VALUE", help="For the services.")
def main(against: Path | None, path: str, blocks: int, requests: int, variables: tuple[str, ...]) -> None:
    """Measure and tell."""
    given = dict(variable.split("=", 1) for variable in variables)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asked: dict[str, Service | BareEngine] = {}
        for name, checkout in {"here": CHECKOUT, "against": against}.items():
            if checkout is not None:
                service = Service(checkout.resolve(), work / name, path, given)
                stack.callback(service.process.stop)
                asked[name] = service
        asked["bare engine"] = BareEngine(given)
        found: dict[str, list[Block]] = {name: [] for name in asked}
        for one in asked.values():
            one.block(requests)
        for block in range(blocks):
            for name in sorted(asked, reverse=bool(block % 2)):
                found[name].append(asked[name].block(requests))
    bare = found.pop("bare engine")
    click.echo(f"one text to {path}, {blocks} blocks of {requests}, ms; least of a block, median of blocks")
    _show("bare engine, p50", [block.p50 for block in bare])
    _show("bare engine, CPU", [block.cpu for block in bare])
    for name, service_blocks in found.items():
        click.echo(name)
        _show("p50", [block.p50 for block in service_blocks])
        over = [block.p50 - other.p50 for block, other in zip(service_blocks, bare, strict=True)]
        _show("p50 above the bare engine", over)
        for stage in service_blocks[0].stages:
            _show(f"  {stage}", [block.stages[stage] for block in service_blocks])
        _show("CPU", [block.cpu for block in service_blocks])
        _show("CPU of the event loop", [block.loop for block in service_blocks])


def _show(what: str, values: list[float]) -> None:
    click.echo(f"  {what:<36}{min(values):>8.2f}{statistics.median(values):>8.2f}")


if __name__ == "__main__":
    main()

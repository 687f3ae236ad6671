"""Whether a service that is used for long stays as it was: memory, threads, files, tasks, times.

    python bench/soak.py                      # 30 minutes, on bench/results/soak.json and soak.svg
    python bench/soak.py --minutes 2 --out /tmp/soak

Starts `conche serve` with the bundles that ship and some tiny ones, and has clients call every operation of
openapi.json at random: texts of one word to some hundred, FAQ writes, snapshots, models that are unloaded
and loaded, callers that leave early, and requests that are wrong. The FAQ that is written to has a bounded
number of entries, so nothing has a reason to grow. Ends with exit code 1 if something did: see `leaks`.
"""

import argparse
import contextlib
import http.client
import importlib
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote
from xml.sax.saxutils import escape

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runtime.processor import read_processor
from service.faq.queries import demo_queries

ROOT = Path(__file__).resolve().parents[1]
CALLER_LEAVES: Final = "caller leaves"
MOST_ENTRIES: Final = 200
SAMPLE_S: Final = 5.0
WINDOW_S: Final = 60.0
# Memory of the last third may be so much above that of the second: what an allocator does not give back at
# once, and what one more shape of batch takes, is no leak.
RSS_SLACK_SHARE: Final = 0.03
RSS_SLACK_MIB: Final = 16.0
COUNT_SLACK: Final = 3.0  # threads, files, tasks: those of requests that happen to be in work

# Run in the served process: what cannot be seen from outside.
INSIDE = """
import asyncio, gc, json, os, sys, threading, time

def watch():
    while True:
        time.sleep(1)
        kept = getattr(asyncio.tasks, "_all_tasks", None) or getattr(asyncio.tasks, "_scheduled_tasks", ())
        try:
            tasks = sum(not task.done() for task in list(kept))
        except RuntimeError:  # changed meanwhile
            continue
        seen = {"tasks": tasks, "python_threads": threading.active_count(), "garbage": len(gc.garbage)}
        with open(os.environ["SOAK_INSIDE"] + ".new", "w") as file:
            json.dump(seen, file)
        os.replace(os.environ["SOAK_INSIDE"] + ".new", os.environ["SOAK_INSIDE"])

threading.Thread(target=watch, daemon=True).start()
from service.cli import main
main(sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """The served process at one moment.

    Attributes:
        at_s: since the start of the traffic.
        rss_mib: resident memory.
        threads: of the process, those of native code included.
        files: open file descriptors.
        tasks: of asyncio, not done.
        disk_mib: of the data folder.
    """

    at_s: float
    rss_mib: float
    threads: int
    files: int
    tasks: int
    disk_mib: float


@dataclass(frozen=True, slots=True)
class Window:
    """Requests of one minute that got an answer; times in ms."""

    at_s: float
    requests: int
    p50_ms: float
    p99_ms: float


@dataclass
class Traffic:
    """What the clients have done, told by themselves.

    Attributes:
        statuses: by operation and status; 0 = no answer.
        times: (seconds since the start, ms) of each answer.
        unexpected: the first answers that should not have been.
        stop: set = the clients end.
    """

    started_at: float = field(default_factory=time.monotonic)
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    times: list[tuple[float, float]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, operation: str, status: int, seconds: float | None, problem: str | None) -> None:
        """Count one request; its time is kept if it is given."""
        with self._lock:
            self.statuses.setdefault(operation, Counter())[status] += 1
            if seconds is not None:
                self.times.append((time.monotonic() - self.started_at, 1000 * seconds))
            if problem is not None and len(self.unexpected) < 20:
                self.unexpected.append(f"{operation}: {problem}")

    def requests(self) -> int:
        """How many have been counted."""
        with self._lock:
            return sum(counts.total() for counts in self.statuses.values())


@dataclass(frozen=True, slots=True)
class Call:
    """One request: ``operation`` is "METHOD /template", and ``ok`` the statuses that it may get."""

    operation: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    ok: tuple[int, ...] = (200,)

    @property
    def method(self) -> str:
        """Of HTTP."""
        return self.operation.split()[0]


class Words:
    """Texts of any length, out of the queries of the demo FAQ."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._queries = [query.query for query in demo_queries()]

    def text(self, most: int = 30) -> str:
        """A few words mostly, now and then many: at most ``most`` queries, lengths as of a power law."""
        number = min(most, int(self._chance.paretovariate(1.2)))
        return " ".join(self._chance.choices(self._queries, k=number))

    def texts(self, most: int = 8) -> list[str]:
        """One to ``most``."""
        return [self.text() for _ in range(self._chance.randint(1, most))]


def calls(chance: random.Random, words: Words) -> dict[str, Callable[[], Call]]:
    """What makes a request of each operation."""

    def entry_id() -> str:
        return f"entry {chance.randrange(MOST_ENTRIES)}"

    def entry(name: str | None = None) -> dict[str, Any]:
        return {
            "id": name or entry_id(),
            "question": words.text(2),
            "answer": words.text(3),
            "alternates": [words.text(1) for _ in range(chance.randrange(3))],
            "tags": ["soak"],
            "metadata": {"price": chance.randrange(100)},
        }

    def embed() -> Call:
        body = {
            "inputs": words.texts(),
            "truncate": True,
            "pooling": chance.choice(["mean", "cls"]),
            "normalize": chance.random() < 0.8,
        }
        return Call("POST /embed", "/embed", body)

    def search() -> Call:
        body = {
            "query": words.text(2),
            "collection": chance.choice(["default", "soak"]),
            "mode": chance.choice(["hybrid", "dense", "lexical"]),
            "top_k": chance.randint(1, 20),
        }
        # 422: a query that is longer than the model reads.
        return Call("POST /search", "/search", body, ok=(200, 404, 422))

    def entries() -> Call:
        unique = {one["id"]: one for one in (entry() for _ in range(chance.randint(1, 8)))}
        return Call("POST /faq/{collection}/entries", "/faq/soak/entries", {"entries": [*unique.values()]})

    def of_entry(method: str, body: Any, ok: tuple[int, ...]) -> Call:
        path = f"/faq/soak/entries/{quote(entry_id())}"
        return Call(f"{method} /faq/{{collection}}/entries/{{entry_id}}", path, body, ok=ok)

    def imported() -> Call:
        lines = "\n".join(json.dumps(entry()) for _ in range(3))
        path = "/faq/soak/import?on_duplicate=replace"
        return Call("POST /faq/{collection}/import", path, lines, "application/x-ndjson", (200, 422))

    def wrong() -> Call:
        return chance.choice(
            [
                Call("POST /embed", "/embed", "{", ok=(400,)),
                Call("POST /embed", "/embed", {"inputs": ["", "x"]}, ok=(422,)),
                Call("POST /embed", "/embed", {"inputs": words.text(2), "model": "nobody"}, ok=(404,)),
                Call("POST /search", "/search", {"query": "x", "top_k": -1}, ok=(422,)),
                Call("GET /nowhere", f"/nowhere/{chance.random()}", ok=(404,)),
            ]
        )

    model = "multilingual-e5-small-zh-en"
    missing = (200, 404)
    return {
        "embed": embed,
        "embed_all": lambda: Call(
            "POST /embed_all", "/embed_all", {"inputs": words.text(3), "truncate": True}
        ),
        "ner": lambda: Call(
            "POST /ner", "/ner", {"inputs": words.texts(4), "model": chance.choice(TAGGERS)}, ok=missing
        ),
        "search": search,
        "entries": entries,
        "put_entry": lambda: of_entry("PUT", {"question": words.text(1), "answer": "a"}, (200, 201)),
        "patch_entry": lambda: of_entry("PATCH", {"answer": words.text(1)}, missing),
        "get_entry": lambda: of_entry("GET", None, missing),
        "delete_entry": lambda: of_entry("DELETE", None, missing),
        "delete_entries": lambda: Call(
            "POST /faq/{collection}/delete", "/faq/soak/delete", {"ids": [entry_id(), entry_id()]}, ok=missing
        ),
        "import": imported,
        "list_entries": lambda: Call("GET /faq/{collection}/entries", "/faq/soak/entries", ok=missing),
        "count": lambda: Call("GET /faq/{collection}/count", "/faq/soak/count", ok=missing),
        "export": lambda: Call("GET /faq/{collection}/export", "/faq/soak/export", ok=missing),
        "collections": lambda: Call("GET /faq", "/faq"),
        "collection": lambda: Call("GET /faq/{collection}", "/faq/default"),
        "put_collection": lambda: Call(
            "PUT /faq/{collection}", "/faq/brief", {"min_score": 0.2}, ok=(200, 201)
        ),
        "delete_collection": lambda: Call("DELETE /faq/{collection}", "/faq/brief", ok=missing),
        "evaluate": lambda: Call(
            "POST /faq/{collection}/evaluate",
            "/faq/default/evaluate",
            {"queries": [{"query": words.text(1), "faq_id": None} for _ in range(10)]},
        ),
        "reindex": lambda: Call(
            "POST /faq/{collection}/reindex", "/faq/soak/reindex", ok=(200, 202, 404, 409, 422)
        ),
        "reindexing": lambda: Call("GET /faq/{collection}/reindex", "/faq/soak/reindex", ok=missing),
        "snapshot": lambda: Call("POST /snapshots", "/snapshots", {"name": "soak"}, ok=(200, 201, 409)),
        "snapshots": lambda: Call("GET /snapshots", "/snapshots"),
        "delete_snapshot": lambda: Call("DELETE /snapshots/{name}", "/snapshots/soak", ok=(200, 204, 404)),
        "openai": lambda: Call(
            "POST /v1/embeddings", "/v1/embeddings", {"input": words.text(4), "encoding_format": "base64"}
        ),
        "openai_short": lambda: Call("POST /embeddings", "/embeddings", {"input": words.text(4)}),
        "pipeline": lambda: Call(
            "POST /models/{model_id}/pipeline/feature-extraction",
            f"/models/{model}/pipeline/feature-extraction",
            {"inputs": words.text(2)},
        ),
        "similarity": lambda: Call(
            "POST /similarity",
            "/similarity",
            {"inputs": {"source_sentence": words.text(1), "sentences": words.texts(4)}},
            ok=(200, 422),
        ),
        "rerank": lambda: Call(
            "POST /rerank", "/rerank", {"query": words.text(1), "texts": words.texts(6), "truncate": True}
        ),
        "cohere": lambda: Call(
            "POST /v1/rerank",
            "/v1/rerank",
            {"query": words.text(1), "documents": words.texts(4)},
            ok=(200, 422),
        ),
        "predict": lambda: Call("POST /predict", "/predict", {"inputs": "refund my order", "truncate": True}),
        "classify": lambda: Call("POST /classify", "/classify", {"input": ["where is my delivery"]}),
        "tokenize": lambda: Call("POST /tokenize", "/tokenize", {"inputs": words.text(8)}),
        "decode": lambda: Call("POST /decode", "/decode", {"ids": [5, 6, 7, 8]}),
        "info": lambda: Call("GET /info", "/info"),
        "models": lambda: Call("GET /v1/models", "/v1/models"),
        "model": lambda: Call("GET /v1/models/{model_id}", f"/v1/models/{model}"),
        "loaded": lambda: Call("GET /admin/models", "/admin/models"),
        "livez": lambda: Call("GET /livez", "/livez"),
        "readyz": lambda: Call("GET /readyz", "/readyz"),
        "health": lambda: Call("GET /health", "/health"),
        "metrics": lambda: Call("GET /metrics", "/metrics"),
        "wrong": wrong,
    }


TAGGERS = ("tiny-ner", "ner-zh-en")  # the second is exchanged all the time
WEIGHTS = {"embed": 20, "ner": 10, "search": 20, "entries": 6, "put_entry": 3, "wrong": 4, "openai": 6}
RARE = {"evaluate": 0.1, "reindex": 0.1, "snapshot": 0.1, "delete_snapshot": 0.1, "export": 0.3}


class Connection:
    """Keeps a connection open, and opens another when the server or a caller that left closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def send(self, call: Call) -> tuple[int, bytes]:
        """Status and body of the answer."""
        data = call.body if isinstance(call.body, str | None) else json.dumps(call.body)
        headers = {} if data is None else {"content-type": call.content_type}
        try:
            self._connection.request(call.method, call.path, None if data is None else data.encode(), headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def leave(self, call: Call) -> None:
        """Send a request and go, without waiting for the answer."""
        self._connection.request(
            call.method, call.path, json.dumps(call.body), {"content-type": call.content_type}
        )
        self.close()

    def close(self) -> None:
        """Close it; the next request opens another."""
        self._connection.close()


def perform(connection: Connection, call: Call, traffic: Traffic, *, timed: bool = True) -> None:
    """Send one request and note what came of it; its time only if it is ``timed`` and got an answer."""
    started_at = time.monotonic()
    try:
        status, answer = connection.send(call)
    except (OSError, http.client.HTTPException) as error:
        traffic.note(call.operation, 0, None, repr(error))
        return
    problem = None if status in call.ok else f"{status} {answer[:200]!r}"
    traffic.note(call.operation, status, time.monotonic() - started_at if timed else None, problem)


def client(number: int, port: int, traffic: Traffic, pause_s: float) -> None:
    """Send requests of all kinds until told to stop; ``pause_s`` is the mean time between two."""
    chance = random.Random(number)
    words = Words(chance)
    kinds = calls(chance, words)
    weights = [WEIGHTS.get(name, RARE.get(name, 1)) for name in kinds]
    connection = Connection(port)
    order: Iterator[Callable[[], Call]] = iter(kinds.values())  # each once, then by chance
    while not traffic.stop.wait(chance.expovariate(1 / pause_s)):
        if chance.random() < 0.01:
            problem = None
            try:
                connection.leave(Call("POST /embed", "/embed", {"inputs": words.texts()}))
            except (OSError, http.client.HTTPException) as error:
                problem = repr(error)
            traffic.note(CALLER_LEAVES, 0, None, problem)
            continue
        make = next(order, None) or chance.choices([*kinds.values()], weights)[0]
        perform(connection, make(), traffic)
    connection.close()


def reload_models(port: int, traffic: Traffic, every_s: float) -> None:
    """Unload a tagger in use and load it again, and so a model that nobody uses, again and again."""
    connection = Connection(port)
    while not traffic.stop.wait(every_s):
        for bundle in ("ner-zh-en", "tiny-spare"):
            for call in (
                Call("DELETE /admin/models/{model_id}", f"/admin/models/{bundle}", ok=(200, 404)),
                Call("POST /admin/models", "/admin/models", {"bundle": bundle}),
            ):
                # Not timed: loading takes seconds, and would be the p99 of its minute.
                perform(connection, call, traffic, timed=False)
    connection.close()


def sample(pid: int, inside: Path, data: Path, at_s: float) -> Sample:
    """Look at the process from outside, and at what it says of itself."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text(encoding="ascii").split()[1])
    tasks = json.loads(inside.read_text(encoding="utf-8"))["tasks"] if inside.exists() else 0
    disk = 0
    for path in data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # journals and snapshots come and go
            disk += path.stat().st_size if path.is_file() else 0
    return Sample(
        at_s=round(at_s, 1),
        rss_mib=round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        threads=len(list((process / "task").iterdir())),
        files=len(list((process / "fd").iterdir())),
        tasks=tasks,
        disk_mib=round(disk / 2**20, 2),
    )


def windows(times: Sequence[tuple[float, float]], window_s: float = WINDOW_S) -> list[Window]:
    """Quantiles by minute; the last one only if it is whole."""
    by_window: dict[int, list[float]] = {}
    for at_s, ms in times:
        by_window.setdefault(int(at_s // window_s), []).append(ms)
    found = []
    for number in sorted(by_window):
        p50, p99 = np.quantile(by_window[number], [0.5, 0.99])
        found.append(
            Window(number * window_s, len(by_window[number]), round(float(p50), 1), round(float(p99), 1))
        )
    return found[:-1] if len(found) > 1 else found


def slope_per_hour(at_s: Sequence[float], values: Sequence[float]) -> float:
    """Of the straight line through the last two thirds of the samples (least squares)."""
    first = len(at_s) // 3
    hours = np.array(at_s[first:]) / 3600
    return float(np.polyfit(hours, np.array(values[first:]), 1)[0]) if len(hours) > 1 else 0.0


def leaks(samples: Sequence[Sample]) -> list[str]:
    """What grew; the first third of the samples is left out, in which caches fill.

    The median of the last third is compared with that of the second.
    """
    third = len(samples) // 3
    if third < 2:
        return ["too few samples to tell"]
    found = []
    for name in ("rss_mib", "threads", "files", "tasks", "disk_mib"):
        before = float(np.median([getattr(one, name) for one in samples[third : 2 * third]]))
        after = float(np.median([getattr(one, name) for one in samples[2 * third :]]))
        slack = max(RSS_SLACK_MIB, RSS_SLACK_SHARE * before) if name.endswith("_mib") else COUNT_SLACK
        if after - before > slack:
            found.append(f"{name} grew from {before:g} to {after:g}, by more than {slack:g}")
    return found


def chart(title: str, series: dict[str, list[tuple[float, float]]], top: float) -> str:
    """Lines over minutes, from zero, as part of an SVG picture; ``top`` is its upper edge in pixels."""
    left, width, height = 64, 640, 110
    colours = ("#0b6e99", "#c2410c", "#4d7c0f")
    points = [point for line in series.values() for point in line]
    most_x = max((x for x, _ in points), default=1.0) or 1.0
    most_y = 1.1 * max((y for _, y in points), default=1.0) or 1.0
    bottom = top + height
    parts = [
        f'<text x="{left}" y="{top - 8:.0f}" font-weight="600">{escape(title)}</text>',
        f'<path d="M{left} {top:.0f}V{bottom:.0f}H{left + width}" fill="none" stroke="#9ca3af"/>',
        f'<text x="{left - 6}" y="{bottom:.0f}" text-anchor="end">0</text>',
        f'<text x="{left - 6}" y="{top + 10:.0f}" text-anchor="end">{most_y:.4g}</text>',
        f'<text x="{left + width}" y="{bottom + 14:.0f}" text-anchor="end">{most_x / 60:.0f} min</text>',
    ]
    for place, (name, line) in enumerate(series.items()):
        colour = colours[place % len(colours)]
        path = " ".join(
            f"{left + width * x / most_x:.1f},{bottom - height * y / most_y:.1f}" for x, y in line
        )
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            f'<text x="{left + 8 + 110 * place}" y="{bottom + 14:.0f}" fill="{colour}">{escape(name)}</text>'
        )
    return "".join(parts)


def picture(samples: Sequence[Sample], by_window: Sequence[Window]) -> str:
    """The whole run as an SVG picture."""
    charts: list[tuple[str, dict[str, list[tuple[float, float]]]]] = [
        ("Resident memory, MiB", {"RSS": [(one.at_s, one.rss_mib) for one in samples]}),
        (
            "Threads, open files, asyncio tasks",
            {
                name: [(one.at_s, float(getattr(one, name))) for one in samples]
                for name in ("threads", "files", "tasks")
            },
        ),
        (
            "Time of a request by minute, ms",
            {
                "p50": [(one.at_s, one.p50_ms) for one in by_window],
                "p99": [(one.at_s, one.p99_ms) for one in by_window],
            },
        ),
        ("Answers a minute", {"answers": [(one.at_s, float(one.requests)) for one in by_window]}),
    ]
    step = 168
    parts = [chart(title, series, 32 + step * place) for place, (title, series) in enumerate(charts)]
    height = step * len(charts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Soak" viewBox="0 0 720 {height}" '
        f'width="720" height="{height}" font-family="sans-serif" font-size="11" fill="#111827">'
        f'<rect width="720" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def start(folder: Path, engine: str, streams: str) -> tuple[subprocess.Popen[str], int]:
    """A service over the bundles that ship and some tiny ones; its process and port."""
    models = folder / "models"
    models.mkdir()
    bundles = importlib.import_module("tests.bundles")  # as it stands, not as what bench is checked with
    for name in ("multilingual-e5-small-zh-en", "ner-zh-en"):
        (models / name).symlink_to(ROOT / "models" / name)
    bundles.write_tiny_classifier_bundle(models / "tiny-classifier")
    bundles.write_tiny_ner_bundle(models / "tiny-ner")
    bundles.write_tiny_embedding_bundle(models / "tiny-spare", name="tiny-spare", seed=8)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    variables |= {
        "CONCHE_MODELS_DIR": str(models),
        "CONCHE_CLASSIFIER_BUNDLE": "tiny-classifier",
        "CONCHE_NER_BUNDLE": ",".join(TAGGERS),
        "CONCHE_DATA_DIR": str(folder / "data"),
        "CONCHE_ADMIN": "true",
        "CONCHE_ENGINE": engine,
        "CONCHE_STREAMS": streams,
        "CONCHE_PORT": "0",
        "CONCHE_LOG_FORMAT": "json",
        "SOAK_INSIDE": str(folder / "inside.json"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", INSIDE, "serve"]
    with (folder / "log").open("w", encoding="utf-8") as log:  # the process has a handle of its own
        process = subprocess.Popen(command, env=variables, stderr=log, text=True)
    for _ in range(6000):
        said = (folder / "log").read_text(encoding="utf-8")
        found = re.search(r'"url": ?"http://127\.0\.0\.1:(\d+)"', said)
        if found:
            return process, int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    process.kill()
    raise SystemExit(f"the service did not start: {(folder / 'log').read_text(encoding='utf-8')}")


def not_called(port: int, traffic: Traffic) -> list[str]:
    """Operations of openapi.json that no client has called."""
    status, page = Connection(port).send(Call("GET /openapi.json", "/openapi.json"))
    if status != 200:
        raise SystemExit(f"/openapi.json: status {status}")
    there = {
        f"{method.upper()} {path}"
        for path, methods in json.loads(page)["paths"].items()
        for method in methods
    }
    return sorted(there - set(traffic.statuses))


def tell(minute: int, minutes: float, last: Sample, traffic: Traffic) -> None:
    """How far it is, and whether it is worth going on."""
    unexpected = f", {len(traffic.unexpected)} UNEXPECTED ANSWERS" if traffic.unexpected else ""
    print(
        f"minute {minute} of {minutes:g}: {traffic.requests()} requests, {last.rss_mib:.0f} MiB, "
        f"{last.threads} threads{unexpected}",
        flush=True,
    )


def soak(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run it; what was seen, as it is written down."""
    process, port = start(folder, options.engine, options.streams)
    traffic = Traffic()
    pause_s = options.clients / options.rate
    threads = [
        threading.Thread(target=client, args=(number, port, traffic, pause_s), daemon=True)
        for number in range(options.clients)
    ]
    threads.append(
        threading.Thread(target=reload_models, args=(port, traffic, options.reload_s), daemon=True)
    )
    for thread in threads:
        thread.start()
    samples: list[Sample] = []
    told = 0
    try:
        while (at_s := time.monotonic() - traffic.started_at) < 60 * options.minutes:
            if samples and at_s // 60 > told:
                told = int(at_s // 60)
                tell(told, options.minutes, samples[-1], traffic)
            time.sleep(SAMPLE_S)
            if process.poll() is not None:
                raise SystemExit(f"the service ended with {process.returncode}")
            samples.append(sample(process.pid, folder / "inside.json", folder / "data", at_s))
        traffic.stop.set()
        for thread in threads:
            thread.join(300)
        missed = not_called(port, traffic)
        process.send_signal(signal.SIGTERM)
        code = process.wait(300)
    finally:
        process.kill()
    by_window = windows(traffic.times)
    found = leaks(samples)
    found += [f"unexpected: {one}" for one in traffic.unexpected]
    found += [] if code == 0 else [f"exit code {code}"]
    found += [f"never called: {operation}" for operation in missed] if options.minutes >= 5 else []
    at = [one.at_s for one in samples]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{read_processor().name}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "minutes": options.minutes,
        "engine": options.engine,
        "streams": options.streams,
        "clients": options.clients,
        "rate_wanted": options.rate,
        "requests": traffic.requests(),
        "statuses": {name: dict(counts) for name, counts in sorted(traffic.statuses.items())},
        "slopes_per_hour": {
            name: round(slope_per_hour(at, [float(getattr(one, name)) for one in samples]), 3)
            for name in ("rss_mib", "threads", "files", "tasks", "disk_mib")
        }
        | {
            name: round(
                slope_per_hour([one.at_s for one in by_window], [getattr(one, name) for one in by_window]), 3
            )
            for name in ("p50_ms", "p99_ms")
        },
        "leaks": found,
        "windows": [asdict(one) for one in by_window],
        "samples": [asdict(one) for one in samples],
    }


def main() -> None:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second that all clients aim at")
    parser.add_argument("--reload-s", type=float, default=60.0, help="between two exchanges of the models")
    parser.add_argument(
        "--engine", default="onnxruntime", help="CONCHE_ENGINE (onnxruntime, as it is everywhere)"
    )
    parser.add_argument("--streams", default="auto", help="CONCHE_STREAMS")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(Path(folder), options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "soak.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    samples = [Sample(**one) for one in result["samples"]]
    by_window = [Window(**one) for one in result["windows"]]
    (options.out / "soak.svg").write_text(picture(samples, by_window), encoding="utf-8")
    print(f"{result['requests']} requests in {options.minutes:g} minutes; growth an hour:")
    for name, value in result["slopes_per_hour"].items():
        print(f"  {name}: {value:+g}")
    for line in result["leaks"]:
        print(f"LEAK OR FAULT: {line}")
    if result["leaks"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

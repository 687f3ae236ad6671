"""Who is compared: how each is started, asked and timed."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from comparison.figures import quantile
from comparison.http_load import Connection, Load, Request, closed_loop, open_loop
from comparison.models import ROOT
from comparison.processes import NotRunningError, Process, Server, Worker
from comparison.worker import OFFLINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

HERE: Final = Path(__file__).parent
Route = Literal["embed", "ner", "search"]
_PATIENCE_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be timed.

    Attributes:
        route: what is asked for.
        texts: that are sent in turn.
        lengths: tokens of each.
        clients: that wait for an answer each.
        per_request: texts of a request.
        seconds: after which nothing new is sent.
        least_requests: that are sent in any case.
        rate: requests a second that come whether others were answered or not; None = clients wait.
        patience: seconds that answers to those are waited for afterwards.
    """

    route: Route
    texts: Sequence[str]
    lengths: Sequence[int]
    clients: int
    per_request: int
    seconds: float
    least_requests: int = 1
    rate: float | None = None
    patience: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a job came to; also a line of the file of measurements.

    Attributes:
        texts_per_s, tokens_per_s: of what was answered.
        requests: answered.
        seconds: from the first request to the last answer.
        p50_ms, p99_ms: of the requests answered; None where there are no single requests.
        padding: computed tokens over tokens of the texts; None if it does not tell.
        rss_mib: resident memory right afterwards.
        refused: requests refused for want of capacity.
        refused_p50_ms, refused_p99_ms: of the time to say so.
        failed: requests that got another answer or none, by what it was.
        detail: what else there is to say.
    """

    texts_per_s: float
    tokens_per_s: float
    requests: int
    seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    padding: float | None = None
    rss_mib: float = 0.0
    refused: int = 0
    refused_p50_ms: float | None = None
    refused_p99_ms: float | None = None
    failed: Mapping[str, int] = field(default_factory=dict)
    detail: str = ""


class Contestant(ABC):
    """One of those that are compared.

    Attributes:
        name: in tables.
        note: what it is, for the table of contestants.
    """

    def __init__(self, name: str, note: str) -> None:
        self.name = name
        self.note = note
        self.process: Process | None = None

    def start(self) -> float:
        """Start it anew; return the seconds until it was ready.

        Raises:
            NotRunningError: it does not start here.
        """
        self.stop()
        process, seconds = self._start()
        self.process = process
        return seconds

    @abstractmethod
    def _start(self) -> tuple[Process, float]: ...

    @abstractmethod
    def time(self, job: Job) -> Result:
        """Do a job.

        Raises:
            NotRunningError: it ended, or failed.
        """

    @abstractmethod
    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed a few texts, [n, d]."""

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def _rss_mib(self) -> float:
        return 0.0 if self.process is None else self.process.rss_mib()


class HttpContestant(Contestant):
    """A server.

    Args:
        name, note: see ``Contestant``.
        command: with ``{port}`` where its port goes.
        environment: variables for it.
        log: for what it says.
        ready_path: answers 200 when it takes requests.
        embed_path: of embeddings in OpenAI's shape.
        model: what requests call the model.
        prefix: put before every text, where the server does not do it by itself.
    """

    def __init__(
        self,
        name: str,
        note: str,
        *,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        log: Path,
        ready_path: str,
        embed_path: str,
        model: str,
        prefix: str = "",
        metrics_path: str | None = None,
        collection: str = "",
    ) -> None:
        super().__init__(name, note)
        self._command = command
        self._environment = environment
        self._log = log
        self._ready_path = ready_path
        self._embed_path = embed_path
        self._model = model
        self._prefix = prefix
        self._metrics_path = metrics_path
        self._collection = collection

    def _start(self) -> tuple[Process, float]:
        server = Server(self._command, self._environment, self._log, ready_path=self._ready_path)
        try:
            return server, server.wait_until_ready(_PATIENCE_S)
        except BaseException:
            server.stop()
            raise

    @property
    def _port(self) -> int:
        if not isinstance(self.process, Server):
            raise NotRunningError(f"{self.name} was not started")
        return self.process.port

    def request(self, route: Route, texts: Sequence[str], tokens: int) -> Request:
        """Spell one request."""
        texts = [self._prefix + text for text in texts]
        path, body = {
            "embed": (self._embed_path, {"input": texts, "model": self._model, "encoding_format": "base64"}),
            "ner": ("/ner", {"inputs": texts}),
            "search": ("/search", {"query": texts, "top_k": 5, "collection": self._collection}),
        }[route]
        return Request(path, json.dumps(body, ensure_ascii=False).encode(), len(texts), tokens)

    def requests(self, job: Job) -> list[Request]:
        """Spell all requests of a job beforehand."""
        size = job.per_request
        return [
            self.request(job.route, job.texts[first : first + size], sum(job.lengths[first : first + size]))
            for first in range(0, len(job.texts) - size + 1, size)
        ]

    def time(self, job: Job) -> Result:  # noqa: D102 - see Contestant
        before = self._model_tokens()
        if job.rate is None:
            load = asyncio.run(
                closed_loop(
                    self._port,
                    self.requests(job),
                    clients=job.clients,
                    seconds=job.seconds,
                    least_requests=max(job.least_requests, job.clients),
                )
            )
        else:
            load = asyncio.run(
                open_loop(
                    self._port, self.requests(job), rate=job.rate, seconds=job.seconds, patience=job.patience
                )
            )
        if not load.latencies:
            raise NotRunningError(f"answered nothing: {load.failed}")
        after = self._model_tokens()
        computed, tokens = (now - then for now, then in zip(after, before, strict=True))
        return of_load(load, rss_mib=self._rss_mib(), padding=computed / tokens if tokens else None)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:  # noqa: D102 - see Contestant
        async def ask() -> bytes:
            connection = await Connection.to(self._port)
            try:
                reply = await connection.post(self.request("embed", texts, 0))
            finally:
                connection.close()
            if reply.status != 200:
                raise NotRunningError(f"status {reply.status}: {reply.body[:300]!r}")
            return reply.body

        data = json.loads(asyncio.run(ask()))["data"]
        return np.stack([read_vector(one["embedding"]) for one in data])

    def _model_tokens(self) -> tuple[float, float]:
        """Tokens that the models computed so far, and those among them that were no padding."""
        if self._metrics_path is None:
            return 0.0, 0.0

        async def ask(path: str) -> str:
            connection = await Connection.to(self._port)
            try:
                return (await connection.get(path)).body.decode()
            finally:
                connection.close()

        return model_tokens(asyncio.run(ask(self._metrics_path)))


def read_vector(spelt: str | list[float]) -> NDArray[np.float32]:
    """Read a vector of OpenAI's shape: base64 of float32, or numbers."""
    if isinstance(spelt, str):
        return np.frombuffer(base64.b64decode(spelt), dtype="<f4")
    return np.array(spelt, dtype=np.float32)


def model_tokens(metrics: str) -> tuple[float, float]:
    """Read (computed tokens, tokens without padding) from Conche's /metrics, over all models."""

    def total(name: str) -> float:
        values = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)", metrics, re.MULTILINE)
        return sum(map(float, values))

    return total("conche_batch_tokens_sum"), total("conche_tokens_total")


def of_load(load: Load, *, rss_mib: float, padding: float | None) -> Result:
    """Sum up what clients saw."""
    milliseconds = [1e3 * seconds for seconds in load.latencies]
    refused = [1e3 * seconds for seconds in load.refused]
    return Result(
        texts_per_s=load.texts / load.seconds,
        tokens_per_s=load.tokens / load.seconds,
        requests=len(load.latencies),
        seconds=load.seconds,
        p50_ms=quantile(milliseconds, 0.5),
        p99_ms=quantile(milliseconds, 0.99),
        padding=padding,
        rss_mib=rss_mib,
        refused=len(refused),
        refused_p50_ms=quantile(refused, 0.5) if refused else None,
        refused_p99_ms=quantile(refused, 0.99) if refused else None,
        failed=dict(load.failed),
    )


class WorkerContestant(Contestant):
    """A library in an environment of its own, or the bare engine.

    Args:
        name, note: see ``Contestant``.
        command: of the worker.
        log: for what it says.
        prefix: put before every text, where the library does not do it by itself.
    """

    def __init__(
        self, name: str, note: str, *, command: Sequence[str | Path], log: Path, prefix: str = ""
    ) -> None:
        super().__init__(name, note)
        self._command = command
        self._log = log
        self._prefix = prefix

    def _start(self) -> tuple[Process, float]:
        worker = Worker(self._command, OFFLINE, self._log)
        try:
            return worker, worker.wait_until_ready(_PATIENCE_S)
        except BaseException:
            worker.stop()
            raise

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(self.process, Worker):
            raise NotRunningError(f"{self.name} was not started")
        return self.process.ask(order)

    def time(self, job: Job) -> Result:  # noqa: D102 - see Contestant
        answer = self._ask(
            {
                "do": "time",
                "texts": [self._prefix + text for text in job.texts],
                "clients": job.clients,
                "per_request": job.per_request,
                "seconds": job.seconds,
                "least_requests": job.least_requests,
            }
        )
        milliseconds = [1e3 * seconds for seconds in answer["latencies"]]
        if "texts" in answer:
            texts, tokens = answer["texts"], answer["tokens"]
        else:
            texts = answer["requests"] * job.per_request
            tokens = tokens_of_first(texts, job.lengths)
        return Result(
            texts_per_s=texts / answer["seconds"],
            tokens_per_s=tokens / answer["seconds"],
            requests=len(milliseconds) or 1,
            seconds=answer["seconds"],
            p50_ms=quantile(milliseconds, 0.5) if milliseconds else None,
            p99_ms=quantile(milliseconds, 0.99) if milliseconds else None,
            padding=answer.get("padding"),
            rss_mib=self._rss_mib(),
            detail=answer.get("detail", ""),
        )

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:  # noqa: D102 - see Contestant
        answer = self._ask({"do": "outputs", "texts": [self._prefix + text for text in texts]})
        return np.array(answer["outputs"], dtype=np.float32)


def tokens_of_first(texts: int, lengths: Sequence[int]) -> int:
    """Tokens of the first ``texts`` texts of a list that begins again when it is through."""
    rounds, rest = divmod(texts, len(lengths))
    return rounds * sum(lengths) + sum(lengths[:rest])


def conche(
    name: str,
    note: str,
    *,
    environment: Mapping[str, str],
    log: Path,
    model: str,
    collection: str = "",
) -> HttpContestant:
    """Conche's service, as ``conche serve`` starts it, with some variables set."""
    command = [sys.executable, "-c", "from service.cli import main; main()", "serve", "--port", "{port}"]
    # Compiled once and kept, as what pip installs is: compiling our modules anew is half a second of a start.
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}
    return HttpContestant(
        name,
        note,
        command=command,
        environment={
            "CONCHE_MODELS_DIR": str(ROOT / "models"),
            "PYTHONPATH": str(ROOT),
            **compiled,
            **environment,
        },
        log=log,
        ready_path="/readyz",
        embed_path="/v1/embeddings",
        model=model,
        metrics_path="/metrics",
        collection=collection,
    )


def engine_worker(
    name: str, note: str, *, schedule: str, engine: str, bundle: Path, log: Path
) -> WorkerContestant:
    """The bare engine, in the environment of this process."""
    command: list[str | Path] = [sys.executable, HERE / "engine_worker.py", schedule, engine, bundle]
    return WorkerContestant(name, note, command=command, log=log)


def peer_worker(
    name: str, note: str, *, python: Path, arguments: Sequence[str | Path], log: Path, prefix: str = ""
) -> WorkerContestant:
    """A peer's library, in its environment."""
    return WorkerContestant(
        name, note, command=[python, HERE / "worker.py", *arguments], log=log, prefix=prefix
    )

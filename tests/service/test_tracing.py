"""Traces: what a request's spans are and say, how they go on from the caller's, and what cannot be felt."""

import asyncio
import gzip
import itertools
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from service.app import create_app
from service.lifespan import StartupError
from service.log_config import JsonFormatter
from service.request_trace import PastStage, stage, trace_of_request
from service.tracing import MOST_SPANS, Tracing, open_tracing
from tests.service.fakes_http import tiny_settings
from tests.service.odd_requests import SECRET, WORD, send_odd_requests

HANG_S = 60  # only stops a hang
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of OpenTelemetry's, those that a test sets."""
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER", "OTEL_TRACES_SAMPLER", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Where the spans of `client` go."""
    return InMemorySpanExporter()


@asynccontextmanager
async def _traced(folder: Path, traces: Tracing, **changes: object) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(tiny_settings(folder, **changes), traces=traces)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://conche.test") as client:
            client.app = app  # type: ignore[attr-defined]  # for tests that reach behind the routes
            yield client


@pytest.fixture
async def client(models_folder: Path, spans: InMemorySpanExporter) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app whose spans are kept."""
    async with _traced(models_folder, Tracing(SimpleSpanProcessor(spans))) as client:
        yield client


def _tree(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Names of spans, as they lie within each other."""

    def below(parent: int | None) -> dict[str, Any]:
        inside = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
        inside.sort(key=lambda span: span.start_time or 0)
        return {span.name: below(span.context.span_id) for span in inside}

    return below(None)


def _named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [span for span in spans.get_finished_spans() if span.name == name]
    return span


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_an_embedding_is_told_stage_by_stage(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """Which of them took the time is the question that a trace is for."""
    answer = await client.post(
        "/embed", json={"inputs": ["a red door", "two"]}, headers={"x-request-id": "r"}
    )
    assert answer.status_code == 200
    assert _tree(spans.get_finished_spans()) == {
        "POST /embed": {"tokenize": {}, "queue": {}, "batch": {"run": {}}}
    }
    tokens = int(answer.headers["x-conche-tokens"])
    assert _attributes(_named(spans, "POST /embed")) == {
        "http.request.method": "POST",
        "http.route": "/embed",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "conche.request_id": "r",
        "conche.tokens": tokens,
        "conche.characters": len("a red door") + len("two"),
    }
    assert _attributes(_named(spans, "tokenize")) == {
        "conche.model": "tiny-embedding",
        "conche.texts": 2,
        "conche.characters": len("a red door") + len("two"),
    }
    assert _attributes(_named(spans, "queue")) == {
        "conche.model": "tiny-embedding",
        "conche.rows": 2,
        "conche.tokens": tokens,
    }
    batch = _attributes(_named(spans, "batch"))
    assert batch.pop("conche.batch.number") >= 1
    assert batch.pop("conche.batch.padded_tokens") >= tokens
    assert batch == {
        "conche.model": "tiny-embedding",
        "conche.rows": 2,
        "conche.batch.rows": 2,
        "conche.batch.tokens": tokens,
    }


async def test_stages_lie_within_their_request_and_follow_each_other(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """They are measured on one clock, by the request and by the thread that runs the model."""
    await client.post("/embed", json={"inputs": ["a red door"]})
    times = {span.name: (span.start_time or 0, span.end_time or 0) for span in spans.get_finished_spans()}
    order = [
        times["POST /embed"][0],
        *times["tokenize"],
        *times["queue"],
        times["run"][0],
        times["run"][1],
        times["batch"][1],
        times["POST /embed"][1],
    ]
    # Seconds as floats are exact to some 100 ns.
    assert all(later >= earlier - 1000 for earlier, later in itertools.pairwise(order))
    assert abs(times["batch"][0] - times["queue"][1]) <= 1000


async def test_a_search_is_told_up_to_its_lookup(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """Embedding the query is part of it."""
    assert (await client.post("/search", json={"query": "reset my password"})).status_code == 200
    assert _tree(spans.get_finished_spans()) == {
        "POST /search": {
            "search.index": {},
            "tokenize": {},
            "queue": {},
            "batch": {"run": {}},
            "search.lookup": {},
        }
    }
    assert _attributes(_named(spans, "search.lookup")) == {
        "conche.queries": 1,
        "conche.entries": 3,
        "conche.mode": "hybrid",
        "conche.top_k": 5,
    }


async def test_entities_are_told_up_to_their_decoding(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """Decoding is done off the loop, and can be waited for."""
    assert (await client.post("/ner", json={"inputs": ["a red door"]})).status_code == 200
    assert _tree(spans.get_finished_spans()) == {
        "POST /ner": {"tokenize": {}, "queue": {}, "batch": {"run": {}}, "decode": {}}
    }


async def test_requests_that_share_a_run_each_tell_of_it(
    models_folder: Path, spans: InMemorySpanExporter
) -> None:
    """By the number of the run they find each other, though neither knows the other's trace."""
    traces = Tracing(SimpleSpanProcessor(spans))
    # Held back until both are there, or for ever.
    limits = {"max_wait_ms": 1000, "max_batch_size": 2}
    async with _traced(models_folder, traces, batching=limits, faq_store="none") as client:
        await asyncio.gather(*(client.post("/embed", json={"inputs": ["a red door"]}) for _ in range(2)))
    runs = [_attributes(span) for span in spans.get_finished_spans() if span.name == "batch"]
    assert [(run["conche.rows"], run["conche.batch.rows"]) for run in runs] == [(1, 2), (1, 2)]
    assert runs[0]["conche.batch.number"] == runs[1]["conche.batch.number"]
    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 2


async def test_the_callers_trace_goes_on(client: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    """As W3C's trace context has it."""
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "shop=1"}
    await client.post("/embed", json={"inputs": ["a red door"]}, headers=headers)
    request = _named(spans, "POST /embed")
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.parent.is_remote
    assert {f"{span.context.trace_id:032x}" for span in spans.get_finished_spans()} == {TRACE}


async def test_what_the_caller_does_not_keep_is_not_kept(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """Parts of a trace that nobody has are of no use; the log names it all the same."""
    await client.post(
        "/embed", json={"inputs": ["a red door"]}, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}
    )
    assert spans.get_finished_spans() == ()
    page = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert "trace_id" not in page.text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-zz",
        "x" * 5000,
    ],
)
async def test_a_malformed_parent_is_as_none(
    client: httpx.AsyncClient, spans: InMemorySpanExporter, value: str
) -> None:
    """Whatever a caller sends, it gets its answer, in a trace of its own."""
    answer = await client.post("/embed", json={"inputs": ["a"]}, headers={"traceparent": value})
    assert answer.status_code == 200
    request = _named(spans, "POST /embed")
    assert request.parent is None
    assert f"{request.context.trace_id:032x}" != TRACE


async def test_of_two_parents_neither_is_believed(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """One of them was added by somebody who does not know of the other."""
    headers = [("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2
    await client.post("/embed", json={"inputs": ["a"]}, headers=headers)
    assert _named(spans, "POST /embed").parent is None


@pytest.mark.parametrize("bytes_", [b"\xff\xfe", b"00-\xe9", b"a\tb"])
async def test_headers_may_hold_any_bytes(
    client: httpx.AsyncClient, spans: InMemorySpanExporter, bytes_: bytes
) -> None:
    """HTTP lets them through."""
    headers = [(name, bytes_) for name in (b"traceparent", b"tracestate", b"baggage")]
    assert (await client.post("/embed", json={"inputs": ["a"]}, headers=headers)).status_code == 200


async def test_errors_are_told_by_their_code(client: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    """A caller's mistake is none of the server's, and is not marked as one."""
    await client.post("/embed", json={"inputs": ["a red door " * 1000]})
    tokenizing, request = _named(spans, "tokenize"), _named(spans, "POST /embed")
    assert _attributes(request)["error.type"] == _attributes(tokenizing)["error.type"] == "input_too_long"
    assert (request.status.is_unset, tokenizing.status.is_ok) == (True, False)
    spans.clear()
    await client.get("/nowhere")
    assert _attributes(_named(spans, "GET"))["http.response.status_code"] == 404
    assert "http.route" not in _attributes(_named(spans, "GET"))


async def test_a_run_that_fails_is_told_as_failed(
    client: httpx.AsyncClient, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that fail are those whose traces are looked at; why it failed may quote a text."""

    def fail(*_: object) -> None:
        raise RuntimeError(SECRET)

    services = client.app.state.services  # type: ignore[attr-defined]  # put there by the fixture
    monkeypatch.setattr(services.embedder._model._engine, "run", fail)
    assert (await client.post("/embed", json={"inputs": ["a"]})).status_code == 503
    kept = spans.get_finished_spans()
    assert _tree(kept) == {"POST /embed": {"tokenize": {}, "queue": {}, "batch": {"run": {}}}}
    failed = {span.name for span in kept if not span.status.is_unset}
    assert failed == {"POST /embed", "batch", "run"}
    assert SECRET not in _everything(kept)


async def test_no_span_holds_what_a_caller_sent(
    client: httpx.AsyncClient, spans: InMemorySpanExporter
) -> None:
    """Spans leave the machine, and are kept by others than texts are."""
    await send_odd_requests(client)
    kept = spans.get_finished_spans()
    assert len([span for span in kept if span.kind.name == "SERVER"]) >= 15
    assert WORD not in _everything(kept)


def _everything(spans: Sequence[ReadableSpan]) -> str:
    return "".join(span.to_json() for span in spans).encode().decode("unicode_escape").lower()


async def test_probes_are_not_traced(client: httpx.AsyncClient, spans: InMemorySpanExporter) -> None:
    """They come every few seconds, and are all alike."""
    for path in ("/livez", "/readyz", "/health", "/metrics"):
        await client.get(path)
    assert spans.get_finished_spans() == ()


async def test_a_trace_has_an_end(spans: InMemorySpanExporter) -> None:
    """A request of ten thousand texts is told by its beginning, and what came after by a number."""
    with Tracing(SimpleSpanProcessor(spans)).begin([], {}) as trace:
        for _ in range(MOST_SPANS + 10):
            with stage("tokenize"):
                pass
        trace.add(PastStage("queue", 0.0, 1.0, {}))
        trace.end(method="POST", route="/embed", status=200, code=None)
    with stage("tokenize"):  # by what goes on when the request is over
        pass
    assert len(spans.get_finished_spans()) == MOST_SPANS + 1
    assert _attributes(_named(spans, "POST /embed"))["conche.spans_dropped"] == 11


async def test_work_that_outlives_its_request_adds_nothing(spans: InMemorySpanExporter) -> None:
    """A trace is sent when its request is over; re-embedding a collection goes on for minutes."""
    over = asyncio.Event()

    async def go_on() -> None:
        await over.wait()
        assert trace_of_request() is not None
        with stage("tokenize"):
            pass

    with Tracing(SimpleSpanProcessor(spans)).begin([], {}):
        task = asyncio.create_task(go_on())
    over.set()
    await task
    assert [span.name for span in spans.get_finished_spans()] == ["request"]


async def test_log_lines_and_exemplars_name_the_trace(
    client: httpx.AsyncClient, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """From a slow panel to a trace, and from there to the log."""
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    handler = Lines()
    logger = logging.getLogger("service.access")
    caplog.set_level(logging.INFO, logger.name)
    logger.addHandler(handler)
    try:
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "r-1"}
        await client.post("/search", json={"query": "reset my password"}, headers=headers)
    finally:
        logger.removeHandler(handler)
    assert [(line["request_id"], line["trace_id"]) for line in lines] == [("r-1", TRACE)]

    page = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    exemplars = {
        family.name: sample.exemplar.labels
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
        if sample.exemplar
    }
    assert {tuple(labels.items()) for labels in exemplars.values()} == {(("trace_id", TRACE),)}
    assert exemplars.keys() == {
        "conche_request_duration_seconds",
        "conche_tokenize_duration_seconds",
        "conche_queue_duration_seconds",
        "conche_inference_duration_seconds",
        "conche_faq_embed_duration_seconds",
        "conche_faq_lookup_duration_seconds",
    }
    plain = await client.get("/metrics")
    assert TRACE not in plain.text
    assert " # " not in plain.text


class Collector:
    """Takes spans over OTLP/HTTP on this machine, as a collector would."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                sent = ExportTraceServiceRequest.FromString(body)
                collector.requests.append((self.path, dict(self.headers.items()), sent))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on this machine's loopback."""
    collector = Collector()
    yield collector
    collector.close()


async def test_a_collector_gets_what_the_standard_variables_say(
    models_folder: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs collectors knows those variables, and sets them for every service alike."""
    for name, value in {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_SERVICE_NAME": "faq-of-the-shop",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "NO_PROXY": "*",
    }.items():
        monkeypatch.setenv(name, value)
    app = create_app(tiny_settings(models_folder, tracing=True, faq_store="none"))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://conche.test") as client:
            await client.post("/embed", json={"inputs": [SECRET]})
    # The app has closed: what it had was sent.
    [(path, headers, sent)] = collector.requests
    assert path == "/v1/traces"
    assert headers["x-tenant"] == "blue"
    [resource] = sent.resource_spans
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "faq-of-the-shop"
    assert about["deployment.environment.name"] == "test"
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["POST /embed", "batch", "queue", "run", "tokenize"]
    assert WORD not in str(sent)


@pytest.mark.parametrize(
    ("variables", "name"),
    [({}, "conche"), ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop"}, "shop")],
)
def test_the_service_has_a_name(
    monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter, variables: dict[str, str], name: str
) -> None:
    """The SDK's own would be "unknown_service"."""
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    with Tracing(SimpleSpanProcessor(spans)).begin([], {}):
        pass
    [span] = spans.get_finished_spans()
    assert span.resource.attributes["service.name"] == name


async def test_a_sampler_is_chosen_by_its_variable(
    models_folder: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are too many for a busy service."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    traces = Tracing(SimpleSpanProcessor(spans))
    async with _traced(models_folder, traces, faq_store="none") as client:
        assert (await client.post("/embed", json={"inputs": ["a"]})).status_code == 200
    assert spans.get_finished_spans() == ()


async def test_a_collector_that_is_gone_is_not_felt(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by a request nor by a stop, and no more of it is said than that spans were lost."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    traces = open_tracing()
    assert traces is not None
    async with asyncio.timeout(HANG_S), _traced(models_folder, traces, faq_store="none") as client:
        answers = [await client.post("/embed", json={"inputs": ["a"]}) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert "retrying" not in caplog.text


class _Hanging(SpanExporter):
    """Takes spans, and comes back when it is let go."""

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.let_go.wait()
        return SpanExportResult.FAILURE


async def test_a_collector_that_hangs_holds_nobody_up(
    models_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered while it hangs and the queue is full of spans; the stop does not wait for it."""
    exporter = _Hanging()
    processor = BatchSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=2)
    try:
        async with asyncio.timeout(HANG_S):
            async with _traced(models_folder, Tracing(processor), faq_store="none") as client:
                assert (await client.post("/embed", json={"inputs": ["a"]})).status_code == 200
                assert await asyncio.to_thread(exporter.asked.wait, HANG_S)
                for _ in range(5):
                    assert (await client.post("/embed", json={"inputs": ["a"]})).status_code == 200
        assert "the last spans were not sent" in caplog.text
    finally:
        exporter.let_go.set()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, console and none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0", "max_export_batch_size"),
    ],
)
def test_what_cannot_be_had_stops_the_start(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    """Whoever set it would look for traces in vain."""
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupError, match=re.escape(said)):
        create_app(tiny_settings(models_folder, tracing=True))


def test_the_standard_switch_counts(models_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set where a whole host is to send nothing."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    assert open_tracing() is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    assert open_tracing() is not None


def test_without_the_extra_the_start_says_what_to_install(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API alone comes with FastAPI, and makes no spans."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "service.tracing")
    with pytest.raises(StartupError, match=re.escape("pip install -e '.[tracing]'")):
        create_app(tiny_settings(models_folder, tracing=True))


def test_while_tracing_is_off_nothing_of_it_is_imported() -> None:
    """Neither by a process that serves, nor for FastAPI's own telemetry, which is not to be switched on."""
    program = (
        "import os, sys; os.environ['FASTAPI_OTEL_AUTO_CONFIGURE'] = 'true'; "
        "os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:9'; "
        "from service.app import create_app; from service.settings import Settings; "
        "app = create_app(Settings()); import service.cli.serve; "
        "heavy = [name for name in sys.modules if name.startswith(('opentelemetry.sdk', "
        "'opentelemetry.exporter', 'service.tracing', 'google.protobuf', 'requests'))]; "
        "sys.exit(f'imported: {heavy}' if heavy or app._native_telemetry.enabled() else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

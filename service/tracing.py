"""Traces as OpenTelemetry has them: spans of requests and their stages, sent by a thread of their own.

Imported only where tracing is on; needs the extra ``tracing``. Everything but the switch is set by
OpenTelemetry's own variables, most of which its SDK reads; those read here are ``OTEL_SDK_DISABLED``,
``OTEL_TRACES_EXPORTER`` and the choice of a protocol.

Spans hold names of the service's own, numbers, and the request's id. They hold no path, no query, no message
of an exception: any of these may quote what a caller sent. For the same reason FastAPI's own telemetry is
switched off (`service.app`).

A collector that is slow or gone costs its spans and nothing else: ended spans go into a bounded queue, and
what finds no place is dropped.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Final

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    format_trace_id,
    set_span_in_context,
    use_span,
)

from service.errors import ServiceError
from service.request_trace import Attribute, PastStage, RequestTrace, tracing_request

logger = logging.getLogger(__name__)

# Spans of one request; an import of ten thousand entries would have some thousands.
MOST_SPANS: Final = 200
_PROTOCOL: Final = "http/protobuf"
_CLOSE_S: Final = 1.5  # below the least that `conche serve` gives to closing


class TracingError(Exception):
    """Tracing cannot be set up; the message names the variable."""


class Tracing:
    """Begins the traces of one app; two in a process do not meet, since none is OpenTelemetry's global one.

    Args:
        processor: takes spans as they end; closed by `close`. None = spans are made and dropped, as with the
            exporter ``none``: ids go on through the log and to Milvus.
    """

    def __init__(self, processor: SpanProcessor | None) -> None:
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        if processor is not None:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("conche", metadata.version("conche"))

    @contextmanager
    def begin(
        self, headers: Iterable[tuple[bytes, bytes]], attributes: Mapping[str, Attribute]
    ) -> Iterator[RequestTrace]:
        """Measure a request, as part of its caller's trace if ``headers`` name one."""
        caller = propagate.extract(list(headers), context=Context(), getter=_HEADERS)
        clock = _Clock()
        span = self._tracer.start_span(
            "request", caller, SpanKind.SERVER, attributes=attributes, start_time=clock.now()
        )
        trace = _RequestTrace(self._tracer, span, clock)
        with use_span(span, record_exception=False, set_status_on_exception=False), tracing_request(trace):
            try:
                yield trace
            finally:
                trace.finish()

    def close(self) -> None:
        """Send what has ended, and take no more; a collector that does not answer is waited for a moment."""
        # The SDK would wait for half a minute; its own thread is none that keeps a process alive.
        closing = threading.Thread(target=self._provider.shutdown, name="conche-tracing-close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            logger.warning("the last spans were not sent within %g s", _CLOSE_S)


def open_tracing() -> Tracing | None:
    """Set up tracing as OpenTelemetry's variables say; None if they switch it off.

    Raises:
        TracingError: a variable asks for what is not there, or cannot be read.
    """
    if _variable("OTEL_SDK_DISABLED", "false") == "true":
        return None
    try:
        exporter = _exporter()
        return Tracing(None if exporter is None else BatchSpanProcessor(exporter))
    except ValueError as error:
        raise TracingError(f"a variable of OpenTelemetry cannot be used: {error}") from error


def _exporter() -> SpanExporter | None:
    kind = _variable("OTEL_TRACES_EXPORTER", "otlp")
    if kind == "none":
        return None
    if kind == "console":
        return ConsoleSpanExporter()
    if kind != "otlp":
        raise TracingError(f"OTEL_TRACES_EXPORTER is {kind}; there is otlp, console and none")
    protocol = _variable(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", _variable("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL)
    )
    if protocol != _PROTOCOL:
        raise TracingError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}; spans are sent by {_PROTOCOL} only, for which most "
            "collectors have port 4318"
        )
    # While a collector is gone, it would say so at each of several tries for each batch; the last is enough.
    logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.ERROR)
    return OTLPSpanExporter()


def _variable(name: str, default: str) -> str:
    return os.environ.get(name, "").strip().lower() or default


def _resource() -> Resource:
    """Who sends the spans: as the variables say, and called "conche" if they do not."""
    said = Resource.create()
    name = str(said.attributes[SERVICE_NAME])
    ours: dict[str, Attribute] = {}
    if name.startswith("unknown_service"):
        ours[SERVICE_NAME] = "conche"
    if SERVICE_VERSION not in said.attributes:
        ours[SERVICE_VERSION] = metadata.version("conche")
    return said.merge(Resource(ours))


class _Clock:
    """Times in nanoseconds since 1970, from the monotonic clock: a jump cannot tear a trace."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return time.monotonic_ns() + self._offset

    def at(self, monotonic_seconds: float) -> int:
        return int(monotonic_seconds * 1e9) + self._offset


class _RequestTrace:
    def __init__(self, tracer: Tracer, span: Span, clock: _Clock) -> None:
        self._tracer = tracer
        self._span = span
        self._clock = clock
        self._spans_left = MOST_SPANS
        self._dropped = 0
        self.trace_id = format_trace_id(span.get_span_context().trace_id)

    @property
    def recorded(self) -> bool:
        return self._span.is_recording() and self._span.get_span_context().trace_flags.sampled

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        self._span.set_attributes(_named(attributes))

    @contextmanager
    def stage(self, name: str, attributes: Mapping[str, Attribute]) -> Iterator[None]:
        if not self._has_room():
            yield
            return
        span = self._tracer.start_span(name, attributes=_named(attributes), start_time=self._clock.now())
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            # The kind only: a message may quote a text.
            _fail(span, error.code if isinstance(error, ServiceError) else type(error).__qualname__)
            raise
        finally:
            span.end(self._clock.now())

    def add(self, stage: PastStage) -> None:
        self._add(stage, None)

    def _add(self, stage: PastStage, parent: Context | None) -> None:
        if not self._has_room():
            return
        span = self._tracer.start_span(
            stage.name,
            parent,
            attributes=_named(stage.attributes),
            start_time=self._clock.at(stage.started_at),
        )
        within = set_span_in_context(span)
        for part in stage.parts:
            self._add(part, within)
        if stage.error is not None:
            _fail(span, stage.error)
        span.end(self._clock.at(stage.ended_at))

    def end(self, *, method: str, route: str | None, status: int, code: str | None) -> None:
        span = self._span
        span.update_name(method if route is None else f"{method} {route}")
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.response.status_code", status)
        if route is not None:
            span.set_attribute("http.route", route)
        if status >= 500:  # a caller's mistake is none of the server's
            _fail(span, code or str(status))
        elif code is not None:
            span.set_attribute("error.type", code)
        if self._dropped:
            span.set_attribute("conche.spans_dropped", self._dropped)

    def finish(self) -> None:
        self._span.end(self._clock.now())

    def _has_room(self) -> bool:
        """Whether another span may be made: of a trace that is kept, whose request is not over."""
        if not self.recorded:
            return False
        if not self._spans_left:
            self._dropped += 1
            return False
        self._spans_left -= 1
        return True


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {f"conche.{name}": value for name, value in attributes.items()}


class _Headers(Getter[list[tuple[bytes, bytes]]]):
    """Reads ASGI's headers, whose names are in lower case."""

    def get(self, carrier: list[tuple[bytes, bytes]], key: str) -> list[str] | None:
        wanted = key.lower().encode("latin-1")
        values = [value.decode("latin-1") for name, value in carrier if name == wanted]
        # Of two parents neither is to be believed.
        return None if not values or (wanted == b"traceparent" and len(values) > 1) else values

    def keys(self, carrier: list[tuple[bytes, bytes]]) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


_HEADERS: Final = _Headers()

"""Every metric of the service: one registry per ``Metrics``, and the observers that feed it.

Names begin with ``conche_`` and are in base units. Label values come from the service, never from a caller:
routes are templates, methods and error codes a closed set, models those that were loaded. All series are
there before the first request, so that a rate has a zero to start from and an alert on absence means absence.
"""

import bisect
import collections
import math
import platform
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from importlib import metadata
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from model.runtime.bundle import Manifest
from model.runtime.label_schemes import LabelScheme
from service.batching import BatchingLimits, BatchStats
from service.errors import ReadOnlyStoreError, ServiceError, StorageError, StorageFullError
from service.faq.embedding import model_fingerprint
from service.faq.store import FaqStore
from service.metric_sums import Snapshot, summed
from service.request_trace import recorded_trace_id
from service.team import Gathered

UNMATCHED: Final = "unmatched"
OTHER: Final = "other"
TEXT_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Answers that say "not now" or "not so much": what an operator's limits and the load refused.
_REFUSALS: Final = (
    "input_too_long",
    "overloaded",
    "payload_too_large",
    "rate_limited",
    "request_timeout",
    "timeout",
    "too_many_characters",
    "too_many_concurrent",
    "too_many_inputs",
    "unavailable",
)
# Why a connection is closed before it brings a request, or without waiting for the rest.
_CUTS: Final = (
    "failed_handshake",
    "headers_too_large",
    "malformed_request",
    "silent",
    "slow_handshake",
    "slow_head",
    "slow_reader",
    "too_many",
    "too_many_of_address",
    "unread_body",
)
# Why a write of the FAQ failed that was right in itself.
_WRITE_FAILURES: Final = (StorageError.code, StorageFullError.code, ReadOnlyStoreError.code)
# Label values of one kind that are kept; a fault in a caller of this module must not fill the memory.
_MOST_VALUES: Final = 100

# Enough to tell models apart.
_FINGERPRINT_DIGITS: Final = 12

# Steps of a millisecond where short requests are; up to the longest that a request may take.
_REQUEST_BUCKETS: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.035, 0.05),
    *(0.075, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
# Stages are parts of a request: finer at the lower end.
_STAGE_BUCKETS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_SIZE_BUCKETS: Final = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_TOKEN_BUCKETS: Final = (8, 16, 32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16_384, 32_768)
_SCORE_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_RATIO_BUCKETS: Final = (1.0, 1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0)


class WatchedModel(Protocol):
    """What the gauges read of a served model."""

    limits: BatchingLimits

    @property
    def healthy(self) -> bool:
        """Whether work submitted now would be run."""
        ...

    @property
    def streams(self) -> int:
        """Runs at a time, now."""
        ...

    @property
    def queued_items(self) -> int:
        """Places taken."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Tokens taken."""
        ...

    @property
    def queue_limit_tokens(self) -> int:
        """Tokens that may wait now."""
        ...


class WatchedCertificate(Protocol):
    """What the gauge reads of a certificate."""

    @property
    def expires_at(self) -> float:
        """In seconds since 1970."""
        ...


class Metrics:
    """The registry of one app and everything in it; two apps in one process do not meet."""

    def __init__(self, *, version: str | None = None) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(_ThreadsCollector())
        self._routes = _Bounded(UNMATCHED)
        self._codes = _Bounded(OTHER)
        self._keys = _Bounded(OTHER)

        self._requests = Counter(
            "conche_requests_total",
            "Requests answered; code is that of the error, empty if there was none.",
            ("route", "method", "status", "code"),
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "conche_request_duration_seconds",
            "From the first byte of a request to the last of its answer.",
            ("route",),
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "conche_refusals_total",
            "Requests refused by a limit or for want of capacity.",
            ("reason",),
            registry=self.registry,
        )
        self._key_requests = Counter(
            "conche_key_requests_total",
            "Requests answered, by the name of their API key; those without a known key are not here.",
            ("key", "status"),
            registry=self.registry,
        )
        self._keys_in_force = Gauge(
            "conche_api_keys", "API keys in force; 0 = everything is open.", registry=self.registry
        )
        self._key_reload_failures = Counter(
            "conche_api_keys_reload_failures_total",
            "Changes of the file of API keys that could not be used; the old keys stayed in force.",
            registry=self.registry,
        )
        self._connections = Gauge(
            "conche_connections",
            "Connections open, those to a port for metrics only not counted.",
            registry=self.registry,
        )
        self._connections_limit = Gauge(
            "conche_connections_limit", "Connections that may be open.", registry=self.registry
        )
        self._cuts = Counter(
            "conche_connections_cut_total",
            "Connections refused or closed for what came before a request, or did not come.",
            ("reason",),
            registry=self.registry,
        )
        for reason in _CUTS:
            self._cuts.labels(reason)
        self._ready = Gauge(
            "conche_ready", "1 = /readyz is green, 0 = it says not to send requests.", registry=self.registry
        )
        self._families = _ModelFamilies(self.registry)
        self._models = Info("conche_model", "What was loaded.", ("model",), registry=self.registry)
        self.faq = FaqMetrics(self.registry)
        build = Info("conche_build", "What is running.", registry=self.registry)
        build.info(
            {"version": version or metadata.version("conche"), "python_version": platform.python_version()}
        )
        for reason in _REFUSALS:
            self._refusals.labels(reason)

    # -- fed by the application ------------------------------------------------------------------------------

    def expect_requests(
        self,
        routes: Mapping[tuple[str, str], Collection[tuple[int, str]]],
        *,
        on_any: Collection[tuple[int, str]],
        on_wrong_method: Collection[tuple[int, str]],
        on_no_route: Collection[tuple[int, str]],
    ) -> None:
        """Create the series of the app's routes before the first request.

        Args:
            routes: (HTTP status, error code) of what may go wrong, by method and route template; errors may
                share a code.
            on_any: the same, on every route.
            on_wrong_method: the same, of requests with GET or POST where the route has only the other.
            on_no_route: the same, of requests to no route at all.
        """
        methods: dict[str, set[str]] = {}
        for method, route in routes:
            methods.setdefault(route, set()).add(method)
        expected = [("GET", UNMATCHED, error) for error in on_no_route]
        expected += [("POST", UNMATCHED, error) for error in on_no_route]
        for route, taken in methods.items():
            expected += [(method, route, (200, "")) for method in taken]
            expected += [
                (method, route, error) for method in taken for error in {*on_any, *routes[method, route]}
            ]
            expected += [
                (method, route, error) for method in {"GET", "POST"} - taken for error in on_wrong_method
            ]
        for method, route, (status, code) in expected:
            self._routes.know(route)
            self._codes.know(code)
            self._request_seconds.labels(route)
            self._requests.labels(route, method, str(status), code)

    def observe_request(
        self,
        *,
        method: str,
        route: str,
        status: int,
        code: str | None,
        seconds: float,
        key: str | None = None,
        trace_id: str | None = None,
    ) -> None:
        """Count one request.

        Args:
            method: any; unusual ones count as "other".
            route: its route's template; anything unknown counts as "unmatched".
            status: sent, 100 to 599.
            code: of the error; None if there was none.
            seconds: it took.
            key: name of its API key; None if it needed none, or has none.
            trace_id: of its trace, shown as an exemplar; None if none is kept.
        """
        route = self._routes(route)
        code = self._codes(code) if code else ""
        method = method if method in _METHODS else OTHER
        shown_status = str(status) if 100 <= status <= 599 else OTHER
        self._requests.labels(route, method, shown_status, code).inc()
        self._request_seconds.labels(route).observe(seconds, _exemplar(trace_id))
        if code in _REFUSALS:
            self._refusals.labels(code).inc()
        if key is not None:
            self._key_requests.labels(self._keys(key), shown_status).inc()

    def watch_keys(self, keys: Sized) -> None:
        """Show how many API keys are in force."""
        self._keys_in_force.set_function(lambda: len(keys))

    def watch_readiness(self, not_ready: Callable[[], Collection[str]]) -> None:
        """Show whether requests should be sent; ``not_ready`` gives the reasons why not, none = send them."""
        self._ready.set_function(lambda: float(not not_ready()))

    def watch_connections(self, connections: Sized, *, limit: int) -> None:
        """Show how many connections are open, of ``limit``."""
        self._connections.set_function(lambda: len(connections))
        self._connections_limit.set(limit)

    def watch_certificate(self, certificate: WatchedCertificate) -> None:
        """Show when the certificate in force expires; without TLS there is no such series."""
        gauge = Gauge(
            "conche_tls_certificate_expiry_timestamp_seconds",
            "When the certificate expires, in seconds since 1970.",
            registry=self.registry,
        )
        gauge.set_function(lambda: certificate.expires_at)

    def on_connection_cut(self, reason: str) -> None:
        """Note a connection that was refused or closed; a ``reason`` of no known kind counts as "other"."""
        self._cuts.labels(reason if reason in _CUTS else OTHER).inc()

    def on_key_reload_failure(self) -> None:
        """Note that a change of the file of API keys could not be used."""
        self._key_reload_failures.inc()

    def observe_model(self, manifest: Manifest) -> "ModelMetrics":
        """Create the series of one model, and what feeds them.

        Raises:
            ValueError: it is a tagger's, and its labels make no scheme.
        """
        entity_types = _entity_types(manifest)
        self._models.labels(manifest.name).info(
            {
                "task": manifest.task,
                "family": manifest.architecture.family,
                "source": manifest.source.name,
                "revision": manifest.source.revision or "",
                "licence": manifest.licence,
                "precision": manifest.precision.compute,
                "fingerprint": model_fingerprint(manifest)[:_FINGERPRINT_DIGITS],
            }
        )
        return ModelMetrics(self._families, manifest.name, entity_types=entity_types)

    def model_failed(self, name: str) -> None:
        """Show that a model which was to be loaded takes no work; its series are there from the start."""
        self._families.healthy.labels(name).set(0)

    def forget_model(self, name: str) -> None:
        """Show the state of a model no more, and let go of it; what it did stays counted."""
        self._models.remove(name)
        self._families.forget(name)

    # -- read by Prometheus ----------------------------------------------------------------------------------

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Every series, as the ``Accept`` header asks for it.

        OpenMetrics only for those who name it and like it no less than text: a wildcard is no wish for it.

        Returns:
            The body and its content type, which always agree.
        """
        return _rendered(_WithoutCreationTimes(self.registry), accept)

    def snapshot(self) -> Snapshot:
        """Every series, to be added to those of other processes."""
        return [
            [
                family.name,
                family.documentation,
                family.type,
                family.unit,
                [
                    [
                        sample.name,
                        dict(sample.labels),
                        sample.value,
                        None
                        if (shown := sample.exemplar) is None
                        else [shown.labels, shown.value, shown.timestamp],
                    ]
                    for sample in family.samples
                ],
            ]
            for family in _WithoutCreationTimes(self.registry).collect()
        ]


def render_sums(gathered: Gathered, *, size: int, accept: str = "") -> tuple[bytes, str]:
    """The series of all workers as one page; as `Metrics.render`.

    Args:
        gathered: their answers to `service.team.METRICS`.
        size: how many workers there are to be.
        accept: as `Metrics.render` takes it.
    """
    living = {number: snapshot for number, snapshot in gathered.answers.items() if snapshot is not None}
    return _rendered(_Summed(summed(living, gathered.ended or []), gathered, size), accept)


def _rendered(series: Collector, accept: str) -> tuple[bytes, str]:
    version = openmetrics_version(accept)
    if version is None:
        return generate_latest(series), TEXT_CONTENT_TYPE
    body: bytes = generate_openmetrics(series)  # type: ignore[no-untyped-call]
    return body, f"application/openmetrics-text; version={version}; charset=utf-8"


class ModelMetrics:
    """The series of one model; an ``InferenceObserver``.

    Args:
        families: what is measured of models.
        model: its name.
        entity_types: that a tagger can find; series are made of no others.
    """

    def __init__(self, families: "_ModelFamilies", model: str, *, entity_types: Sequence[str] = ()) -> None:
        self._tokenize_seconds = families.tokenize_seconds.labels(model)
        self._queue_seconds = families.queue_seconds.labels(model)
        self._inference_seconds = families.inference_seconds.labels(model)
        self._stream_seconds = families.stream_seconds.labels(model)
        self._batch_size = families.batch_size.labels(model)
        self._batch_tokens = families.batch_tokens.labels(model)
        self._padding_ratio = families.padding_ratio.labels(model)
        self._failed_batches = families.failed_batches.labels(model)
        self._texts = families.texts.labels(model)
        self._tokens = families.tokens.labels(model)
        self._truncated = families.truncated.labels(model)
        self._queue_depth_items = families.queue_depth_items.labels(model)
        self._queue_depth_tokens = families.queue_depth_tokens.labels(model)
        self._queue_limit_items = families.queue_limit_items.labels(model)
        self._queue_limit_tokens = families.queue_limit_tokens.labels(model)
        self._healthy = families.healthy.labels(model)
        self._threads = families.threads.labels(model)
        self._streams = families.streams.labels(model)
        self._batch_limit_tokens = families.batch_limit_tokens.labels(model)
        self._entities = {name: families.entities.labels(model, name) for name in entity_types}

    def watch(self, model: WatchedModel, *, threads: int) -> None:
        """Show the state of ``model`` at each scrape, for as long as somebody else keeps it.

        A gauge with a function is a cycle: what the function kept would outlive the model's end until the
        garbage collector looks at what is old.
        """
        kept = weakref.ref(model)

        def show(gauge: Gauge, read: Callable[[WatchedModel], float]) -> None:
            gauge.set_function(lambda: 0.0 if (there := kept()) is None else read(there))

        show(self._queue_depth_items, lambda there: there.queued_items)
        show(self._queue_depth_tokens, lambda there: there.queued_tokens)
        self._queue_limit_items.set(model.limits.max_queue_items)
        show(self._queue_limit_tokens, lambda there: there.queue_limit_tokens)
        self._batch_limit_tokens.set(model.limits.max_batch_tokens)
        show(self._healthy, lambda there: float(there.healthy))
        self._threads.set(threads)
        show(self._streams, lambda there: there.streams)

    def on_tokenize(self, seconds: float) -> None:
        """Note that the texts of one request were tokenised."""
        self._tokenize_seconds.observe(seconds, _exemplar(recorded_trace_id()))

    def on_batch(self, stats: BatchStats) -> None:
        """Note one run."""
        if stats.trace_ids:
            for seconds, trace_id in zip(stats.queue_seconds, stats.trace_ids, strict=True):
                self._queue_seconds.observe(seconds, _exemplar(trace_id))
        else:
            self._queue_seconds.observe_all(stats.queue_seconds)
        # Of the requests that shared the run, any that is traced shows it.
        traced = next(filter(None, stats.trace_ids), None)
        self._inference_seconds.observe(stats.run_seconds, _exemplar(traced))
        self._stream_seconds.inc(stats.stream_seconds)
        self._batch_size.observe(stats.size)
        self._batch_tokens.observe(stats.padded_tokens)
        self._padding_ratio.observe(stats.padded_tokens / max(stats.tokens, 1))
        self._tokens.inc(stats.tokens)
        if stats.failed:
            self._failed_batches.inc()

    def on_texts(self, *, texts: int, truncated: int) -> None:
        """Note the texts of one answered request; their tokens were counted as they were run."""
        self._texts.inc(texts)
        self._truncated.inc(truncated)

    def on_entities(self, found: Mapping[str, int]) -> None:
        """Note the entities of one answered request, by type; only the model's own types are counted."""
        for name, count in found.items():
            if name in self._entities:
                self._entities[name].inc(count)


class FaqMetrics:
    """The series of the FAQ, over all collections: names of collections are callers' and no labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._store = _FaqStoreCollector()
        registry.register(self._store)
        self._lookup_seconds = Histogram(
            "conche_faq_lookup_duration_seconds",
            "Looking up the queries of one search, its wait for a thread included; embedding is not.",
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self._queries = Counter("conche_faq_queries_total", "Queries searched for.", registry=registry)
        self._unanswered = Counter(
            "conche_faq_unanswered_queries_total", "Queries that got no hit.", registry=registry
        )
        self._best_score = Histogram(
            "conche_faq_best_score",
            "Score of the best entry for each query, shown or not; 0 if there is none.",
            buckets=_SCORE_BUCKETS,
            registry=registry,
        )
        self._embed_seconds = Histogram(
            "conche_faq_embed_duration_seconds",
            "Embedding the queries of one search, their wait in the queue included.",
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self._index_seconds = Histogram(
            "conche_faq_index_duration_seconds",
            "Bringing the index of one collection up to what the store holds.",
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self._written = Counter(
            "conche_faq_written_entries_total", "Entries added, replaced or sent again.", registry=registry
        )
        self._deleted = Counter("conche_faq_deleted_entries_total", "Entries deleted.", registry=registry)
        self._write_failures = Counter(
            "conche_faq_write_failures_total",
            "Writes that the store, or the index behind it, could not do; reason is the error's code.",
            ("reason",),
            registry=registry,
        )
        for reason in _WRITE_FAILURES:
            self._write_failures.labels(reason)
        self._unproven = Counter(
            "conche_faq_unproven_queries_total",
            "Queries in Milvus of which so many entries might be among the best that not all were looked at.",
            registry=registry,
        )

    def watch(self, store: FaqStore, *, fingerprint: str) -> None:
        """Show what ``store`` holds at each scrape; collections of other models than this one stand out."""
        self._store.store, self._store.fingerprint = store, fingerprint

    def on_search(
        self, *, unanswered: int, best: Sequence[float], embed_seconds: float, seconds: float
    ) -> None:
        """See `service.faq.catalogue.FaqObserver.on_search`."""
        exemplar = _exemplar(recorded_trace_id())
        self._embed_seconds.observe(embed_seconds, exemplar)
        self._lookup_seconds.observe(seconds, exemplar)
        self._queries.inc(len(best))
        self._unanswered.inc(unanswered)
        for score in best:
            self._best_score.observe(score)

    def on_write(self, *, written: int, deleted: int) -> None:
        """See `service.faq.catalogue.FaqObserver.on_write`."""
        self._written.inc(written)
        self._deleted.inc(deleted)

    def on_write_failure(self, code: str) -> None:
        """See `service.faq.catalogue.FaqObserver.on_write_failure`."""
        self._write_failures.labels(code if code in _WRITE_FAILURES else StorageError.code).inc()

    def on_index(self, seconds: float) -> None:
        """See `service.faq.catalogue.FaqObserver.on_index`."""
        self._index_seconds.observe(seconds)

    def on_unproven(self, queries: int) -> None:
        """Note queries that ended at the bound of what is looked at; see `service.faq.milvus_search`."""
        self._unproven.inc(queries)


class RowHistogram(Histogram):
    """A histogram that takes what was seen of all rows of a batch at once, in a fifth of the time."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Do as ``observe`` with each of ``amounts``, 0 or more."""
        # The library has no such method: these are its own counters, which `observe` adds to one by one.
        self._raise_if_not_observable()  # type: ignore[no-untyped-call]  # the library says nothing of it
        places = collections.Counter(bisect.bisect_left(self._upper_bounds, amount) for amount in amounts)
        self._sum.inc(sum(amounts))
        for place, rows in places.items():
            self._buckets[place].inc(rows)


class _ModelFamilies:
    """What is measured of each model; every family has the label ``model``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str) -> Counter:
            return Counter(f"conche_{name}_total", help_text, ("model",), registry=registry)

        def gauge(name: str, help_text: str) -> Gauge:
            return Gauge(f"conche_{name}", help_text, ("model",), registry=registry)

        def histogram(name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"conche_{name}", help_text, ("model",), buckets=buckets, registry=registry)

        self.tokenize_seconds = histogram(
            "tokenize_duration_seconds",
            "Tokenising the texts of a request, its wait for a thread included.",
            _STAGE_BUCKETS,
        )
        self.queue_seconds = RowHistogram(
            "conche_queue_duration_seconds",
            "From the admission of a text to the start of its run.",
            ("model",),
            buckets=_STAGE_BUCKETS,
            registry=registry,
        )
        self.inference_seconds = histogram(
            "inference_duration_seconds", "One run of the model.", _STAGE_BUCKETS
        )
        self.stream_seconds = counter(
            "inference_stream_seconds",
            "Seconds of streams that runs took; those of idle ones too, where a run has their threads.",
        )
        self.batch_size = histogram("batch_size", "Rows of a batch.", _SIZE_BUCKETS)
        self.batch_tokens = histogram("batch_tokens", "Tokens that layers compute at once.", _TOKEN_BUCKETS)
        self.padding_ratio = histogram(
            "padding_ratio",
            "Tokens that layers compute in a batch over those of its texts; 1 = those alone.",
            _RATIO_BUCKETS,
        )
        self.failed_batches = counter("failed_batches", "Runs of the model that failed.")
        self.texts = counter("texts", "Texts answered.")
        self.tokens = counter("tokens", "Tokens run through the model, padding not counted.")
        self.truncated = counter("truncated_texts", "Texts cut to what the model reads.")
        self.queue_depth_items = gauge("queue_depth_items", "Texts waiting.")
        self.queue_depth_tokens = gauge("queue_depth_tokens", "Tokens waiting.")
        self.queue_limit_items = gauge("queue_limit_items", "Texts that may wait.")
        self.queue_limit_tokens = gauge("queue_limit_tokens", "Tokens that may wait now.")
        self.batch_limit_tokens = gauge("batch_limit_tokens", "Tokens that a batch may have, with padding.")
        self.healthy = gauge("model_healthy", "1 = the model takes work, 0 = it does not.")
        self.threads = gauge("inference_threads", "Threads that run the model, of all runs at a time.")
        self.streams = gauge("inference_streams", "Runs at a time, now.")
        self.entities = Counter(
            "conche_entities_total",
            "Entities of answered requests, by the types that the model knows.",
            ("model", "label"),
            registry=registry,
        )

    def forget(self, model: str) -> None:
        """Drop what shows the state of a model."""
        for family in (
            self.queue_depth_items,
            self.queue_depth_tokens,
            self.queue_limit_items,
            self.queue_limit_tokens,
            self.batch_limit_tokens,
            self.healthy,
            self.threads,
            self.streams,
        ):
            family.remove(model)


def _entity_types(manifest: Manifest) -> tuple[str, ...]:
    if manifest.task != "token-classification":
        return ()
    return LabelScheme.from_labels(manifest.labels, manifest.label_scheme).entity_types


def _exemplar(trace_id: str | None) -> dict[str, str] | None:
    """What leads from a bucket to a trace that fell into it; shown in OpenMetrics only."""
    return None if trace_id is None else {"trace_id": trace_id}


def openmetrics_version(accept: str) -> str | None:
    """The version of OpenMetrics to answer with; None = the plain text format.

    Args:
        accept: the request's ``Accept`` header; empty if it had none.
    """
    text_weight = 0.0
    wishes: dict[str, float] = {}
    for media_range in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in media_range.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        weight = _weight(values.get("q", "1"))
        if media_type in {"text/plain", "text/*", "*/*"}:
            text_weight = max(text_weight, weight)
        elif media_type == "application/openmetrics-text":
            version = values.get("version", "1.0.0").strip('"')
            wishes[version] = max(wishes.get(version, 0.0), weight)
    for version in sorted(
        {"1.0.0", "0.0.1"} & set(wishes), key=lambda known: (-wishes[known], known != "1.0.0")
    ):
        if wishes[version] > 0 and wishes[version] >= text_weight:
            return version
    return None


def _weight(text: str) -> float:
    """A quality value; 0 for what is none, so that a malformed wish is not granted."""
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if math.isfinite(weight) and 0 <= weight <= 1 else 0.0


class _Bounded:
    """Lets label values through up to a number of them, and one stand-in for all others."""

    def __init__(self, stand_in: str) -> None:
        self._known = {stand_in}
        self._stand_in = stand_in

    def know(self, value: str) -> None:
        self._known.add(value)

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= _MOST_VALUES:
                return self._stand_in
            self._known.add(value)
        return value


class _WithoutCreationTimes(Collector):
    """Leaves out the ``_created`` series, which double the page and which hardly anyone reads.

    The client library can leave them out as well, but only by a switch for the whole process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            kept = Metric(family.name, family.documentation, family.type, family.unit)
            kept.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield kept


class _Summed(Collector):
    """Families of a snapshot, and those that only a supervisor can tell."""

    def __init__(self, snapshot: Snapshot, gathered: Gathered, size: int) -> None:
        self._snapshot = snapshot
        self._gathered = gathered
        self._size = size

    def collect(self) -> Iterator[Metric]:
        for name, help_text, kind, unit, samples in self._snapshot:
            family = Metric(name, help_text, kind, unit)
            for sample, labels, value, exemplar in samples:
                family.add_sample(
                    sample,
                    labels,
                    math.nan if value is None else value,
                    exemplar=None if exemplar is None else Exemplar(*exemplar),
                )
            yield family
        yield GaugeMetricFamily("conche_workers", "Worker processes that there are to be.", value=self._size)
        yield GaugeMetricFamily(
            "conche_workers_ready",
            "Worker processes that have started and not ended.",
            value=self._gathered.ready,
        )
        restarts = CounterMetricFamily(
            "conche_worker_restarts", "Worker processes that were started anew.", labels=("reason",)
        )
        for reason, count in self._gathered.restarts.items():
            restarts.add_metric((reason,), count)
        yield restarts


class _FaqStoreCollector(Collector):
    """What the FAQ's store holds, asked once a scrape; no figures while it cannot be read.

    Attributes:
        store: None = there is no FAQ, and so nothing in it.
        fingerprint: of the model that searches; collections embedded by another cannot be searched.
    """

    def __init__(self) -> None:
        self.store: FaqStore | None = None
        self.fingerprint = ""

    def collect(self) -> Iterator[Metric]:
        try:
            infos = [] if self.store is None else self.store.collections()
        except ServiceError:
            infos = None
        yield GaugeMetricFamily(
            "conche_faq_store_readable",
            "1 = the FAQ's store answers, or there is none; 0 = it does not, and has no figures.",
            value=float(infos is not None),
        )
        if infos is None:
            return
        entries = sum(info.entries for info in infos)
        others = sum(info.fingerprint not in (None, self.fingerprint) for info in infos)
        for name, help_text, value in (
            ("entries", "Entries of all collections, disabled ones included.", entries),
            ("collections", "FAQ collections.", len(infos)),
            ("mismatched_collections", "Collections that another model embedded: no search of them.", others),
        ):
            yield GaugeMetricFamily(f"conche_faq_{name}", help_text, value=value)


class _ThreadsCollector(Collector):
    """``process_threads``, which the client library lacks; on Linux only, like all ``process_`` series."""

    _STATUS: Final = Path("/proc/self/status")

    def collect(self) -> Iterator[Metric]:
        try:
            status = self._STATUS.read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("Threads:"):
                count = int(line.removeprefix("Threads:"))
                yield GaugeMetricFamily("process_threads", "Threads of the process in use.", value=count)

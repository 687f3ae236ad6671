"""service.metrics: what Prometheus reads, and what callers can do to it."""

import asyncio
import math
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from model.runtime.bundle import Bundle, Manifest
from model.runtime.tokenization import Tokenizer
from service.batching import BatchingLimits, BatchStats
from service.faq.catalogue import FaqCatalogue
from service.faq.entries import FaqEntry
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import Write
from service.inference import ComputeBudget, Embedder, EmbeddingOptions
from service.metrics import TEXT_CONTENT_TYPE, Metrics, RowHistogram, openmetrics_version
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle
from tests.fakes import FakeEngine, until
from tests.service.faq.hashing_embedder import HashingEmbedder

BODY_ERRORS = [(422, "input_too_long"), (429, "overloaded"), (404, "no_model"), (503, "no_model")]
ROUTES = {
    ("POST", "/embed"): BODY_ERRORS,
    ("POST", "/search"): [*BODY_ERRORS, (404, "unknown_collection")],
    ("GET", "/livez"): [],
    ("HEAD", "/livez"): [],
}
STATS = BatchStats(
    size=2,
    tokens=10,
    padded_tokens=12,
    queue_seconds=(0.001, 0.002),
    run_seconds=0.004,
    stream_seconds=0.008,
    failed=False,
)

# As Prometheus 2.42 and 3.x send it.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Of a tiny bundle."""
    path = write_tiny_embedding_bundle(tmp_path_factory.mktemp("bundles") / "tiny-embedding")
    return Bundle.load(path).manifest


@pytest.fixture
def metrics(manifest: Manifest) -> Metrics:
    """As the app has them before the first request."""
    ready = Metrics(version="1.2.3")
    ready.expect_requests(
        ROUTES,
        on_any=[(500, "internal")],
        on_wrong_method=[(405, "method_not_allowed")],
        on_no_route=[(404, "unknown_path")],
    )
    ready.observe_model(manifest)
    return ready


def _text(metrics: Metrics) -> str:
    return metrics.render()[0].decode()


def _samples(metrics: Metrics) -> dict[str, float]:
    """Every sample of the text format, by name and labels."""
    found: dict[str, float] = {}
    for family in parse_text(_text(metrics)):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


# -- the page ----------------------------------------------------------------------------------------------


def test_all_series_are_there_before_the_first_request(metrics: Metrics) -> None:
    """A rate over a series that appears with its first event misses that event."""
    samples = _samples(metrics)
    expected = [
        "conche_requests_total{code=,method=POST,route=/embed,status=200}",
        "conche_requests_total{code=overloaded,method=POST,route=/search,status=429}",
        "conche_requests_total{code=unknown_collection,method=POST,route=/search,status=404}",
        "conche_requests_total{code=no_model,method=POST,route=/embed,status=404}",
        "conche_requests_total{code=no_model,method=POST,route=/embed,status=503}",
        "conche_requests_total{code=,method=GET,route=/livez,status=200}",
        "conche_requests_total{code=internal,method=POST,route=/embed,status=500}",
        "conche_requests_total{code=internal,method=GET,route=/livez,status=500}",
        "conche_requests_total{code=method_not_allowed,method=GET,route=/embed,status=405}",
        "conche_requests_total{code=method_not_allowed,method=POST,route=/livez,status=405}",
        "conche_requests_total{code=unknown_path,method=GET,route=unmatched,status=404}",
        "conche_requests_total{code=unknown_path,method=POST,route=unmatched,status=404}",
        "conche_request_duration_seconds_count{route=/search}",
        "conche_request_duration_seconds_count{route=unmatched}",
        "conche_refusals_total{reason=overloaded}",
        *(
            f"conche_{name}{{model=tiny-embedding}}"
            for name in (
                "tokenize_duration_seconds_count",
                "queue_duration_seconds_count",
                "inference_duration_seconds_count",
                "inference_stream_seconds_total",
                "batch_size_count",
                "batch_tokens_count",
                "padding_ratio_count",
                "failed_batches_total",
                "texts_total",
                "tokens_total",
                "truncated_texts_total",
                "queue_depth_items",
                "queue_depth_tokens",
                "queue_limit_items",
                "queue_limit_tokens",
                "batch_limit_tokens",
                "model_healthy",
                "inference_threads",
                "inference_streams",
            )
        ),
        "conche_ready{}",
        "conche_faq_store_readable{}",
        "conche_faq_entries{}",
        "conche_faq_mismatched_collections{}",
        *(
            f"conche_faq_write_failures_total{{reason={reason}}}"
            for reason in ("storage_failed", "storage_full", "storage_read_only")
        ),
        "conche_faq_collections{}",
        "conche_faq_queries_total{}",
        "conche_faq_unanswered_queries_total{}",
        "conche_faq_unproven_queries_total{}",
        "conche_faq_lookup_duration_seconds_count{}",
        "conche_faq_embed_duration_seconds_count{}",
        "conche_faq_index_duration_seconds_count{}",
        "conche_faq_best_score_count{}",
        "conche_faq_written_entries_total{}",
        "conche_faq_deleted_entries_total{}",
        "process_cpu_seconds_total{}",
        "process_resident_memory_bytes{}",
        "process_threads{}",
    ]
    assert [name for name in expected if name not in samples] == []
    assert "conche_requests_total{code=unknown_collection,method=POST,route=/embed,status=404}" not in samples
    assert any(name.startswith("conche_model_info{") and "task=embedding" in name for name in samples)
    assert any(name.startswith("conche_build_info{") and "version=1.2.3" in name for name in samples)


def _lint(families: list[Metric], body: str) -> Iterator[str]:
    """What Prometheus' naming rules say against a page; the plain part of ``promtool check metrics``."""
    types = Counter(line.split()[2] for line in body.splitlines() if line.startswith("# TYPE "))
    yield from (f"{name}: {count} TYPE lines" for name, count in types.items() if count > 1)
    seen: set[tuple[str, str]] = set()
    for family in families:
        yield from _lint_name(family)
        for sample in family.samples:
            if family.type == "counter" and not sample.name.endswith("_total"):
                yield f"{sample.name}: a counter without _total"
            if math.isnan(sample.value):
                yield f"{sample.name}: NaN"
            key = (sample.name, str(sorted(sample.labels.items())))
            if key in seen:
                yield f"{sample.name}: sample repeated"
            seen.add(key)


def _lint_name(family: Metric) -> Iterator[str]:
    name = family.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        yield f"{name}: not lower case with underscores"
    if not family.documentation.strip():
        yield f"{name}: no HELP"
    if family.type not in {"counter", "gauge", "histogram", "info"}:
        yield f"{name}: type {family.type}"
    if re.search(r"(?:^|_)(?:ms|milliseconds|microseconds|minutes|kilobytes|mb|percent)(?:_|$)", name):
        yield f"{name}: no base unit"
    if re.search(r"_(?:counter|gauge|histogram|total|count|sum|bucket)$", name):
        yield f"{name}: type or suffix in the name"


@pytest.mark.parametrize("used", [False, True])
def test_the_page_keeps_to_the_naming_rules(metrics: Metrics, manifest: Manifest, *, used: bool) -> None:
    """Before and after traffic, in both formats; promtool itself agreed when it was run by hand."""
    if used:
        metrics.observe_request(method="POST", route="/embed", status=200, code=None, seconds=0.01)
        metrics.observe_model(manifest).on_batch(STATS)
    text = _text(metrics)
    assert list(_lint(list(parse_text(text)), text)) == []
    body = metrics.render("application/openmetrics-text")[0].decode()
    assert list(_lint(list(parse_openmetrics(body)), body)) == []


def test_the_checker_itself_finds_faults() -> None:
    """A checker that accepts anything proves nothing."""
    page = (
        "# TYPE a_ms gauge\na_ms 1\n# HELP b_total x\n# TYPE b_total counter\nb_total 1\nb_total 2\n"
        "# HELP c x\n# TYPE c gauge\nc NaN\n# TYPE c gauge\n"
    )
    faults = " ".join(_lint(list(parse_text(page)), page))
    for fault in ("no base unit", "no HELP", "sample repeated", "NaN", "2 TYPE lines"):
        assert fault in faults


def test_buckets_resolve_a_millisecond(metrics: Metrics) -> None:
    """Where short requests are, 3 ms and 4 ms must not look the same."""
    names = list(_samples(metrics))
    for family in ("request", "tokenize", "queue", "inference"):
        pattern = re.compile(rf"conche_{family}_duration_seconds_bucket{{le=([^,]+),")
        borders = {float(match[1]) for name in names if (match := pattern.match(name))}
        assert {0.001, 0.002, 0.003, 0.004, 0.005, 0.006} <= borders


def test_two_apps_in_one_process_do_not_meet() -> None:
    """A registry of the process would mix them, and refuse the second."""
    one, two = Metrics(), Metrics()
    one.observe_request(method="GET", route="/livez", status=200, code=None, seconds=0.1)
    assert "/livez" in _text(one)
    assert "/livez" not in _text(two)


# -- what is asked for -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "version"),
    [
        ("", None),
        ("*/*", None),
        ("text/plain;version=0.0.4", None),
        ("text/html,application/xhtml+xml,*/*;q=0.8", None),
        ("application/json", None),
        ("application/*", None),
        ("application/openmetrics-text;version=1.0.0", "1.0.0"),
        ("application/openmetrics-text", "1.0.0"),
        ("Application/OpenMetrics-Text; Version=1.0.0", "1.0.0"),
        ('application/openmetrics-text; version="1.0.0"; charset=utf-8', "1.0.0"),
        ("application/openmetrics-text;version=0.0.1", "0.0.1"),
        ("application/openmetrics-text;version=2.0.0", None),
        ("application/openmetrics-text;q=0, text/plain", None),
        ("application/openmetrics-text;q=0", None),
        ("application/openmetrics-text;q=nan, */*;q=0.1", None),
        ("application/openmetrics-text;q=x", None),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.9", None),
        ("text/plain;q=0.5, application/openmetrics-text;version=0.0.1;q=0.8", "0.0.1"),
        (PROMETHEUS_2, "1.0.0"),
        (PROMETHEUS_3, "1.0.0"),
        (";;,=,;q", None),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, version: str | None) -> None:
    """OpenMetrics only for those who name it and like it no less than text."""
    assert openmetrics_version(accept) == version


@given(st.text(alphabet=string.printable, max_size=80))
@settings(max_examples=100, deadline=None)
def test_no_accept_header_can_break_the_page(accept: str) -> None:
    """It comes from anyone who can reach the port."""
    assert openmetrics_version(accept) in {None, "1.0.0", "0.0.1"}


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=0.0.4", PROMETHEUS_2, PROMETHEUS_3])
def test_body_and_content_type_agree(metrics: Metrics, accept: str) -> None:
    """The one with the other's type makes the scrape fail, or loses series without a word."""
    body, content_type = metrics.render(accept)
    is_openmetrics = content_type.startswith("application/openmetrics-text; version=")
    assert body.endswith(b"# EOF\n") == is_openmetrics
    if is_openmetrics:
        families = list(parse_openmetrics(body.decode()))
    else:
        assert content_type == TEXT_CONTENT_TYPE
        families = list(parse_text(body.decode()))
    assert len(families) > 20
    assert not any(sample.name.endswith("_created") for family in families for sample in family.samples)


# -- what callers can do to it -----------------------------------------------------------------------------


def test_callers_cannot_write_labels(metrics: Metrics) -> None:
    """Random paths and invented methods must neither appear nor add series."""
    rng = np.random.default_rng(5)

    def storm() -> list[str]:
        words = ["".join(rng.choice(list(string.ascii_uppercase), 12)) for _ in range(60)]
        for word in words:
            metrics.observe_request(method=word, route="unmatched", status=404, code="not_found", seconds=0.0)
            metrics.observe_request(
                method="GET", route="unmatched", status=404, code="not_found", seconds=0.0
            )
        return words

    words = storm()
    after_first = len(_samples(metrics))
    words += storm()
    page = _text(metrics)
    assert len(_samples(metrics)) == after_first
    assert [word for word in words if word in page] == []
    assert (
        _samples(metrics)["conche_requests_total{code=not_found,method=other,route=unmatched,status=404}"]
        == 120
    )


def test_even_a_fault_of_ours_cannot_make_labels_without_end() -> None:
    """Should raw paths ever be passed as routes, their number stays bounded."""
    metrics = Metrics()
    for number in range(10_000):
        metrics.observe_request(
            method="GET", route=f"/{number}", status=number % 1000, code=f"c{number}", seconds=0.0
        )
    routes = {sample.labels["route"] for family in parse_text(_text(metrics)) for sample in family.samples
              if sample.name == "conche_request_duration_seconds_count"}  # fmt: skip
    assert len(routes) <= 100
    assert "unmatched" in routes


def test_ten_thousand_odd_values_make_no_series(metrics: Metrics, tmp_path: Path) -> None:
    """Of paths, methods, labels and reasons, which somebody may invent or a fault of ours pass on."""
    tagger = metrics.observe_model(Bundle.load(write_tiny_ner_bundle(tmp_path / "tiny-ner")).manifest)

    def invent(numbers: range) -> None:
        for number in numbers:
            odd = f"zebra-{number}-斑马"
            metrics.observe_request(
                method=odd, route="unmatched", status=404, code="unknown_path", seconds=0.0, trace_id=odd
            )
            tagger.on_entities({odd: 1, "PER": 1})
            metrics.faq.on_write_failure(odd)
            metrics.on_connection_cut(odd)

    invent(range(1))
    once = set(_samples(metrics))
    invent(range(1, 10_000))
    page = _text(metrics)
    assert set(_samples(metrics)) == once
    assert "zebra" not in page
    assert _samples(metrics)["conche_connections_cut_total{reason=other}"] == 10_000


# -- what is counted ---------------------------------------------------------------------------------------


def test_a_request_is_counted_by_route_status_and_code(metrics: Metrics) -> None:
    """And refused ones by their reason as well."""
    before = _samples(metrics)
    for status, code in ((200, None), (429, "overloaded"), (429, "overloaded"), (500, "inference_failed")):
        metrics.observe_request(method="POST", route="/embed", status=status, code=code, seconds=0.0035)
    after = _samples(metrics)
    grown = {
        name: after[name] - before.get(name, 0.0)
        for name in after
        if "conche_re" in name and "_bucket" not in name and "_sum" not in name
    }
    assert {name: growth for name, growth in grown.items() if growth} == {
        "conche_requests_total{code=,method=POST,route=/embed,status=200}": 1,
        "conche_requests_total{code=overloaded,method=POST,route=/embed,status=429}": 2,
        "conche_requests_total{code=inference_failed,method=POST,route=/embed,status=500}": 1,
        "conche_request_duration_seconds_count{route=/embed}": 4,
        "conche_refusals_total{reason=overloaded}": 2,
    }
    assert after["conche_request_duration_seconds_bucket{le=0.003,route=/embed}"] == 0
    assert after["conche_request_duration_seconds_bucket{le=0.004,route=/embed}"] == 4


@given(st.lists(st.floats(0, 100) | st.sampled_from([0.0, 0.1, 0.25, 1.0]), max_size=50))
def test_rows_seen_at_once_count_as_one_by_one(amounts: list[float]) -> None:
    """In the library's counters, which it may change."""
    registry = CollectorRegistry()
    together = RowHistogram("together", "", ("model",), buckets=(0.1, 0.25, 1.0), registry=registry)
    apart = Histogram("apart", "", ("model",), buckets=(0.1, 0.25, 1.0), registry=registry)
    together.labels("a").observe_all(amounts)
    one_by_one = apart.labels("a")
    for amount in amounts:
        one_by_one.observe(amount)
    seen, wanted = (
        {
            (sample.name.removeprefix(name), sample.labels.get("le")): sample.value
            for sample in metric.samples
            if not sample.name.endswith("_created")  # the moment
        }
        for metric, name in zip(registry.collect(), ("together", "apart"), strict=True)
    )
    assert seen == pytest.approx(wanted)


def test_a_batch_is_measured(metrics: Metrics, manifest: Manifest) -> None:
    """Padding over real tokens is the ratio; every text has its own time in the queue."""
    observer = metrics.observe_model(manifest)
    observer.on_batch(STATS)
    observer.on_batch(
        BatchStats(
            size=1,
            tokens=4,
            padded_tokens=4,
            queue_seconds=(0.0,),
            run_seconds=0.1,
            stream_seconds=0.1,
            failed=True,
        )
    )
    observer.on_tokenize(0.0001)
    observer.on_texts(texts=3, truncated=1)
    samples = _samples(metrics)

    def value(name: str) -> float:
        return samples[f"conche_{name}{{model=tiny-embedding}}"]

    assert value("queue_duration_seconds_count") == 3
    assert value("inference_duration_seconds_count") == 2
    assert value("inference_stream_seconds_total") == pytest.approx(0.108)
    assert value("tokenize_duration_seconds_count") == 1
    assert (value("batch_size_sum"), value("batch_tokens_sum")) == (3, 16)
    assert value("padding_ratio_sum") == pytest.approx(1.2 + 1.0)
    assert (value("tokens_total"), value("texts_total"), value("truncated_texts_total")) == (14, 3, 1)
    assert value("failed_batches_total") == 1


async def test_the_gauges_follow_a_running_model(
    metrics: Metrics, manifest: Manifest, tmp_path: Path
) -> None:
    """Read at each scrape; nothing has to remember to update them."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny-embedding"))
    engine, budget = FakeEngine(size=32, threads=4, streams=2), ComputeBudget()
    embedder = Embedder(
        manifest,
        Tokenizer.from_bundle(bundle),
        engine,
        budget=budget,
        limits=BatchingLimits(max_queue_items=7, max_queue_tokens=99),
        observer=metrics.observe_model(manifest),
    )

    def value(name: str) -> float:
        return _samples(metrics)[f"conche_{name}{{model=tiny-embedding}}"]

    assert value("model_healthy") == 0
    async with embedder:
        assert value("model_healthy") == 1
        assert (value("queue_limit_items"), value("queue_limit_tokens")) == (7, 99)
        assert (value("inference_threads"), value("inference_streams")) == (4, 2)
        engine.gate.clear()
        calls = []
        for running in (1, 2):
            calls.append(asyncio.create_task(embedder.embed(["hello"], EmbeddingOptions())))
            await until(lambda running=running: engine.entered == running)  # type: ignore[misc]
        calls += [asyncio.create_task(embedder.embed(["hello"], EmbeddingOptions())) for _ in range(2)]
        await until(lambda: value("queue_depth_items") == 2)
        assert value("queue_depth_tokens") == 6
        engine.gate.set()
        await asyncio.gather(*calls)
        assert (value("queue_depth_items"), value("queue_depth_tokens")) == (0, 0)
        assert value("texts_total") == 4
    assert value("model_healthy") == 0
    budget.close()


def test_the_size_of_the_faq_is_read_at_each_scrape(metrics: Metrics, tmp_path: Path) -> None:
    """It changes while the service runs, by other processes too; a store that is closed breaks no scrape."""
    store = SqliteFaqStore(tmp_path / "faq.sqlite")
    metrics.faq.watch(store, fingerprint="ours")

    def figures() -> list[float | None]:
        samples = _samples(metrics)
        names = ("store_readable", "entries", "collections", "mismatched_collections")
        return [samples.get(f"conche_faq_{name}{{}}") for name in names]

    assert figures() == [1, 0, 0, 0]
    store.create("shop")
    store.apply("shop", Write(upserts=(FaqEntry(id="a", question="a", answer="", enabled=False),)))
    assert figures() == [1, 1, 1, 0]
    write = Write(upserts=(FaqEntry(id="b", question="b", answer=""),), vectors={"b": np.ones(1, np.float32)})
    store.apply("old", write, fingerprint="another's", model_id="old", create=True)
    assert figures() == [1, 2, 2, 1]
    store.close()
    assert figures() == [0, None, None, None]


def test_failures_of_the_store_are_counted_by_their_code(metrics: Metrics) -> None:
    """What is none of them counts as a failure all the same, and makes no series."""
    for code in ("storage_full", "storage_failed", "anything"):
        metrics.faq.on_write_failure(code)
    samples = _samples(metrics)
    counted = {
        name: value for name, value in samples.items() if "write_failures" in name and "_created" not in name
    }
    assert counted == {
        "conche_faq_write_failures_total{reason=storage_failed}": 2,
        "conche_faq_write_failures_total{reason=storage_full}": 1,
        "conche_faq_write_failures_total{reason=storage_read_only}": 0,
    }


def test_readiness_is_asked_at_each_scrape(metrics: Metrics) -> None:
    """Not ready until somebody says so."""
    assert _samples(metrics)["conche_ready{}"] == 0
    reasons: list[str] = []
    metrics.watch_readiness(lambda: reasons)
    assert _samples(metrics)["conche_ready{}"] == 1
    reasons.append("a model hangs")
    assert _samples(metrics)["conche_ready{}"] == 0


def test_entities_are_counted_by_the_types_that_the_bundle_has(metrics: Metrics, tmp_path: Path) -> None:
    """From zero on; a type that is not the model's, such as B-PER of strategy `none`, makes no series."""
    tagger = Bundle.load(write_tiny_ner_bundle(tmp_path / "tiny-ner")).manifest
    observer = metrics.observe_model(tagger)

    def counted() -> dict[str, float]:
        return {name: value for name, value in _samples(metrics).items() if "conche_entities" in name}

    before = counted()
    assert set(before.values()) == {0}
    first = next(iter(before))
    label = re.search(r"label=([^,}]+)", first)
    assert label
    observer.on_entities({label[1]: 3, f"B-{label[1]}": 5, "anything": 7})
    assert counted() == before | {first: 3}


def test_searches_are_counted_by_query(metrics: Metrics) -> None:
    """Those without an answer are what to write entries about."""
    metrics.faq.on_search(unanswered=2, best=[0.97, 0.25, 0.0], embed_seconds=0.01, seconds=0.004)
    metrics.faq.on_unproven(4)
    samples = _samples(metrics)
    assert samples["conche_faq_queries_total{}"] == 3
    assert samples["conche_faq_unanswered_queries_total{}"] == 2
    assert samples["conche_faq_unproven_queries_total{}"] == 4
    assert samples["conche_faq_lookup_duration_seconds_sum{}"] == pytest.approx(0.004)
    assert samples["conche_faq_embed_duration_seconds_sum{}"] == pytest.approx(0.01)
    scores = {
        bound: samples[f"conche_faq_best_score_bucket{{le={bound}}}"] for bound in ("0.05", "0.3", "1.0")
    }
    assert scores == {"0.05": 1, "0.3": 2, "1.0": 3}


async def test_writes_and_updates_of_indexes_are_counted(
    metrics: Metrics, manifest: Manifest, tmp_path: Path
) -> None:
    """By the catalogue itself: a write that is searched costs one update of the index, a search none."""
    catalogue = FaqCatalogue(
        SqliteFaqStore(tmp_path / "faq"), HashingEmbedder(manifest), observer=metrics.faq
    )
    entries = [FaqEntry(id=name, question=f"question {name}", answer="") for name in "abc"]
    await catalogue.upsert("shop", entries)
    for _ in range(2):
        [found] = await catalogue.search("shop", ["question b"], min_score=0.0)
    await catalogue.delete("shop", ids=["a", "c"])
    await catalogue.close()
    samples = _samples(metrics)
    assert samples["conche_faq_written_entries_total{}"] == 3
    assert samples["conche_faq_deleted_entries_total{}"] == 2
    assert samples["conche_faq_index_duration_seconds_count{}"] == 2
    assert samples["conche_faq_best_score_sum{}"] == pytest.approx(2 * found.hits[0].confidence)

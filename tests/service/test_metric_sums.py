"""service.metric_sums: figures of several processes as one."""

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from model.runtime.bundle import Manifest
from service.batching import BatchStats
from service.metric_sums import GAUGES, counted, is_snapshot, summed
from service.metrics import Metrics, render_sums
from service.team import Gathered
from tests.service.test_metrics import manifest  # noqa: F401 - a fixture

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def family(name: str, kind: str, *samples: tuple[str, dict[str, str], float]) -> list[Any]:
    """As a snapshot has it."""
    return [name, "help", kind, "", [[*sample, None] for sample in samples]]


def values(snapshot: list[Any]) -> dict[str, float]:
    """Every sample, by name and labels."""
    return {
        name + "".join(f" {key}={value}" for key, value in sorted(labels.items())): value
        for *_, samples in snapshot
        for name, labels, value, _ in samples
    }


def test_counters_add_up_with_those_of_processes_that_are_no_more() -> None:
    """By name and labels; what only one has is there as it is."""
    one = [family("conche_a", "counter", ("conche_a_total", {"code": "x"}, 2.0))]
    other = [
        family(
            "conche_a",
            "counter",
            ("conche_a_total", {"code": "x"}, 3.0),
            ("conche_a_total", {"code": "y"}, 1.0),
        )
    ]
    assert values(summed({1: one, 2: other}, counted([one, one]))) == {
        "conche_a_total code=x": 9.0,
        "conche_a_total code=y": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [("conche_ready", 0.0), ("conche_queue_depth_tokens", 1.0), ("conche_faq_entries", 1.0)],
)
def test_gauges_are_brought_together_as_their_meaning_asks(name: str, expected: float) -> None:
    """Ready if all are; what waits adds up; one store holds what it holds."""
    pages = {1: [family(name, "gauge", (name, {}, 1.0))], 2: [family(name, "gauge", (name, {}, 0.0))]}
    assert values(summed(pages, [])) == {name: expected}


def test_a_gauge_of_an_ended_process_is_shown_no_more() -> None:
    """Nothing waits in it, and it has no memory."""
    ended = [
        family("conche_connections", "gauge", ("conche_connections", {}, 5.0)),
        family("process_cpu_seconds", "counter", ("process_cpu_seconds_total", {}, 5.0)),
    ]
    assert counted([ended]) == []


def test_figures_of_a_process_as_such_stay_apart() -> None:
    """A sum of start times or of open files of their limits would mean nothing."""
    page = [family("process_open_fds", "gauge", ("process_open_fds", {}, 7.0))]
    assert values(summed({1: page, 3: page}, [])) == {
        "process_open_fds worker=1": 7.0,
        "process_open_fds worker=3": 7.0,
    }


def test_every_gauge_has_its_rule(manifest: Manifest) -> None:  # noqa: F811
    """A new one has to be thought about: none is right by default."""
    metrics = Metrics()
    metrics.observe_model(manifest)

    class Certificate:
        expires_at = 1.0

    metrics.watch_certificate(Certificate())
    gauges = {
        name
        for name, _, kind, _, _ in metrics.snapshot()
        if kind == "gauge" and not name.startswith(("process_", "python_gc_"))
    }
    assert gauges == set(GAUGES)


counts = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 2)), max_size=30)


@settings(deadline=None, max_examples=20)
@given(counts, st.sets(st.integers(0, 2)))
def test_a_sum_is_what_one_process_would_have_counted(events: list[tuple[str, int]], ended: set[int]) -> None:
    """Whichever of three processes counted it, and whether it still lives."""
    single, several = Metrics(version="1"), [Metrics(version="1") for _ in range(3)]
    for code, number in events:
        for metrics in (single, several[number]):
            metrics.observe_request(method="POST", route="/embed", status=200, code=code, seconds=0.25)
    pages = {number: metrics.snapshot() for number, metrics in enumerate(several)}
    living = {number: page for number, page in pages.items() if number not in ended}
    gathered = Gathered(living, counted([pages[number] for number in sorted(ended)]))
    body, _ = render_sums(gathered, size=3)
    whole = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for found in parse_text(body.decode())
        for sample in found.samples
        if sample.name.startswith("conche_request")
    }
    expected = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for found in parse_text(single.render()[0].decode())
        for sample in found.samples
        if sample.name.startswith("conche_request")
    }
    assert whole == expected


def test_the_sum_is_openmetrics_with_exemplars_of_any(manifest: Manifest) -> None:  # noqa: F811
    """Prometheus asks for that format first; its parser is stricter than the text's."""
    several = [Metrics(), Metrics()]
    for metrics in several:
        metrics.observe_model(manifest).on_batch(
            BatchStats(
                size=1,
                tokens=3,
                padded_tokens=3,
                queue_seconds=(0.001,),
                run_seconds=0.004,
                stream_seconds=0.004,
                failed=False,
            )
        )
    several[1].observe_request(
        method="POST", route="/embed", status=200, code=None, seconds=0.25, trace_id=TRACE_ID
    )
    pages = {number: metrics.snapshot() for number, metrics in enumerate(several, start=1)}
    gathered = Gathered(pages, ready=2, restarts={"died": 1})
    body, content_type = render_sums(gathered, size=2, accept=OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {found.name: found for found in parse_openmetrics(body.decode())}
    (shown,) = [
        sample.exemplar
        for sample in families["conche_request_duration_seconds"].samples
        if sample.exemplar is not None
    ]
    assert (shown.labels, shown.value) == ({"trace_id": TRACE_ID}, 0.25)
    restarts = families["conche_worker_restarts"].samples
    assert [(sample.labels, sample.value) for sample in restarts] == [({"reason": "died"}, 1.0)]
    sizes = families["conche_batch_size"].samples
    assert next(sample.value for sample in sizes if sample.name.endswith("_count")) == 2.0


def test_what_a_process_counts_is_known_for_what_it_is() -> None:
    """As it comes from another process, exemplars and figures that are none included."""
    metrics = Metrics()
    metrics.observe_request(
        method="POST", route="/embed", status=200, code=None, seconds=0.25, trace_id=TRACE_ID
    )
    page = metrics.snapshot()
    page.append(family("conche_none", "gauge", ("conche_none", {}, math.nan)))
    told = orjson.loads(orjson.dumps(page))
    assert is_snapshot(told)
    for spoilt in ({}, [told], [*told, family("a", "counter", ("a_total", {"b": 1}, 1.0))]):  # type: ignore[dict-item]
        assert not is_snapshot(spoilt)


def test_a_gauge_without_a_figure_is_none_in_the_sum_either() -> None:
    """JSON has no NaN."""
    page = [["conche_ready", "help", "gauge", "", [["conche_ready", {}, None, None]]]]
    body, _ = render_sums(Gathered({1: page, 2: page}), size=2)
    (found,) = [one for one in parse_text(body.decode()) if one.name == "conche_ready"]
    assert math.isnan(found.samples[0].value)

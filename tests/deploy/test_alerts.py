"""Alert rules: they ask for what is exposed, are tested in both directions, and say what to do."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from model.runtime.bundle import Bundle
from service.app import ROUTERS
from service.metrics import UNMATCHED, Metrics, render_sums
from service.team import Gathered
from tests.bundles import write_tiny_embedding_bundle

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
GROUPS = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
SLO = yaml.safe_load((PROMETHEUS / "slo.yml").read_text(encoding="utf-8"))["groups"]
RECORDED: dict[str, str] = {rule["record"]: rule["expr"] for group in SLO for rule in group["rules"]}
# Given by Prometheus itself to every sample.
TARGET_LABELS = {"job", "instance"}
TESTS = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))
CONFIGURATION = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
ALERTMANAGER = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
BY_NAME = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


class _Certificate:
    expires_at = 1.0


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Labels of the samples that a service exposes, by name."""
    metrics = Metrics()
    metrics.watch_connections([], limit=1)
    metrics.watch_certificate(_Certificate())
    metrics.model_failed("broken")
    metrics.observe_model(
        Bundle.load(write_tiny_embedding_bundle(tmp_path_factory.mktemp("bundle"))).manifest
    )
    # Routes, statuses and codes are the application's; test_metrics.py sees that it expects all of them.
    metrics.observe_request(method="POST", route="/embed", status=500, code="internal", seconds=2)
    samples: dict[str, list[dict[str, str]]] = {"up": [{}]}
    several = Gathered({1: metrics.snapshot(), 2: metrics.snapshot()})
    for page, _ in (metrics.render(), render_sums(several, size=2)):
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(sample.labels)
    return samples


def faults(expression: str, exposed: dict[str, list[dict[str, str]]]) -> Iterator[str]:
    """Series, labels and values that an expression asks for and nobody exposes."""
    code = re.sub(r"#.*", "", expression)
    bare = re.sub(r'"[^"]*"', '""', code)
    recorded = set(re.findall(r"\b\w+:\w+:\w+", bare))
    yield from recorded - RECORDED.keys()
    names = re.findall(r"\b(?:up\b|conche_\w+)", re.sub(r"\b\w+:\w+:\w+", "", bare))
    if not names and not recorded:
        yield "it asks for nothing"
    yield from (name for name in names if name not in exposed)
    # Whether the values of labels exist, too; routes and statuses come from the application.
    for name, selector in re.findall(r"\b(up|conche_\w+)\{([^}]*)\}", code):
        for label, operator, pattern in re.findall(r'(\w+)(=~|!~|=|!=)"([^"]*)"', selector):
            values = {labels[label] for labels in exposed.get(name, []) if label in labels}
            if label not in TARGET_LABELS and not values:
                yield f"{name} has no label {label}"
            if label not in TARGET_LABELS | {"route"} and operator in {"=", "=~"}:
                yield from (
                    f"{name}: {label} is never {one}"
                    for one in pattern.split("|")
                    if not any(re.fullmatch(one, value) for value in values)
                )


@BY_NAME
def test_an_alert_asks_for_what_is_exposed(
    alert: dict[str, Any], exposed: dict[str, list[dict[str, str]]]
) -> None:
    """One on a metric or a reason that was renamed never fires."""
    assert list(faults(alert["expr"], exposed)) == []


@pytest.mark.parametrize("name", RECORDED)
def test_a_rule_records_what_is_exposed(name: str, exposed: dict[str, list[dict[str, str]]]) -> None:
    """And what is recorded before it; the objectives ask for nothing."""
    if not name.endswith(":objective"):
        assert list(faults(RECORDED[name], exposed)) == []


def test_faults_of_expressions_are_found(exposed: dict[str, list[dict[str, str]]]) -> None:
    """A check that takes anything proves nothing."""
    for expression in (
        "conche_redy == 0",
        "job:conche_errors:burnrate7m > 1",
        'conche_request_duration_seconds_bucket{le="0.9"}',
        'conche_refusals_total{reason=~"overloaded|bored"}',
        'conche_ready{colour="red"}',
        "vector(1)",
    ):
        assert list(faults(expression, exposed)), expression


def test_objectives_stand_in_one_place() -> None:
    """Where they are shares; no rule and no alert has a number of its own for them."""
    objectives = {name: expr for name, expr in RECORDED.items() if name.endswith(":objective")}
    assert objectives.keys() == {"conche:slo_errors:objective", "conche:slo_latency:objective"}
    assert all(0 < float(expr.removeprefix("vector(").removesuffix(")")) < 1 for expr in objectives.values())
    rates = {name: expr for name, expr in RECORDED.items() if name not in objectives}
    assert all(any(objective in expr for objective in objectives) for expr in rates.values())


def test_measured_routes_are_the_application_s() -> None:
    """A route that was renamed would be measured no more, and a probe that was would be."""
    paths = {getattr(route, "path_format", None) for router in ROUTERS for route in router.routes}
    selectors = {
        selector
        for expr in [*RECORDED.values(), *(alert["expr"] for alert in ALERTS)]
        for selector in re.findall(r'route[=!]~"([^"]*)"', expr)
    }
    assert len(selectors) == 2
    assert {route for selector in selectors for route in selector.split("|")} <= paths | {UNMATCHED}


@BY_NAME
def test_an_alert_is_tested_to_fire_and_not_to_fire(alert: dict[str, Any]) -> None:
    """`promtool test rules` runs them, where there is one; here it is seen that none was left out."""
    expected = [
        bool(case["exp_alerts"])
        for test in TESTS["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert["alert"]
    ]
    assert set(expected) == {True, False}


def test_tests_are_of_alerts_that_there_are() -> None:
    """One of an alert that was renamed expects nothing, and gets it."""
    tested = {case["alertname"] for test in TESTS["tests"] for case in test["alert_rule_test"]}
    assert tested == {alert["alert"] for alert in ALERTS}
    assert TESTS["rule_files"] == ["slo.yml", "alerts.yml"]


@BY_NAME
def test_the_runbook_has_a_section_for_an_alert(alert: dict[str, Any]) -> None:
    """Whoever is woken reads what it means and what to do."""
    name = alert["alert"]
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"]
    assert alert["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
    assert f"\n## {name}\n" in RUNBOOK


def test_the_runbook_s_sections_are_of_alerts_and_in_their_order() -> None:
    """A section of an alert that went is read for nothing."""
    assert re.findall(r"^## (Conche\w+)$", RUNBOOK, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_the_runbook_says_the_objectives() -> None:
    """As they are in the rules."""
    for name, what in (("errors", "not failed"), ("latency", "quick")):
        share = float(RECORDED[f"conche:slo_{name}:objective"].removeprefix("vector(").removesuffix(")"))
        assert f"| {what} | {100 * share:g} %" in RUNBOOK


def test_prometheus_reads_the_rules() -> None:
    """The folder is mounted as a whole; paths are relative to the configuration."""
    assert CONFIGURATION["rule_files"] == ["slo.yml", "alerts.yml"]


def test_alerts_reach_somebody() -> None:
    """Prometheus tells the compose file's Alertmanager, on the port that it listens on by itself."""
    (told,) = CONFIGURATION["alerting"]["alertmanagers"]
    port = COMPOSE["services"]["alertmanager"]["ports"][0].rpartition(":")[2]
    assert told["static_configs"] == [{"targets": [f"alertmanager:{port}"]}]


def test_every_severity_has_a_route_to_a_receiver() -> None:
    """An alert of a severity that no route names goes to whom nobody thought of."""
    routes = {tuple(route["matchers"]): route["receiver"] for route in ALERTMANAGER["route"]["routes"]}
    assert routes == {('severity="critical"',): "page", ('severity="warning"',): "ticket"}
    assert {alert["labels"]["severity"] for alert in ALERTS} == {"critical", "warning"}
    receivers = [receiver["name"] for receiver in ALERTMANAGER["receivers"]]
    assert {*routes.values(), ALERTMANAGER["route"]["receiver"]} == set(receivers)


def test_nothing_leaves_the_machine_unless_somebody_says_where_to() -> None:
    """The receivers that come with the project are places to fill in."""
    assert [receiver.keys() for receiver in ALERTMANAGER["receivers"]] == [{"name"}, {"name"}]


def test_inhibitions_are_between_alerts_that_there_are() -> None:
    """One on an alert that was renamed lets both through."""
    names = {alert["alert"] for alert in ALERTS}
    for rule in ALERTMANAGER["inhibit_rules"]:
        matchers = rule["source_matchers"] + rule["target_matchers"]
        found = [match[1] for match in (re.match(r'alertname="(\w+)"', one) for one in matchers) if match]
        assert len(found) == 2
        assert set(found) <= names

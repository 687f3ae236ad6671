"""Alert rules: they ask for what is exposed, are tested in both directions, and say what to do."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import Metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
GROUPS = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
TESTS = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text(encoding="utf-8"))
CONFIGURATION = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
ALERTMANAGER = yaml.safe_load((ROOT / "deploy/alertmanager/alertmanager.yml").read_text(encoding="utf-8"))
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
BY_NAME = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


class _Certificate:
    expires_at = 1.0


@pytest.fixture(scope="module")
def exposed() -> dict[str, list[dict[str, str]]]:
    """Labels of the samples that a service exposes, by name."""
    metrics = Metrics()
    metrics.watch_connections([], limit=1)
    metrics.watch_certificate(_Certificate())
    metrics.model_failed("broken")
    samples: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.labels)
    return samples


@BY_NAME
def test_an_alert_asks_for_what_is_exposed(
    alert: dict[str, Any], exposed: dict[str, list[dict[str, str]]]
) -> None:
    """One on a metric or a reason that was renamed never fires."""
    bare = re.sub(r'"[^"]*"', '""', alert["expr"])
    names = re.findall(r"\bconche_\w+", bare)
    assert names
    assert [name for name in names if name not in exposed] == []
    for label, pattern in re.findall(r'(\w+)=~"([^"]*)"', alert["expr"]):
        values = {labels[label] for labels in exposed[names[0]]}
        for one in pattern.split("|"):
            assert any(re.fullmatch(one, value) for value in values), one


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
    assert TESTS["rule_files"] == ["alerts.yml"]


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
    assert re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_prometheus_reads_the_rules() -> None:
    """The folder is mounted as a whole; paths are relative to the configuration."""
    assert CONFIGURATION["rule_files"] == ["alerts.yml"]


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

"""Dashboards and Prometheus' configuration: what they ask for is what the service exposes."""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from model.runtime.bundle import Bundle
from service.metrics import Metrics
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
# Given by Prometheus itself to every sample.
TARGET_LABELS = {"job", "instance"}
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
PROMETHEUS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
KNOWN_UNITS = {"short", "s", "bytes", "percentunit", "reqps", "cps"}
# A panel is found by its question; a word that asks, and a question mark.
QUESTION = re.compile(r"^(Are|Do|Does|How|Is|What|Which) .+\?$")


def load(path: Path) -> dict[str, Any]:
    """A dashboard as Grafana reads it."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def provisioned(name: str) -> dict[str, Any]:
    """One of the files that Grafana reads at its start."""
    content: dict[str, Any] = yaml.safe_load((GRAFANA / "provisioning" / name).read_text(encoding="utf-8"))
    return content


def panels(path: Path) -> Iterator[dict[str, Any]]:
    """The panels that show something."""
    return (panel for panel in load(path)["panels"] if panel["type"] != "row")


def expressions(path: Path) -> Iterator[str]:
    """Every PromQL expression of a dashboard, its variables' included."""
    for panel in panels(path):
        yield from (target["expr"] for target in panel["targets"])
    for variable in load(path)["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]


class _Certificate:
    expires_at = 1.0


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Label names of every sample that a service with one model exposes."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path_factory.mktemp("bundle") / "tiny"))
    metrics = Metrics()
    metrics.expect_requests(
        {("POST", "/embed"): [(429, "overloaded")]},
        on_any=[(503, "timeout")],
        on_wrong_method=[],
        on_no_route=[],
    )
    metrics.observe_model(bundle.manifest)
    metrics.observe_model(Bundle.load(write_tiny_ner_bundle(tmp_path_factory.mktemp("tagger"))).manifest)
    metrics.watch_certificate(_Certificate())
    # Prometheus' own, and what deploy/prometheus records.
    samples: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "slo.yml").read_text(encoding="utf-8"))
    samples |= {rule["record"]: set() for group in rules["groups"] for rule in group["rules"]}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, set()).update(sample.labels)
    return samples


def test_dashboards_are_what_their_script_writes(tmp_path: Path) -> None:
    """`make dashboards` was run: a change by hand would be lost at the next run."""
    written = runpy.run_path(str(GRAFANA / "generate.py"))["DASHBOARDS"]
    assert {path.name: load(path) for path in DASHBOARDS} == written


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_queries_name_only_what_is_exposed(path: Path, exposed: dict[str, set[str]]) -> None:
    """A panel on a metric that was renamed shows nothing, which looks like good news."""
    for expression in expressions(path):
        bare = re.sub(r'"[^"]*"', '""', expression)
        recorded = re.findall(r"\b\w+:\w+:\w+", bare)
        bare_of_recorded = re.sub(r"\b\w+:\w+:\w+", "", bare)
        metrics = recorded + re.findall(r"\b(?:up|ALERTS|(?:conche|process|python)_\w+)\b", bare_of_recorded)
        assert metrics
        known = set().union(*(exposed.get(metric, set()) for metric in metrics)) | TARGET_LABELS
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", bare))
        asked |= {label for group in re.findall(r"by \(([^)]*)\)", bare) for label in group.split(", ")}
        assert [metric for metric in metrics if metric not in exposed] == []
        assert asked <= known, expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_legends_name_labels_of_their_query(path: Path, exposed: dict[str, set[str]]) -> None:
    """A legend on a label that the query sums away is empty."""
    for panel in panels(path):
        for target in panel["targets"]:
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            groups = re.findall(r"by \(([^)]*)\)", target["expr"])
            if groups:
                assert shown <= set(groups[0].split(", ")), target["expr"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_workers_have_legends_of_their_own(path: Path) -> None:
    """What stays apart in the sums of several workers would be lines of one name."""
    for panel in panels(path):
        for target in panel["targets"]:
            apart = re.search(r"\b(process|python_gc)_", target["expr"])
            added = re.match(r"(sum|max|min|avg)\b", target["expr"])
            if apart and not added:
                assert "{{worker}}" in target["legendFormat"], target["expr"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_ask_and_explain(path: Path) -> None:
    """Whoever is woken at night reads a question, its answer's unit, and what to do about it."""
    for panel in panels(path):
        assert QUESTION.match(panel["title"]), panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in KNOWN_UNITS
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
        assert panel["type"] in {"timeseries", "heatmap", "stat", "table"}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_have_their_own_ids_and_places(path: Path) -> None:
    """Grafana drops one of two panels with one id, and pushes overlapping ones about."""
    every = load(path)["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


def test_there_is_a_dashboard_for_each_question_of_the_runbook() -> None:
    """Whoever reads there finds panels and dashboards by their names."""
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    shown = {panel["title"] for path in DASHBOARDS for panel in panels(path)}
    shown |= {load(path)["title"] for path in DASHBOARDS}
    named = set(re.findall(r'"((?:Conche: \w+)|(?:[A-Z][^"\n]+\?))"', runbook))
    assert "Conche: latency" in named
    assert named <= shown
    assert {path.stem for path in DASHBOARDS} == {"overview", "latency", "faq", "ner", "capacity"}


def test_dashboards_have_their_own_uids() -> None:
    """Of two with one uid, Grafana shows the one it read last."""
    assert DASHBOARDS
    assert len({load(path)["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)


def test_data_source_is_the_provisioned_one() -> None:
    """Every panel goes through the variable, and the variable's default is provisioned."""
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    for path in DASHBOARDS:
        variable = next(item for item in load(path)["templating"]["list"] if item["type"] == "datasource")
        assert variable["current"]["value"] == source["uid"]
        for panel in panels(path):
            assert panel["datasource"]["uid"] == "${" + variable["name"] + "}"


def test_home_dashboard_exists() -> None:
    """Grafana opens with it; the providers' folder is where compose mounts it."""
    grafana = SERVICES["grafana"]
    (provider,) = provisioned("dashboards/conche.yml")["providers"]
    folder = provider["options"]["path"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == folder
    assert GRAFANA / "dashboards" / home.name in DASHBOARDS
    assert f"./deploy/grafana/dashboards:{folder}:ro" in grafana["volumes"]


def test_prometheus_scrapes_the_compose_service() -> None:
    """Under the name that all its services have, on the image's port, as the job that the panels name."""
    (job,) = (job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "conche")
    (asked,) = job["dns_sd_configs"]
    assert str(asked["port"]) == SERVICES["conche"]["ports"][0].rpartition(":")[2]
    assert asked["names"] == SERVICES["conche"]["networks"]["default"]["aliases"]


def test_scrape_interval_is_what_grafana_believes() -> None:
    """Else `$__rate_interval` is too short, and every rate is empty."""
    (source,) = provisioned("datasources/prometheus.yml")["datasources"]
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]

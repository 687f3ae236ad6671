"""The Helm chart: what it promises, read from its files and from what it renders.

No helm here: `make chart` renders, holds the result against the schemas of Kubernetes, and compares it with
deploy/helm/rendered, which these tests read.
"""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from model.runtime.bundle import Bundle
from service.access import OPEN_PATHS
from service.metrics import Metrics
from service.settings import Settings, load_settings, options
from tests.bundles import write_tiny_embedding_bundle

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy" / "helm"
VALUES = yaml.safe_load((HELM / "conche" / "values.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((HELM / "conche" / "values.schema.json").read_text(encoding="utf-8"))
SETS = sorted(path.stem for path in (HELM / "values").glob("*.yaml"))


def rendered(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the values of that name give, by kind and name."""
    documents = yaml.safe_load_all((HELM / "rendered" / f"{name}.yaml").read_text(encoding="utf-8"))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents if one}


def pod(name: str) -> dict[str, Any]:
    """The pod's specification."""
    specification: dict[str, Any] = rendered(name)["Deployment", "conche"]["spec"]["template"]["spec"]
    return specification


def container(name: str) -> dict[str, Any]:
    """The only container."""
    (one,) = pod(name)["containers"]
    found: dict[str, Any] = one
    return found


def variables(name: str) -> dict[str, str]:
    """Those that the ConfigMap sets; all are strings, or Kubernetes refuses them."""
    data: dict[str, str] = rendered(name)["ConfigMap", "conche"]["data"]
    assert all(isinstance(value, str) for value in data.values())
    return data


def settings(name: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the service makes of its variables, the image's own included."""
    image = re.findall(r"(CONCHE_\w+)=(\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    environment = dict(image) | variables(name)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return load_settings(environ=environment)


def test_every_set_of_values_is_rendered() -> None:
    """And nothing is left over of one that is gone."""
    assert {"minimal", "tls", "milvus", "persistence", "keys", "autoscaling"} <= set(SETS)
    assert {path.stem for path in (HELM / "rendered").glob("*.yaml")} == set(SETS)


def test_the_schema_takes_the_chart_s_own_values() -> None:
    """And names each of them, so that a value that is added is checked."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}
    assert VALUES.keys() <= SCHEMA["properties"].keys()


@pytest.mark.parametrize("name", SETS)
def test_the_service_takes_its_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is no setting, or a value out of bounds, is a pod that restarts for ever."""
    assert settings(name, monkeypatch).shutdown_delay_seconds == VALUES["shutdown"]["delaySeconds"]


def test_numbers_stay_as_they_were_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helm has no integers: 33554432 becomes 3.3554432e+07 where nobody looks after it."""
    made = settings("autoscaling", monkeypatch)
    assert variables("autoscaling")["CONCHE_LIMITS__MAX_BODY_BYTES"] == "33554432"
    assert (made.limits.max_body_bytes, made.batching.max_wait_ms, made.truncate) == (33_554_432, 1.5, True)


def test_a_setting_has_one_place_only() -> None:
    """What has a value of its own, or follows from the image, is refused among the settings."""
    fixed = set(SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"])
    template = (HELM / "conche" / "templates").glob("*.yaml")
    made = {
        name
        for path in template
        for name in re.findall(r"CONCHE_([A-Z_]+)\b", path.read_text(encoding="utf-8"))
    }
    assert made - {"PORT"} <= fixed
    assert fixed - made == {"HOST", "DATA_DIR"}
    assert {f"CONCHE_{name}" for name in fixed} <= {option.variable for option in options()}


@pytest.mark.parametrize("name", SETS)
def test_pods_are_hardened(name: str) -> None:
    """As the compose file's containers are; and what only a cluster has: no token of its API."""
    outer = pod(name)["securityContext"]
    inner = container(name)["securityContext"]
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user
    assert [str(outer[key]) for key in ("runAsUser", "runAsGroup", "fsGroup")] == [user[1], user[2], user[2]]
    assert outer["runAsNonRoot"] is True
    assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner["readOnlyRootFilesystem"] is True
    assert inner["allowPrivilegeEscalation"] is False
    assert inner["capabilities"] == {"drop": ["ALL"]}
    assert pod(name)["automountServiceAccountToken"] is False
    assert pod(name)["enableServiceLinks"] is False


@pytest.mark.parametrize("name", SETS)
def test_what_is_written_has_a_volume(name: str) -> None:
    """The root is read-only; everything else that is mounted is too."""
    writable = {mount["mountPath"] for mount in container(name)["volumeMounts"] if not mount.get("readOnly")}
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    assert writable == {"/tmp", "/data"}
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == volumes


@pytest.mark.parametrize("name", SETS)
def test_files_of_secrets_are_where_the_settings_say(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that nothing is mounted at stops the start."""
    made = settings(name, monkeypatch)
    mounts = {mount["mountPath"] for mount in container(name)["volumeMounts"]}
    for path in (made.tls_cert, made.tls_key, made.api_keys_file, made.faq_file):
        if path not in {"none", "demo"}:
            assert str(Path(path).parent) in mounts
    assert (made.tls_cert != "none") == (name == "tls")
    assert (made.api_keys_file != "none") == (name == "keys")


@pytest.mark.parametrize("name", SETS)
def test_probes_ask_what_is_open_by_the_scheme_that_is_served(name: str) -> None:
    """A probe that needs a key, or speaks http to TLS, kills a healthy pod."""
    probes = [container(name)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    asked = [probe["httpGet"] for probe in probes]
    assert [one["path"] for one in asked] == ["/livez", "/livez", "/readyz"]
    assert {one["path"] for one in asked} <= OPEN_PATHS
    assert {one["scheme"] for one in asked} == {"HTTPS" if name == "tls" else "HTTP"}
    assert {one["port"] for one in asked} == {"http"}


@pytest.mark.parametrize("name", SETS)
def test_the_kill_comes_after_the_service_s_own_deadlines(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And endpoints have the delay to lose the pod in, since no hook before the stop waits for them."""
    made = settings(name, monkeypatch)
    own = made.shutdown_delay_seconds + made.shutdown_grace_seconds
    assert pod(name)["terminationGracePeriodSeconds"] >= own + 5
    readiness = container(name)["readinessProbe"]
    assert made.shutdown_delay_seconds >= readiness["periodSeconds"]


@pytest.mark.parametrize("name", SETS)
def test_threads_have_a_limit_to_follow(name: str) -> None:
    """`CONCHE_THREADS=auto` counts the CPUs of the limit; without one those of the node."""
    resources = container(name)["resources"]
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    assert "CONCHE_THREADS" not in variables(name)


@pytest.mark.parametrize("name", SETS)
def test_ports_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service, policy and monitor name ports that the container has, at the numbers that the settings say."""
    made = settings(name, monkeypatch)
    ports = {port["name"]: port["containerPort"] for port in container(name)["ports"]}
    assert ports == {"http": made.port, "metrics": made.metrics_port}
    every = rendered(name)
    for service in ("conche", "conche-metrics"):
        assert {port["targetPort"] for port in every["Service", service]["spec"]["ports"]} <= ports.keys()
    policy = every["NetworkPolicy", "conche"]["spec"]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]] == [["http"], ["metrics"]]


@pytest.mark.parametrize("name", SETS)
def test_selectors_find_the_pods(name: str) -> None:
    """One label too many in a selector, and a Service has no endpoints."""
    every = rendered(name)
    deployment = every["Deployment", "conche"]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    selectors = [deployment["selector"]["matchLabels"]]
    selectors += [one["spec"]["selector"] for (kind, _), one in every.items() if kind == "Service"]
    selectors += [
        one["labelSelector"]["matchLabels"] for one in pod(name).get("topologySpreadConstraints", [])
    ]
    if budget := every.get(("PodDisruptionBudget", "conche")):
        selectors.append(budget["spec"]["selector"]["matchLabels"])
    selectors.append(every["NetworkPolicy", "conche"]["spec"]["podSelector"]["matchLabels"])
    assert all(selector and selector.items() <= labels for selector in selectors)
    # What changes with a version must not be in what a Deployment can never change.
    assert not any("version" in key for selector in selectors for key in selector)


@pytest.mark.parametrize("name", ["tls", "keys", "autoscaling"])
def test_the_monitor_scrapes_the_metrics_service_only(name: str) -> None:
    """Found twice, each pod would be counted twice."""
    every = rendered(name)
    (endpoint,) = every["ServiceMonitor", "conche"]["spec"]["endpoints"]
    wanted = every["ServiceMonitor", "conche"]["spec"]["selector"]["matchLabels"].items()
    found = [
        one
        for (kind, one), body in every.items()
        if kind == "Service" and wanted <= body["metadata"]["labels"].items()
    ]
    assert found == ["conche-metrics"]
    assert endpoint["port"] in {port["name"] for port in every["Service", found[0]]["spec"]["ports"]}
    assert endpoint.get("scheme") == ("https" if name == "tls" else None)
    assert ("authorization" in endpoint) == (name == "keys")


def test_the_rules_are_those_of_prometheus() -> None:
    """All of them, for the job that the monitor names; but the objectives, which the values may change."""
    every = rendered("autoscaling")
    groups = {group["name"]: group["rules"] for group in every["PrometheusRule", "conche"]["spec"]["groups"]}
    originals: dict[str, list[dict[str, Any]]] = {}
    for file in ("slo.yml", "alerts.yml"):
        text = (ROOT / "deploy" / "prometheus" / file).read_text(encoding="utf-8")
        assert (HELM / "conche" / "rules" / file).read_text(encoding="utf-8") == text
        originals |= {group["name"]: group["rules"] for group in yaml.safe_load(text)["groups"]}
    objectives = {
        rule["record"]: rule["expr"] for rule in groups["conche-slo"] if rule["record"].endswith(":objective")
    }
    assert objectives == {
        "conche:slo_errors:objective": "vector(0.9995)",
        "conche:slo_latency:objective": "vector(0.99)",
    }
    for rules in originals.values():
        for rule in rules:
            rule["expr"] = objectives.get(rule.get("record", ""), rule["expr"])
    assert groups == originals
    label = every["ServiceMonitor", "conche"]["spec"]["jobLabel"]
    assert every["Service", "conche-metrics"]["metadata"]["labels"][label] == "conche"


def test_the_chart_s_objectives_are_those_of_the_rules() -> None:
    """Unless somebody sets others, a cluster is measured as the compose file's Prometheus measures."""
    text = (ROOT / "deploy" / "prometheus" / "slo.yml").read_text(encoding="utf-8")
    for name, share in VALUES["metrics"]["prometheusRule"]["objectives"].items():
        assert re.search(rf"record: conche:slo_{name}:objective\n +expr: vector\({share}\)\n", text)


def test_one_writer_at_a_time() -> None:
    """On its volume the embedded store has one pod, also while a new version takes the place of the old."""
    deployment = rendered("persistence")["Deployment", "conche"]["spec"]
    claim = rendered("persistence")["PersistentVolumeClaim", "conche-data"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_replicas_that_share_a_store_are_kept_apart_and_up() -> None:
    """On several nodes, and not all drained at once; and no pod is removed before its successor is ready."""
    every = rendered("milvus")
    deployment = every["Deployment", "conche"]["spec"]
    assert deployment["replicas"] == 3
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert every["PodDisruptionBudget", "conche"]["spec"]["maxUnavailable"] == 1
    spread = {
        one["topologyKey"]: one["whenUnsatisfiable"] for one in pod("milvus")["topologySpreadConstraints"]
    }
    assert spread == {
        "topology.kubernetes.io/zone": "DoNotSchedule",
        "kubernetes.io/hostname": "ScheduleAnyway",
    }


def test_what_leaves_the_pods_is_named() -> None:
    """Nothing, or Milvus and the names that lead to it."""
    egress = {name: rendered(name)["NetworkPolicy", "conche"]["spec"]["egress"] for name in SETS}
    ports = {
        name: [port["port"] for rule in rules for port in rule["ports"]] for name, rules in egress.items()
    }
    left = {key: found for key, found in ports.items() if found}
    assert left == {"milvus": [53, 53, 19530], "autoscaling": [53, 53, 4318]}


def test_the_token_of_milvus_stays_in_its_secret() -> None:
    """A ConfigMap is read by whoever may look at it."""
    (token,) = (one for one in container("milvus")["env"] if one["name"] == "CONCHE_MILVUS_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["name"] == "milvus-token"
    assert not any("TOKEN" in variable for variable in variables("milvus"))


def test_the_autoscaler_counts_what_the_adapter_defines(tmp_path: Path) -> None:
    """Of series and labels that the service exposes; by a rate of nothing nothing is scaled."""
    autoscaler = rendered("autoscaling")["HorizontalPodAutoscaler", "conche"]["spec"]
    assert "replicas" not in rendered("autoscaling")["Deployment", "conche"]["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == "conche"
    cpu, queue = autoscaler["metrics"]
    assert cpu["resource"]["target"]["averageUtilization"] == VALUES["autoscaling"]["cpuUtilization"]
    adapter = yaml.safe_load((HELM / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    (rule,) = adapter["rules"]["custom"]
    assert queue["pods"]["metric"]["name"] == rule["name"]["as"]
    metrics = Metrics()
    metrics.observe_model(Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny")).manifest)
    families = text_string_to_metric_families(metrics.render()[0].decode())
    samples = {sample.name for family in families for sample in family.samples}
    asked = set(re.findall(r"\bconche_\w+(?=\{)", rule["metricsQuery"] + rule["seriesQuery"]))
    assert asked == {"conche_queue_depth_tokens", "conche_queue_limit_tokens"}
    assert asked <= samples


def test_versions_are_the_project_s() -> None:
    """The chart's default image is that of its own version."""
    chart = yaml.safe_load((HELM / "conche" / "Chart.yaml").read_text(encoding="utf-8"))
    version = re.search(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert version
    assert chart["appVersion"] == version[1]

"""Dockerfile, .dockerignore and docker-compose.yml: what they promise, read from the files themselves."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from service.settings import Settings, options

ROOT = Path(__file__).parents[2]
FIXED_BY_IMAGE = {"CONCHE_HOST", "CONCHE_PORT", "CONCHE_MODELS_DIR", "CONCHE_DATA_DIR"}
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)]


def final_stage() -> list[tuple[str, str]]:
    """The instructions of the image that is shipped."""
    start = max(n for n, (name, _) in enumerate(instructions()) if name == "FROM")
    return instructions()[start:]


def argument(name: str) -> str:
    """The argument of the one instruction ``name`` of the final stage."""
    (value,) = [rest for found, rest in final_stage() if found == name]
    return value


def test_dockerfile_is_read_by_any_builder() -> None:
    """A syntax line fetches a front end from a registry before anything else."""
    assert not re.match(r"#\s*syntax\s*=", (ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_process_one_is_the_service() -> None:
    """With a shell as process 1 SIGTERM never arrives, and every stop ends in a kill."""
    assert json.loads(argument("ENTRYPOINT")) == ["conche"]
    assert json.loads(argument("CMD")) == ["serve"]
    assert argument("STOPSIGNAL") == "SIGTERM"


def test_image_runs_as_a_numbered_user() -> None:
    """A cluster's `runAsNonRoot` accepts numbers only."""
    user, group = argument("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0


def test_a_stop_shows_itself_before_the_socket_closes() -> None:
    """A container is behind something that looks at /readyz; and it must not be killed while it drains."""
    values = dict(
        pair.split("=", 1) for name, rest in final_stage() if name == "ENV" for pair in rest.split()
    )
    delay_s = float(values["CONCHE_SHUTDOWN_DELAY_SECONDS"])
    grace_s = Settings.model_fields["shutdown_grace_seconds"].default
    assert delay_s > 0
    assert delay_s + grace_s < int(SERVICES["conche"]["stop_grace_period"].removesuffix("s"))


def test_health_check_runs_what_the_image_has() -> None:
    """A check by curl stays red for ever where there is no curl."""
    command = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    assert command[:2] == ["python", "-c"]
    compile(command[2], "health check", "exec")
    assert "'/readyz'" in command[2]


def test_image_installs_by_hash_what_serving_needs() -> None:
    """What was tested is what is shipped, and torch is no part of it."""
    runs = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert runs.count("--require-hashes") == 3
    assert "dev.txt" not in runs
    # OpenVINO has a folder of that name, which is taken out.
    assert not re.search(r"install[^&;]*torch", runs)


def test_build_context_holds_only_what_is_copied() -> None:
    """Environments, data and history would make every build slow and every image leak."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and "--from=" not in rest
        for source in rest.split()[:-1]
    }
    assert "*" in lines
    assert copied == allowed


@pytest.mark.parametrize("name", SERVICES)
def test_container_is_hardened(name: str) -> None:
    """Taken over, a container can neither write its files nor gain rights; it is reached from here only."""
    service = SERVICES[name]
    assert service["read_only"] is (name != "milvus")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["pids_limit"] > 0
    assert "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_mounts_are_named_volumes_or_read_only(name: str) -> None:
    """A container writes into its own volume and not into the checkout."""
    for mount in SERVICES[name]["volumes"]:
        source = re.sub(r"^\$\{\w+:-(.*?)\}", r"\1", mount).partition(":")[0]
        if source.startswith("./"):
            assert mount.endswith(":ro")
            assert (
                ROOT / source
            ).exists() or source == "./deploy/certificates"  # which docs/compose.md makes
        else:
            assert source in COMPOSE["volumes"]


def test_start_order_waits_for_health() -> None:
    """Started is not ready: Prometheus waits for the service and Alertmanager, Grafana for Prometheus."""
    healthy = {"condition": "service_healthy"}
    assert SERVICES["prometheus"]["depends_on"] == {"conche": healthy, "alertmanager": healthy}
    assert SERVICES["grafana"]["depends_on"] == {"prometheus": healthy}
    assert SERVICES["conche"]["depends_on"] == {"milvus": {**healthy, "required": False}}
    assert [SERVICES[name]["depends_on"] for name in ("replica", "proxy", "tls")] == [{"conche": healthy}] * 3
    # The service's own is in its image.
    assert [name for name in SERVICES if "healthcheck" not in SERVICES[name]] == ["conche", "replica"]


@pytest.mark.parametrize("name", SERVICES)
def test_container_has_a_user_and_a_share_of_the_machine(name: str) -> None:
    """One that runs wild slows the others down at most; the service alone may have all CPUs."""
    service = SERVICES[name]
    ours = name in {"conche", "replica"}
    user = argument("USER") if ours else service["user"]
    assert re.match(r"0:0$" if name == "milvus" else r"[1-9]\d*:\d+$", user)
    assert re.search(r"[1-9]\d*[mg]\b", service["mem_limit"])
    assert service["cpus"] == "${SERVICE_CPUS:-0}" if ours else service["cpus"] > 0


def test_profiles_add_to_what_is_there_without_them() -> None:
    """`docker compose up` has what it always had; each profile brings what docs/compose.md says."""
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert {name for name, found in profiles.items() if not found} == {
        "conche",
        "prometheus",
        "alertmanager",
        "grafana",
    }
    assert {name: found for name, found in profiles.items() if found} == {
        "replica": ["replicas"],
        "proxy": ["replicas"],
        "tls": ["tls"],
        "milvus": ["milvus"],
    }
    text = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    assert "--profile replicas" in text
    assert "--profile tls" in text
    assert "--env-file deploy/compose/milvus.env" in text


def test_replicas_are_the_service_without_its_port() -> None:
    """Same image, settings, limits and volume; one name for all, which the proxy and Prometheus ask for."""
    own = {"ports", "depends_on", "profiles", "deploy"}
    first, more = (
        {key: value for key, value in SERVICES[name].items() if key not in own}
        for name in ("conche", "replica")
    )
    assert first == more
    (alias,) = first["networks"]["default"]["aliases"]
    balance = (ROOT / "deploy" / "haproxy" / "balance.cfg").read_text(encoding="utf-8")
    assert f"server-template conche- 16 {alias}:{argument('EXPOSE')}\n" in balance
    prometheus = yaml.safe_load(
        (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    )
    (job,) = (job for job in prometheus["scrape_configs"] if job["job_name"] == "conche")
    (asked,) = job["dns_sd_configs"]
    assert (asked["names"], asked["type"], asked["port"]) == ([alias], "A", int(argument("EXPOSE")))


def test_proxies_publish_what_they_listen_on() -> None:
    """And wait longer than the service does, which says itself what took too long."""
    folder = ROOT / "deploy" / "haproxy"
    for name, file in (("proxy", "http.cfg"), ("tls", "https.cfg")):
        service = SERVICES[name]
        read = [Path(path).name for path in service["command"] if path.endswith(".cfg")]
        assert read == ["balance.cfg", file]
        bound = re.search(r"bind :(\d+)", (folder / file).read_text(encoding="utf-8"))
        assert bound
        assert service["ports"][0].endswith(f":{bound[1]}")
    balance = (folder / "balance.cfg").read_text(encoding="utf-8")
    waits = [int(seconds) for seconds in re.findall(r"timeout (?:client|server) (\d+)s", balance)]
    (longest,) = (
        float(option.default) for option in options() if option.variable == "CONCHE_LIMITS__REQUEST_SECONDS"
    )
    assert len(waits) == 2
    assert min(waits) > longest


def _seconds(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


def _converted(expression: str, variables: dict[str, int]) -> int:
    """What an expression of https.cfg gives: arithmetic with numbers and variables."""
    fetched, *converters = re.findall(r"([\w.]+(?:\([\w.]+\))?)", expression)
    value = variables[fetched.removeprefix("var(").removesuffix(")")]
    steps = {
        "add": int.__add__,
        "sub": int.__sub__,
        "mul": int.__mul__,
        "div": int.__floordiv__,
        "mod": int.__mod__,
    }
    for converter in converters:
        name, _, operand = converter.removesuffix(")").partition("(")
        value = steps[name](value, variables[operand] if operand in variables else int(operand))
    return value


@given(st.integers(_seconds(2001, 1, 1), _seconds(2049, 12, 31)))
@example(_seconds(2028, 2, 29))
@example(_seconds(2028, 3, 1) - 1)
@example(_seconds(2028, 3, 1))
@example(_seconds(2032, 1, 1) - 1)
def test_the_proxy_tells_when_its_certificate_expires(expiry: int) -> None:
    """HAProxy has a certificate's end as YYMMDDhhmmssZ only, and Prometheus cannot read that."""
    variables = {"ssl_f_notafter": int(f"{datetime.fromtimestamp(expiry, UTC):%y%m%d%H%M%S}")}
    text = (ROOT / "deploy" / "haproxy" / "https.cfg").read_text(encoding="utf-8")
    for name, expression in re.findall(r"set-var\((txn\.\w+)\) (\S+)", text):
        variables[name] = _converted(expression, variables)
    assert variables["txn.expiry"] == expiry


def test_prometheus_asks_the_proxy_for_its_certificate() -> None:
    """By its name and port, for the metric that the service has too, so that one alert is for both."""
    text = (ROOT / "deploy" / "haproxy" / "https.cfg").read_text(encoding="utf-8")
    served, watched = re.findall(r"bind :(\d+) (ssl crt \S+)", text)
    assert served[1] == watched[1]
    assert "\\nconche_tls_certificate_expiry_timestamp_seconds %[var(txn.expiry)]" in text
    prometheus = yaml.safe_load(
        (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    )
    (job,) = (job for job in prometheus["scrape_configs"] if job["job_name"] == "proxy")
    (asked,) = job["dns_sd_configs"]
    assert (job["scheme"], asked["names"], asked["port"]) == ("https", ["tls"], int(watched[0]))
    assert "tls" in SERVICES
    assert not any(str(asked["port"]) in port for port in SERVICES["tls"]["ports"])


def test_the_file_for_milvus_sets_what_the_service_knows() -> None:
    """A variable that was renamed would leave the FAQ where it was."""
    text = (ROOT / "deploy" / "compose" / "milvus.env").read_text(encoding="utf-8")
    variables = dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))
    known = {option.variable for option in options()} | {"COMPOSE_PROFILES", "REQUIREMENTS"}
    assert variables.keys() <= known
    assert variables["COMPOSE_PROFILES"] in SERVICES["milvus"]["profiles"]
    assert variables["CONCHE_MILVUS_URI"].startswith("http://milvus:")


def test_stop_waits_for_requests_in_work() -> None:
    """The engine's kill must not come before the service's own deadline."""
    defaults = {
        option.variable: float(option.default) for option in options() if "SHUTDOWN" in option.variable
    }
    assert len(defaults) == 2
    assert int(SERVICES["conche"]["stop_grace_period"].removesuffix("s")) > sum(defaults.values())


def test_images_are_pinned() -> None:
    """`latest` is another program every month."""
    for service in SERVICES.values():
        assert re.search(r":[^:]*\d|:\$\{IMAGE_TAG:-local\}$", service["image"])
        assert "latest" not in service["image"]


def test_every_setting_reaches_the_container() -> None:
    """A setting that compose does not hand through is one that the README promises in vain."""
    expected = [option.variable for option in options() if option.variable not in FIXED_BY_IMAGE]
    handed = SERVICES["conche"]["environment"]
    assert [name for name in handed if not name.startswith("OTEL_")] == expected


def test_image_fixes_address_port_and_models() -> None:
    """These three belong to the image: what it publishes and where it put the bundles."""
    environment = dict(item.split("=", 1) for item in argument("ENV").split())
    assert environment["CONCHE_HOST"] == "0.0.0.0"
    assert SERVICES["conche"]["ports"][0].endswith(":" + environment["CONCHE_PORT"])
    assert argument("EXPOSE") == environment["CONCHE_PORT"]
    assert environment.keys() >= FIXED_BY_IMAGE


def test_env_example_is_what_the_settings_say() -> None:
    """`make env-example` writes the file; a setting added without it is undocumented."""
    script = [sys.executable, "deploy/env_example.py"]
    env = {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    printed = subprocess.run(script, cwd=ROOT, capture_output=True, check=True, env=env).stdout.decode()
    assert (ROOT / ".env.example").read_text(encoding="utf-8") == printed


def test_env_example_names_every_variable_of_the_compose_file() -> None:
    """And none that it does not read."""
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    used |= set(SERVICES["conche"]["environment"])
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in used
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"^#([A-Z_]+)=", example, re.MULTILINE)) == used


def test_the_smoke_takes_from_compose_what_compose_takes_from_a_file() -> None:
    """A variable that is in `.env` only is in no shell's environment."""
    of_compose = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert {"PYTHON_IMAGE", "TLS_FOLDER"} <= of_compose
    for script in (ROOT / "deploy" / "smoke").glob("*.sh"):
        own = set(re.findall(r"\$\{?(\w+)", script.read_text(encoding="utf-8")))
        assert own & of_compose == set(), script

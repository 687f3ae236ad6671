"""/metrics on a port of its own: there and nowhere else, also while the other loop is busy."""

import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from service.api_keys import KeyFile, new_key, write_keys
from service.app import create_app, create_metrics_app
from service.cli.metrics_server import MetricsServer
from tests.service.cli.test_serve import HANG_S, Running, _start
from tests.service.cli.test_tls import CERTIFICATES
from tests.service.fakes_http import tiny_settings


def serving(
    models_folder: Path, *, context: ssl.SSLContext | None = None, **changes: object
) -> tuple[MetricsServer, FastAPI]:
    """A server that has begun to answer, and the main application, which has not."""
    settings = tiny_settings(models_folder, metrics_port="0", **changes)
    app = create_app(settings)
    listener = socket.create_server(("127.0.0.1", 0))
    server = MetricsServer(
        create_metrics_app(settings, app.state.metrics),
        listener,
        limits=settings.limits,
        metrics=app.state.metrics,
        context=context,
    )
    server.start()
    return server, app


@pytest.fixture
def server(models_folder: Path) -> Iterator[MetricsServer]:
    """A running one."""
    server, _ = serving(models_folder)
    yield server
    server.stop()


def get(server: MetricsServer, path: str = "/metrics", **more: object) -> httpx.Response:
    """Its answer."""
    url = f"http://127.0.0.1:{server.port}{path}"
    return httpx.get(url, timeout=HANG_S, **more)  # type: ignore[arg-type]


def test_it_has_the_metrics_and_nothing_else(server: MetricsServer) -> None:
    """In both formats; what else is asked for is told in JSON."""
    answer = get(server)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "conche_requests_total" in answer.text
    wish = {"accept": "application/openmetrics-text; version=1.0.0"}
    assert get(server, headers=wish).text.endswith("# EOF\n")
    assert httpx.head(f"http://127.0.0.1:{server.port}/metrics").status_code == 200
    for path in ("/embed", "/docs", "/openapi.json", "/"):
        assert get(server, path).json()["code"] == "unknown_path"


def test_it_answers_while_this_thread_is_busy(server: MetricsServer) -> None:
    """Which stands for the event loop of the service: here it waits, and runs nothing."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200")


def test_the_main_port_has_none_then(models_folder: Path) -> None:
    """What is shut in a firewall must not be open beside it."""
    settings = tiny_settings(models_folder, metrics_port="0")
    assert "/metrics" not in create_app(settings).openapi()["paths"]
    assert "/metrics" in create_app(tiny_settings(models_folder)).openapi()["paths"]


def test_a_key_is_needed_there_too_if_the_setting_says_so(models_folder: Path, tmp_path: Path) -> None:
    """The setting means the metrics, wherever they are."""
    path = tmp_path / "keys.json"
    key, record = new_key("scraper", ["read"])
    write_keys(path, KeyFile(keys=(record,)))
    server, _ = serving(models_folder, api_keys_file=str(path), metrics_need_key=True)
    try:
        assert get(server).status_code == 401
        assert get(server, headers={"authorization": f"Bearer {key}"}).status_code == 200
    finally:
        server.stop()


def test_it_speaks_tls_with_the_service(models_folder: Path) -> None:
    """Where texts are protected on their way, so is what tells of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    server, _ = serving(models_folder, context=context)
    try:
        url = f"https://127.0.0.1:{server.port}/metrics"
        assert httpx.get(url, verify=False, timeout=HANG_S).status_code == 200
    finally:
        server.stop()


def test_a_stop_does_not_wait_for_who_stays_connected(models_folder: Path) -> None:
    """Prometheus keeps its connection."""
    server, _ = serving(models_folder)
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert client.get("/metrics").status_code == 200
        server.stop()
    assert not server._thread.is_alive()


def test_the_process_serves_both_ports_and_stops_both(models_folder: Path) -> None:
    """And the greeting says where."""
    process = _start(models_folder, "--metrics-port", "0")
    try:
        running = Running(process)
        found = re.search(r"Metrics: (http://127\.0\.0\.1:\d+)/metrics", running.greeting)
        assert found
        url = found.group(1)
        assert url != running.url
        assert httpx.get(f"{running.url}/metrics", timeout=HANG_S).status_code == 404
        assert httpx.post(f"{running.url}/embed", json={"inputs": "a"}, timeout=HANG_S).status_code == 200
        text = httpx.get(f"{url}/metrics", timeout=HANG_S).text
        assert 'conche_requests_total{code="",method="POST",route="/embed",status="200"} 1.0' in text
        assert "conche_faq_entries 3.0" in text
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_a_metrics_port_in_use_is_one_line(models_folder: Path) -> None:
    """With its own setting."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = _start(models_folder, "--metrics-port", str(taken.getsockname()[1]))
        output, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (1, "")
    assert len(errors.splitlines()) == 1, errors
    assert "CONCHE_METRICS_PORT" in errors

"""Milvus servers for tests: milvus-lite's, and the real one of the wheel milvus 2.3.5; on ports of their own.

milvus-lite listens on loopback only. The real server has no such setting: what it announces to itself is
loopback, what it listens on is every interface, so run it on a machine that others cannot reach.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

STARTS_WITHIN_S = 120.0
# Of all stores of the tests: making and loading its collections takes a real server ten seconds.
PREFIX = "tests"

# Reads wait for the next time tick, and loading for several rounds of checks: at the defaults of 200 ms and
# up to a second these tests would take ten times as long. Ticks of 10 ms take half as much of a core again.
_QUICKER = {
    "proxy.timeTickInterval": "25",
    "queryCoord.checkInterval": "50",
    "queryCoord.distPullInterval": "50",
    "queryCoord.checkHandoffInterval": "100",
    "queryCoord.checkExecutedFlagInterval": "20",
}


class MilvusProcess:
    """A server that can be stopped amid a test.

    Attributes:
        uri: for clients.
    """

    def __init__(
        self, command: list[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.uri = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Fail with the log's end if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"the server ended: {self._log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """End it at once: nothing of it is kept."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=30)


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def milvus_lite_server(folder: Path) -> Iterator[MilvusProcess]:
    """milvus-lite behind gRPC, in a process of its own."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "milvus_lite", "server",
        "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(folder / "data"),
    ]  # fmt: skip
    server = MilvusProcess(command, port, folder)
    try:
        _wait(server, lambda: _listens(port))
        yield server
    finally:
        server.stop()


@contextmanager
def milvus_server(folder: Path) -> Iterator[MilvusProcess]:
    """The real server, standalone: etcd inside, files on the local disk."""
    # Its package starts it on fixed ports, one at a time on a machine; so only its configuration is used.
    from milvus import MilvusServerConfig, _initialize_data_files

    config = MilvusServerConfig(data_dir=str(folder))
    names = [name for name in config.configurable_items if name.endswith("_port")]
    ports = dict(zip([*names, "metrics", "etcd_peers"], free_ports(len(names) + 2), strict=True))
    config.update(**{name: ports[name] for name in names})
    for key, value in _QUICKER.items():
        config.set(key, value)
    config.resolve()
    _initialize_data_files(str(folder))
    etcd = folder / "etcd.yaml"
    client, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd_port", "etcd_peers"))
    etcd.write_text(
        f"name: default\nlisten-client-urls: {client}\nadvertise-client-urls: {client}\n"
        f"listen-peer-urls: {peer}\ninitial-advertise-peer-urls: {peer}\ninitial-cluster: default={peer}\n"
    )
    settings = folder / "configs" / "milvus.yaml"
    text = settings.read_text()
    text = text.replace("  data:\n    dir:", f"  config:\n    path: {etcd}\n  data:\n    dir:", 1)
    settings.write_text(text.replace("\n  ip: #", "\n  ip: 127.0.0.1 #"))
    environment = {
        "DEPLOY_MODE": "STANDALONE",
        "METRICS_PORT": str(ports["metrics"]),
        "MILVUS_RUN_DIR": str(folder / "run"),
        "LD_LIBRARY_PATH": f"{folder / 'bin'}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    }
    command = [str(folder / "bin" / "milvus"), "run", "standalone"]
    server = MilvusProcess(command, ports["proxy_port"], folder, environment)
    try:
        _wait(server, lambda: _healthy(ports["metrics"]))
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder / "bin", ignore_errors=True)  # 200 MB that pytest would keep for three runs


def _wait(server: MilvusProcess, ready: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + STARTS_WITHIN_S
    while not ready():
        server.check_alive()
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the server did not start within {STARTS_WITHIN_S:g} s")
        time.sleep(0.1)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return b"OK" in answer.read()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False

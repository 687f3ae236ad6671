"""The service needs no network but its callers': tried in a namespace that has none, and watched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HANG_S = 120  # only stops a hang

# Inside the namespace: switches its loopback on, serves, asks, and says what came of it.
ASK = """
import fcntl, json, socket, struct, subprocess, sys, urllib.request
with socket.socket() as handle:
    fcntl.ioctl(handle, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: up, running
outside = []
for address in ("192.0.2.1", "2001:db8::1"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as handle:
            outside.append(handle.connect_ex((address, 80)))
    except OSError as error:  # a machine without IPv6
        outside.append(error.errno)
pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
server = subprocess.Popen([sys.executable, "-c", sys.argv[1]], **pipes)
for line in server.stdout:
    if line.startswith("Documentation:"):
        base = line.split()[1].removesuffix("/docs")
        break
else:
    sys.exit(server.stderr.read())
def ask(path, body):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return answer.status
statuses = [
    ask("/readyz", None),
    ask("/embed", {"inputs": "hello"}),
    ask("/search", {"query": "hello"}),
    ask("/ner", {"inputs": "Tim Cook"}),
    ask("/faq/new/entries", {"entries": [{"id": "a", "question": "b", "answer": "c"}]}),
    ask("/metrics", None),
]
server.terminate()
_, errors = server.communicate()
calls = [line for line in errors.splitlines() if "REACHED" in line]
print(json.dumps({"outside": outside, "statuses": statuses, "calls": calls}))
"""

# The service, with every attempt noted to look up a name or to connect to another machine.
SERVE = """
import sys
def note(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if host not in ("127.0.0.1", "::1", None):
        print("REACHED", event, host, file=sys.stderr, flush=True)
sys.addaudithook(note)
from service.cli import main
sys.argv = ["conche", "serve"]
main()
"""


def _namespace() -> list[str]:
    """The command that runs another without a network; empty where this machine permits none."""
    for command in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        try:
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            break
    return []


def test_serving_needs_no_network(models_folder: Path, tmp_path: Path) -> None:
    """Nothing is fetched at the start or with the first requests, nor tried and given up."""
    without_network = _namespace()
    if not without_network:
        pytest.skip("this machine permits no namespace without a network")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    environment |= {
        "CONCHE_MODELS_DIR": str(models_folder),
        "CONCHE_EMBEDDING_BUNDLE": "tiny-embedding",
        "CONCHE_NER_BUNDLE": "tiny-ner",
        "CONCHE_FAQ_FILE": str(models_folder / "faq.jsonl"),
        "CONCHE_DATA_DIR": str(tmp_path),
        "CONCHE_ENGINE": "onnxruntime",
        "CONCHE_BATCHING__MAX_BATCH_TOKENS": "2048",
        "CONCHE_PORT": "0",
    }
    done = subprocess.run(
        [*without_network, sys.executable, "-c", ASK, SERVE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found["outside"]), "the namespace has a way out"
    assert found["statuses"] == [200] * 6
    assert found["calls"] == []

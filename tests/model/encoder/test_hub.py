"""Models of the hub, fetched by the real client from a hub of our own on this machine's loopback.

The client reads its variables when it is imported, so each case runs in a process of its own.
"""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from model.encoder.errors import CheckpointError
from model.encoder.hub import Snapshot, locate
from tests.fakes import without_home

COMMIT = "c0ffee" + "0" * 34
OTHER_COMMIT = "decaf0" + "1" * 34
SMALL = ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json", "README.md")
UNWANTED = (
    "onnx/model.onnx",
    "onnx/model.safetensors",
    "tf_model.h5",
    "openvino/openvino_model.bin",
    ".gitattributes",
)

_CHILD = """
import json, sys
from model.encoder.errors import CheckpointError
from model.encoder.hub import locate
try:
    found = locate(sys.argv[1], revision=sys.argv[2] or None)
    print(json.dumps({"path": str(found.path), "name": found.name, "revision": found.revision}))
except CheckpointError as error:
    print(json.dumps({"error": str(error)}))
"""


class FakeHub(http.server.ThreadingHTTPServer):
    """Answers the requests of a snapshot download for the models given, and writes them down."""

    def __init__(self, models: dict[str, tuple[str, ...]]) -> None:
        self.models = models
        self.fetched: list[str] = []
        self.tokens: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        if not name.startswith("org/"):
            return self._send(404, b"")
        self.server.tokens.add(self.headers.get("Authorization"))
        if name == "org/gated":
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if name not in self.server.models:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        revision = rest[1] if len(rest) > 1 else "main"
        commit = {"main": COMMIT, "v1": OTHER_COMMIT}.get(revision, revision)
        if commit not in (COMMIT, OTHER_COMMIT):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = self.server.models[name]
        if api:
            tree = [{"type": "file", "path": f, "size": len(f), "oid": _digest(f)} for f in files]
            info = {"id": name, "sha": commit, "siblings": [{"rfilename": f} for f in files]}
            return self._send(200, json.dumps(tree if "tree" in rest else info).encode())
        file = "/".join(rest[2:])
        if self.command == "GET":
            self.server.fetched.append(file)
        return self._send(200, file.encode(), {"X-Repo-Commit": commit, "ETag": f'"{_digest(file)}"'})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing to the test's output."""


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A hub with one model in both weight formats, and one in the old format only."""
    both = (*SMALL, "model.safetensors", "pytorch_model.bin", *UNWANTED)
    old = (*SMALL, "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json", *UNWANTED)
    server = FakeHub({"org/both": both, "org/old": old})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def locate_elsewhere(
    hub: FakeHub, home: Path, name: str, revision: str = "", **variables: str
) -> dict[str, Any]:
    """``locate`` in a fresh process whose hub is ``hub`` and whose cache is in ``home``."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        **variables,
    }
    result = subprocess.run(
        [sys.executable, "-c", _CHILD, name, revision],
        env=environment,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def test_a_model_is_fetched_once_and_without_what_is_not_read(hub: FakeHub, tmp_path: Path) -> None:
    """Neither the other weight format nor other frameworks' graphs; the commit becomes the revision."""
    found = locate_elsewhere(hub, tmp_path, "org/both", HF_TOKEN="hf_secret")
    assert (found["name"], found["revision"]) == ("org/both", COMMIT)
    assert sorted(hub.fetched) == sorted((*SMALL, "model.safetensors"))
    assert {file.relative_to(found["path"]).as_posix() for file in Path(found["path"]).rglob("*.*")} >= set(
        hub.fetched
    )
    assert Path(found["path"]).is_relative_to(tmp_path)
    assert "Bearer hf_secret" in hub.tokens
    hub.fetched.clear()
    assert locate_elsewhere(hub, tmp_path, "org/both") == found
    assert hub.fetched == []


def test_a_model_without_safetensors_comes_in_the_old_format(hub: FakeHub, tmp_path: Path) -> None:
    """Shards and their index with it."""
    locate_elsewhere(hub, tmp_path, "org/old")
    assert sorted(hub.fetched) == sorted(
        (*SMALL, "pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json")
    )


def test_a_revision_is_resolved_to_its_commit(hub: FakeHub, tmp_path: Path) -> None:
    """A tag may move; what was fetched is recorded as what it was."""
    assert locate_elsewhere(hub, tmp_path, "org/both", "v1")["revision"] == OTHER_COMMIT
    assert "no revision v9" in locate_elsewhere(hub, tmp_path, "org/both", "v9")["error"]


def test_offline_a_fetched_model_is_found_and_another_is_explained(hub: FakeHub, tmp_path: Path) -> None:
    """``HF_HUB_OFFLINE`` is the hub client's own variable; nothing is asked of the network."""
    online = locate_elsewhere(hub, tmp_path, "org/both")
    hub.tokens.clear()
    assert locate_elsewhere(hub, tmp_path, "org/both", HF_HUB_OFFLINE="1") == online
    refused = locate_elsewhere(hub, tmp_path, "org/old", HF_HUB_OFFLINE="1")
    assert "org/old is not in the hub's cache" in refused["error"]
    assert "HF_HUB_OFFLINE" in refused["error"]
    assert hub.tokens == set()


@pytest.mark.parametrize(
    ("name", "said"), [("org/absent", "no such model on the hub"), ("org/gated", "HF_TOKEN")]
)
def test_a_refusal_by_the_hub_says_what_to_do(name: str, said: str, hub: FakeHub, tmp_path: Path) -> None:
    """Mistyped, private or gated."""
    assert said in locate_elsewhere(hub, tmp_path, name)["error"]


def test_a_hub_out_of_reach_is_explained(hub: FakeHub, tmp_path: Path) -> None:
    """Connection refused, not a traceback of the HTTP library."""
    answer = locate_elsewhere(hub, tmp_path, "org/both", HF_ENDPOINT="http://127.0.0.1:9")
    assert "org/both" in answer["error"]


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing is asked of the hub for a path that exists."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert locate(folder) == Snapshot(folder, name="my-model", hub_id=None, revision=None)
    assert locate(str(folder)).path == folder
    with pytest.raises(CheckpointError, match="is a folder"):
        locate(folder, revision="main")


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "a/b/c", "org/", "org/na me"])
def test_what_is_neither_folder_nor_hub_id_is_refused(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A mistyped path is not looked for on the hub."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no folder .* here, nor is that a hub id"):
        locate(name)


def test_a_folder_in_a_home_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a container that runs under any number."""
    without_home(monkeypatch)
    with pytest.raises(CheckpointError, match="~/model: the home folder is not known"):
        locate("~/model")


@pytest.mark.parametrize("refs", [True, False])
def test_a_cache_folder_of_one_model_gives_its_snapshot(refs: bool, tmp_path: Path) -> None:
    """With the reference the client leaves, or with one snapshot there and no doubt."""
    cache = tmp_path / "models--org--both"
    (cache / "snapshots" / COMMIT).mkdir(parents=True)
    if refs:
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(f"{COMMIT}\n")
    expected = Snapshot(cache / "snapshots" / COMMIT, name="org/both", hub_id="org/both", revision=COMMIT)
    assert locate(cache) == expected
    assert locate(expected.path) == expected


def test_a_cache_folder_without_snapshots_is_explained(tmp_path: Path) -> None:
    """As an interrupted first download leaves it."""
    (tmp_path / "models--org--both" / "blobs").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="it has: none"):
        locate(tmp_path / "models--org--both")

"""One server for all clients: a process of its own, over the default models, as users meet it."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.fakes_http import write_bundles

REPOSITORY = Path(__file__).parents[2]
HANG_S = 60  # only stops a hang

# OpenAI's vocabulary, as LlamaIndex ships it: tiktoken would fetch it from the internet.
_LLAMA_INDEX = importlib.util.find_spec("llama_index.core")  # to import it takes seconds
assert _LLAMA_INDEX
assert _LLAMA_INDEX.origin
TIKTOKEN_CACHE = Path(_LLAMA_INDEX.origin).parent / "_static" / "tiktoken_cache"
CL100K = TIKTOKEN_CACHE / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def serve(data: Path, **variables: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server on a free port; return it and its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    environment |= {
        "CONCHE_MODELS_DIR": str(REPOSITORY / "models"),
        "CONCHE_DATA_DIR": str(data),
        "CONCHE_ENGINE": "onnxruntime",
        "CONCHE_BATCHING__MAX_BATCH_TOKENS": "2048",
        "CONCHE_FAQ_STORE": "none",
        "CONCHE_PORT": "0",
        "PYTHONIOENCODING": "utf-8",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "from service.cli import main; main()", "serve"],
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Documentation: (http://127\.0\.0\.1:\d+)/docs", line):
            return process, found.group(1)
    process.kill()
    raise AssertionError(f"the server ended with {process.wait(HANG_S)}")


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server with the default settings listens."""
    process, url = serve(tmp_path_factory.mktemp("data"))
    yield url
    process.kill()
    process.wait(HANG_S)


@pytest.fixture(scope="session")
def url_of_one_that_reads_cl100k(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where one listens that takes ids of OpenAI's vocabulary."""
    process, url = serve(
        tmp_path_factory.mktemp("data"),
        CONCHE_NER_BUNDLE="none",
        CONCHE_INPUT_IDS="cl100k",
        CONCHE_OPENAI_VOCABULARY=str(CL100K),
    )
    yield url
    process.kill()
    process.wait(HANG_S)


@pytest.fixture(autouse=True)
def cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that would fetch something look for it here; proxies of the machine are not for loopback."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TIKTOKEN_CACHE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # else huggingface_hub refuses to talk to any server, ours too
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(scope="session")
def url_of_one_with_a_faq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where one listens that keeps a FAQ, over tiny bundles."""
    folder = write_bundles(tmp_path_factory.mktemp("models"))
    process, url = serve(
        tmp_path_factory.mktemp("data"),
        CONCHE_MODELS_DIR=str(folder),
        CONCHE_EMBEDDING_BUNDLE="tiny-embedding",
        CONCHE_NER_BUNDLE="tiny-ner",
        CONCHE_FAQ_STORE="embedded",
        CONCHE_FAQ_FILE=str(folder / "faq.jsonl"),
    )
    yield url
    process.kill()
    process.wait(HANG_S)


@pytest.fixture(scope="session")
def url_of_one_that_classifies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where one listens that labels texts, over a tiny bundle."""
    process, url = serve(
        tmp_path_factory.mktemp("data"),
        CONCHE_MODELS_DIR=str(write_bundles(tmp_path_factory.mktemp("models"))),
        CONCHE_EMBEDDING_BUNDLE="none",
        CONCHE_NER_BUNDLE="none",
        CONCHE_CLASSIFIER_BUNDLE="tiny-classifier",
    )
    yield url
    process.kill()
    process.wait(HANG_S)

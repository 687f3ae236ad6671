"""service.lifespan: what is opened, within which bounds, and how it is closed."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest

from model.runtime import threads
from service.errors import UnavailableError
from service.inference import EmbeddingOptions
from service.lifespan import Services, StartupError, open_services
from service.metrics import Metrics
from tests.fakes import HANG_LIMIT_S, FakeEngine, until
from tests.service.fakes_http import running, tiny_settings, write_bundles


@pytest.mark.parametrize(("quota", "workers"), [(1.5, 2), (3.0, 3)])
async def test_threads_follow_the_quota(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch, quota: float, workers: int
) -> None:
    """The pool of asyncio is sized by the cores of the host, of which a container may have a few."""
    monkeypatch.setattr(threads, "_affinity", lambda: 64)
    monkeypatch.setattr(threads, "cgroup_quota", lambda *_: quota)
    gate = threading.Event()
    busy: set[str] = set()

    def work() -> None:
        busy.add(threading.current_thread().name)
        gate.wait(HANG_LIMIT_S)

    async with open_services(tiny_settings(models_folder, threads="auto"), Metrics()) as services:
        assert services.threads == int(quota)
        jobs = [asyncio.create_task(asyncio.to_thread(work)) for _ in range(20)]
        await until(lambda: len(busy) == workers)
        gate.set()
        await asyncio.gather(*jobs)
    assert len(busy) == workers


UNREADABLE = '{"id": "blank", "question": "\\u200b", "answer": "Nobody can ask for it."}\n'


async def test_an_faq_entry_that_the_model_cannot_read_stops_the_start_with_its_name(tmp_path: Path) -> None:
    """One line that an operator can act on, and no traceback."""
    folder = write_bundles(tmp_path)
    (folder / "faq.jsonl").write_text(UNREADABLE, encoding="utf-8")
    with pytest.raises(StartupError, match=r"/search: FAQ file .*faq.jsonl cannot be used: .*'blank'"):
        async with running(tiny_settings(folder)):
            pass


async def test_an_faq_entry_that_the_model_cannot_read_leaves_the_rest_served(tmp_path: Path) -> None:
    """If that is what the settings say; the probe is red, so somebody looks."""
    folder = write_bundles(tmp_path)
    (folder / "faq.jsonl").write_text(UNREADABLE, encoding="utf-8")
    async with running(tiny_settings(folder, on_bundle_error="serve")) as client:
        assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
        assert (await client.post("/search", json={"query": "hello"})).status_code == 503
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "'blank'" in " ".join(answer.json()["reasons"])


async def test_a_tokenising_thread_that_hangs_turns_the_probe_red(client: httpx.AsyncClient) -> None:
    """Every route would wait for it, so another process has to take over."""
    services: Services = client.app.state.services  # type: ignore[attr-defined]
    assert services.embedder is not None
    services.embedder._model._budget.lane(1).give_up("tokenising hangs")
    answer = await client.get("/readyz")
    assert answer.status_code == 503
    assert "tokenising hangs" in " ".join(answer.json()["reasons"])
    assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 503
    page = (await client.get("/metrics")).text
    assert 'conche_model_healthy{model="tiny-embedding"} 0.0' in page
    assert 'conche_model_healthy{model="tiny-ner"} 0.0' in page


async def test_closing_takes_no_longer_than_the_grace(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orchestrator kills what is still there when its own patience ends."""
    engine = FakeEngine(size=32)
    monkeypatch.setattr("service.lifespan.OnnxRuntimeEngine", lambda *_, **__: engine)
    monkeypatch.setattr("service.lifespan.check_golden", lambda *_: None)
    settings = tiny_settings(models_folder, faq_file="none", shutdown_grace_seconds=0)
    async with asyncio.timeout(HANG_LIMIT_S):  # less than the batcher's own patience
        async with open_services(settings, Metrics()) as services:
            assert services.embedder is not None
            engine.gate.clear()
            call = asyncio.create_task(services.embedder.embed(["hello"], EmbeddingOptions()))
            await until(lambda: engine.entered == 1)
        with pytest.raises(UnavailableError, match="shutting down"):
            await call
    engine.gate.set()

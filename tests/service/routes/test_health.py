"""Probes: alive, ready, and the reasons when not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.batching import BatchingLimits
from service.bundle_reading import BundleReader
from service.inference import ComputeBudget
from service.lifespan import Services, open_services
from service.loaded_models import LoadedModels
from service.metrics import Metrics
from service.settings import Settings
from tests.service.fakes_http import running, tiny_settings, write_bundles

PROBES = ["/livez", "/readyz", "/health", "/metrics"]


@pytest.mark.parametrize("path", [*PROBES, "/info", "/docs"])
async def test_head_says_what_get_says_without_a_body(client: httpx.AsyncClient, path: str) -> None:
    """Uptime monitors and load balancers probe with HEAD."""
    get, head = await client.get(path), await client.head(path)
    assert (get.status_code, head.status_code) == (200, 200)
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_ready_while_everything_works(client: httpx.AsyncClient) -> None:
    """Green without reasons."""
    assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": []}


async def _expect_red(client: httpx.AsyncClient, reason: str) -> None:
    for path in ("/readyz", "/health"):
        answer = await client.get(path)
        assert answer.status_code == 503
        body = answer.json()
        assert body["status"] == "not ready"
        assert any(reason in said for said in body["reasons"]), body
        assert body["code"] == "unavailable"
        assert body["request_id"] == answer.headers["x-request-id"]
        assert "retry-after" in answer.headers
    assert (await client.head("/readyz")).status_code == 503
    assert (await client.get("/livez")).status_code == 200


async def test_red_while_draining(client: httpx.AsyncClient) -> None:
    """Load balancers must look elsewhere before the sockets close."""
    client.app.state.services.draining = True  # type: ignore[attr-defined]
    await _expect_red(client, "shutting down")


async def test_red_when_a_batch_worker_has_gone(client: httpx.AsyncClient) -> None:
    """A dead worker behind a green probe answers nobody and is never replaced."""
    services: Services = client.app.state.services  # type: ignore[attr-defined]
    assert services.tagger is not None
    await services.tagger.close()
    await _expect_red(client, "tiny-ner")
    answer = await client.post("/ner", json={"inputs": "Tim"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_red_with_the_reason_when_a_bundle_was_refused(tmp_path: Path) -> None:
    """The other routes work; the one that cannot says which check failed."""
    folder = write_bundles(tmp_path)
    weights = folder / "tiny-ner" / "encoder.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    async with running(tiny_settings(folder, on_bundle_error="serve")) as client:
        await _expect_red(client, "sha256")
        answer = await client.post("/ner", json={"inputs": "Tim"})
        assert (answer.status_code, answer.json()["code"]) == (503, "no_model")
        assert "encoder.safetensors" in answer.json()["error"]
        assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert 'conche_model_healthy{model="tiny-ner"} 0.0\n' in metrics  # or no alert could see it
        assert 'conche_model_healthy{model="tiny-embedding"} 1.0\n' in metrics


async def test_red_when_nothing_at_all_is_loaded(models_folder: Path) -> None:
    """Every route would answer 404."""

    @asynccontextmanager
    async def nothing(settings: Settings, metrics: Metrics) -> AsyncIterator[Services]:
        models = LoadedModels(
            budget=ComputeBudget(),
            limits=BatchingLimits(),
            reader=BundleReader.of(settings),
            observers=metrics,
        )
        yield Services(threads=1, models=models)

    async with running(tiny_settings(models_folder), services=nothing) as client:
        await _expect_red(client, "no model is loaded")


async def test_a_route_that_was_not_asked_for_leaves_the_service_ready(models_folder: Path) -> None:
    """404 on that route, with the setting that turns it on."""
    settings = tiny_settings(models_folder, ner_bundle="none", faq_store="none")
    async with running(settings, services=open_services) as client:
        assert (await client.get("/readyz")).status_code == 200
        for path, body, code, setting in [
            ("/ner", {"inputs": "Tim"}, "no_model", "CONCHE_NER_BUNDLE"),
            ("/search", {"query": "refund"}, "no_faq", "CONCHE_FAQ_STORE"),
        ]:
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (404, code)
            assert setting in answer.json()["error"]

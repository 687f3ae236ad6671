"""``/admin``: models come and go while others serve."""

import asyncio
import gc
import weakref
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.fakes import until
from tests.service.fakes_http import running, tiny_settings


async def _load(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.post("/admin/models", json={"bundle": name})


async def test_a_model_is_loaded_used_by_name_and_unloaded(client: httpx.AsyncClient) -> None:
    """The default goes on serving requests that name none, with the same vectors."""
    body = {"inputs": "hello world"}
    before = (await client.post("/embed", json=body)).json()
    unknown = await client.post("/embed", json=body | {"model": "tiny-spare"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")

    loaded = await _load(client, "tiny-spare")
    assert loaded.status_code == 200, loaded.text
    assert (loaded.json()["id"], loaded.json()["default"], loaded.json()["healthy"]) == (
        "tiny-spare",
        False,
        True,
    )
    other = await client.post("/embed", json=body | {"model": "tiny-spare"})
    assert other.headers["x-conche-model"] == "tiny-spare"
    assert np.abs(np.array(other.json()) - before).max() > 0.01
    assert (await client.post("/embed", json=body)).json() == before
    listed = (await client.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == [
        "tiny-embedding",
        "tiny-ner",
        "tiny-classifier",
        "tiny-spare",
    ]

    left = await client.delete("/admin/models/tiny-spare")
    assert [model["id"] for model in left.json()["models"]] == [
        "tiny-embedding",
        "tiny-ner",
        "tiny-classifier",
    ]
    assert "tiny-spare" in left.json()["bundles"]
    gone = await client.post("/embed", json=body | {"model": "tiny-spare"})
    assert gone.status_code == 404
    assert "there is: tiny-embedding" in gone.json()["error"]


async def test_what_is_unloaded_is_let_go_of_and_its_state_no_longer_shown(client: httpx.AsyncClient) -> None:
    """At once: with every exchange memory would grow until the garbage collector looks at what is old.

    What it did stays counted.
    """
    await _load(client, "tiny-spare")
    await client.post("/embed", json={"inputs": "a", "model": "tiny-spare"})
    services = client.app.state.services  # type: ignore[attr-defined]
    [loaded] = [one for one in services.models if one.model.model_id == "tiny-spare"]
    parts = [weakref.ref(part) for part in (loaded.model, loaded.engine, loaded.model.tokenizer)]
    del loaded
    page = (await client.get("/metrics")).text
    assert 'conche_model_healthy{model="tiny-spare"} 1.0' in page
    gc.disable()
    try:
        await client.delete("/admin/models/tiny-spare")
        await until(lambda: all(part() is None for part in parts))
    finally:
        gc.enable()
    page = (await client.get("/metrics")).text
    assert 'conche_model_healthy{model="tiny-spare"}' not in page
    assert 'conche_texts_total{model="tiny-spare"} 1.0' in page
    assert (await _load(client, "tiny-spare")).status_code == 200  # and it may come back
    assert 'conche_model_healthy{model="tiny-spare"} 1.0' in (await client.get("/metrics")).text


async def test_requests_in_work_are_finished_before_a_model_goes(client: httpx.AsyncClient) -> None:
    """Nobody is cut off by an operator's change."""
    await _load(client, "tiny-spare")
    texts = ["hello world"] * 500
    requests = [
        asyncio.create_task(client.post("/embed", json={"inputs": texts, "model": "tiny-spare"}))
        for _ in range(4)
    ]
    services = client.app.state.services  # type: ignore[attr-defined]
    batcher = services.models.embedders()["tiny-spare"].batcher
    await until(lambda: batcher.queued_items > 0)
    await client.delete("/admin/models/tiny-spare")
    answers = await asyncio.gather(*requests)
    assert [answer.status_code for answer in answers] == [200] * 4


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"bundle": "tiny-embedding"}, 409, "model_loaded"),
        ({"bundle": "none-such"}, 422, "bundle_refused"),
        ({"bundle": "../tiny-spare"}, 422, "invalid_input"),
        ({"bundle": "/etc"}, 422, "invalid_input"),
        ({"bundle": "a" * 255}, 422, "bundle_refused"),
        ({"bundle": "a" * 256}, 422, "invalid_input"),
        ({}, 422, "invalid_input"),
    ],
)
async def test_what_cannot_be_loaded_is_refused(
    client: httpx.AsyncClient, body: dict[str, str], status: int, code: str
) -> None:
    """Names only, in the models folder only; no path of the machine is told."""
    answer = await client.post("/admin/models", json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    services = client.app.state.settings  # type: ignore[attr-defined]
    assert str(services.models_dir) not in answer.text


async def test_the_default_models_stay(client: httpx.AsyncClient) -> None:
    """The FAQ is searched with the one, and requests that name none get both."""
    for name in ("tiny-embedding", "tiny-ner"):
        answer = await client.delete(f"/admin/models/{name}")
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert (await client.delete("/admin/models/other")).status_code == 404


async def test_the_routes_are_off_unless_a_setting_says_so(models_folder: Path) -> None:
    """Whoever reaches the port could use up its memory."""
    async with running(tiny_settings(models_folder, admin=False)) as client:
        for answer in (
            await client.get("/admin/models"),
            await _load(client, "tiny-spare"),
            await client.delete("/admin/models/tiny-spare"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "admin_off")
            assert "CONCHE_ADMIN" in answer.json()["error"]


async def test_several_bundles_are_served_from_the_start(models_folder: Path) -> None:
    """The first is the default; the order of the setting is that of the list."""
    settings = tiny_settings(models_folder, embedding_bundle="tiny-spare, tiny-embedding")
    async with running(settings) as client:
        unnamed = await client.post("/embed", json={"inputs": "hello"})
        assert unnamed.headers["x-conche-model"] == "tiny-spare"
        named = await client.post("/embed", json={"inputs": "hello", "model": "tiny-embedding"})
        assert named.headers["x-conche-model"] == "tiny-embedding"


async def test_another_model_never_takes_the_place_of_a_default_that_failed(models_folder: Path) -> None:
    """Requests that name none would get other vectors than the day before, and nobody would notice."""
    settings = tiny_settings(
        models_folder,
        embedding_bundle="none-such,tiny-embedding",
        faq_store="none",
        on_bundle_error="serve",
    )
    async with running(settings) as client:
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 503
        named = await client.post("/embed", json={"inputs": "a", "model": "tiny-embedding"})
        assert named.status_code == 200
        assert (await client.get("/readyz")).status_code == 503


async def test_a_model_beside_the_default_that_failed_turns_the_probe_red(models_folder: Path) -> None:
    """Until it is loaded after all."""
    settings = tiny_settings(
        models_folder, embedding_bundle="tiny-embedding,none-such", on_bundle_error="serve"
    )
    async with running(settings) as client:
        assert (await client.post("/embed", json={"inputs": "a"})).status_code == 200
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "model none-such" in answer.json()["error"]

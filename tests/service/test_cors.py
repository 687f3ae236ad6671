"""Pages of other origins: let in if a setting names them, and then wholly."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx
import pytest

from service.api_keys import KeyFile, new_key, write_keys
from service.settings import InvalidSettingsError, load_settings
from tests.service.fakes_http import running, tiny_settings

SHOP = "https://shop.example"
ASKS = {"origin": SHOP, "access-control-request-method": "POST"}


@pytest.fixture
async def keyed(models_folder: Path, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The app with keys, for pages of one shop and one more."""
    path = tmp_path / "keys.json"
    write_keys(path, KeyFile(keys=(new_key("shop", ["read"])[1],)))
    settings = tiny_settings(
        models_folder,
        api_keys_file=str(path),
        cors_origins=f"{SHOP}, http://localhost:5173",
        faq_store="none",
    )
    async with running(settings) as client:
        yield client


def anyone(models_folder: Path) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """The app for pages of any origin."""
    return running(tiny_settings(models_folder, cors_origins="*", faq_store="none"))


async def test_a_preflight_is_answered_without_a_key(keyed: httpx.AsyncClient) -> None:
    """Browsers send none with it, and no request after one that fails."""
    wanted = "authorization,content-type,x-stainless-os"
    headers = ASKS | {"access-control-request-headers": wanted}
    answer = await keyed.options("/v1/embeddings", headers=headers)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == SHOP
    allowed = {name.strip() for name in answer.headers["access-control-allow-headers"].split(",")}
    assert {"authorization", "x-api-key", "content-type", "x-request-id", "x-stainless-os"} <= allowed
    assert {"DELETE", "PATCH", "POST", "PUT"} <= set(
        answer.headers["access-control-allow-methods"].split(", ")
    )
    assert answer.headers["vary"] == "Origin"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("names", ["a b", "a\x0bb", "x" * 3000, "a,,b", '"'])
async def test_names_that_are_none_are_not_repeated(keyed: httpx.AsyncClient, names: str) -> None:
    """Nothing that a caller sends becomes part of a header unseen."""
    asked = {b"access-control-request-headers": names.encode()}
    headers = {name.encode(): value.encode() for name, value in ASKS.items()} | asked
    answer = await keyed.options("/embed", headers=headers)
    assert answer.headers["access-control-allow-headers"] == (
        "authorization, content-type, x-api-key, x-request-id"
    )


@pytest.mark.parametrize("origin", ["https://evil.example", "http://shop.example", f"{SHOP}:8443", "null"])
async def test_others_get_no_permission(keyed: httpx.AsyncClient, origin: str) -> None:
    """Scheme, host and port: all of them make an origin."""
    for answer in (
        await keyed.options("/embed", headers=ASKS | {"origin": origin}),
        await keyed.get("/livez", headers={"origin": origin}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["vary"] == "Origin"  # or a cache between gives them the shop's


async def test_every_error_may_be_read(keyed: httpx.AsyncClient) -> None:
    """Else a page sees "network error" where the reason stands."""
    seen = []
    for request in (
        keyed.build_request("POST", "/embed", json={"inputs": "a"}),
        keyed.build_request("GET", "/nowhere"),
        keyed.build_request("GET", "/livez/%ff"),
    ):
        request.headers["origin"] = SHOP
        answer = await keyed.send(request)
        seen.append((answer.status_code, answer.headers["access-control-allow-origin"]))
    assert seen == [(401, SHOP), (401, SHOP), (400, SHOP)]


async def test_a_refused_body_and_a_timeout_may_be_read(models_folder: Path) -> None:
    """They are made at the edge, outside the routes."""
    limits = {"max_body_bytes": 1024, "body_seconds": 0.05}
    async with running(
        tiny_settings(models_folder, cors_origins=SHOP, faq_store="none", limits=limits)
    ) as client:

        async def slow() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(5)

        json_type = {"origin": SHOP, "content-type": "application/json"}
        large = await client.post("/embed", content=b"x" * 2000, headers=json_type)
        late = await client.post("/embed", content=slow(), headers=json_type)
        for answer, status in ((large, 413), (late, 408)):
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == SHOP


async def test_all_that_an_answer_says_may_be_read(models_folder: Path) -> None:
    """Our headers, each of them; a page may read only those that are named."""
    async with anyone(models_folder) as client:
        answer = await client.post(
            "/embed", json={"inputs": "hello " * 600, "truncate": True}, headers={"origin": SHOP}
        )
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        ours = {name for name in answer.headers if name.startswith("x-")}
        assert "x-conche-truncated" in ours
        assert ours | {"retry-after", "retry-after-ms", "x-request-id"} <= exposed


async def test_any_origin_never_comes_with_credentials(models_folder: Path) -> None:
    """With both, any page could use what a browser is logged in to."""
    async with anyone(models_folder) as client:
        for answer in (
            await client.options("/embed", headers=ASKS),
            await client.get("/livez", headers={"origin": "https://anywhere.example"}),
        ):
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers
        assert "access-control-allow-origin" not in (await client.get("/livez")).headers


async def test_without_the_setting_browsers_keep_pages_away(client: httpx.AsyncClient) -> None:
    """As before."""
    for answer in (
        await client.options("/embed", headers=ASKS),
        await client.get("/livez", headers={"origin": SHOP}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert "vary" not in answer.headers


@pytest.mark.parametrize("value", ["shop.example", "https://shop.example/", "https://a, *", "ftp://a", ","])
def test_what_is_no_origin_stops_the_start(value: str) -> None:
    """One that never matches would be looked for in the browser."""
    with pytest.raises(InvalidSettingsError, match="CONCHE_CORS_ORIGINS"):
        load_settings({("cors_origins",): value}, {})


async def test_the_body_of_an_error_is_the_usual_one(keyed: httpx.AsyncClient) -> None:
    """Nothing but headers is added."""
    answer = await keyed.post("/embed", json={}, headers={"origin": SHOP})
    assert json.loads(answer.text)["code"] == "unauthorized"

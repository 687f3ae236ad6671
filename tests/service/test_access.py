"""Who may do what: every route's scope, and what those get who lack it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.access import scope_for
from service.api_keys import KeyFile, Scope, new_key, write_keys
from service.app import ROUTERS, create_app
from service.lifespan import StartupError
from tests.service.fakes_http import running, tiny_settings

# Decided one by one. A new route fails the test below until somebody has decided.
SCOPES: dict[Scope | None, set[str]] = {
    None: {
        "GET /",
        "GET /docs",
        "GET /health",
        "GET /livez",
        "GET /metrics",
        "GET /openapi.json",
        "GET /readyz",
    },
    "read": {
        "GET /faq",
        "GET /faq/{collection}",
        "GET /faq/{collection}/count",
        "GET /faq/{collection}/entries",
        "GET /faq/{collection}/entries/{entry_id:path}",
        "GET /faq/{collection}/export",
        "GET /faq/{collection}/reindex",
        "GET /info",
        "GET /snapshots",
        "GET /v1/models",
        "GET /v1/models/{model_id:path}",
        "POST /classify",
        "POST /decode",
        "POST /embed",
        "POST /embed_all",
        "POST /embeddings",
        "POST /faq/{collection}/evaluate",
        "POST /models/{model_id:path}/pipeline/feature-extraction",
        "POST /ner",
        "POST /predict",
        "POST /rerank",
        "POST /search",
        "POST /similarity",
        "POST /tokenize",
        "POST /v1/embeddings",
        "POST /v1/rerank",
    },
    "write": {
        "DELETE /faq/{collection}",
        "DELETE /faq/{collection}/entries/{entry_id:path}",
        "PATCH /faq/{collection}/entries/{entry_id:path}",
        "POST /faq/{collection}/delete",
        "POST /faq/{collection}/entries",
        "POST /faq/{collection}/import",
        "POST /faq/{collection}/reindex",
        "PUT /faq/{collection}",
        "PUT /faq/{collection}/entries/{entry_id:path}",
    },
    "admin": {
        "DELETE /admin/models/{model_id}",
        "DELETE /snapshots/{name}",
        "GET /admin/models",
        "POST /admin/models",
        "POST /snapshots",
    },
}


def routes() -> Iterable[tuple[str, str]]:
    """(method, path template) of every route, the framework's own included."""
    yield "GET", FastAPI().openapi_url or ""
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            for method in sorted(route.methods):
                yield method, route.path


def test_the_scope_of_every_route_is_decided() -> None:
    """One that is forgotten would be open to whoever may read, or closed to those who should."""
    decided = {route: scope for scope, listed in SCOPES.items() for route in listed}
    for method, template in routes():
        path = template.replace(":path}", "}").replace("{collection}", "shop").replace("{entry_id}", "a/b")
        wanted = f"{'GET' if method == 'HEAD' else method} {template}"
        assert wanted in decided, f"decide which scope {wanted} takes"
        assert scope_for(method, path) == decided[wanted], wanted


def test_metrics_need_a_key_if_a_setting_says_so() -> None:
    """They name models and keys; a scraper can send one."""
    assert scope_for("GET", "/metrics") is None
    assert scope_for("GET", "/metrics", metrics_need_key=True) == "read"


def test_what_leads_nowhere_takes_a_key_as_well() -> None:
    """Strangers need not learn what is there; and a route that is added later is not open by default."""
    assert scope_for("GET", "/nowhere") == "read"
    assert scope_for("POST", "/livez") == "read"
    assert scope_for("POST", "/faq/a/entries/b/evaluate") == "write"
    assert scope_for("GET", "/admin/new") == "admin"


class Keyed:
    """A running app with a key for each scope, and others that a test adds."""

    def __init__(self, client: httpx.AsyncClient, path: Path) -> None:
        self.client = client
        self.path = path
        self.keys: dict[str, str] = {}

    async def ask(self, method: str, path: str, key: str | None = None, **more: object) -> httpx.Response:
        """A request with the key of that name."""
        headers = {} if key is None else {"x-api-key": self.keys[key]}
        return await self.client.request(method, path, headers=headers, **more)  # type: ignore[arg-type]


def make_keys(path: Path, **limits: dict[str, int]) -> dict[str, str]:
    """A file with a key for each scope, and read keys with limits."""
    made = {scope: new_key(scope, [scope]) for scope in ("read", "write", "admin")}
    made |= {name: new_key(name, ["read"], **numbers) for name, numbers in limits.items()}
    write_keys(path, KeyFile(keys=tuple(record for _, record in made.values())))
    return {name: key for name, (key, _) in made.items()}


@pytest.fixture
async def keyed(models_folder: Path, tmp_path: Path) -> AsyncIterator[Keyed]:
    """The app with keys."""
    path = tmp_path / "keys.json"
    keys = make_keys(path, hurried={"requests_per_minute": 1}, single={"concurrent_requests": 1})
    # Without a FAQ, which takes a second to measure its model: who gets as far as the route is told so.
    async with running(tiny_settings(models_folder, api_keys_file=str(path), faq_store="none")) as client:
        keyed = Keyed(client, path)
        keyed.keys = keys
        yield keyed


@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/nowhere", "/admin/models"])
async def test_no_key_and_a_wrong_key_get_the_same_answer(keyed: Keyed, path: str) -> None:
    """It says how to send one, and nothing of which there are."""
    keyed.keys["wrong"] = "conche_" + "A" * 43
    answers = [await keyed.ask("POST", path, key, json={"inputs": "a"}) for key in (None, "wrong")]
    bodies = []
    for answer in answers:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["x-request-id"] == answer.json()["request_id"]
        bodies.append({**answer.json(), "request_id": None})
    assert bodies[0] == bodies[1]
    if path.startswith("/v1"):
        assert bodies[0]["error"]["type"] == "authentication_error"
        assert bodies[0]["error"]["code"] == "unauthorized"
    else:
        assert (bodies[0]["code"], bodies[0]["error_type"]) == ("unauthorized", "Unauthorized")


@pytest.mark.parametrize(
    "headers",
    [
        lambda key: {"authorization": f"Bearer {key}"},
        lambda key: {"authorization": f"bearer   {key} "},
        lambda key: {"authorization": key},
        lambda key: {"x-api-key": key},
        lambda key: {"x-api-key": key, "authorization": "Basic dTpw"},
    ],
)
async def test_a_key_is_taken_as_clients_send_it(
    keyed: Keyed, headers: Callable[[str], dict[str, str]]
) -> None:
    """OpenAI's SDKs, older LlamaIndex without the word Bearer, and behind a proxy with a login of its own."""
    answer = await keyed.client.post("/embed", json={"inputs": "a"}, headers=headers(keyed.keys["read"]))
    assert answer.status_code == 200


@pytest.mark.parametrize("value", ["Basic dTpw", "Bearer", "Bearer ", "", "Bearer \xff"])
async def test_other_credentials_are_no_key(keyed: Keyed, value: str) -> None:
    """And no fault of ours."""
    answer = await keyed.client.get("/info", headers={b"authorization": value.encode("latin-1")})
    assert answer.status_code == 401


async def test_each_scope_opens_its_own_and_nothing_else(keyed: Keyed) -> None:
    """A shop's search page must not be able to change the FAQ, nor an importer to unload models."""
    asked = {
        "read": ("POST", "/search", {"query": "return"}),
        "write": ("PUT", "/faq/mine", {}),
        "admin": ("GET", "/admin/models", None),
    }
    for needed, (method, path, body) in asked.items():
        for key in asked:
            answer = await keyed.ask(method, path, key, json=body)
            if key == needed:
                assert answer.is_success or answer.json()["code"] == "no_faq", answer.text
            else:
                assert answer.status_code == 403
                assert answer.json()["code"] == "forbidden"
                assert f"`{needed}`" in answer.json()["error"]


async def test_probes_and_documentation_are_open(keyed: Keyed) -> None:
    """Orchestrators send no keys."""
    for path in ("/", "/livez", "/readyz", "/health", "/docs", "/openapi.json", "/metrics", "/docs/"):
        assert (await keyed.ask("GET", path)).status_code == 200, path


async def test_a_refusal_reads_no_body(keyed: Keyed) -> None:
    """Strangers must not be able to fill the memory."""
    read = 0
    app, sent = keyed.client.app, []  # type: ignore[attr-defined]

    async def receive() -> dict[str, object]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/embed",
        "raw_path": b"/embed",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "scheme": "http",
        "server": ("conche.test", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "http_version": "1.1",
    }
    await app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert read == 0


async def test_a_key_that_has_used_up_its_rate_is_told_when_to_come_back(keyed: Keyed) -> None:
    """In the headers that clients read; others go on."""
    assert (await keyed.ask("GET", "/info", "hurried")).status_code == 200
    answer = await keyed.ask("GET", "/info", "hurried")
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert 0 < int(answer.headers["retry-after-ms"]) <= 60_000
    assert int(answer.headers["retry-after"]) >= 1
    assert (await keyed.ask("GET", "/info", "read")).status_code == 200
    metrics = (await keyed.ask("GET", "/metrics")).text
    assert 'conche_refusals_total{reason="rate_limited"} 1.0' in metrics
    assert 'conche_key_requests_total{key="hurried",status="429"} 1.0' in metrics
    assert 'conche_requests_total{code="rate_limited",method="GET",route="/info",status="429"} 1.0' in metrics
    assert "conche_api_keys 5.0" in metrics


async def test_a_key_has_no_more_in_work_than_it_may(keyed: Keyed) -> None:
    """And may send again as soon as it has an answer."""
    work = {"inputs": ["hello world " * 10] * 256}
    answers = await asyncio.gather(*(keyed.ask("POST", "/embed", "single", json=work) for _ in range(4)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200, 429, 429, 429]
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["code"] == "too_many_concurrent"
    assert "retry-after-ms" in refused.headers
    assert (await keyed.ask("POST", "/embed", "single", json=work)).status_code == 200


async def test_the_log_names_the_key_and_never_shows_it(
    keyed: Keyed, caplog: pytest.LogCaptureFixture
) -> None:
    """Who did it is what a log is for."""
    caplog.set_level(logging.INFO, logger="service.access")
    await keyed.ask("GET", "/info", "read")
    await keyed.ask("GET", "/info")
    named, nameless = [record for record in caplog.records if record.name == "service.access"]
    assert vars(named)["key"] == "read"
    assert "key" not in vars(nameless)
    assert (vars(nameless)["route"], vars(nameless)["code"]) == ("/info", "unauthorized")
    assert keyed.keys["read"] not in json.dumps([vars(record) for record in caplog.records], default=str)


async def test_a_file_of_keys_that_cannot_be_used_stops_the_start(
    models_folder: Path, tmp_path: Path
) -> None:
    """Open by mistake is worse than not there."""
    settings = tiny_settings(models_folder, api_keys_file=str(tmp_path / "missing.json"))
    with pytest.raises(StartupError, match=r"CONCHE_API_KEYS_FILE: .*missing.json cannot be read"):
        create_app(settings)


async def test_without_a_file_nothing_needs_a_key(client: httpx.AsyncClient) -> None:
    """As before; a key that is sent all the same does no harm."""
    answer = await client.post("/embed", json={"inputs": "a"}, headers={"authorization": "Bearer none"})
    assert answer.status_code == 200


async def test_the_openapi_document_says_where_keys_are_needed(keyed: Keyed) -> None:
    """Client generators read it there."""
    document = (await keyed.ask("GET", "/openapi.json")).json()
    schemes = document["components"]["securitySchemes"]
    assert {scheme["type"] for scheme in schemes.values()} == {"http", "apiKey"}
    embed = document["paths"]["/embed"]["post"]
    assert {name for way in embed["security"] for name in way} == set(schemes)
    assert {"401", "403", "429"} <= set(embed["responses"])
    assert "security" not in document["paths"]["/livez"]["get"]

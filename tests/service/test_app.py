"""The whole application over tiny real bundles: what holds on every path."""

import asyncio
import gc
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pydantic
import pytest
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from service.app import ROUTERS, create_app
from service.errors import InvalidInputError
from service.http_errors import _first_fault
from service.json_body import parse_json
from service.lifespan import StartupError
from service.settings import Settings
from tests.fakes import until
from tests.service.fakes_http import running, tiny_settings

JSON = {"content-type": "application/json"}
TEXT_ROUTES = {"/embed": "inputs", "/search": "query", "/ner": "inputs"}


def _check_error(answer: httpx.Response, status: int, code: str) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["code"] == code
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("route", TEXT_ROUTES)
@pytest.mark.parametrize(
    ("content", "media_type", "expected"),
    [
        (b'{"a"', "application/json", (400, "malformed_json")),
        (b"", "application/json", (400, "malformed_json")),
        ('{"inputs":"退货"}'.encode("gb18030"), "application/json", (400, "malformed_json")),
        ('{"inputs":"退货"}'.encode("utf-16"), "application/json", (400, "malformed_json")),
        (b"[" * 10**5 + b"]" * 10**5, "application/json", (400, "malformed_json")),
        (b'{"inputs":"x"}', "text/plain", (415, "unsupported_media_type")),
        (b"inputs=x", "application/x-www-form-urlencoded", (415, "unsupported_media_type")),
        (b'{"inputs":"x"}', "", (415, "unsupported_media_type")),
        (b" " * 2000, "application/json", (413, "payload_too_large")),
    ],
)
async def test_bodies_that_cannot_be_read_get_the_usual_error(
    models_folder: Path, route: str, content: bytes, media_type: str, expected: tuple[int, str]
) -> None:
    """Before validation looks at them, on every route that takes one."""
    limit = 1024 if expected[0] == 413 else 16_000_000
    async with running(tiny_settings(models_folder, limits={"max_body_bytes": limit})) as client:
        headers = {"content-type": media_type} if media_type else {}
        answer = await client.post(route, content=content, headers=headers)
        _check_error(answer, *expected)
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=utf-8", "Application/JSON", "application/vnd.b+json"]
)
async def test_json_by_any_of_its_names_is_taken(client: httpx.AsyncClient, media_type: str) -> None:
    """Clients spell it in several ways."""
    headers = {"content-type": media_type}
    answer = await client.post("/embed", content=b'\xef\xbb\xbf{"inputs":"hello"}', headers=headers)
    assert answer.status_code == 200


async def test_a_body_is_parsed_once(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have 16 MB."""
    bodies: list[bytes] = []

    def parse(body: bytes) -> object:
        bodies.append(body)
        return parse_json(body)

    monkeypatch.setattr("service.json_body.parse_json", parse)
    monkeypatch.setattr("service.direct_routes.parse_json", parse)
    assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200
    assert len(bodies) == 1
    assert (await client.post("/embed", json={"inputs": 1})).status_code == 422
    assert len(bodies) == 2


@pytest.mark.parametrize(("route", "param"), TEXT_ROUTES.items())
@pytest.mark.parametrize("bad", ["", "\ud83d", "x" * 1001, "hello " * 100])
async def test_a_text_that_was_sent_in_no_list_is_named_without_an_index(
    models_folder: Path, route: str, param: str, bad: str
) -> None:
    """There is no item 0 to look for."""
    async with running(tiny_settings(models_folder, limits={"max_text_characters": 1000})) as client:
        alone = await client.post(route, content=json.dumps({param: bad}), headers=JSON)
        listed = await client.post(route, content=json.dumps({param: [bad]}), headers=JSON)
    if route == "/ner" and bad.startswith("hello"):
        assert (alone.status_code, listed.status_code) == (200, 200)  # read in windows, whatever its length
        return
    error = alone.json()
    assert (error["index"], error["param"]) == (None, param)
    assert "[0]" not in error["error"]
    assert param in error["error"] or "the query" in error["error"]
    assert listed.json()["index"] == 0


@pytest.mark.parametrize(("route", "param"), TEXT_ROUTES.items())
async def test_many_items_that_are_no_texts_are_refused_at_the_first(
    client: httpx.AsyncClient, route: str, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noting a fault for each of a million numbers would stop the whole service for seconds."""
    seen: list[int] = []

    def first_fault(error: RequestValidationError) -> InvalidInputError:
        seen.append(len(error.errors()))
        return _first_fault(error)

    monkeypatch.setattr("service.http_errors._first_fault", first_fault)
    answer = await client.post(route, json={param: ["hello", *range(1000)]})
    assert (answer.status_code, answer.json()["index"]) == (422, 1)
    assert seen in ([], [1])  # /embed looks for itself, since it takes ids as well


ONES = list(range(1000))
MANY_FAULTS = {
    "/rerank": {"query": "a", "texts": ONES},
    "/v1/rerank": {"query": "a", "documents": ONES},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ONES}},
    "/faq/a/entries": {"entries": [{"question": "a", "answer": "", "alternates": ONES}]},
    "/faq/b/entries": {"entries": [{"question": "a", "answer": "", "tags": ONES}]},
    "/faq/c/entries": {"entries": [{"question": "a", "answer": "", "metadata": {str(n): [] for n in ONES}}]},
}


@pytest.mark.parametrize(("route", "body"), MANY_FAULTS.items())
async def test_lists_within_a_body_are_refused_at_their_first_fault(
    client: httpx.AsyncClient, route: str, body: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for every other list whose length has no bound before its items are looked at."""
    seen: list[int] = []

    def first_fault(error: RequestValidationError) -> InvalidInputError:
        seen.append(len(error.errors()))
        return _first_fault(error)

    monkeypatch.setattr("service.http_errors._first_fault", first_fault)
    assert (await client.post(route, json=body)).status_code == 422
    assert seen[0] <= 2  # a document may be of two kinds


@pytest.mark.parametrize(("route", "param"), TEXT_ROUTES.items())
async def test_a_trailing_slash_gives_the_same_answer(
    client: httpx.AsyncClient, route: str, param: str
) -> None:
    """Never a redirect."""
    with_slash = await client.post(f"{route}/", json={param: "hello"})
    assert with_slash.status_code == 200
    assert with_slash.json() == (await client.post(route, json={param: "hello"})).json()


@pytest.mark.parametrize(("route", "param"), TEXT_ROUTES.items())
async def test_every_text_is_either_served_or_refused(
    client: httpx.AsyncClient, route: str, param: str
) -> None:
    """Whatever people send, it is no 5xx."""
    strange = [
        "\x00",
        "\ufeff",
        "\u200b",
        "😀" * 50,
        "a\u0301" * 20,
        "\u202eabc",
        "x" * 10_000,
        "\r\n\r\n",
        "�",
    ]
    for text in strange:
        answer = await client.post(route, json={param: ["hello", text]})
        assert answer.status_code in {200, 422}, (route, text)
        if answer.status_code == 422:
            assert answer.json()["index"] == 1


async def test_unknown_paths_and_wrong_methods_are_json_errors(client: httpx.AsyncClient) -> None:
    """On GET of a POST route as well."""
    _check_error(await client.get("/nothing/here"), 404, "unknown_path")
    wrong = await client.get("/embed")
    _check_error(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_a_full_queue_is_answered_429_with_a_hint(models_folder: Path) -> None:
    """And nothing is lost for those who were admitted."""
    settings = tiny_settings(
        models_folder,
        batching={"max_queue_items": 4, "max_batch_size": 1, "max_wait_ms": 50},
        faq_store="none",
    )
    async with running(settings) as client:
        answers = await asyncio.gather(
            *(client.post("/embed", json={"inputs": ["hello world"] * 4}) for _ in range(30))
        )
        statuses = {answer.status_code for answer in answers}
        assert statuses == {200, 429}
        for answer in answers:
            if answer.status_code == 429:
                _check_error(answer, 429, "overloaded")
                assert int(answer.headers["retry-after"]) >= 1
                assert int(answer.headers["retry-after-ms"]) >= 1


async def test_probes_answer_while_many_requests_are_in_work(client: httpx.AsyncClient) -> None:
    """They share neither thread nor queue with the work."""
    work = [client.post("/embed", json={"inputs": ["hello world " * 10] * 64}) for _ in range(20)]
    tasks = [asyncio.create_task(request) for request in work]
    for _ in range(10):
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
    assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}


async def test_two_apps_live_in_one_process(models_folder: Path) -> None:
    """Nothing is global: no registry, no settings, no session."""
    async with (
        running(tiny_settings(models_folder)) as first,
        running(tiny_settings(models_folder, ner_bundle="none")) as second,
    ):
        assert (await first.post("/ner", json={"inputs": "Tim"})).status_code == 200
        assert (await second.post("/ner", json={"inputs": "Tim"})).status_code == 404


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"embedding_bundle": "missing"},
            "/embed: CONCHE_EMBEDDING_BUNDLE: .*; bundles there: tiny-classifier, tiny-embedding, tiny-ner",
        ),
        ({"ner_bundle": "missing"}, "/ner: CONCHE_NER_BUNDLE: bundle missing is refused"),
        ({"classifier_bundle": "missing"}, "/predict: CONCHE_CLASSIFIER_BUNDLE: bundle missing is refused"),
        ({"reranker_bundle": "missing"}, "/rerank: CONCHE_RERANKER_BUNDLE: bundle missing is refused"),
        ({"embedding_bundle": "tiny-ner"}, "CONCHE_EMBEDDING_BUNDLE: tiny-ner is no embedding bundle"),
        ({"ner_bundle": "tiny-embedding"}, "CONCHE_NER_BUNDLE: .*no token-classification bundle"),
        ({"faq_file": "/nowhere/faq.jsonl"}, "/search: CONCHE_FAQ_FILE: /nowhere/faq.jsonl cannot be read"),
        ({"classifier_bundle": "tiny-ner"}, "CONCHE_CLASSIFIER_BUNDLE: .*no sequence-classification bundle"),
        ({"reranker_bundle": "tiny-classifier"}, "CONCHE_RERANKER_BUNDLE: .*is no cross-encoder"),
        (
            {"embedding_bundle": "none", "ner_bundle": "none", "classifier_bundle": "none"},
            "no model to serve: .*CONCHE_MODELS_DIR",
        ),
    ],
)
async def test_what_cannot_be_served_stops_the_start_with_the_reason(
    models_folder: Path, changes: dict[str, object], said: str
) -> None:
    """At the start, where somebody is looking."""
    with pytest.raises(StartupError, match=said):
        async with running(tiny_settings(models_folder, **changes)):
            pass


async def test_a_start_without_any_model_says_where_it_looked(tmp_path: Path) -> None:
    """The whole path: a folder's name alone is the part of a typo that looks right."""
    nowhere = tmp_path / "shop" / "models"
    with pytest.raises(StartupError, match=re.escape(f"-zh-en in {nowhere} and there is no bundle ner-")):
        async with running(Settings(models_dir=nowhere, data_dir=tmp_path / "data", port=0)):
            pass


async def test_a_default_bundle_that_is_not_there_is_no_error(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asked for it by name; the others are served."""
    settings = tiny_settings(models_folder)
    values = {name: getattr(settings, name) for name in settings.model_fields_set - {"ner_bundle"}}
    async with running(type(settings)(**values)) as client:
        assert (await client.get("/readyz")).status_code == 200
        answer = await client.post("/ner", json={"inputs": "Tim"})
        _check_error(answer, 404, "no_model")
        assert "ner-zh-en" in answer.json()["error"]


def test_serving_imports_neither_torch_nor_transformers() -> None:
    """The serving image has neither."""
    program = (
        "import sys; from service.app import create_app; from service.settings import Settings; "
        "create_app(Settings()); import service.cli, service.cli.serve, service.cli.query; "
        "heavy = {'torch', 'transformers', 'onnx', 'safetensors', 'huggingface_hub'} & set(sys.modules); "
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_serving_imports_an_engine_only_to_run_it() -> None:
    """Either is 20 MB or more, for nothing where the other was chosen."""
    program = (
        "import sys; from service.app import create_app; from service.settings import Settings; "
        "import service.bundle_reading, service.cli.serve, service.cli.server, service.cli.supervisor; "
        "create_app(Settings()); print({'onnxruntime', 'openvino'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_no_route_waits_for_a_thread_of_a_pool() -> None:
    """FastAPI calls handlers and dependencies that are plain functions there, one after the other."""
    seen = 0
    for router in ROUTERS:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            left = [route.dependant]
            while left:
                dependant = left.pop()
                assert dependant.call is not None
                assert inspect.iscoroutinefunction(dependant.call), f"{dependant.call} of {route.path}"
                left += dependant.dependencies
                seen += 1
    assert seen > len(ROUTERS)


async def test_the_first_request_finds_all_routes_worked_out(
    models_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI puts that off until it is asked, and a caller, or a probe, would wait a quarter of a second."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a route was worked out")

    async with running(tiny_settings(models_folder, faq_store="none")) as client:
        monkeypatch.setattr(pydantic.TypeAdapter, "__init__", refuse)
        assert (await client.get("/livez")).status_code == 200
        assert (await client.post("/embed", json={"inputs": "hello"})).status_code == 200


_REFUSED = [
    ("/embed", b'{"inputs": ""}', 422),
    ("/embed", b'{"inputs": [1, 2]}', 422),
    ("/embed", b'{"inputs"', 400),
    ("/embed", b'{"inputs": {}}', 422),
    ("/embed", b'{"inputs": "a", "truncate": 3}', 422),
    ("/v1/embeddings", b'{"input": "a", "model": "nobody"}', 404),
    ("/search", b'{"query": "a", "collection": "nobody"}', 404),
    ("/models/tiny-embedding/pipeline/feature-extraction", b'{"inputs": {}}', 422),
    ("/nowhere", b"{}", 404),
]


@pytest.mark.parametrize(("path", "body", "status"), _REFUSED)
async def test_nothing_of_a_refused_request_waits_for_the_garbage_collector(
    client: httpx.AsyncClient, path: str, body: bytes, status: int
) -> None:
    """Its body may have 16 MB, and the collector looks when 10,000 objects are new."""

    def scopes() -> int:
        return sum(1 for one in gc.get_objects() if type(one) is dict and "conche.request_id" in one)

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            answer = await client.post(path, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == status
        await until(lambda: scopes() == 0)  # a thread may have the last one for a moment
    finally:
        gc.enable()


def test_routers_are_included_with_nothing_of_their_own(models_folder: Path) -> None:
    """Direct routes would pass over a dependency that came so, and that may keep strangers out."""
    app = create_app(tiny_settings(models_folder))
    included = [route.include_context for route in app.routes if hasattr(route, "include_context")]
    assert len(included) == len(ROUTERS)
    for context in included:
        assert not context.dependencies
        assert not context.prefix

"""Texts that nobody would write, through every route that takes texts: an answer or a clear refusal."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.fakes_http import running, tiny_settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = {"content-type": "application/json"}
ROUTES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "/embed": lambda texts: {"inputs": texts, "truncate": True},
    "/embed_all": lambda texts: {"inputs": texts, "truncate": True},
    "/v1/embeddings": lambda texts: {"input": texts, "truncate": True},
    "/ner": lambda texts: {"inputs": texts},
    "/tokenize": lambda texts: {"inputs": texts},
    "/search": lambda texts: {"query": texts},
    "/predict": lambda texts: {"inputs": [[text] for text in texts], "truncate": True},
    "/classify": lambda texts: {"input": texts, "truncate": True},
    "/rerank": lambda texts: {"query": "refund", "texts": texts, "truncate": True},
    "/similarity": lambda texts: {
        "inputs": {"source_sentence": "refund", "sentences": texts},
        "parameters": {"truncate": True},
    },
}
# Bytes of a long text. All that cut it do so as /embed does; /ner reads all of it, in thousands of windows.
SIZES = dict.fromkeys(ROUTES, 100_000) | {"/embed": 1_000_000, "/ner": 250_000}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(models_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one app for all tests: what one sends must not spoil it for the next."""
    async with running(tiny_settings(models_folder)) as client:
        yield client


def escaped(value: object) -> bytes:
    """JSON with half a surrogate pair in it, if there is one; orjson writes none."""
    return json.dumps(value).encode()


def check(answer: httpx.Response, sent: int) -> None:
    """One result per text, or a refusal that says which."""
    assert answer.status_code in {200, 413, 422}, answer.text
    if answer.status_code == 200:
        found = answer.json()
        results = found.get("data", found.get("results")) if isinstance(found, dict) else found
        assert len(results) == sent
    else:
        error = answer.json()
        detail = error["error"] if isinstance(error["error"], dict) else error
        assert detail["code"]
        assert detail["index"] is None or 0 <= detail["index"] < sent


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(st.characters(codec=None), max_size=200), min_size=1, max_size=5))
async def test_any_characters(route: str, client: httpx.AsyncClient, texts: list[str]) -> None:
    """Halves of surrogate pairs, NUL, controls, unassigned code points, marks without a letter."""
    answer = await client.post(route, content=escaped(ROUTES[route](texts)), headers=JSON)
    check(answer, len(texts))


@pytest.mark.parametrize(("route", "size"), SIZES.items())
@pytest.mark.parametrize("character", ["a", "税", " ", "\u0301", "\x00", "🙂", "\u200d", "\ufdfa", "."])
async def test_a_long_run_of_one_character(
    route: str, size: int, character: str, client: httpx.AsyncClient
) -> None:
    """Neither hours nor gigabytes: cut, read in windows, or refused."""
    text = character * (size // len(character.encode()))
    check(await client.post(route, json=ROUTES[route]([text])), 1)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_hundred_thousand_tiny_texts(route: str, client: httpx.AsyncClient) -> None:
    """Refused by the number, the limit and the setting, before anything is computed."""
    answer = await client.post(route, json=ROUTES[route](["a"] * 100_000))
    assert answer.status_code == 422
    error = answer.json()
    detail = error["error"] if isinstance(error["error"], dict) else error
    message = detail if isinstance(detail, str) else detail.get("message", error["error"])
    assert "100000" in message
    assert "2048" in message
    assert "CONCHE_LIMITS__MAX_INPUTS" in message


@settings(max_examples=200, deadline=None)
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "inputs",
                        "input",
                        "query",
                        "texts",
                        "parameters",
                        "truncate",
                        "dimensions",
                        "prompt_name",
                        "model",
                        "x",
                    ]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    ),
    route=st.sampled_from(list(ROUTES)),
)
async def test_any_json(body: object, route: str, client: httpx.AsyncClient) -> None:
    """Whatever shape it has; never a 5xx, always JSON with a code."""
    try:
        content = orjson.dumps(body)
    except (TypeError, orjson.JSONEncodeError):  # integers beyond 64 bits, halves of surrogate pairs
        content = escaped(body)
    answer = await client.post(route, content=content, headers=JSON)
    assert answer.status_code < 500
    if answer.status_code != 200:
        error = answer.json()
        assert (error["error"] if isinstance(error["error"], dict) else error)["code"]


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=300), route=st.sampled_from(list(ROUTES)))
async def test_any_bytes(content: bytes, route: str, client: httpx.AsyncClient) -> None:
    """A body that is no JSON is a 400 with a code."""
    answer = await client.post(route, content=content, headers=JSON)
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/json"

"""Empty texts among others: refused by default, or read; on every route that takes a list."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.fakes_http import running, tiny_settings

# Nothing in them is a word: empty, blank, and a character that the tokenizer drops.
EMPTY = ("", " \u3000\n", "\u0007")


def _bodies(texts: list[str]) -> dict[str, tuple[str, Any]]:
    """Per route the field that holds the texts, and a body that has ``texts`` there."""
    return {
        "/embed": ("inputs", {"inputs": texts}),
        "/models/tiny-embedding/pipeline/feature-extraction": ("inputs", {"inputs": texts}),
        "/embed_all": ("inputs", {"inputs": texts}),
        "/v1/embeddings": ("input", {"input": texts}),
        "/embeddings": ("input", {"input": texts}),
        "/similarity": ("sentences", {"inputs": {"source_sentence": "hello", "sentences": texts}}),
        "/rerank": ("texts", {"query": "hello", "texts": texts}),
        "/v1/rerank": ("documents", {"query": "hello", "documents": texts}),
        "/search": ("query", {"query": texts}),
        "/ner": ("inputs", {"inputs": texts}),
        "/tokenize": ("inputs", {"inputs": texts}),
    }


ROUTES = sorted(_bodies([]))


@pytest.fixture
async def reading(models_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app that reads empty texts."""
    async with running(tiny_settings(models_folder, empty_input="read")) as client:
        yield client


def _code(answer: httpx.Response) -> tuple[str, str | None, int | None]:
    body = answer.json()
    error = body["error"] if isinstance(body["error"], dict) else body
    return error["code"], error["param"], error["index"]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("empty", EMPTY[:2])
async def test_by_default_one_is_refused_with_its_place(
    client: httpx.AsyncClient, route: str, empty: str
) -> None:
    """Dropped, it would shift the answers; answered, it would look like any other."""
    param, body = _bodies(["hello", empty])[route]
    answer = await client.post(route, json=body)
    assert answer.status_code == 422
    assert _code(answer) == ("empty_input", param, 1)


@pytest.mark.parametrize("route", ROUTES)
async def test_where_they_are_read_they_are_named(reading: httpx.AsyncClient, route: str) -> None:
    """One answer per text, and a header that says which of them say nothing, by place in the list sent."""
    texts = ["hello world", *EMPTY, "Tim Cook"]
    _, body = _bodies(texts)[route]
    answer = await reading.post(route, json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-conche-empty"] == "1,2,3"
    assert len(answer.headers["x-conche-tokens-by-input"].split(",")) == len(texts)
    found = answer.json()
    rows = found.get("data") or found.get("results") if isinstance(found, dict) else found
    assert len(rows) == len(texts)
    _, plain = _bodies(texts[:1])[route]
    assert "x-conche-empty" not in (await reading.post(route, json=plain)).headers


async def test_a_vector_of_nothing_is_the_models_own(reading: httpx.AsyncClient) -> None:
    """That of the prompt and the special tokens, of length one; not zero, and no other's is touched."""
    vectors = np.array((await reading.post("/embed", json={"inputs": ["hello", *EMPTY]})).json())
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[1:], vectors[[1, 1, 1]], atol=1e-6)
    alone = np.array((await reading.post("/embed", json={"inputs": "hello"})).json())
    np.testing.assert_allclose(vectors[:1], alone, atol=1e-5)
    one = await reading.post("/v1/embeddings", json={"input": ""})  # as LangChain sends it
    np.testing.assert_allclose(one.json()["data"][0]["embedding"], vectors[1], atol=1e-6)
    assert one.json()["usage"]["prompt_tokens"] > 0


async def test_nothing_has_no_entities_no_hits_and_only_special_tokens(reading: httpx.AsyncClient) -> None:
    """What is true of a text without words."""
    texts = ["Tim Cook", *EMPTY]
    entities = (await reading.post("/ner", json={"inputs": texts})).json()
    assert [len(of_text) for of_text in entities] == [1, 0, 0, 0]
    tokens = (await reading.post("/tokenize", json={"inputs": texts})).json()
    assert [[one["text"] for one in of_text] for of_text in tokens[1:]] == [["[CLS]", "[SEP]"]] * 3
    await reading.put("/faq/default", json={"default_answer": "Ask us."})
    for mode in ("hybrid", "dense", "lexical"):
        body = {"query": ["reset my password", *EMPTY], "mode": mode}
        results = (await reading.post("/search", json=body)).json()["results"]
        assert results[0]["hits"]
        assert results[1:] == [{"hits": [], "default_answer": "Ask us."}] * 3


@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/rerank", {"query": None, "texts": ["a"]}, "query"),
        ("/v1/rerank", {"query": None, "documents": ["a"]}, "query"),
        ("/similarity", {"inputs": {"source_sentence": None, "sentences": ["a"]}}, "source_sentence"),
    ],
)
async def test_what_others_are_compared_with_cannot_be_nothing(
    reading: httpx.AsyncClient, empty: str, route: str, body: dict[str, Any], param: str
) -> None:
    """However the server is set: any order of the others would be as good."""
    whole = body | {"query": empty} if "query" in body else {"inputs": body["inputs"] | {param: empty}}
    answer = await reading.post(route, json=whole)
    assert answer.status_code == 422
    assert _code(answer)[:2] == ("empty_input", param)


async def test_an_empty_list_is_refused_however_the_server_is_set(reading: httpx.AsyncClient) -> None:
    """There is nothing that an answer could be about."""
    for route, (param, body) in _bodies([]).items():
        answer = await reading.post(route, json=body)
        assert (answer.status_code, _code(answer)[:2]) == (422, ("empty_input", param)), route

"""``/v1``: what OpenAI's clients send and need back, over a tiny real bundle."""

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.fakes_http import running, tiny_settings

LONG = "hello " * 200  # the tiny model reads 64 tokens


async def _embeddings(client: httpx.AsyncClient, **body: object) -> dict[str, Any]:
    answer = await client.post("/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_answer_is_openais_and_the_numbers_are_those_of_embed(client: httpx.AsyncClient) -> None:
    """Objects are numbered in the order sent; usage counts what the model read."""
    texts = ["hello world", "怎么退货"]
    found = await _embeddings(client, input=texts, model="tiny-embedding", user="someone")
    plain = await client.post("/embed", json={"inputs": texts})
    assert set(found) == {"object", "data", "model", "usage"}
    assert (found["object"], found["model"]) == ("list", "tiny-embedding")
    assert [(one["object"], one["index"]) for one in found["data"]] == [("embedding", 0), ("embedding", 1)]
    assert [one["embedding"] for one in found["data"]] == plain.json()
    tokens = int(plain.headers["x-conche-tokens"])
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


@pytest.mark.parametrize("rows", [1, 3, 1200])
async def test_base64_holds_the_same_float32(client: httpx.AsyncClient, rows: int) -> None:
    """Little-endian, bit for bit; large answers are written in another way, with the same result."""
    texts = [f"cat {number % 7}" for number in range(rows)]
    floats = await _embeddings(client, input=texts)
    packed = await _embeddings(client, input=texts, encoding_format="base64")
    expected = np.array([one["embedding"] for one in floats["data"]], dtype=np.float32)
    read = np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed["data"]])
    assert np.array_equal(read, expected)
    assert [one["index"] for one in packed["data"]] == list(range(rows))


async def test_both_paths_serve_and_one_text_needs_no_list(client: httpx.AsyncClient) -> None:
    """Some clients put /v1 into the base URL, some do not."""
    answer = await client.post("/embeddings", json={"input": "hello", "encoding_format": None})
    assert answer.json() == await _embeddings(client, input=["hello"])


async def test_dimensions_are_cut_and_normalised(client: httpx.AsyncClient) -> None:
    """A slice that is not brought to length one again compares wrongly."""
    (one,) = (await _embeddings(client, input="hello", dimensions=8))["data"]
    assert len(one["embedding"]) == 8
    assert abs(np.linalg.norm(one["embedding"]) - 1) < 1e-5


async def test_prompts_go_by_input_type_or_with_the_models_name(client: httpx.AsyncClient) -> None:
    """The one for callers who can add a field, the other for those who can only set a name."""
    field = await _embeddings(client, input="hello", input_type="passage")
    assert field["data"] == (await _embeddings(client, input="hello", model="tiny-embedding:passage"))["data"]
    assert field["data"] != (await _embeddings(client, input="hello"))["data"]
    assert field["model"] == "tiny-embedding"
    answer = await client.post("/v1/embeddings", json={"input": "hello", "model": "tiny-embedding:poem"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "model")


async def test_a_text_too_long_is_refused_or_cut_as_asked(client: httpx.AsyncClient) -> None:
    """Nothing is cut in silence on this route either."""
    answer = await client.post("/v1/embeddings", json={"input": ["hello", LONG]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["index"], error["param"]) == (
        422,
        "input_too_long",
        1,
        "input",
    )
    answer = await client.post("/v1/embeddings", json={"input": LONG, "truncate": True})
    assert answer.headers["x-conche-truncated"].startswith("0:")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([[1, 2], [3]], "check_embedding_ctx_length=False"),
        ([1, 2, 3], "CONCHE_INPUT_IDS"),
    ],
)
async def test_token_ids_are_refused_with_the_way_out(
    client: httpx.AsyncClient, sent: object, said: str
) -> None:
    """They are of another vocabulary as a rule, and would give a vector without meaning."""
    answer = await client.post("/v1/embeddings", json={"input": sent})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (
        422,
        "token_ids_refused",
        "invalid_request_error",
    )
    assert said in error["message"]


@pytest.mark.parametrize(
    "sent",
    [["a", 1], [1, "a"], [[1], "a"], ["a", [1]], [[1], [True]], [[1.0]], [[]], [["a"]], {"a": 1}, 7, True],
)
async def test_input_of_mixed_or_other_kinds_is_refused(client: httpx.AsyncClient, sent: object) -> None:
    """Each kind of text has one reading; nothing is guessed."""
    answer = await client.post("/v1/embeddings", json={"input": sent})
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "input"


async def test_an_unknown_model_is_not_found_and_those_there_are_listed(client: httpx.AsyncClient) -> None:
    """Answering with another model's vectors would spoil an index that was made with the one asked for."""
    answer = await client.post("/v1/embeddings", json={"input": "hello", "model": "text-embedding-3-small"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, "unknown_model", "not_found_error")
    assert "tiny-embedding" in error["message"]


async def test_models_are_listed_and_described(client: httpx.AsyncClient) -> None:
    """By the names that requests use."""
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [(one["id"], one["object"], one["task"]) for one in listed["data"]] == [
        ("tiny-embedding", "model", "embedding"),
        ("tiny-ner", "model", "token-classification"),
        ("tiny-classifier", "model", "sequence-classification"),
    ]
    assert (await client.get("/v1/models/tiny-ner")).json() == listed["data"][1]
    answer = await client.get("/v1/models/org/other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_model")


async def test_errors_of_every_kind_are_nested(client: httpx.AsyncClient) -> None:
    """On paths that do not exist and methods that do not fit as well."""
    for answer in (
        await client.post("/v1/nothing", json={}),
        await client.delete("/v1/models"),
        await client.post("/v1/embeddings", content=b"{", headers={"content-type": "application/json"}),
        await client.post("/v1/embeddings", content=b"{}", headers={"content-type": "text/plain"}),
        await client.post("/v1/embeddings", json={"input": "hello", "encoding_format": "int8"}),
    ):
        assert set(answer.json()["error"]) == {"message", "type", "param", "code", "index"}
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


async def test_documents_are_put_in_order(client: httpx.AsyncClient) -> None:
    """Cohere's shape; scores stay within 0 and 1."""
    body = {
        "query": "return my order",
        "documents": ["cat sat on mat", {"text": "how do I return my order"}, "hello"],
        "top_n": 2,
        "return_documents": True,
    }
    answer = await client.post("/v1/rerank", json=body)
    found = answer.json()
    assert answer.status_code == 200, answer.text
    assert (found["object"], found["model"]) == ("rerank", "tiny-embedding")
    assert found["results"][0]["index"] == 1
    assert found["results"][0]["document"] == {"text": "how do I return my order"}
    assert len(found["results"]) == 2
    assert 1 >= found["results"][0]["relevance_score"] >= found["results"][1]["relevance_score"] >= 0
    assert found["usage"]["total_tokens"] == int(answer.headers["x-conche-tokens"])
    answer = await client.post("/v1/rerank", json=body | {"documents": ["a", {"title": "b"}]})
    assert (answer.status_code, answer.json()["error"]["index"]) == (422, 1)


async def test_ids_of_the_models_own_vocabulary_are_read_if_allowed(models_folder: Path) -> None:
    """The same vector as the text's; special tokens may be there or not."""
    async with running(tiny_settings(models_folder, input_ids="model_vocab")) as client:
        texts = ["hello world", "怎么退货"]
        tokens = (await client.post("/tokenize", json={"inputs": texts})).json()
        ids = [[token["id"] for token in text] for text in tokens]
        bare = [[token["id"] for token in text if not token["special"]] for text in tokens]
        expected = await _embeddings(client, input=texts)
        assert await _embeddings(client, input=ids) == expected
        assert await _embeddings(client, input=bare) == expected
        for wrong, said in (([[4], [4, 10**6]], "ids end at"), ([[4], [*ids[0], 1]], "no text")):
            answer = await client.post("/v1/embeddings", json={"input": wrong})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["index"]) == (422, "token_ids_refused", 1)
            assert said in error["message"]

"""What clients of text-embeddings-inference send beyond /embed, and need back."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.bundles import refresh_manifest
from tests.service.fakes_http import running, tiny_settings, write_bundles


async def test_every_token_has_a_vector(client: httpx.AsyncClient) -> None:
    """Special tokens included; without a prompt as many as /tokenize lists."""
    texts = ["hello world", "怎么退货"]
    answer = await client.post("/embed_all", json={"inputs": texts, "prompt_name": "none"})
    assert answer.status_code == 200, answer.text
    tokens = (await client.post("/tokenize", json={"inputs": texts})).json()
    assert [len(text) for text in answer.json()] == [len(text) for text in tokens]
    assert int(answer.headers["x-conche-tokens"]) == sum(map(len, tokens))
    plain = await client.post("/embed", json={"inputs": texts, "prompt_name": "none", "normalize": False})
    for states, vector in zip(answer.json(), plain.json(), strict=True):
        np.testing.assert_allclose(np.mean(states, axis=0), vector, atol=1e-5)


async def test_similarity_is_the_cosine_of_what_embed_gives(client: httpx.AsyncClient) -> None:
    """In the order sent; all texts under the same prompt."""
    sentences = ["how do I return my order", "cat sat on mat"]
    body = {"inputs": {"source_sentence": "return my order", "sentences": sentences}, "parameters": {}}
    found = (await client.post("/similarity", json=body)).json()
    vectors = np.array((await client.post("/embed", json={"inputs": ["return my order", *sentences]})).json())
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=1e-6)
    assert found[0] > found[1]


@pytest.mark.parametrize(
    ("source", "sentences", "param", "index"),
    [
        ("", ["a"], "source_sentence", None),
        ("a", ["a", " "], "sentences", 1),
        ("a", [], "sentences", None),
        ("hello " * 200, ["a"], "source_sentence", None),
        ("a", ["a", "hello " * 200], "sentences", 1),
    ],
)
async def test_a_faulty_sentence_is_named_as_it_was_sent(
    client: httpx.AsyncClient, source: str, sentences: list[str], param: str, index: int | None
) -> None:
    """The two are embedded together, which is nothing to the caller."""
    body = {"inputs": {"source_sentence": source, "sentences": sentences}}
    error = (await client.post("/similarity", json=body)).json()
    assert (error["param"], error["index"]) == (param, index)
    assert param in error["error"]


async def test_headers_of_a_comparison_count_the_sentences_alone(client: httpx.AsyncClient) -> None:
    """As errors do: the source sentence is in no list."""
    sentences = ["a", "hello " * 200]
    inputs = {"source_sentence": "hello " * 99, "sentences": sentences}
    answer = await client.post("/similarity", json={"inputs": inputs, "parameters": {"truncate": True}})
    query, second = answer.headers["x-conche-truncated"].split(",")
    assert (query.split(":")[0], second.split(":")[0]) == ("query", "1")
    by_input = [int(count) for count in answer.headers["x-conche-tokens-by-input"].split(",")]
    assert by_input[1] == int(answer.headers["x-conche-tokens-query"]) == 64
    assert int(answer.headers["x-conche-tokens"]) == sum(by_input) + 64


async def test_texts_are_ranked_best_first(client: httpx.AsyncClient) -> None:
    """Equals stay as sent; the raw score is the cosine, the other one lies within 0 and 1."""
    body = {"query": "return my order", "texts": ["hello", "how do I return my order", "hello"]}
    found = (await client.post("/rerank", json=body)).json()
    assert [one["index"] for one in found] == [1, 0, 2]
    assert all(set(one) == {"index", "score"} and 0 <= one["score"] <= 1 for one in found)
    raw = (await client.post("/rerank", json=body | {"raw_scores": True, "return_text": True})).json()
    assert [one["text"] for one in raw] == ["how do I return my order", "hello", "hello"]
    query = await client.post("/embed", json={"inputs": body["query"], "input_type": "query"})
    text = await client.post("/embed", json={"inputs": body["texts"][1], "input_type": "passage"})
    assert abs(raw[0]["score"] - np.dot(query.json()[0], text.json()[0])) < 1e-6


async def test_a_query_too_long_is_named_as_the_query(client: httpx.AsyncClient) -> None:
    """And a text by its place."""
    for body, param, index in (
        ({"query": "hello " * 200, "texts": ["a"]}, "query", None),
        ({"query": "a", "texts": ["a", "hello " * 200]}, "texts", 1),
    ):
        error = (await client.post("/rerank", json=body)).json()
        assert (error["code"], error["param"], error["index"]) == ("input_too_long", param, index)
        assert "[0]" not in error["error"]
        cut = await client.post("/rerank", json=body | {"truncate": True, "truncation_direction": "left"})
        assert cut.status_code == 200
        (place, _) = cut.headers["x-conche-truncated"].split(":")
        assert place == ("query" if index is None else str(index))
        by_input = [int(count) for count in cut.headers["x-conche-tokens-by-input"].split(",")]
        assert len(by_input) == len(body["texts"])
        of_query = int(cut.headers["x-conche-tokens-query"])
        assert int(cut.headers["x-conche-tokens"]) == sum(by_input) + of_query


@pytest.fixture
async def reranking(models_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app with a cross-encoder."""
    settings = tiny_settings(models_folder, faq_store="none", reranker_bundle="tiny-reranker")
    async with running(settings) as client:
        yield client


async def test_a_cross_encoder_ranks_where_one_is_set(reranking: httpx.AsyncClient) -> None:
    """By its logit for query and text together; the header says so, and the embedder can still be named."""
    body = {"query": "return my order", "texts": ["hello", "how do I return my order", "hello"]}
    answer = await reranking.post("/rerank", json=body)
    found = answer.json()
    assert answer.headers["x-conche-ranked-by"] == "cross-encoder"
    assert answer.headers["x-conche-model"] == "tiny-reranker"
    assert [one["index"] for one in found] == [1, 0, 2]
    raw = (await reranking.post("/rerank", json=body | {"raw_scores": True, "return_text": True})).json()
    assert [one["text"] for one in raw] == ["how do I return my order", "hello", "hello"]
    for one, logit in zip(found, raw, strict=True):
        pair = [body["query"], body["texts"][one["index"]]]
        (predicted,) = (
            await reranking.post("/predict", json={"inputs": pair, "model": "tiny-reranker"})
        ).json()
        assert predicted["label"] == "relevance"
        assert abs(one["score"] - predicted["score"]) < 1e-6
        assert abs(one["score"] - 1 / (1 + np.exp(-logit["score"]))) < 1e-6
    tokens = [int(count) for count in answer.headers["x-conche-tokens-by-input"].split(",")]
    assert tokens == [7, 12, 7]
    v1 = await reranking.post("/v1/rerank", json={"query": body["query"], "documents": body["texts"]})
    assert [(one["index"], one["relevance_score"]) for one in v1.json()["results"]] == [
        (one["index"], one["score"]) for one in found
    ]
    assert (v1.json()["model"], v1.headers["x-conche-ranked-by"]) == ("tiny-reranker", "cross-encoder")
    named = await reranking.post("/rerank", json=body | {"model": "tiny-embedding"})
    assert named.headers["x-conche-ranked-by"] == "bi-encoder"
    assert (await reranking.get("/info")).json()["reranker"]["id"] == "tiny-reranker"


async def test_without_a_cross_encoder_the_embedder_ranks(client: httpx.AsyncClient) -> None:
    """Until one is loaded, which serves those who name it."""
    body = {"query": "return my order", "texts": ["hello"]}
    answer = await client.post("/rerank", json=body)
    assert answer.headers["x-conche-ranked-by"] == "bi-encoder"
    assert (await client.get("/info")).json()["reranker"] is None
    unknown = await client.post("/rerank", json=body | {"model": "tiny-classifier"})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")
    await client.post("/admin/models", json={"bundle": "tiny-reranker"})
    assert (await client.post("/rerank", json=body)).headers["x-conche-ranked-by"] == "bi-encoder"
    named = await client.post("/rerank", json=body | {"model": "tiny-reranker"})
    assert named.headers["x-conche-ranked-by"] == "cross-encoder"
    for model in ("tiny-classifier", "tiny-ner"):
        unknown = await client.post("/rerank", json=body | {"model": model})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown_model")
        assert "tiny-embedding, tiny-reranker" in unknown.json()["error"]


async def test_a_cross_encoder_that_fails_is_not_replaced(tmp_path: Path) -> None:
    """Scores of another kind would come without anybody's asking; whoever names the embedder gets it."""
    folder = write_bundles(tmp_path)
    refresh_manifest(folder / "tiny-reranker", pair_token_types=False)
    settings = tiny_settings(
        folder, faq_store="none", reranker_bundle="tiny-reranker", on_bundle_error="serve"
    )
    async with running(settings) as client:
        body = {"query": "return my order", "texts": ["hello"]}
        answer = await client.post("/rerank", json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_model")
        assert (await client.post("/rerank", json=body | {"model": "tiny-embedding"})).status_code == 200
        assert (await client.get("/readyz")).status_code == 503


async def test_errors_of_a_cross_encoder_tell_query_and_text_apart(reranking: httpx.AsyncClient) -> None:
    """A pair is cut from its longer text, so a long query is cut too; which one is empty is named."""
    for query, texts, code, param, index in (
        ("hello " * 100, ["a", "b"], "input_too_long", "texts", 0),
        ("a", ["a", "hello " * 100], "input_too_long", "texts", 1),
        ("\u200b", ["a"], "empty_input", "query", None),
        ("a", ["a", "\u200b"], "empty_input", "texts", 1),
    ):
        body = {"query": query, "texts": texts}
        error = (await reranking.post("/rerank", json=body)).json()
        assert (error["code"], error["param"], error["index"]) == (code, param, index)
        if code == "input_too_long":
            assert "those of the query" in error["error"]
            cut = await reranking.post("/rerank", json=body | {"truncate": True})
            assert cut.headers["x-conche-truncated"].startswith(f"{index}:")
    for body, param, index in (
        (b'{"query": "\\ud83d", "texts": ["a"]}', "query", None),
        (b'{"query": "a", "texts": ["a", "\\ud83d"]}', "texts", 1),
    ):
        answer = await reranking.post("/rerank", content=body, headers={"content-type": "application/json"})
        error = answer.json()
        assert (error["code"], error["param"], error["index"]) == ("invalid_text", param, index)


async def test_tokens_have_their_place_in_bytes(client: httpx.AsyncClient) -> None:
    """As text-embeddings-inference counts; special tokens have none."""
    text = "怎么 Paris 🙂退货"
    (tokens,) = (await client.post("/tokenize", json={"inputs": text})).json()
    raw = text.encode()
    assert [(token["special"], token["text"]) for token in (tokens[0], tokens[-1])] == [
        (True, "[CLS]"),
        (True, "[SEP]"),
    ]
    for token in tokens[1:-1]:
        assert raw[token["start"] : token["stop"]].decode() == token["text"]
    assert [token["text"] for token in tokens[1:-1]] == ["怎", "么", "Paris", "🙂", "退", "货"]
    (bare,) = (await client.post("/tokenize", json={"inputs": text, "add_special_tokens": False})).json()
    assert bare == tokens[1:-1]
    (prompted,) = (await client.post("/tokenize", json={"inputs": "hello", "prompt_name": "query"})).json()
    assert [token["text"] for token in prompted] == ["[CLS]", "query", ":", "hello", "[SEP]"]
    assert [token["start"] for token in prompted] == [None, None, None, 0, None]


async def test_ids_are_decoded(client: httpx.AsyncClient) -> None:
    """One sequence or several; what the vocabulary lacks is refused by its place."""
    (tokens,) = (await client.post("/tokenize", json={"inputs": "hello world"})).json()
    ids = [token["id"] for token in tokens]
    assert (await client.post("/decode", json={"ids": ids})).json() == ["hello world"]
    two = await client.post("/decode", json={"ids": [ids, ids], "skip_special_tokens": False})
    assert two.json() == ["[CLS] hello world [SEP]"] * 2
    error = (await client.post("/decode", json={"ids": [ids, [1, 10**7]]})).json()
    assert (error["code"], error["index"], error["param"]) == ("token_ids_refused", 1, "ids")


@pytest.mark.parametrize("ids", ["1", 1, ["1"], [[1], 2], [[True]], [[1.5]]])
async def test_what_is_no_list_of_ids_is_refused(client: httpx.AsyncClient, ids: object) -> None:
    """JSON has numbers that are no ids."""
    answer = await client.post("/decode", json={"ids": ids})
    assert (answer.status_code, answer.json()["param"]) == (422, "ids")


async def test_the_path_of_the_inference_api_embeds(client: httpx.AsyncClient) -> None:
    """Clients that know only that path work; the model in it must be there."""
    body = {"inputs": ["hello"], "options": {"wait_for_model": True}}
    found = await client.post("/models/tiny-embedding/pipeline/feature-extraction", json=body)
    assert found.json() == (await client.post("/embed", json={"inputs": ["hello"]})).json()
    other = await client.post("/models/org/other/pipeline/feature-extraction", json=body)
    assert (other.status_code, other.json()["code"]) == (404, "unknown_model")


async def test_answers_that_would_be_too_large_are_refused(models_folder: Path) -> None:
    """Of the vectors of all tokens before the model runs; with limit and setting."""
    limits = {"max_answer_bytes": 20_000}
    async with running(tiny_settings(models_folder, limits=limits)) as client:
        assert (await client.post("/embed_all", json={"inputs": ["hello"]})).status_code == 200
        for path, body in (
            ("/embed_all", {"inputs": ["hello world " * 20] * 3}),
            ("/tokenize", {"inputs": ["hello world " * 50] * 8}),
        ):
            answer = await client.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "answer_too_large"), path
            assert "20000" in answer.json()["error"]
            assert "CONCHE_LIMITS__MAX_ANSWER_BYTES" in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rerank", {"query": "a", "texts": ["a"]}),
        ("/v1/rerank", {"query": "a", "documents": ["a"]}),
        ("/decode", {"ids": [4]}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["a"]}}),
    ],
)
async def test_a_prompt_that_the_model_lacks_is_refused_on_every_route(
    client: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    """Where it would change nothing as well: whoever sends it believes that it does."""
    answer = await client.post(path, json=body | {"model": "tiny-embedding:poem"})
    assert answer.status_code == 422
    assert "query, passage, none" in answer.text

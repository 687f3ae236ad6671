"""``POST /search`` over a tiny real bundle and three entries."""

import httpx
import pytest

JSON = {"content-type": "application/json"}


async def test_each_query_gets_its_hits_best_first(client: httpx.AsyncClient) -> None:
    """A list of results in the order of the queries, for one query as well."""
    answer = await client.post("/search", json={"query": ["reset password", "怎么退货"]})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["hits"][0]["id"] for result in results] == ["password", "delivery"]
    first = results[0]["hits"][0]
    assert set(first) == {"id", "question", "answer", "score", "explain", "highlights"}
    assert (first["explain"]["matched"], first["explain"]["lexical_rank"]) == ("reset my password", 1)
    assert first["highlights"] == {"question": [[0, 5], [9, 17]], "answer": []}
    for result in results:
        scores = [hit["score"] for hit in result["hits"]]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)
    single = await client.post("/search", json={"query": "怎么退货"})
    assert single.json()["results"][0]["hits"][0]["answer"] == "七天内。"
    assert answer.headers["x-conche-model"] == "tiny-embedding"


async def test_more_hits_than_entries_gives_all_of_them_once(client: httpx.AsyncClient) -> None:
    """Asking for 50 of 3 is no error."""
    answer = await client.post("/search", json={"query": "refund", "top_k": 50})
    ids = [hit["id"] for hit in answer.json()["results"][0]["hits"]]
    assert sorted(ids) == ["delivery", "password", "refund"]


async def test_a_minimum_score_leaves_hits_out(client: httpx.AsyncClient) -> None:
    """Down to none."""
    answer = await client.post("/search", json={"query": "hello world", "min_score": 1})
    assert answer.json() == {"results": [{"hits": [], "default_answer": None}]}


@pytest.mark.parametrize("value", ["-1", "1.5", '"many"', "[]", "1" + "0" * 30, "0", "101", "true", "5.0"])
async def test_edges_of_top_k_are_refused(client: httpx.AsyncClient, value: str) -> None:
    """None of them reaches the index."""
    answer = await client.post("/search", content=f'{{"query":"refund","top_k":{value}}}', headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["param"] == "top_k"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["min_score", "top_k"])
async def test_numbers_that_json_does_not_know_are_refused_in_strict_json(
    client: httpx.AsyncClient, name: str, number: str
) -> None:
    """And the refusal does not echo them."""
    answer = await client.post("/search", content=f'{{"query":"refund","{name}":{number}}}', headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["code"] == "malformed_json"
    assert number not in answer.text


@pytest.mark.parametrize("value", ["-0.1", "1.1", '"0.5"', "true", "[]"])
async def test_scores_out_of_range_are_refused(client: httpx.AsyncClient, value: str) -> None:
    """Scores lie within 0 and 1, so such a limit is a mistake."""
    answer = await client.post("/search", content=f'{{"query":"refund","min_score":{value}}}', headers=JSON)
    assert (answer.status_code, answer.json()["param"]) == (422, "min_score")


async def test_a_bad_query_is_named_by_index(client: httpx.AsyncClient) -> None:
    """As for /embed, under the name that the field has here."""
    for bad, code in [("", "empty_input"), ("hello " * 200, "input_too_long")]:
        error = (await client.post("/search", json={"query": ["refund", bad]})).json()
        assert (error["code"], error["index"], error["param"]) == (code, 1, "query")


async def test_the_mode_decides_the_order(client: httpx.AsyncClient) -> None:
    """By words alone an entry without any of them is not found; by meaning alone every entry is."""
    found = {}
    for mode in ("hybrid", "dense", "lexical"):
        answer = await client.post("/search", json={"query": "reset password", "mode": mode})
        found[mode] = [hit["id"] for hit in answer.json()["results"][0]["hits"]]
    assert found["lexical"] == ["password"]
    assert sorted(found["dense"]) == sorted(found["hybrid"]) == ["delivery", "password", "refund"]
    answer = await client.post("/search", json={"query": "reset password", "mode": "psychic"})
    assert (answer.status_code, answer.json()["param"]) == (422, "mode")


async def test_a_filter_narrows_the_search(client: httpx.AsyncClient) -> None:
    """And a filter that is none is named as such."""
    body = {"query": "reset password", "filter": {"field": "id", "in": ["refund", "delivery"]}}
    answer = await client.post("/search", json=body)
    assert sorted(hit["id"] for hit in answer.json()["results"][0]["hits"]) == ["delivery", "refund"]
    answer = await client.post("/search", json={"query": "x", "filter": {"field": "price", "equals": 1}})
    error = answer.json()
    assert (answer.status_code, error["code"], error["param"]) == (422, "invalid_filter", "filter")


@pytest.mark.parametrize("name", ["nowhere", "../default", "Default", "x" * 64])
async def test_a_collection_that_is_not_there_is_named(client: httpx.AsyncClient, name: str) -> None:
    """With those that are."""
    answer = await client.post("/search", json={"query": "refund", "collection": name})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_collection")
    assert "default" in answer.json()["error"]


async def test_a_query_without_an_answer_gets_the_default_one(client: httpx.AsyncClient) -> None:
    """Which the collection is set to, as it is to how sure an answer has to be; the request goes first."""
    catalogue = client.app.state.services.catalogue  # type: ignore[attr-defined]
    await catalogue.configure("default", default_answer="Ask a human.", min_score=1.0)
    answer = await client.post("/search", json={"query": "hello world"})
    assert answer.json() == {"results": [{"hits": [], "default_answer": "Ask a human."}]}
    answer = await client.post("/search", json={"query": "hello world", "min_score": 0})
    (result,) = answer.json()["results"]
    assert (len(result["hits"]), result["default_answer"]) == (3, None)
    text = (await client.get("/metrics")).text
    assert "conche_faq_queries_total 2.0" in text
    assert "conche_faq_unanswered_queries_total 1.0" in text
    assert "conche_faq_lookup_duration_seconds_count 2.0" in text

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
    assert set(results[0]["hits"][0]) == {"id", "question", "answer", "score"}
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
    assert answer.json() == {"results": [{"hits": []}]}


@pytest.mark.parametrize("value", ["-1", "1.5", '"many"', "[]", "1" + "0" * 30, "0", "101", "true", "5.0"])
async def test_edges_of_top_k_are_refused(client: httpx.AsyncClient, value: str) -> None:
    """None of them reaches the index."""
    answer = await client.post("/search", content=f'{{"query":"refund","top_k":{value}}}', headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == "top_k"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["min_score", "top_k"])
async def test_numbers_that_json_does_not_know_are_refused_in_strict_json(
    client: httpx.AsyncClient, name: str, number: str
) -> None:
    """And the refusal does not echo them."""
    answer = await client.post("/search", content=f'{{"query":"refund","{name}":{number}}}', headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "malformed_json"
    assert number not in answer.text


@pytest.mark.parametrize("value", ["-0.1", "1.1", '"0.5"', "true", "[]"])
async def test_scores_out_of_range_are_refused(client: httpx.AsyncClient, value: str) -> None:
    """Scores lie within 0 and 1, so such a limit is a mistake."""
    answer = await client.post("/search", content=f'{{"query":"refund","min_score":{value}}}', headers=JSON)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "min_score")


async def test_a_bad_query_is_named_by_index(client: httpx.AsyncClient) -> None:
    """As for /embed, under the name that the field has here."""
    for bad, code in [("", "empty_input"), ("hello " * 200, "input_too_long")]:
        error = (await client.post("/search", json={"query": ["refund", bad]})).json()["error"]
        assert (error["code"], error["index"], error["param"]) == (code, 1, "query")

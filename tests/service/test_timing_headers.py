"""What an answer took is told beside it, each request's share by itself."""

import asyncio
import re

import httpx
import pytest

from service.request_work import RequestWork, gathering_work, work_of_request
from service.response_headers import WORK_HEADERS, work_headers

TIMING = re.compile(
    r"tokenize;dur=(\d+\.\d\d), queue;dur=(\d+\.\d\d), run;dur=(\d+\.\d\d), "
    r"(?:(?:decode|lookup);dur=\d+\.\d\d, )?total;dur=(\d+\.\d\d)"
)


def times(answer: httpx.Response) -> list[float]:
    """Tokenize, queue, run, total."""
    assert answer.status_code == 200, answer.text
    found = TIMING.fullmatch(answer.headers["server-timing"])
    assert found is not None, answer.headers["server-timing"]
    return [float(value) for value in found.groups()]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": ["hello", "hello world"]}),
        ("/models/tiny-embedding/pipeline/feature-extraction", {"inputs": "hello"}),
        ("/ner", {"inputs": "hello world"}),
        ("/search", {"query": "reset my password"}),
        ("/v1/embeddings", {"input": "hello"}),
        ("/v1/rerank", {"query": "hello", "documents": ["world", "hello"]}),
        ("/embed_all", {"inputs": "hello"}),
        ("/rerank", {"query": "hello", "texts": ["world", "hello"]}),
        ("/similarity", {"inputs": {"source_sentence": "hello", "sentences": ["world"]}}),
    ],
)
async def test_every_route_that_asks_a_model_tells_its_times(
    client: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    """None of the parts can be longer than the whole; a run takes some time."""
    answer = await client.post(path, json=body)
    tokenize, queue, run, total = times(answer)
    assert 0 < run <= total
    assert 0 <= tokenize <= total
    assert 0 <= queue <= total
    assert int(answer.headers["x-inference-time"]) == int(run)
    assert int(answer.headers["x-compute-tokens"]) > 0


@pytest.mark.parametrize(
    ("path", "body", "stage"),
    [
        ("/ner", {"inputs": "hello world"}, "decode"),
        ("/search", {"query": "reset my password"}, "lookup"),
        ("/embed", {"inputs": "hello"}, None),
    ],
)
async def test_what_is_done_after_a_run_is_told_too(
    client: httpx.AsyncClient, path: str, body: dict[str, object], stage: str | None
) -> None:
    """A long document takes a while to become entities, a large index a while to be searched."""
    timing = (await client.post(path, json=body)).headers["server-timing"]
    durations = dict(part.split(";dur=") for part in timing.split(", "))
    assert durations.keys() - {"tokenize", "queue", "run", "total"} == ({stage} if stage else set())
    assert (
        sum(float(durations[name]) for name in durations if name != "total") <= float(durations["total"]) + 1
    )


async def test_tokens_and_characters_are_those_that_were_read(client: httpx.AsyncClient) -> None:
    """The list by input adds up to the sum, and both to what the model read."""
    answer = await client.post("/embed", json={"inputs": ["hello", "hello world"], "prompt_name": "none"})
    by_input = [int(count) for count in answer.headers["x-conche-tokens-by-input"].split(",")]
    assert len(by_input) == 2
    assert by_input[0] < by_input[1]
    assert str(sum(by_input)) == answer.headers["x-conche-tokens"] == answer.headers["x-compute-tokens"]
    assert answer.headers["x-compute-characters"] == str(len("hello") + len("hello world"))


async def test_the_tokenizers_routes_tell_the_tokenizers_time(client: httpx.AsyncClient) -> None:
    """No model runs for them."""
    _, queue, run, total = times(await client.post("/tokenize", json={"inputs": "hello"}))
    assert (queue, run) == (0, 0)
    assert total > 0


async def test_answers_without_a_model_have_no_times(client: httpx.AsyncClient) -> None:
    """A header of zeros would read as a measurement."""
    for answer in [await client.get("/info"), await client.post("/embed", json={"inputs": []})]:
        assert not set(WORK_HEADERS) & set(answer.headers)


async def test_requests_at_once_have_accounts_of_their_own() -> None:
    """Tasks of a request share its account; other requests do not."""

    async def request(characters: int) -> int:
        async def part() -> None:
            await asyncio.sleep(0)
            work = work_of_request()
            assert work is not None
            work.add_tokenizing(0.1, characters=characters)

        with gathering_work() as work:
            await asyncio.gather(part(), part())
            return work.characters

    assert await asyncio.gather(request(1), request(10)) == [2, 20]
    assert work_of_request() is None


@pytest.mark.parametrize("path", ["/embed", "/ner", "/search", "/v1/embeddings", "/rerank", "/tokenize"])
async def test_the_headers_are_documented(client: httpx.AsyncClient, path: str) -> None:
    """In the OpenAPI document, each with what it means."""
    document = (await client.get("/openapi.json")).json()
    headers = document["paths"][path]["post"]["responses"]["200"]["headers"]
    assert set(WORK_HEADERS) <= set(headers)
    assert all(header["description"] for header in headers.values())


def test_whole_milliseconds_are_those_of_server_timing() -> None:
    """0.9999 ms cannot be 1.00 in one header and 0 in the other."""
    work = RequestWork()
    work.add_tokenizing(0.0009999, characters=1)
    work.run_seconds = 0.001999
    headers = work_headers(work, total_seconds=0.0049951)
    assert headers["server-timing"] == "tokenize;dur=1.00, queue;dur=0.00, run;dur=2.00, total;dur=5.00"
    assert [headers[name] for name in ("x-tokenization-time", "x-inference-time", "x-total-time")] == [
        "1",
        "2",
        "5",
    ]

"""``GET /metrics``: all series from the start, one source of truth, labels nobody can invent."""

import re

import httpx
import pytest

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


async def _series(client: httpx.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    assert len({name for name, _ in lines}) == len(lines), "a sample is there twice"
    return {name: float(value) for name, value in lines}


async def test_every_route_is_there_before_the_first_request(client: httpx.AsyncClient) -> None:
    """A rate needs a zero to start from; models and FAQ are there as well."""
    series = await _series(client)
    for route in ("/embed", "/search", "/ner"):
        assert series[f'conche_requests_total{{code="",method="POST",route="{route}",status="200"}}'] == 0
        assert series[f'conche_request_duration_seconds_count{{route="{route}"}}'] == 0
    for model in ("tiny-embedding", "tiny-ner"):
        assert series[f'conche_model_healthy{{model="{model}"}}'] == 1
        assert series[f'conche_queue_depth_items{{model="{model}"}}'] == 0
        assert series[f'conche_inference_threads{{model="{model}"}}'] == 1
    assert series["conche_faq_entries"] == 3


async def test_what_may_go_wrong_is_there_before_it_does(client: httpx.AsyncClient) -> None:
    """An alert on a series that appears with its first error misses that error."""

    async def errors() -> set[str]:
        series = await _series(client)
        return {
            name for name in series if name.startswith('conche_requests_total{code="') and '=""' not in name
        }

    before = await errors()
    await client.get("/nothing/here")
    await client.post("/nothing/here")
    await client.get("/embed")
    await client.post("/livez")
    await client.post("/embed", content=b"{", headers={"content-type": "application/json"})
    await client.post("/search", json={"query": ""})
    await client.post("/search", json={"query": "a", "collection": "none"})
    await client.post("/search", json={"query": "a", "filter": {"no": "filter"}})
    await client.get("/faq/none")
    await client.put("/faq/NONE", json={})
    await client.post("/faq/none/import", content=b"x", headers={"content-type": "image/png"})
    await client.patch("/faq/default/entries/none", json={"answer": "a"})
    await client.delete("/faq/default/entries/none")
    await client.post("/ner", json={"inputs": ["a"] * 3000})
    assert await errors() == before
    for code in ("model_mismatch", "storage_failed", "storage_full", "faq_unavailable"):
        assert any(
            f'code="{code}",method="PUT",route="/faq/{{collection}}/entries' in name for name in before
        )
    for status in (404, 503):  # not configured, or failed its checks
        assert (
            f'conche_requests_total{{code="no_model",method="POST",route="/ner",status="{status}"}}' in before
        )


async def test_requests_texts_and_refusals_are_counted(client: httpx.AsyncClient) -> None:
    """Each once, under its route and status."""
    before = await _series(client)
    for _ in range(12):
        await client.post("/embed", json={"inputs": ["hello", "world"]})
    await client.post("/embed", json={"inputs": "hello " * 100, "truncate": True})
    await client.post("/embed", json={"inputs": ""})
    after = await _series(client)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('conche_requests_total{code="",method="POST",route="/embed",status="200"}') == 13
    assert grown('conche_requests_total{code="empty_input",method="POST",route="/embed",status="422"}') == 1
    assert grown('conche_request_duration_seconds_count{route="/embed"}') == 14
    assert grown('conche_texts_total{model="tiny-embedding"}') == 25
    assert grown('conche_truncated_texts_total{model="tiny-embedding"}') == 1


async def test_callers_cannot_add_series(client: httpx.AsyncClient) -> None:
    """Scanners try paths and methods without end; each would stay in memory for ever."""

    async def scan(word: str) -> None:
        for n in range(30):
            await client.get(f"/{word}{n}")
        for n in range(10):
            await client.request(f"{word.upper()}{n}", "/embed")
            await client.post("/embed", json={"inputs": "hello", "model": f"{word}{n}"})

    await scan("zebra")
    once = await _series(client)
    await scan("giraffe")
    twice = await _series(client)
    assert set(twice) == set(once)
    assert not re.search("zebra|giraffe", "".join(twice), re.IGNORECASE)


@pytest.mark.parametrize("accept", [PROMETHEUS, "text/plain;version=0.0.4", "*/*", ""])
async def test_content_type_and_body_agree(client: httpx.AsyncClient, accept: str) -> None:
    """A scraper that parses by the header must not meet the other format."""
    answer = await client.get("/metrics", headers={"accept": accept})
    openmetrics = "openmetrics" in answer.headers["content-type"]
    assert openmetrics == (accept == PROMETHEUS)
    assert answer.text.endswith("# EOF\n") == openmetrics
    families = re.findall(r"^# TYPE (\S+)", answer.text, re.MULTILINE)
    assert len(set(families)) == len(families)
    assert "NaN" not in answer.text

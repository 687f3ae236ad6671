"""Requests with a word at every place where a caller can put one; for tests of what leaves the service."""

from typing import Final

import httpx

WORD: Final = "zq9x7"
SECRET: Final = f"{WORD} my secret 秘密"

_JSON: Final = {"content-type": "application/json"}


async def send_odd_requests(client: httpx.AsyncClient) -> None:
    """Send them: some are answered, most are refused, each in a way of its own."""
    long = WORD + " door" * 600
    for body in ({"inputs": [SECRET]}, {"inputs": [long]}, {"inputs": [SECRET], "prompt_name": WORD}):
        await client.post("/embed", json=body)
        await client.post(f"/embed?{WORD}={WORD}", json=body)
        await client.post("/ner", json=body)
    await client.post("/embed", content=f'{{"inputs": "{WORD}', headers=_JSON)
    await client.post("/embed", content=f'{{"inputs": "{WORD} \\ud800"}}', headers=_JSON)
    await client.post("/embed", content=WORD, headers={"content-type": f"text/{WORD}"})
    await client.post("/embed", json={"inputs": [SECRET], WORD: WORD})
    await client.post("/embed", json={"inputs": [SECRET], "model": WORD})
    await client.post("/v1/embeddings", json={"input": {WORD: SECRET}, "model": WORD})
    await client.post("/search", json={"query": SECRET, "collection": WORD})
    await client.post("/search", json={"query": SECRET, "filter": {"tags": [WORD]}})
    await client.put(f"/faq/{WORD}", json={})
    await client.put(f"/faq/{WORD}/entries", json={"entries": [{"question": SECRET, "answer": SECRET}]})
    await client.get(f"/faq/{WORD}/entries/{WORD}")
    await client.get(f"/{WORD}?{WORD}")
    await client.request(WORD.upper(), "/embed")
    headers = {"user-agent": WORD, "x-request-id": SECRET[:6], "traceparent": WORD, "authorization": WORD}
    await client.post("/embed", json={"inputs": ["a"]}, headers=headers)

# ruff: noqa: INP001, S310, T201 - a script that prints, and opens http addresses only
"""Chinese and English requests to the three endpoints, each answer checked. Standard library only.

Usage: traffic.py [BASE_URL [ROUNDS]]. Closing line: ``traffic: N checks, N failed``.
"""

import concurrent.futures
import json
import math
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

TEXTS = [
    "你好，世界",
    "苹果手机很贵，苹果很好吃。",
    "Where is my parcel?",
    "The quick brown fox jumps over the lazy dog.",
    "我想退货，请问运费谁来承担？" * 8,
    "A rather longer paragraph about shipping, returns and refunds. " * 12,
]
SIMILAR = ("怎么申请退款？", "如何退钱？", "The weather in London is mild.")
ENTITY_TEXTS = [
    "Angela Merkel met Barack Obama in Berlin.",
    "马云在杭州创办了阿里巴巴。",
    "😀 北京大学的王伟去了上海。",
]
COLLECTION = "smoke-traffic"
QUERIES = ["怎么退货？", "How do I return an item?", "快递什么时候到", "How can I pay?"]


def call(url: str, body: dict[str, Any] | None = None, method: str | None = None) -> tuple[int, Any]:
    """Status and decoded JSON body of a request: a POST if not said otherwise, a GET without ``body``."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def check(condition: bool, message: str) -> None:
    """Fail this request."""
    if not condition:
        raise AssertionError(message)


def dot(a: list[float], b: list[float]) -> float:
    """Cosine of two unit vectors."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def embed(base: str) -> None:
    """One vector a text, of unit length; like texts lie nearer than unlike ones."""
    status, vectors = call(f"{base}/embed", {"inputs": [*TEXTS, *SIMILAR]})
    check(status == 200, f"/embed: {status} {vectors}")
    check(len(vectors) == len(TEXTS) + len(SIMILAR), f"/embed: {len(vectors)} vectors")
    for vector in vectors:
        check(abs(math.hypot(*vector) - 1) < 1e-3, "/embed: a vector is not of unit length")
    query, like, unlike = vectors[-3:]
    check(dot(query, like) > dot(query, unlike), "/embed: an unrelated text lies nearer than a paraphrase")


def embed_options(base: str) -> None:
    """CLS pooling, raw vectors, a query prompt, and a text cut on request."""
    status, vectors = call(f"{base}/embed", {"inputs": "你好", "pooling": "cls", "normalize": False})
    check(status == 200 and len(vectors) == 1, f"/embed cls: {status}")
    status, vectors = call(f"{base}/embed", {"inputs": "parcel " * 2000, "truncate": True})
    check(status == 200 and len(vectors) == 1, f"/embed truncate: {status} {str(vectors)[:200]}")


def embed_refusals(base: str) -> None:
    """Bad input gets a JSON error that names the offending item."""
    for body, index in (({"inputs": ["good", "parcel " * 2000]}, 1), ({"inputs": ["good", 5]}, None)):
        status, answer = call(f"{base}/embed", body)
        check(status == 422, f"/embed: {status} for a bad item")
        check(bool(answer["code"]), "/embed: an error without a code")
        check(index is None or answer["index"] == index, f"/embed: {answer['error']}")


def search(base: str) -> None:
    """Hits in falling order of score, for one query and for several."""
    status, answer = call(f"{base}/search", {"query": QUERIES, "top_k": 3})
    check(status == 200 and len(answer["results"]) == len(QUERIES), f"/search: {status} {str(answer)[:200]}")
    status, single = call(f"{base}/search", {"query": QUERIES[0], "top_k": 3})
    alone, among_others = ([hit["id"] for hit in found["results"][0]["hits"]] for found in (single, answer))
    check(status == 200 and alone == among_others, "/search: a query alone finds other entries")
    for hits in (result["hits"] for result in answer["results"]):
        scores = [hit["score"] for hit in hits]
        check(len(hits) == 3 and scores == sorted(scores, reverse=True), f"/search: {scores}")
        check(all(hit["id"] and hit["question"] and hit["answer"] for hit in hits), "/search: an empty field")


def write(base: str) -> None:
    """An entry is found as soon as it is acknowledged, and gone as soon as its deletion is."""
    name = f"smoke-{uuid.uuid4().hex}"
    entry = f"{base}/faq/{COLLECTION}/entries/{name}"
    question = f"What does {name} cost?"
    status, answer = call(entry, {"question": question, "answer": "Nothing."}, "PUT")
    check(status == 200 and answer["added"] == 1, f"PUT of an entry: {status} {str(answer)[:200]}")
    body = {"query": question, "collection": COLLECTION, "top_k": 1, "min_score": 0}
    status, answer = call(f"{base}/search", body)
    check(status == 200, f"/search of {COLLECTION}: {status} {str(answer)[:200]}")
    check([hit["id"] for hit in answer["results"][0]["hits"]] == [name], f"{name} is not found")
    status, answer = call(entry, method="DELETE")
    check(status == 200 and answer["deleted"] == 1, f"DELETE of an entry: {status} {str(answer)[:200]}")


def tag(base: str) -> None:
    """Each entity is the exact slice of its text, by code points, and some are found."""
    status, results = call(f"{base}/ner", {"inputs": ENTITY_TEXTS})
    check(status == 200 and len(results) == len(ENTITY_TEXTS), f"/ner: {status} {str(results)[:200]}")
    for text, entities in zip(ENTITY_TEXTS, results, strict=True):
        for entity in entities:
            check(text[entity["start"] : entity["end"]] == entity["text"], f"/ner: {entity} in {text!r}")
    check(any(results), "/ner: no entity in any text")


def main(base: str = "http://127.0.0.1:8080", rounds: str = "20") -> int:
    """Run every kind of request ``rounds`` times, four at a time."""
    kinds: list[Callable[[str], None]] = [embed, embed_options, embed_refusals, search, write, tag]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pending = [pool.submit(kind, base) for _ in range(int(rounds)) for kind in kinds]
        errors = [future.exception() for future in pending]
    call(f"{base}/faq/{COLLECTION}", method="DELETE")
    failures = sorted(f"{type(error).__name__}: {error}" for error in errors if error)
    for failure in failures[:10]:
        print(f"  {failure}")
    print(f"traffic: {len(pending)} checks, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

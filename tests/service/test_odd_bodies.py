"""Bodies of every route that has an example in the OpenAPI document, altered at every place."""

import copy
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx

from service.log_config import JsonFormatter
from tests.service.odd_requests import SECRET, WORD

_JSON = {"content-type": "application/json"}
# Of an entry, a field that is not known would be lost without a word; so it is refused there.
_STRICT = {
    "/faq/{collection}/entries",
    "/faq/{collection}/entries/{entry_id}",
    "/faq/{collection}/evaluate",
}


def _examples(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], set[str]]]:
    """Method, path, body, and the fields that it need not have, of each example."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for example in content.get("examples", {}).values():
                schema = document["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[-1]]
                optional = set(schema["properties"]) - set(schema.get("required", ()))
                yield method.upper(), path, example["value"], optional


def _address(path: str) -> str:
    for name, value in (("collection", "default"), ("entry_id", "refund"), ("model_id", "tiny-embedding")):
        path = path.replace(f"{{{name}}}", value)
    return path


def _places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield place
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from _places(inner, (*place, key))


def _with(body: Any, place: tuple[str | int, ...], value: object) -> Any:
    if not place:
        return value
    altered = at = copy.deepcopy(body)
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return altered


def _at(body: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        body = body[key]
    return body


async def test_unknown_fields_are_ignored_and_null_means_not_said(client: httpx.AsyncClient) -> None:
    """On every route but those that keep or judge what they are sent, at every depth."""
    answered = set()
    for method, path, body, optional in _examples((await client.get("/openapi.json")).json()):
        if path in _STRICT or path in {"/admin/models", "/snapshots", "/faq/{collection}/delete"}:
            continue
        plain = await client.request(method, _address(path), json=body)
        odd = dict.fromkeys(optional) | body | {SECRET: [SECRET]}
        for place in list(_places(body)):
            if place and isinstance(_at(body, place), dict) and "filter" not in place:
                odd = _with(odd, (*place, SECRET), None)
        answer = await client.request(method, _address(path), json=odd)
        assert answer.status_code == plain.status_code, (path, odd, answer.text)
        if plain.status_code == 200:
            answered.add(path)
    assert {"/embed", "/ner", "/predict", "/classify", "/search", "/rerank", "/similarity"} < answered
    assert {"/tokenize", "/decode", "/embed_all", "/v1/embeddings", "/v1/rerank"} < answered


async def test_a_record_with_a_field_that_is_not_known_is_refused(client: httpx.AsyncClient) -> None:
    """It is named if it may be a slip of the keyboard, and not if it may be a text."""
    entry = {"question": "Do you wrap gifts?", "answer": "Yes."}
    for name, place, field in (("anwser", "entries[1].anwser", "anwser"), (SECRET, "entries", None)):
        many = await client.post("/faq/default/entries", json={"entries": [entry, entry | {name: "x"}]})
        body = many.json()
        assert (many.status_code, body["param"], body["index"]) == (422, "entries", 1)
        assert body["error"] == f"{place}: there is no such field"
        one = await client.patch("/faq/default/entries/refund", json={name: "x"})
        assert (one.status_code, one.json()["param"]) == (422, field)
        assert one.json()["error"].endswith("there is no such field")


async def test_no_error_and_no_log_line_repeats_what_was_sent(client: httpx.AsyncClient) -> None:
    """A word at every place of a body: of a wrong type, as a key, too long, with half a character."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not record.name.startswith(("httpx", "httpcore", "asyncio")):
                lines.append(JsonFormatter().format(record))

    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    refused = 0
    try:
        seen = set()
        for method, path, body, _ in _examples((await client.get("/openapi.json")).json()):
            if path in seen or path == "/admin/models":  # a bundle's name is no text
                continue
            seen.add(path)
            for place in _places(body):
                for value in (
                    {SECRET: SECRET},
                    [SECRET],
                    [[SECRET, [SECRET]]],
                    SECRET + " door" * 600,
                    SECRET + "\ud800",
                ):
                    content = json.dumps(_with(body, place, value)).encode()
                    answer = await client.request(method, _address(path), content=content, headers=_JSON)
                    assert answer.status_code < 500, (path, place, value)
                    if answer.status_code >= 400:
                        refused += 1
                        told = (answer.text + str(answer.headers)).lower()
                        assert WORD not in told, (path, place, value, answer.text)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert refused > 300
    assert [line for line in lines if WORD in line.lower()] == []

"""Writes docs/errors.md: every error code, from the classes, with answers that a running app gave.

    python -m tests.service.error_page      # `make errors`

What to do about a code is written here, in `ADVICE`; status, types and meaning come from ``service``, and
bodies from requests to the app over tiny bundles (`PROVOKED`). Where that would take a failing disk or model,
or a race, the function that makes bodies made one of a message given here (`MADE`).
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from service.api_keys import KeyFile, new_key, write_keys
from service.errors import ServiceError
from service.http_errors import error_response, status_of
from tests.service.fakes_http import running, tiny_settings, write_bundles

PAGE: Final = Path(__file__).parents[2] / "docs" / "errors.md"
# Of a bundle, which is made anew for each page.
FINGERPRINT: Final = re.compile("fingerprint [0-9a-f]+")
REQUEST_ID: Final = "3f1c2a9be5d04c66"
LONG_BODY: Final = {"inputs": "a" * 20_000}

# Never an answer: the parent of others, each of which has a code of its own.
NOT_ANSWERED: Final = frozenset({"not_found"})

ADVICE: Final[dict[str, str]] = {
    "admin_off": "Set `CONCHE_ADMIN=true` where the models may be changed over HTTP.",
    "answer_too_large": "Ask for a smaller page, fewer queries or a smaller `top_k`, or raise the setting.",
    "bad_lines": "Mend the lines that are listed, or import without `strict`: the good lines are taken then.",
    "bundle_refused": "Read which check failed; `conche models verify` runs all of them.",
    "collection_exists": "Take another name, or change the collection that is there.",
    "conflict": "The message says what stands in the way.",
    "duplicate_entry": "Send `on_duplicate` as `replace` or `skip`, or take another id.",
    "empty_input": "Leave empty texts out before sending; `index` says which one it is. The operator can "
    "have those of a list read instead (`CONCHE_EMPTY_INPUT=read`).",
    "entry_changed": "Read the entry again, and change what it is now.",
    "faq_unavailable": "An operator's matter: the log of its start says what failed, and how.",
    "forbidden": "Use a key with the scope that the message names (`conche keys`).",
    "headers_too_large": "Send shorter URLs and fewer headers; long texts belong in the body.",
    "inference_failed": "Send it once more; if it fails again, report the request id; the log has the cause.",
    "input_too_long": 'Shorten the text, or send `"truncate": true` to have the rest cut off.',
    "internal": "A fault of ours. Report the request id; the log has the cause.",
    "invalid_filter": "The message says which part of the filter cannot be read.",
    "invalid_input": "The message names the field and what it takes.",
    "invalid_text": "Repair the text: it was cut inside a character that takes two UTF-16 units.",
    "malformed_json": "Send strict JSON in UTF-8: no NaN, no comments, no other encoding.",
    "malformed_request": "Send HTTP/1.1; often it is TLS sent to a port that speaks none.",
    "malformed_url": "Percent-encode the UTF-8 bytes of names in the URL.",
    "method_not_allowed": "Use the method that the message and the header `allow` name.",
    "model_loaded": "Nothing to do; unload it first to load it anew.",
    "model_mismatch": "Run the command that the message names; it embeds the entries anew.",
    "no_faq": "Ask another server, or set `CONCHE_FAQ_STORE`.",
    "no_model": "404: ask another server, or configure a bundle. 503: an operator's matter, see `/readyz`.",
    "overloaded": "Send it again after `retry-after-ms`; nothing of it was started.",
    "payload_too_large": "Send less at a time.",
    "rate_limited": "Send it again after `retry-after-ms`; the limit is the key's.",
    "request_timeout": "Send the whole request at once; then look at the network between.",
    "snapshot_exists": "Take another name, or delete the one that is there.",
    "storage_failed": "An operator's matter: the log has the cause. Nothing was acknowledged.",
    "storage_full": "Make room on the disk, or delete entries or snapshots. Nothing was written.",
    "storage_read_only": "Write where the FAQ is kept; this server only reads it.",
    "timeout": "Send less at a time, or again later; the message names the setting.",
    "token_ids_refused": "Send texts. The message names the switch of LangChain's client.",
    "too_many_characters": "Send less at a time, or in pieces of your choice.",
    "too_many_concurrent": "Wait for answers before you send more; the limit is the key's.",
    "too_many_connections": "Keep connections open and use them again, or come back later.",
    "too_many_inputs": "Send the texts in several requests.",
    "too_many_snapshots": "Delete a snapshot, or raise the setting.",
    "unauthorized": "Send a key that the server knows as `Authorization: Bearer ...` or `x-api-key: ...`.",
    "unavailable": "Send it again after `retry-after-ms`; if it stays, `/readyz` has the reasons.",
    "unknown_collection": "The message lists the collections; a first write makes one.",
    "unknown_entry": "It is not there (any more).",
    "unknown_model": "The message lists the models; `/v1/models` does too.",
    "unknown_path": "Look for typing errors, and for a missing or doubled `/v1`.",
    "unknown_snapshot": "`GET /snapshots` lists those that are there.",
    "unreadable_file": "The message says what to change: encoding, header or type.",
    "unsupported_media_type": "Send `content-type: application/json`; of an import, the file's own type.",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is answered with an error.

    Attributes:
        code: of the answer.
        app: which of `apps` it goes to.
        body: sent as JSON.
        content: sent as it is, with ``headers``.
        shown: what the page has in place of what is too long for it.
        before: sent first, to make the conflict.
    """

    code: str
    app: str
    method: str
    path: str
    body: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    shown: str | None = None
    before: "Asked | None" = None


_ENTRY: Final = {"entries": [{"id": "gift", "question": "Do you wrap gifts?", "answer": "Yes."}]}
_SNAPSHOT: Final = Asked("", "limits", "POST", "/snapshots", {"name": "monday"})

PROVOKED: Final = (
    Asked("admin_off", "bare", "GET", "/admin/models"),
    Asked("answer_too_large", "limits", "POST", "/search", {"query": ["reset my password"] * 3}),
    Asked(
        "bad_lines",
        "plain",
        "POST",
        "/faq/shop/import?strict=true",
        content=b'{"question": "Do you wrap gifts?"}\n',
        headers={"content-type": "application/x-ndjson"},
    ),
    Asked("bundle_refused", "plain", "POST", "/admin/models", {"bundle": "no-such-bundle"}),
    Asked("conflict", "plain", "DELETE", "/admin/models/tiny-embedding"),
    Asked(
        "duplicate_entry",
        "plain",
        "POST",
        "/faq/shop/entries",
        _ENTRY | {"on_duplicate": "error"},
        before=Asked("", "plain", "POST", "/faq/shop/entries", _ENTRY),
    ),
    Asked("empty_input", "plain", "POST", "/embed", {"inputs": ["ok", ""]}),
    Asked("faq_unavailable", "broken", "POST", "/search", {"query": "hello"}),
    Asked("forbidden", "keys", "PUT", "/faq/shop", {}, headers={"x-api-key": "reader"}),
    Asked("input_too_long", "plain", "POST", "/embed", {"inputs": ["hello " * 200]}, shown="a long text"),
    Asked("invalid_filter", "plain", "POST", "/search", {"query": "hello", "filter": {"field": "tags"}}),
    Asked("invalid_input", "plain", "POST", "/embed", {"inputs": "hello", "dimensions": 1000}),
    Asked(
        "invalid_text",
        "plain",
        "POST",
        "/embed",
        content=b'{"inputs": ["ok", "\\ud83d"]}',
        headers={"content-type": "application/json"},
    ),
    Asked(
        "malformed_json",
        "plain",
        "POST",
        "/embed",
        content=b'{"inputs": ["hello",]}',
        headers={"content-type": "application/json"},
    ),
    Asked("malformed_url", "plain", "GET", "/faq/%E9t%E9"),
    Asked("method_not_allowed", "plain", "GET", "/embed"),
    Asked("model_loaded", "plain", "POST", "/admin/models", {"bundle": "tiny-embedding"}),
    Asked("model_mismatch", "other model", "POST", "/search", {"query": "hello", "collection": "shop"}),
    Asked("no_faq", "bare", "POST", "/search", {"query": "hello"}),
    Asked("no_model", "bare", "POST", "/ner", {"inputs": "hello"}),
    Asked("payload_too_large", "limits", "POST", "/embed", LONG_BODY, shown="a large body"),
    Asked(
        "rate_limited",
        "keys",
        "GET",
        "/faq/default",
        headers={"x-api-key": "hurried"},
        before=Asked("", "keys", "GET", "/faq/default", headers={"x-api-key": "hurried"}),
    ),
    Asked("snapshot_exists", "limits", "POST", "/snapshots", {"name": "monday"}, before=_SNAPSHOT),
    Asked("token_ids_refused", "plain", "POST", "/embed", {"inputs": [[9906, 1917]]}),
    Asked("too_many_characters", "limits", "POST", "/embed", {"inputs": "a" * 500}, shown="a long text"),
    Asked("too_many_inputs", "limits", "POST", "/embed", {"inputs": ["a", "b", "c", "d"]}),
    Asked("too_many_snapshots", "limits", "POST", "/snapshots", {"name": "tuesday"}, before=_SNAPSHOT),
    Asked("unauthorized", "keys", "POST", "/embed", {"inputs": "hello"}),
    Asked("unknown_collection", "plain", "POST", "/search", {"query": "hello", "collection": "nowhere"}),
    Asked("unknown_entry", "plain", "GET", "/faq/default/entries/nothing"),
    Asked("unknown_model", "plain", "POST", "/embed", {"inputs": "hello", "model": "ada"}),
    Asked("unknown_path", "plain", "GET", "/v1/engines"),
    Asked("unknown_snapshot", "plain", "DELETE", "/snapshots/never"),
    Asked(
        "unreadable_file",
        "plain",
        "POST",
        "/faq/shop/import",
        content=b"name;price\nhammer;3\n",
        headers={"content-type": "text/csv"},
    ),
    Asked(
        "unsupported_media_type",
        "plain",
        "POST",
        "/embed",
        content=b"hello",
        headers={"content-type": "text/plain"},
    ),
)

MADE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "collection_exists": ("there is a collection shop already", {"param": "collection"}),
    "entry_changed": ("an entry was changed or deleted meanwhile; read it again", {"param": "id"}),
    "headers_too_large": (
        "a request may have 100 headers; setting CONCHE_LIMITS__MAX_HEADERS",
        {},
    ),
    "inference_failed": (
        "the model gave no usable vector for item 3: it is not finite, or zero",
        {"index": 3},
    ),
    "internal": ("internal error", {}),
    "malformed_request": ("this is not an HTTP/1.1 request", {}),
    "overloaded": (
        "the queue of tiny-embedding has no room: 8192 of 8192 texts and 70312 of 131072 tokens are waiting",
        {},
    ),
    "request_timeout": ("the body had not come after 300 s; setting CONCHE_LIMITS__REQUEST_SECONDS", {}),
    "storage_failed": ("the FAQ store cannot be read or written: disk I/O error", {}),
    "storage_full": (
        "the FAQ store: there is no room on the disk; nothing was written",
        {},
    ),
    "storage_read_only": ("the FAQ is kept in a read-only place; it can be searched, not changed", {}),
    "timeout": ("no answer within 300 s; setting CONCHE_LIMITS__REQUEST_SECONDS", {}),
    "too_many_concurrent": ("this key may have 4 requests in work at once", {}),
    "too_many_connections": ("1000 connections are open; setting CONCHE_LIMITS__MAX_CONNECTIONS", {}),
    "unavailable": ("the service is shutting down and could not finish this; send it again", {}),
}


def kinds_by_code() -> dict[str, list[type[ServiceError]]]:
    """The classes of each code that answers have, one for each status that it comes with."""
    found: dict[str, dict[int, type[ServiceError]]] = {}
    for kind in _with_children(ServiceError):
        if kind.__module__.startswith("service") and kind.code not in NOT_ANSWERED:
            found.setdefault(kind.code, {}).setdefault(int(status_of(kind)), kind)
    return {code: list(kinds.values()) for code, kinds in sorted(found.items())}


def _with_children(kind: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _with_children(child)


@dataclass(frozen=True, slots=True)
class Apps:
    """Clients of running apps, by name, and the keys that one of them knows."""

    clients: dict[str, httpx.AsyncClient]
    keys: dict[str, str]

    async def ask(self, asked: Asked) -> httpx.Response:
        """The answer to a request, after the one that goes before it."""
        if asked.before is not None:
            await self.ask(asked.before)
        headers = {"x-request-id": REQUEST_ID} | asked.headers
        if "x-api-key" in headers:
            headers["x-api-key"] = self.keys[headers["x-api-key"]]
        body = {"json": asked.body} if asked.content is None else {"content": asked.content}
        if asked.body is None and asked.content is None:
            body = {}
        return await self.clients[asked.app].request(asked.method, asked.path, headers=headers, **body)


@asynccontextmanager
async def apps(folder: Path) -> AsyncIterator[Apps]:
    """Apps that refuse different things; ``folder`` holds what `write_bundles` wrote."""
    made = {
        "reader": new_key("reader", ["read"]),
        "hurried": new_key("hurried", ["read"], requests_per_minute=1),
    }
    keys_file = Path(tempfile.mkdtemp(dir=folder)) / "keys.json"
    write_keys(keys_file, KeyFile(keys=tuple(record for _, record in made.values())))
    few = {
        "max_inputs": 3,
        "max_text_characters": 200,
        "max_total_characters": 400,
        "max_body_bytes": 4096,
        "max_answer_bytes": 1024,
        "max_snapshots": 1,
    }
    settings = {
        "plain": tiny_settings(folder),
        "limits": tiny_settings(folder, limits=few),
        "bare": tiny_settings(
            folder,
            ner_bundle="none",
            classifier_bundle="none",
            faq_store="none",
            faq_file="none",
            admin=False,
        ),
        "broken": tiny_settings(folder, faq_file=str(folder / "missing.jsonl"), on_bundle_error="serve"),
        "keys": tiny_settings(folder, api_keys_file=str(keys_file)),
    }
    embedded_by_another = tiny_settings(folder, faq_file="none")
    async with running(embedded_by_another) as client:
        await client.post("/faq/shop/entries", json=_ENTRY)
    settings["other model"] = embedded_by_another.model_copy(update={"embedding_bundle": "tiny-spare"})
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(running(one)) for name, one in settings.items()}
        yield Apps(clients, {name: key for name, (key, _) in made.items()})


def _made(code: str, kind: type[ServiceError]) -> str:
    message, fields = MADE[code]
    error = kind.__new__(kind)
    ServiceError.__init__(error, message, **fields)
    return bytes(error_response(error, REQUEST_ID, "/embed").body).decode()


def _example(code: str, kind: type[ServiceError], answers: dict[str, tuple[Asked, str]]) -> str:
    if code not in answers:
        return f"A body of this kind, made and not received:\n\n```\n{_made(code, kind)}\n```"
    asked, body = answers[code]
    sent = asked.shown or (
        asked.content.decode().strip()
        if asked.content is not None
        else ""
        if asked.body is None
        else json.dumps(asked.body, ensure_ascii=False)
    )
    return f"```\n{' '.join(filter(None, [asked.method, asked.path, sent]))}\n\n{body}\n```"


HEAD: Final = """\
# Errors

Written by `make errors`; a test compares it with the code and with the answers of a running service.

Every answer that is not a success is JSON, on every path. Programs go by the HTTP status and by `code`, which
does not change; messages are for people and may. `index` is the position, from 0, of the offending item,
`param` the field; null where they would say nothing. `request_id` is also in the header `x-request-id`
and in every line of the log that belongs to the request. A message may name a collection, a column or a
limit; it never quotes a text, a question or an answer.

All paths but those of OpenAI's interface have a flat body; clients of text-embeddings-inference read it too:

```
{flat}
```

`/v1/...` and `/embeddings` nest it, as OpenAI does:

```
{nested}
```

Answers with 429, and with 503 where waiting may help, have the headers `retry-after` (whole seconds) and
`retry-after-ms`. 429 says that nothing of the request was started.

| code | status | `error_type` | OpenAI's `type` |
| --- | --- | --- | --- |
"""


def page(answers: dict[str, tuple[Asked, str]]) -> str:
    """The page.

    Args:
        answers: by code, a request and the body that it was answered with.
    """
    rows, sections = [], []
    for code, kinds in kinds_by_code().items():
        flat, nested = (
            json.loads(bytes(error_response(_bare(kinds[0]), REQUEST_ID, path).body))
            for path in ("/embed", "/v1/embeddings")
        )
        statuses = ", ".join(str(int(status_of(kind))) for kind in kinds)
        rows.append(
            f"| [`{code}`](#{code}) | {statuses} | `{flat['error_type']}` | `{nested['error']['type']}` |"
        )
        meanings = [
            (f"{int(status_of(kind))}: " if len(kinds) > 1 else f"HTTP {statuses}. ") + _meaning(kind)
            for kind in kinds
        ]
        sections.append(
            f"## {code}\n\n{' '.join(meanings)}\n\nWhat to do: {ADVICE[code]}\n\n"
            + _example(code, kinds[0], answers)
        )
    shapes = {
        path: bytes(error_response(_sample(), REQUEST_ID, path).body).decode()
        for path in ("/embed", "/v1/embeddings")
    }
    head = HEAD.replace("{flat}", shapes["/embed"]).replace("{nested}", shapes["/v1/embeddings"])
    return head + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def _bare(kind: type[ServiceError]) -> ServiceError:
    error = kind.__new__(kind)
    ServiceError.__init__(error, "")
    return error


def _sample() -> ServiceError:
    (kind,) = kinds_by_code()["empty_input"]
    error = _bare(kind)
    error.message, error.index, error.param = "inputs[3] is empty", 3, "inputs"
    return error


def _meaning(kind: type[ServiceError]) -> str:
    if kind is ServiceError:
        return "The service failed in a way that it did not foresee."
    return (kind.__doc__ or "").partition("\n")[0].replace("``", "`")


async def written(folder: Path) -> str:
    """The page, with the answers of apps over the bundles in ``folder``."""
    answers: dict[str, tuple[Asked, str]] = {}
    unlike: list[str] = []
    async with apps(folder) as running_apps:
        for asked in PROVOKED:
            answer = await running_apps.ask(asked)
            body = FINGERPRINT.sub("fingerprint 0123456789ab", answer.text)
            found = answer.json()
            code = found["error"]["code"] if isinstance(found.get("error"), dict) else found.get("code")
            if code != asked.code:
                unlike.append(f"{asked.method} {asked.path} was to get {asked.code}, not {answer.text}")
            answers[asked.code] = asked, body
    if unlike:
        raise AssertionError("\n".join(unlike))
    return page(answers)


def main() -> None:
    """Write the page anew."""
    with tempfile.TemporaryDirectory() as folder:
        PAGE.write_text(asyncio.run(written(write_bundles(Path(folder)))), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What surrounds a request: id, limits, disconnects, trailing slashes, and the record of it all."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http_errors import install_error_handlers
from service.middleware import BodyLimit, RequestContext, RequestRecord, StartupErrors

TIMEOUT_S = 5  # only stops a hang


@pytest.fixture
def records() -> list[RequestRecord]:
    """What the middleware recorded."""
    return []


@pytest.fixture
def make_client(records: list[RequestRecord]) -> Callable[..., httpx.AsyncClient]:
    """A client of a small app behind the real middleware."""

    def make(
        *, timeout_s: float = 60, max_body_bytes: int = 1000, body_s: float = 60, **logging_: Any
    ) -> httpx.AsyncClient:
        app = FastAPI(redirect_slashes=False)
        install_error_handlers(app, app.routes)

        @app.get("/items/{name}")
        async def item(name: str) -> str:
            return name

        @app.post("/size")
        async def size(request: Request) -> int:
            return len(await request.body())

        @app.get("/broken")
        async def broken() -> None:
            raise RuntimeError("the text was: my secret")

        @app.get("/large")
        async def large() -> None:
            raise MemoryError

        @app.get("/slow")
        async def slow() -> None:
            await asyncio.Event().wait()

        app.add_middleware(BodyLimit, limit=max_body_bytes, within_s=body_s)
        app.add_middleware(
            RequestContext, timeout_s=timeout_s, observe=records.append, log_probes=False, **logging_
        )
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    return make


async def test_a_sane_request_id_is_kept_and_any_other_replaced(
    make_client: Callable[..., httpx.AsyncClient],
) -> None:
    """Ids tie logs of several services together, but must not carry line breaks or pages of text."""
    client = make_client()
    kept = await client.get("/items/a", headers={"x-request-id": "abc-123"})
    assert kept.headers["x-request-id"] == "abc-123"
    for bad in ("x" * 129, "a b", "a\tb", ""):
        replaced = await client.get("/items/a", headers={"x-request-id": bad})
        assert len(replaced.headers["x-request-id"]) == 32


async def test_every_answer_has_an_id_and_every_error_the_body(
    make_client: Callable[..., httpx.AsyncClient],
) -> None:
    """Also those that no route made."""
    client = make_client()
    for method, path, status, code in [
        ("GET", "/nowhere", 404, "unknown_path"),
        ("DELETE", "/size", 405, "method_not_allowed"),
        ("GET", "/broken", 500, "internal"),
        ("GET", "/large", 503, "unavailable"),  # for which there was no memory
    ]:
        answer = await client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["code"] == code
        assert answer.json()["request_id"] == answer.headers["x-request-id"]
        assert set(answer.json()) == {"error", "error_type", "code", "index", "param", "request_id"}


async def test_a_405_says_what_is_allowed(make_client: Callable[..., httpx.AsyncClient]) -> None:
    """As HTTP asks."""
    answer = await make_client().get("/size")
    assert answer.headers["allow"] == "POST"
    assert "POST" in answer.json()["error"]


async def test_unexpected_errors_are_logged_without_their_message(
    make_client: Callable[..., httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of libraries quote what they were given; the answer and our words must not."""
    answer = await make_client().get("/broken")
    assert "secret" not in answer.text
    logged = [record for record in caplog.records if record.exc_info]
    assert [record.getMessage() for record in logged] == ["unexpected error"]


async def test_a_trailing_slash_is_the_same_path(make_client: Callable[..., httpx.AsyncClient]) -> None:
    """A redirect would lose the scheme behind TLS, or the method."""
    answer = await make_client().post("/size/", content=b"abc")
    assert (answer.status_code, answer.text) == (200, "3")


@pytest.mark.parametrize("announced", [True, False], ids=["content-length", "chunked"])
async def test_a_body_over_the_limit_is_refused(
    make_client: Callable[..., httpx.AsyncClient], *, announced: bool
) -> None:
    """With the limit and its setting in the message."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    answer = await make_client().post("/size", content=b"x" * 1001 if announced else chunks())
    assert answer.status_code == 413
    assert answer.json()["code"] == "payload_too_large"
    assert "1000" in answer.json()["error"]
    assert "CONCHE_LIMITS__MAX_BODY_BYTES" in answer.json()["error"]
    assert answer.headers["connection"] == "close"


async def test_a_body_at_the_limit_is_taken(make_client: Callable[..., httpx.AsyncClient]) -> None:
    """The limit itself is allowed."""
    assert (await make_client().post("/size", content=b"x" * 1000)).text == "1000"


async def never_whole() -> AsyncIterator[bytes]:
    """A body that begins and then stops."""
    yield b"x"
    await asyncio.Event().wait()


@pytest.mark.parametrize("limits", [{"body_s": 0.05}, {"timeout_s": 0.05}], ids=["body", "request"])
async def test_a_body_that_does_not_come_is_answered_408(
    make_client: Callable[..., httpx.AsyncClient], records: list[RequestRecord], limits: dict[str, float]
) -> None:
    """The caller is slow, not we: neither 503 nor a hint to try again, whichever time is over first."""
    answer = await make_client(**limits).post("/size", content=never_whole())
    assert (answer.status_code, answer.json()["code"]) == (408, "request_timeout")
    assert "0.05 s" in answer.json()["error"]
    assert "_SECONDS" in answer.json()["error"]
    assert answer.headers["connection"] == "close"
    assert "retry-after" not in answer.headers
    assert (records[0].route, records[0].status) == ("/size", 408)


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
async def test_a_compressed_body_is_refused_as_what_it_is(
    make_client: Callable[..., httpx.AsyncClient], encoding: str
) -> None:
    """It is no broken JSON; and a few bytes of it could become gigabytes."""
    client = make_client()
    answer = await client.post("/size", content=b"x", headers={"content-encoding": encoding})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "content-encoding" in answer.json()["error"]
    plain = await client.post("/size", content=b"x", headers={"content-encoding": "identity"})
    assert plain.status_code == 200


async def test_a_request_that_takes_too_long_is_answered_503(
    make_client: Callable[..., httpx.AsyncClient], records: list[RequestRecord]
) -> None:
    """With a hint when to come back, rather than a connection that hangs."""
    answer = await make_client(timeout_s=0.01).get("/slow")
    assert (answer.status_code, answer.json()["code"]) == (503, "timeout")
    assert int(answer.headers["retry-after"]) * 1000 == int(answer.headers["retry-after-ms"])
    assert (records[0].status, records[0].code) == (503, "timeout")


async def test_labels_come_from_fixed_sets(
    make_client: Callable[..., httpx.AsyncClient], records: list[RequestRecord]
) -> None:
    """Callers cannot invent a method or a path that stays in the metrics for ever."""
    client = make_client()
    await client.get("/items/anything")
    await client.get("/random/path")
    await client.request("BREW", "/items/pot")
    assert [(record.method, record.route) for record in records] == [
        ("GET", "/items/{name}"),
        ("GET", "unmatched"),
        ("other", "/items/{name}"),
    ]


async def test_the_access_log_holds_no_raw_path(
    make_client: Callable[..., httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    """A path can carry a text as well as a body can."""
    caplog.set_level(logging.INFO, "service.access")
    await make_client().get("/items/my-secret?q=my-secret")
    (line,) = [record for record in caplog.records if record.name == "service.access"]
    assert "my-secret" not in json.dumps({name: str(value) for name, value in vars(line).items()})
    assert vars(line)["status"] == 200


@pytest.mark.parametrize(
    ("chance", "slower_s", "logged"),
    [
        (0.09, 60, ["/items/{name}", "unmatched", "/broken"]),
        (0.1, 60, ["unmatched", "/broken"]),
        (0.1, 0, ["/items/{name}", "unmatched", "/broken"]),
    ],
)
async def test_a_share_of_the_log_keeps_what_went_wrong_or_was_slow(
    make_client: Callable[..., httpx.AsyncClient],
    caplog: pytest.LogCaptureFixture,
    chance: float,
    slower_s: float,
    logged: list[str],
) -> None:
    """Those are the lines that are looked for; the metrics count every request."""
    caplog.set_level(logging.INFO, "service.access")
    client = make_client(log_share=0.1, log_slower_s=slower_s, chance=lambda: chance)
    for path in ("/items/a", "/nowhere", "/broken"):
        await client.get(path)
    lines = [vars(record) for record in caplog.records if record.name == "service.access"]
    assert [line["route"] for line in lines] == logged
    by_chance = [line["share"] for line in lines if "share" in line]
    assert by_chance == ([0.1] if chance < 0.1 else [])


async def test_by_default_every_request_is_logged(
    make_client: Callable[..., httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    """A line that is missing has been lost, and was not left out."""
    caplog.set_level(logging.INFO, "service.access")
    client = make_client(chance=lambda: 0.999)
    await client.get("/items/a")
    (line,) = [record for record in caplog.records if record.name == "service.access"]
    assert "share" not in vars(line)


def _scope(path: str) -> Scope:
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
        "http_version": "1.1",
        "scheme": "http",
    }


async def test_a_handler_is_cancelled_when_its_caller_goes(records: list[RequestRecord]) -> None:
    """Its texts would stay in the queue, computed for nobody."""
    waiting, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"{}"
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def receive() -> Message:
        if not waiting.is_set():
            return {"type": "http.request", "body": b"{}", "more_body": False}
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nobody is there to be answered")

    context = RequestContext(app, timeout_s=60, observe=records.append, log_probes=False)
    await asyncio.wait_for(context(_scope("/embed"), receive, send), TIMEOUT_S)
    assert cancelled.is_set()
    assert records[0].status == 499


async def test_a_disconnect_after_the_whole_answer_does_not_count(records: list[RequestRecord]) -> None:
    """Servers say "disconnect" to whoever asks once all is sent; the caller has got what they came for."""
    answered, let_go = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"[]"})
        answered.set()
        await let_go.wait()

    asked = 0

    async def receive() -> Message:
        nonlocal asked
        asked += 1
        if asked == 1:
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await answered.wait()
        asyncio.get_running_loop().call_later(0.01, let_go.set)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    context = RequestContext(app, timeout_s=60, observe=records.append, log_probes=False)
    await asyncio.wait_for(context(_scope("/embed"), receive, send), TIMEOUT_S)
    assert asked == 2
    assert (records[0].status, records[0].code) == (200, None)


async def test_a_disconnect_while_the_time_runs_out_is_no_further_error(records: list[RequestRecord]) -> None:
    """The timer ends the handler once; asked a second time it would raise, in a task nobody looks at."""
    ending, loop_errors = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0.01)

    async def receive() -> Message:
        if not ending.is_set():
            waited = asyncio.create_task(ending.wait())
            done, _ = await asyncio.wait({waited}, timeout=0.001)
            if not done:
                return {"type": "http.request", "body": b"{}", "more_body": False}
        return {"type": "http.disconnect"}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    context = RequestContext(app, timeout_s=0.05, observe=records.append, log_probes=False)
    await asyncio.wait_for(context(_scope("/embed"), receive, send), TIMEOUT_S)
    gc.collect()
    assert (records[0].status, records[0].code) == (503, "timeout")
    assert loop_errors == []


async def test_a_request_that_the_server_cancels_is_answered_503(records: list[RequestRecord]) -> None:
    """A server cancels what is in work when its patience ends; its own answer would be plain text."""
    in_work, sent = asyncio.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        in_work.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    context = RequestContext(app, timeout_s=60, observe=records.append, log_probes=False)
    request = asyncio.create_task(context(_scope("/embed"), receive, send))
    await in_work.wait()
    request.cancel()
    await asyncio.wait_for(request, TIMEOUT_S)
    assert json.loads(sent[1]["body"])["code"] == "unavailable"
    assert b"retry-after" in dict(sent[0]["headers"])
    assert (records[0].status, records[0].code) == (503, "unavailable")


async def test_an_answer_cancelled_halfway_is_not_completed(records: list[RequestRecord]) -> None:
    """The server closes the connection of one that ends early."""
    in_work, sent = asyncio.Event(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        in_work.set()
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    context = RequestContext(app, timeout_s=60, observe=records.append, log_probes=False)
    request = asyncio.create_task(context(_scope("/embed"), _nothing, send))
    await in_work.wait()
    request.cancel()
    await asyncio.wait_for(request, TIMEOUT_S)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert records[0].code == "unavailable"


async def test_an_error_after_the_answer_began_breaks_the_connection(records: list[RequestRecord]) -> None:
    """Half an answer must not look whole."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    context = RequestContext(app, timeout_s=60, observe=records.append, log_probes=False)
    with pytest.raises(Exception, match="internal error"):
        await context(_scope("/embed"), receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]


def _failing_start(error: BaseException) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.failed", "message": "Traceback ..."})
        raise error

    return app


async def _start(app: ASGIApp) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, _nothing, send)
    return sent


async def test_an_expected_start_up_error_is_handed_over_and_not_logged() -> None:
    """An operator needs the reason, not where in our code it was found, nor a log line around it."""
    error = ValueError("no bundle here")
    reported: list[Exception] = []
    app = StartupErrors(_failing_start(error), expected=(ValueError,), report=reported.append)
    assert await _start(app) == [{"type": "lifespan.startup.failed", "message": ""}]
    assert reported == [error]


async def test_a_start_that_was_interrupted_is_no_error_to_report() -> None:
    """Ctrl-C while loading is what somebody wanted."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    app = StartupErrors(_failing_start(asyncio.CancelledError()), expected=(ValueError,), report=_never)
    with pytest.raises(asyncio.CancelledError):
        await app({"type": "lifespan"}, _nothing, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": ""}]


async def _nothing() -> Message:
    return {"type": "lifespan.startup"}


async def test_any_other_start_up_error_keeps_its_traceback() -> None:
    """It is a fault of ours."""
    with pytest.raises(KeyError):
        await _start(StartupErrors(_failing_start(KeyError("x")), expected=(ValueError,), report=_never))


def _never(error: Exception) -> None:
    raise AssertionError(error)

"""What a connection may do before it brings a request; over real sockets, with a tiny application behind."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from service.cli import connections
from service.cli.connections import BoundedServer, Connections
from service.metrics import Metrics
from service.settings import LimitsSettings
from tests.fakes import HANG_LIMIT_S as HANG_S
from tests.fakes import until

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Behind:
    """An application that answers paths by what they say, and a server of it.

    Attributes:
        asked: the paths of the requests that reached it.
        gate: `/wait` answers when it is set.
        left: the callers of `/gone`, which waits for that, who closed the connection.
    """

    def __init__(self, **limits: object) -> None:
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.left = 0
        self.metrics = Metrics()
        self.shared = Connections(LimitsSettings.model_validate(limits), self.metrics)
        self.state = ServerState()
        self.address = ("", 0)
        self.server: BoundedServer | None = None

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application."""
        self.asked.append(scope["path"])
        if scope["path"] == "/size":
            while (await receive()).get("more_body"):
                pass
        if scope["path"] == "/wait":
            await self.gate.wait()
        if scope["path"] == "/gone":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left += 1
            return
        body = b"x" * 8_000_000 if scope["path"] == "/large" else b"ok"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def open(self, *, tls: ssl.SSLContext | None = None) -> AbstractAsyncContextManager[Opened]:
        """A connection; without ``tls``, to a server that wants it, one that does not begin its handshake."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[Opened]:
            reader, writer = await asyncio.open_connection(*self.address, ssl=tls)
            try:
                yield reader, writer
            finally:
                writer.close()

        return opened()

    def cuts(self, reason: str) -> float:
        """How often the metric says that connections were cut for ``reason``."""
        return self.metrics.registry.get_sample_value("conche_connections_cut_total", {"reason": reason}) or 0


Start = Callable[..., Awaitable[Behind]]


@pytest.fixture
async def serve() -> AsyncIterator[Start]:
    """Starts servers with limits, and stops them."""
    async with servers() as start:
        yield start


@asynccontextmanager
async def servers() -> AsyncIterator[Start]:
    """What `serve` gives."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *, tls: ssl.SSLContext | None = None, keep_alive: float = 5, **limits: object
        ) -> Behind:
            behind = Behind(**limits)
            config = uvicorn.Config(
                behind.app,
                http=behind.shared.protocol(),
                ws="none",
                interface="asgi3",
                lifespan="off",
                log_config=None,
                timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # parts of a second do as well
            )
            server = BoundedServer(config, behind.shared, tls=tls)
            server.server_state = behind.state
            config.load()
            server.lifespan = config.lifespan_class(config)
            listener = socket.create_server(("127.0.0.1", 0))
            await server.startup([listener])
            stack.callback(listener.close)
            stack.push_async_callback(server.servers[0].wait_closed)
            stack.callback(server.servers[0].close)
            stack.callback(behind.gate.set)
            behind.server = server
            behind.address = listener.getsockname()
            return behind

        yield start


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the connection closes."""
    async with asyncio.timeout(HANG_S):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


def error(answer: bytes) -> tuple[int, dict[str, object]]:
    """Status and body of an answer that is an error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json\r\n" in head
    assert b"\r\nconnection: close" in head
    told = json.loads(body)
    assert f"x-request-id: {told['request_id']}".encode() in head
    return int(head.split()[1]), told


async def test_who_connects_and_sends_nothing_is_cut_off(serve: Start) -> None:
    """Without a word: there is no request to answer."""
    behind = await serve(header_seconds=0.05)
    async with behind.open() as (reader, _):
        assert await rest(reader) == b""
    assert behind.cuts("silent") == 1
    assert behind.asked == []


async def test_a_head_that_trickles_in_is_cut_off(serve: Start) -> None:
    """Each byte comes in time, the whole does not; told in JSON, with the setting."""
    behind = await serve(header_seconds=0.2)

    async def trickle(writer: asyncio.StreamWriter) -> None:
        for byte in b"GET /small HTTP/1.1\r\nHost: a\r\nX-Slow: " + b"z" * 10_000:
            if behind.cuts("slow_head"):  # a byte behind the end would have the answer thrown away
                return
            writer.write(bytes([byte]))
            await asyncio.sleep(0.01)

    async with behind.open() as (reader, writer):
        trickling = asyncio.create_task(trickle(writer))
        status, told = error(await rest(reader))
        trickling.cancel()
    assert (status, told["code"]) == (408, "request_timeout")
    assert "CONCHE_LIMITS__HEADER_SECONDS" in str(told["error"])
    assert behind.cuts("slow_head") == 1
    assert behind.asked == []


async def test_the_second_head_of_a_connection_is_timed_too(serve: Start) -> None:
    """One good request must not buy the right to be slow."""
    behind = await serve(header_seconds=0.2)
    async with behind.open() as (reader, writer):
        writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /small HTTP/1.1\r\nHost:")
        status, _ = error(await rest(reader))
    assert status == 408


@pytest.mark.parametrize("rest_comes", ["meanwhile", "afterwards", "never"])
async def test_a_head_behind_a_request_is_timed_when_that_is_answered(serve: Start, rest_comes: str) -> None:
    """Its time begins with the answer, which nothing else may take the place of."""
    behind = await serve(header_seconds=0.2)
    async with behind.open() as (reader, writer):
        writer.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\nGET /small HTTP/1.1\r\nHost:")
        await until(lambda: behind.asked == ["/wait"])
        if rest_comes == "meanwhile":
            writer.write(b" a\r\n\r\n")
        await asyncio.sleep(0.4)
        behind.gate.set()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        if rest_comes == "never":
            status, _ = error(await rest(reader))
            assert status == 408
            return
        if rest_comes == "afterwards":
            writer.write(b" a\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("behind_it", [b"", b"\r\n"], ids=["nothing", "an empty line"])
async def test_what_comes_late_of_a_request_begins_no_other(serve: Start, behind_it: bytes) -> None:
    """The connection is idle, and is closed as such: whoever keeps it could take 408 for the next answer."""
    behind = await serve(header_seconds=0.05, keep_alive=0.3)
    async with behind.open() as (reader, writer):
        writer.write(b"POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"abc" + behind_it)
        assert await rest(reader) == b""


async def test_who_waits_for_an_answer_or_between_requests_is_left_alone(
    serve: Start,
) -> None:
    """Work takes longer than a head may; idle connections have a time of their own."""
    behind = await serve(header_seconds=0.05)
    async with behind.open() as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
            behind.gate.clear()
            await asyncio.sleep(0.15)
            behind.gate.set()
            assert b" 200 " in await reader.readuntil(b"ok")
            await asyncio.sleep(0.15)


@pytest.mark.parametrize(
    ("head", "setting"),
    [
        (b"GET /small HTTP/1.1\r\nHost: a\r\nX-Large: " + b"z" * 5000 + b"\r\n\r\n", "MAX_HEADER_BYTES"),
        (b"GET /" + b"z" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "MAX_HEADER_BYTES"),
        (b"GET /small HTTP/1.1\r\nHost: a\r\nX-Endless: " + b"z" * 5000, "MAX_HEADER_BYTES"),
        (b"GET /small HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20 + b"\r\n", "MAX_HEADERS"),
    ],
)
async def test_a_head_that_is_too_large_is_answered_431(serve: Start, head: bytes, setting: str) -> None:
    """Whole or not, in one piece or not; the application does not see it."""
    behind = await serve(max_header_bytes=4096, max_headers=10)
    async with behind.open() as (reader, writer):
        writer.write(head)
        status, told = error(await rest(reader))
    assert (status, told["code"]) == (431, "headers_too_large")
    assert f"CONCHE_LIMITS__{setting}" in str(told["error"])
    assert behind.cuts("headers_too_large") == 1
    assert behind.asked == []


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["tls", "words", "no host"],
)
async def test_what_is_no_http_gets_json_too(
    serve: Start, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    """Errors are JSON and logged wherever they arise; so is the answer to https spoken to a plain port."""
    behind = await serve()
    with caplog.at_level("INFO", logger="service.access"):
        async with behind.open() as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            status, told = error(await rest(reader))
    assert (status, told["code"]) == (400, "malformed_request")
    assert [vars(line)["request_id"] for line in caplog.records if line.name == "service.access"] == [
        told["request_id"]
    ]


async def test_a_broken_chunk_after_the_answer_has_begun_breaks_no_more(
    serve: Start,
) -> None:
    """The connection closes; two answers in one would be taken for one."""
    behind = await serve()
    async with behind.open() as (reader, writer):
        writer.write(b"POST /small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"no chunk\r\n")
        assert await rest(reader) == b""


async def test_one_connection_too_many_is_told_so(serve: Start) -> None:
    """And there is room again when another ends."""
    behind = await serve(max_connections=2)
    async with behind.open(), behind.open() as (_, second):
        await until(lambda: len(behind.shared) == 2)
        async with behind.open() as (reader, writer):
            writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            answer = await rest(reader)
        status, told = error(answer)
        assert (status, told["code"]) == (503, "too_many_connections")
        assert b"retry-after: " in answer
        assert "2 connections" in str(told["error"])
        second.close()
        await until(lambda: len(behind.shared) == 1)
        async with behind.open() as (reader, writer):
            writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"ok")
    assert behind.cuts("too_many") == 1


async def test_one_address_cannot_take_all_connections(serve: Start) -> None:
    """If the operator says so; others still get in."""
    behind = await serve(max_connections_per_address=1)
    async with behind.open():
        await until(lambda: len(behind.shared) == 1)
        async with behind.open() as (reader, _):
            _, told = error(await rest(reader))
        assert "CONCHE_LIMITS__MAX_CONNECTIONS_PER_ADDRESS" in str(told["error"])
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))
            await asyncio.to_thread(other.connect, behind.address)
            other.sendall(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await asyncio.to_thread(other.recv, 1000)
    await until(lambda: len(behind.shared) == 0)
    assert not behind.shared._by_address


async def test_a_body_that_nobody_reads_is_not_waited_for(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answered (401, say) and still sending: that must end, however slowly it comes."""
    monkeypatch.setattr(connections, "_LINGER_S", 0.1)
    behind = await serve()
    async with behind.open() as (reader, writer):
        writer.write(b"POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        await reader.readuntil(b"ok")
        async with asyncio.timeout(HANG_S):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.01)
    assert behind.cuts("unread_body") == 1


async def test_a_body_that_comes_whole_after_the_answer_keeps_the_connection(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual case: a refused request whose small body was on its way already."""
    monkeypatch.setattr(connections, "_LINGER_S", 0.1)
    behind = await serve()
    async with behind.open() as (reader, writer):
        writer.write(b"POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"abc")
        await asyncio.sleep(0.3)
        writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"ok")


async def test_an_answer_that_nobody_reads_is_not_kept_for_ever(serve: Start) -> None:
    """Its megabytes are ours until it is read."""
    behind = await serve(request_seconds=0.2)
    async with behind.open() as (_, writer):
        writer.transport.pause_reading()
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: behind.cuts("slow_reader") == 1)
    async with behind.open() as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert len(await rest(reader)) > 8_000_000


async def test_requests_that_are_answered_do_not_let_in_more_than_they_were(serve: Start) -> None:
    """Each of them reads its body and then whether its caller is there, which must not fill the memory."""
    behind = await serve()
    most = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        for _ in range(200):
            writer.write(b"GET /size HTTP/1.1\r\nHost: a\r\n\r\n" * 2_000)
            await writer.drain()

    async with behind.open() as (reader, writer):
        flooding = asyncio.create_task(flood(writer))
        async with asyncio.timeout(HANG_S):
            for _ in range(300):
                assert b" 200 " in await reader.readuntil(b"ok")
                for connection in behind.state.connections:
                    most = max(most, len(connection.held))  # type: ignore[union-attr]
        flooding.cancel()
    assert 0 < most < 1_000_000


@pytest.mark.parametrize("requests", [1, 2, 1000])
async def test_who_closes_the_connection_is_worked_for_no_more(serve: Start, requests: int) -> None:
    """However many requests wait behind the one in work; they do not begin."""
    behind = await serve()
    async with behind.open() as (_, writer):
        writer.write(b"GET /gone HTTP/1.1\r\nHost: a\r\n\r\n" * requests)
        await until(lambda: behind.asked == ["/gone"])
    await until(lambda: behind.left == 1)
    assert behind.asked == ["/gone"]


async def test_pipelined_requests_wait_outside(serve: Start) -> None:
    """While one is in work no more is read than a few pieces; they are answered one by one, in order."""
    behind = await serve()
    request = b"GET /small HTTP/1.1\r\nHost: a\r\nX: " + b"z" * 1000 + b"\r\n\r\n"
    async with behind.open() as (reader, writer):
        writer.write(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" + request * 20_000)
        await asyncio.sleep(0.3)
        assert behind.asked == ["/wait"]
        (connection,) = behind.state.connections
        assert 0 < len(connection.held) < 1_000_000  # type: ignore[union-attr]
        assert connection.in_work < 20  # type: ignore[union-attr]
        behind.gate.set()
        async with asyncio.timeout(HANG_S):
            for _ in range(100):
                assert b" 200 " in await reader.readuntil(b"ok")

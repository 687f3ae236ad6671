"""TLS from a connection's first moment: handshakes are counted, timed and given up; over real sockets."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from service.cli import connections
from tests.fakes import HANG_LIMIT_S as HANG_S
from tests.fakes import until
from tests.service.cli.test_connections import Start, error, rest, servers

CERTIFICATES = Path(__file__).parent / "certificates"


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the service runs on: its transports are not asyncio's."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
async def serve() -> AsyncIterator[Start]:
    """Starts servers with limits, and stops them."""
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    async with servers() as start:
        yield start


@pytest.fixture
def secure() -> ssl.SSLContext:
    """A server's context."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "first.pem", CERTIFICATES / "first.key")
    return context


@pytest.fixture
def trusting() -> ssl.SSLContext:
    """A client's context that knows the server's certificate."""
    return ssl.create_default_context(cafile=CERTIFICATES / "first.pem")


async def test_with_tls_a_connection_is_counted_once_from_its_first_moment(
    serve: Start, secure: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    """Its handshake does not count apart from it, and its address is the caller's."""
    behind = await serve(tls=secure, max_connections=1, max_connections_per_address=1)
    for _ in range(2):  # there is room again after the first
        async with behind.open(tls=trusting) as (reader, writer):
            assert len(behind.shared) == 1
            writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"ok")
            assert len(behind.shared) == 1
        await until(lambda: len(behind.shared) == 0)
    assert not behind.shared._by_address
    assert behind.asked == ["/small", "/small"]


async def test_handshakes_that_do_not_begin_take_the_places_of_connections(
    serve: Start, secure: ssl.SSLContext, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens more than may be is told so; when they go there is room."""
    monkeypatch.setattr(connections, "_REFUSED_LINGER_S", HANG_S)
    behind = await serve(tls=secure, max_connections=2)
    async with behind.open() as (_, first), behind.open() as (_, second):
        second.write(b"\x16\x03\x01\x02\x00")  # the first five bytes of one
        await until(lambda: len(behind.shared) == 2)
        async with behind.open(tls=trusting) as (reader, _):
            status, told = error(await reader.readuntil(b"}"))
        assert (status, told["code"]) == (503, "too_many_connections")
        assert behind.cuts("too_many") == 1
        await until(lambda: behind.shared.lingering == 0)
        first.close()
        await until(lambda: len(behind.shared) == 1)
        async with behind.open(tls=trusting) as (reader, writer):
            writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"ok")
    await until(lambda: len(behind.shared) == 0)


async def test_who_is_one_too_many_and_does_not_shake_hands_is_not_waited_for_long(
    serve: Start, secure: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are more than so many waited for at all."""
    monkeypatch.setattr(connections, "_MOST_REFUSED", 1)
    monkeypatch.setattr(connections, "_REFUSED_LINGER_S", 0.05)
    behind = await serve(tls=secure, max_connections=1)
    async with behind.open():
        await until(lambda: len(behind.shared) == 1)
        async with behind.open() as (reader, _), behind.open() as (other, _):
            assert await rest(reader) == await rest(other) == b""
    await until(lambda: len(behind.shared) == behind.shared.lingering == 0)
    assert behind.cuts("too_many") == 2
    assert behind.cuts("slow_handshake") == 0


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
async def test_a_handshake_that_does_not_end_is_given_up(
    serve: Start, secure: ssl.SSLContext, said: bytes
) -> None:
    """In the time that a request's head has; half of its first message is no better than none."""
    behind = await serve(tls=secure, header_seconds=0.05)
    async with behind.open() as (reader, writer):
        writer.write(said)
        assert await rest(reader) == b""
    assert behind.cuts("slow_handshake") == 1
    await until(lambda: len(behind.shared) == 0)


async def test_plain_http_where_tls_is_spoken_is_a_handshake_that_failed(
    serve: Start, secure: ssl.SSLContext
) -> None:
    """The commonest mistake; it must not hold a place."""
    behind = await serve(tls=secure)
    async with behind.open() as (reader, writer):
        writer.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        await rest(reader)
    await until(lambda: len(behind.shared) == 0)
    assert behind.cuts("failed_handshake") == 1
    assert behind.asked == []


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    serve: Start, secure: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    """In one segment, before anybody can have been told that the handshake is over."""
    behind = await serve(tls=secure)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    async with behind.open() as (reader, writer):
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65_536))
        client.write(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n")
        writer.write(outgoing.read())
        answer = b""
        while not answer.endswith(b"ok"):
            incoming.write(await reader.read(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                while part := client.read():
                    answer += part
    assert b" 200 " in answer
    assert behind.asked == ["/small"]


async def test_a_stop_does_not_wait_for_handshakes(serve: Start, secure: ssl.SSLContext) -> None:
    """They would become connections when nothing is served any more."""
    behind = await serve(tls=secure)
    async with behind.open() as (reader, _):
        await until(lambda: len(behind.shared) == 1)
        assert behind.server is not None
        behind.server.servers[0].close()
        assert await rest(reader) == b""
    await until(lambda: len(behind.shared) == 0)
    assert behind.cuts("slow_handshake") == behind.cuts("failed_handshake") == 0

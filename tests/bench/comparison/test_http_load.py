"""The load generator, on a server in the test: what is counted, and that nobody is waited for in vain."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from comparison.http_load import Connection, Request, closed_loop, open_loop

Answer = Callable[[bytes], Awaitable[bytes]]
REQUESTS = [Request("/a", b'{"n": 1}', texts=2, tokens=10), Request("/b", b'{"n": 2}', texts=3, tokens=20)]


def reply(status: int, body: bytes = b"{}") -> bytes:
    """Spell an answer."""
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


class StubServer:
    """Answers each request with what ``answer`` makes of its body; hangs up if that is nothing."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.bodies: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                self.bodies.append(body)
                answer = await self.answer(body)
                if not answer:
                    break
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[StubServer]:
    """A server that says yes."""

    async def yes(_: bytes) -> bytes:
        return reply(200)

    stub = StubServer(yes)
    listening = await asyncio.start_server(stub.talk, "127.0.0.1", 0)
    stub.port = listening.sockets[0].getsockname()[1]
    yield stub
    listening.close()


async def test_clients_send_the_next_of_a_common_list(server: StubServer) -> None:
    """No time at all is given, so exactly the least number is sent."""
    load = await closed_loop(server.port, REQUESTS, clients=2, seconds=0, least_requests=4)
    assert sorted(server.bodies) == [b'{"n": 1}', b'{"n": 1}', b'{"n": 2}', b'{"n": 2}']
    assert (load.texts, load.tokens, len(load.latencies)) == (10, 60, 4)
    assert server.connections == 2
    assert load.seconds > 0
    assert not load.failed


async def test_refusals_and_failures_are_no_throughput(server: StubServer) -> None:
    """429 is kept apart with its latency, 500 is a failure."""
    statuses = iter([200, 429, 500, 429])

    async def in_turn(_: bytes) -> bytes:
        return reply(next(statuses))

    server.answer = in_turn
    load = await closed_loop(server.port, REQUESTS[:1], clients=1, seconds=0, least_requests=4)
    assert (load.texts, len(load.latencies), len(load.refused), load.failed) == (2, 1, 2, {"status 500": 1})


async def test_a_server_that_hangs_up_is_a_failure(server: StubServer) -> None:
    """The client ends; the run goes on."""

    async def nothing(_: bytes) -> bytes:
        return b""

    server.answer = nothing
    load = await closed_loop(server.port, REQUESTS, clients=1, seconds=0, least_requests=1)
    assert load.failed == {"ConnectionResetError": 1}


async def test_chunks_are_read_to_their_end(server: StubServer) -> None:
    """And the connection can be used again."""

    async def chunks(_: bytes) -> bytes:
        return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"

    server.answer = chunks
    connection = await Connection.to(server.port)
    assert [(await connection.post(REQUESTS[0])).body for _ in range(2)] == [b"abcde", b"abcde"]
    connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"abcde"),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
    ],
    ids=["length", "chunks"],
)
async def test_an_answer_may_come_in_any_parts(server: StubServer, answer: bytes) -> None:
    """It is whole with its last byte and not before."""
    connection = await Connection.to(server.port)
    never = asyncio.Event()

    async def silent(_: bytes) -> bytes:
        await never.wait()
        return answer

    server.answer = silent
    for cut in range(1, len(answer)):
        asking = asyncio.create_task(connection.post(REQUESTS[0]))
        await asyncio.sleep(0)
        connection.data_received(answer[:cut])
        await asyncio.sleep(0)
        assert not asking.done()
        connection.data_received(answer[cut:])
        assert (await asking).body == b"abcde"
    connection.close()
    never.set()


async def test_what_is_no_answer_is_a_failure(server: StubServer) -> None:
    """It is not waited for, and not counted as one."""

    async def rubbish(_: bytes) -> bytes:
        return b"SSH-2.0-OpenSSH_9.2\r\n\r\n"

    server.answer = rubbish
    load = await closed_loop(server.port, REQUESTS, clients=1, seconds=0, least_requests=1)
    assert load.failed == {"ConnectionError": 1}


async def test_arrivals_do_not_wait_for_answers(server: StubServer) -> None:
    """Answers are held back until all requests are there; waiting clients would never get so far."""
    everybody = asyncio.Event()

    async def held(_: bytes) -> bytes:
        if len(server.bodies) == 20:
            everybody.set()
        await everybody.wait()
        return reply(200)

    server.answer = held
    load = await open_loop(server.port, REQUESTS, rate=1000, seconds=0.02, patience=60)
    assert len(load.latencies) == 20
    assert server.connections == 20
    assert load.seconds > 0


async def test_an_arrival_that_is_never_answered_is_given_up(server: StubServer) -> None:
    """Patience is over at once here; the run has an end in any case."""
    never = asyncio.Event()

    async def silent(_: bytes) -> bytes:
        await never.wait()
        return b""

    server.answer = silent
    load = await open_loop(server.port, REQUESTS, rate=1000, seconds=0.003, patience=0)
    never.set()
    assert load.failed == {"no answer in time": 3}
    assert load.texts == 0


async def test_free_connections_are_used_again(server: StubServer) -> None:
    """One that is not free counts as a failure when there may be no more."""
    everybody = asyncio.Event()

    async def held(_: bytes) -> bytes:
        await everybody.wait()
        return reply(200)

    server.answer = held
    running = asyncio.create_task(
        open_loop(server.port, REQUESTS, rate=10_000, seconds=0.0005, patience=60, most_connections=2)
    )
    while len(server.bodies) < 2:  # noqa: ASYNC110 - the stub has no event for it
        await asyncio.sleep(0)
    everybody.set()
    load = await running
    assert len(load.latencies) >= 2
    assert len(load.latencies) + load.failed.get("ConnectionError", 0) == 5
    assert server.connections <= 3

"""Sends requests over HTTP and takes the time: clients that wait for their answers, and arrivals that do not.

The client is a plain asyncio protocol, since whatever it spends is taken from the server on the same machine.
It knows what the servers compared here answer with (HTTP/1.1, a length or chunks) and no more.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Request:
    """One request, spelt out beforehand.

    Attributes:
        path: of the URL.
        body: JSON.
        texts, tokens: in it.
    """

    path: str
    body: bytes
    texts: int
    tokens: int

    def spelt(self, host: str) -> bytes:
        """As it goes over the wire."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
            f"accept: application/json\r\ncontent-length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        status: of HTTP.
        body: whole.
        at: when the last byte came, in seconds of ``time.perf_counter``.
    """

    status: int
    body: bytes
    at: float


@dataclass(slots=True)
class Load:
    """What a load came to.

    Attributes:
        seconds: from the first request to the last answer.
        texts, tokens: of requests answered with 200.
        latencies: seconds of those, in the order of the answers.
        refused: seconds of each request answered with 429 or 503.
        failed: requests with any other answer, or none, by what it was.
    """

    seconds: float = 0.0
    texts: int = 0
    tokens: int = 0
    latencies: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)

    def note(self, request: Request, status: int, seconds: float) -> None:
        """Count one answer."""
        if status == 200:
            self.texts += request.texts
            self.tokens += request.tokens
            self.latencies.append(seconds)
        elif status in (429, 503):
            self.refused.append(seconds)
        else:
            self.fail(f"status {status}")

    def fail(self, what: str) -> None:
        """Count a request without a proper answer."""
        self.failed[what] = self.failed.get(what, 0) + 1


class Connection(asyncio.Protocol):
    """One connection that is kept, for one request at a time.

    Attributes:
        open: it can take another request.
    """

    def __init__(self, host: str) -> None:
        self.open = True
        self._host = host
        self._transport: asyncio.Transport
        self._answer: _Answer
        self._answered: asyncio.Future[Reply] | None = None

    @classmethod
    async def to(cls, port: int) -> Self:
        """Connect to a port of this machine."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(f"127.0.0.1:{port}"), "127.0.0.1", port)
        return connection

    async def get(self, path: str) -> Reply:
        """Get ``path``."""
        return await self._exchange(
            f"GET {path} HTTP/1.1\r\nhost: {self._host}\r\naccept: */*\r\n\r\n".encode()
        )

    async def post(self, request: Request) -> Reply:
        """Send ``request`` and read its answer to the end.

        Raises:
            ConnectionError: the server hung up, or answered with what is not HTTP/1.1.
        """
        return await self._exchange(request.spelt(self._host))

    async def _exchange(self, spelt: bytes) -> Reply:
        if not self.open:
            raise ConnectionError("the connection is closed")
        self._answer = _Answer()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(spelt)
        try:
            return await self._answered
        except BaseException:
            self.close()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to write to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take a part of the answer; the time is taken when the last one comes."""
        at = time.perf_counter()
        if self._answered is None or self._answered.done():  # nobody asked
            self.close()
            return
        try:
            whole = self._answer.take(data)
        except (ValueError, IndexError) as error:
            self._answered.set_exception(ConnectionError(f"no answer of HTTP/1.1: {error}"))
            return
        if whole:
            if self._answer.closes:
                self.close()
            self._answered.set_result(Reply(self._answer.status, self._answer.body(), at))

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits."""
        self.open = False
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error or ConnectionResetError("the server hung up"))

    def close(self) -> None:
        """Hang up."""
        self.open = False
        self._transport.close()


class _Answer:
    """An answer as it comes in: a head, and a body with a length or in chunks."""

    def __init__(self) -> None:
        self.status = 0
        self.closes = False
        self._data = bytearray()
        self._parts: list[tuple[int, int]] = []  # of the body, in the data
        self._at = 0  # what was looked at
        self._length: int | None = None  # None = chunks
        self._headed = False

    def take(self, data: bytes) -> bool:
        """Take what came; return whether this was the last of it.

        Raises:
            ValueError, IndexError: it is not as HTTP/1.1 has it.
        """
        self._data += data
        if not self._headed:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._read_head(self._data[:end].decode("latin-1"))
            self._at = end + 4
        if self._length is None:
            return self._take_chunks()
        if len(self._data) < self._at + self._length:
            return False
        self._parts = [(self._at, self._at + self._length)]
        return True

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        self.status = int(first.split(" ", 2)[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "chunked" not in headers.get("transfer-encoding", ""):
            self._length = int(headers.get("content-length", "0"))
        self.closes = headers.get("connection", "").lower() == "close"
        self._headed = True

    def _take_chunks(self) -> bool:
        while (end := self._data.find(b"\r\n", self._at)) >= 0:
            start = end + 2
            size = int(self._data[self._at : end].split(b";")[0], 16)
            if len(self._data) < start + size + 2:
                return False
            if size == 0:
                return True
            self._parts.append((start, start + size))
            self._at = start + size + 2
        return False

    def body(self) -> bytes:
        """All of it."""
        return b"".join(self._data[start:end] for start, end in self._parts)


async def closed_loop(
    port: int,
    requests: Sequence[Request],
    *,
    clients: int,
    seconds: float,
    least_requests: int = 1,
) -> Load:
    """Let each client send one request after the other, the next of a common list.

    Args:
        port: of this machine.
        requests: the list; it begins again when it is through.
        clients: each with a connection of its own.
        seconds: after which nothing new is sent; what is on the way is waited for.
        least_requests: that are sent in any case.
    """
    load = Load()
    coming = enumerate(itertools.cycle(requests))
    connections = [await Connection.to(port) for _ in range(clients)]
    began = time.perf_counter()

    async def client(connection: Connection) -> None:
        while True:
            number, request = next(coming)
            if number >= least_requests and time.perf_counter() - began >= seconds:
                return
            if not connection.open:
                connection = await Connection.to(port)
                connections.append(connection)
            sent = time.perf_counter()
            try:
                reply = await connection.post(request)
            except OSError as error:
                load.fail(type(error).__name__)
                return
            load.note(request, reply.status, reply.at - sent)

    try:
        await asyncio.gather(*map(client, connections))
        load.seconds = time.perf_counter() - began
    finally:
        for connection in connections:
            connection.close()
    return load


class _Arrivals:
    """Requests under way, each over a connection of its own as long as it lasts."""

    def __init__(self, port: int, most_connections: int) -> None:
        self.load = Load()
        self.last_answer = time.perf_counter()
        self._port = port
        self._most = most_connections
        self._under_way: set[asyncio.Task[None]] = set()
        self._free: list[Connection] = []
        self._connections: list[Connection] = []

    def send(self, request: Request) -> None:
        """Send ``request``, and do not wait."""
        task = asyncio.create_task(self._exchange(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _exchange(self, request: Request) -> None:
        sent = time.perf_counter()
        try:
            connection = self._free.pop() if self._free else await self._connect()
            reply = await connection.post(request)
        except OSError as error:
            self.load.fail(type(error).__name__)
            return
        self.load.note(request, reply.status, reply.at - sent)
        if reply.status == 200:
            self.last_answer = reply.at
        if connection.open:
            self._free.append(connection)

    async def _connect(self) -> Connection:
        if len(self._under_way) > self._most:
            raise ConnectionError("no connection is free")
        connection = await Connection.to(self._port)
        self._connections.append(connection)
        return connection

    async def end(self, patience: float) -> None:
        """Wait for answers, then hang up."""
        if self._under_way:
            _, unanswered = await asyncio.wait(set(self._under_way), timeout=patience)
            for task in unanswered:
                task.cancel()
                self.load.fail("no answer in time")
            await asyncio.gather(*unanswered, return_exceptions=True)
        for connection in self._connections:
            connection.close()


async def open_loop(
    port: int,
    requests: Sequence[Request],
    *,
    rate: float,
    seconds: float,
    patience: float,
    most_connections: int = 1500,
) -> Load:
    """Send requests at their times, whether earlier ones were answered or not, as strangers do.

    A request goes over a connection that is free, or over a new one.

    Args:
        port: of this machine.
        requests: sent in turn; the list begins again when it is through.
        rate: requests a second.
        seconds: for which requests are sent.
        patience: seconds that answers are waited for afterwards.
        most_connections: open at once; a request that finds none free counts as failed.
    """
    began = time.perf_counter()
    arrivals = _Arrivals(port, most_connections)
    for number, request in zip(range(round(rate * seconds)), itertools.cycle(requests)):
        early = began + number / rate - time.perf_counter()
        # If it is late, so will the next ones be: answers have to be read all the same.
        await asyncio.sleep(max(early, 0.0))
        arrivals.send(request)
    await arrivals.end(patience)
    arrivals.load.seconds = arrivals.last_answer - began
    return arrivals.load

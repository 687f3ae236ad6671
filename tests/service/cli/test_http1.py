"""How bytes become requests and answers become bytes, beside h11, which reads the same in plain Python."""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from service.cli.http1 import Http1Protocol
from service.errors import ServiceError, UnavailableError
from service.http_errors import HeadersTooLargeError, MalformedRequestError
from service.settings import LimitsSettings
from tests.fakes import HANG_LIMIT_S as HANG_S

HOST = b"Host: conche\r\n"
CONFIG = uvicorn.Config(Starlette(), ws="none", lifespan="off", log_config=None, access_log=False)
CONFIG.load()
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n"


@dataclass
class Seen:
    """A request as the application, or h11, has it."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Wire(asyncio.Transport):
    """A connection's other end, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.writes = 0
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known."""
        del name
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep it."""
        assert not self.closed
        self.written += bytes(data)
        self.writes += 1

    def close(self) -> None:
        """Take no more."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed

    def pause_reading(self) -> None:
        """What was read before comes all the same."""

    def resume_reading(self) -> None:
        """See above."""


@dataclass
class Outcome:
    """What came of a connection.

    Attributes:
        seen: requests that reached the application whole.
        written: the answers.
        failed: why the connection ended, if it did.
        in_work: the most requests that were begun at a time.
        held: the most bytes that waited.
        writes: how often something was written.
    """

    seen: list[Seen] = field(default_factory=list)
    written: bytes = b""
    failed: ServiceError | None = None
    in_work: int = 0
    held: int = 0
    writes: int = 0


class Subject(Http1Protocol):
    """The protocol, which here notes how it failed."""

    outcome: Outcome

    def fail(self, error: ServiceError) -> None:
        """Close without an answer."""
        self.outcome.failed = error
        self.transport.close()


def talk(*pieces: bytes, told_length: bool = True, steps: int = 20, **limits: int) -> Outcome:
    """Send ``pieces``, with time for the application between them, and see what comes of it.

    Args:
        pieces: as the network cut them.
        told_length: whether answers have a content-length.
        steps: of the event loop, between two pieces.
        limits: of a head.
    """
    outcome = Outcome()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        seen = Seen(scope["method"], scope["path"], scope["query_string"], list(scope["headers"]), body)
        outcome.seen.append(seen)
        told = b"%d %s" % (len(body), scope["path"].encode())
        headers = [(b"content-length", b"%d" % len(told))] if told_length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": told[:3], "more_body": True})
        await send({"type": "http.response.body", "body": told[3:]})

    async def connection() -> None:
        subject = Subject(
            limits=LimitsSettings.model_validate(limits),
            config=CONFIG,
            server_state=ServerState(),
            app_state={},
        )
        subject.app = application
        subject.outcome = outcome
        wire = Wire()
        subject.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            subject.data_received(piece)
            outcome.in_work = max(outcome.in_work, subject.in_work)
            outcome.held = max(outcome.held, len(subject.held))
            for _ in range(steps):
                await asyncio.sleep(0)
        async with asyncio.timeout(HANG_S):
            # A body that has not come whole by now never does.
            while (subject.held or subject.part != "body") and subject.in_work and not wire.closed:  # noqa: ASYNC110
                await asyncio.sleep(0)
        outcome.written, outcome.writes = wire.written, wire.writes
        subject.connection_lost(None)
        await asyncio.sleep(0)

    asyncio.run(connection())
    return outcome


def read_by_h11(stream: bytes) -> list[Seen]:
    """The requests of a stream, as h11 has them."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(stream)
    found: list[Seen] = []
    while True:
        event = connection.next_event()
        if isinstance(event, h11.Request):
            path, _, query = event.target.partition(b"?")
            found.append(Seen(event.method.decode(), path.decode(), query, list(event.headers), b""))
        elif isinstance(event, h11.Data):
            found[-1].body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.their_state is h11.DONE:
                connection.start_next_cycle()
        else:
            assert event is h11.NEED_DATA
            return found


def chunked(parts: list[bytes], trailers: bytes) -> bytes:
    """A body in chunks."""
    return (
        b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailers + b"\r\n"
    )


TARGETS = st.sampled_from([b"/", b"/embed", b"/faq/a%20b?x=1&y=", b"/?", b"//twice", b"/a#b"])
BODIES = st.binary(max_size=40)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, well formed."""
    head = draw(TARGETS) + b" HTTP/1.1\r\n" + HOST
    head += b"".join(
        draw(st.lists(st.sampled_from([b"X-A: 1\r\n", b"x-b:  two \r\n", b"X-Empty:\r\n", OFFER])))
    )
    if draw(st.booleans()):
        return draw(st.sampled_from([b"GET ", b"DELETE ", b"OPTIONS "])) + head + b"\r\n"
    if draw(st.booleans()):
        body = draw(BODIES)
        return b"POST " + head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    parts = draw(st.lists(BODIES.filter(len), max_size=3))
    trailers = draw(st.sampled_from([b"", b"X-Trailer: 1\r\nHost: other\r\n"]))
    return b"PUT " + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(parts, trailers)


@settings(max_examples=300, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 2000)), st.integers(0, 20))
def test_however_a_stream_is_cut_its_requests_are_those_that_h11_reads(
    sent: list[bytes], cuts: list[int], steps: int
) -> None:
    """In order, each answered once; only what offers another protocol is taken out of the headers."""
    stream = b"".join(sent)
    edges = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    outcome = talk(*pieces, steps=steps)
    expected = read_by_h11(stream)
    for request in expected:
        request.path = request.path.replace("%20", " ")
        request.headers = [header for header in request.headers if header[0] != b"upgrade"]
    assert outcome.failed is None
    assert outcome.seen == expected
    assert outcome.written.count(b"HTTP/1.1 200 OK") == len(sent)


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_the_body_of_a_request_that_offers_http_2_is_read(cut: int) -> None:
    """As Java's client sends it; wherever the network cuts."""
    request = b"POST /embed HTTP/1.1\r\n" + HOST + OFFER + b"Content-Length: 5\r\n\r\nhello"
    stream = request + b"GET /next HTTP/1.1\r\n" + HOST + b"\r\n"
    outcome = talk(stream[:cut], stream[cut:])
    assert [(seen.path, seen.body) for seen in outcome.seen] == [("/embed", b"hello"), ("/next", b"")]


@pytest.mark.parametrize("method", [b"FOO", b"get", b"X-Y_Z", b"BREW"])
def test_methods_that_nobody_knows_reach_the_application(method: bytes) -> None:
    """Which refuses them as it does others; with their bodies."""
    outcome = talk(method + b" /embed HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab")
    assert [(seen.method, seen.path, seen.body) for seen in outcome.seen] == [
        (method.decode(), "/embed", b"ab")
    ]


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://conche/embed?x=1", "/embed"),
        (b"http://conche:8080", "/"),
        (b"https://conche?x=1", "/"),
        (b"*", "/*"),
    ],
)
def test_targets_of_other_forms(target: bytes, path: str) -> None:
    """A server has to take a whole URL (RFC 9112, 3.2.2)."""
    (seen,) = talk(b"OPTIONS " + target + b" HTTP/1.1\r\n" + HOST + b"\r\n").seen
    assert seen.path == path
    assert seen.query == (b"x=1" if b"?" in target else b"")


MALFORMED = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "no version": b"GET /\r\n\r\n",
    "another version": b"GET / HTTP/3.0\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "words": b"hello\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length that is none": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\na",
    "an unknown coding": b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "two codings": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "codings in two lines": b"POST / HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\n" + HOST + b"X-A : 1\r\n\r\n",
    "a continued line": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n 2\r\n\r\n",
    "a zero byte": b"GET / HTTP/1.1\r\n" + HOST + b"X-A: \x00\r\n\r\n",
    "bytes in the URL": b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a request to a proxy": b"CONNECT conche:443 HTTP/1.1\r\n" + HOST + b"\r\n",
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_no_request_reaches_nobody(name: str, *, whole: bool) -> None:
    """Byte by byte or in one piece; what two servers in a row could read in two ways is refused."""
    sent = MALFORMED[name]
    outcome = talk(*([sent] if whole else [sent[at : at + 1] for at in range(len(sent))]))
    assert type(outcome.failed) is MalformedRequestError
    assert outcome.seen == []


@pytest.mark.parametrize("name", MALFORMED)
def test_what_comes_before_it_is_answered_first(name: str) -> None:
    """In the same piece as requests that are whole."""
    good = b"GET /%d HTTP/1.1\r\n" + HOST + b"\r\n"
    outcome = talk(good % 1 + good % 2 + MALFORMED[name])
    assert [seen.path for seen in outcome.seen] == ["/1", "/2"]
    assert outcome.written.endswith(b"0 /2")
    assert type(outcome.failed) is MalformedRequestError


def test_a_request_that_breaks_off_behind_others_does_not_begin() -> None:
    """Its chunk is none; the one before it is answered."""
    broken = b"POST /broken HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabX"
    outcome = talk(b"GET /good HTTP/1.1\r\n" + HOST + b"\r\n" + broken)
    assert [seen.path for seen in outcome.seen] == ["/good"]
    assert type(outcome.failed) is MalformedRequestError


@pytest.mark.parametrize("size", [1, 100, 5000, 8192])
@pytest.mark.parametrize(
    "endless",
    [
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: " + b"a" * 15_000,
        b"GET /" + b"a" * 15_000,
        b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 2_500,
        b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 15_000,
        b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n5;x=" + b"a" * 15_000,
    ],
    ids=["header", "target", "headers", "trailer", "extension"],
)
def test_heads_and_trailers_without_end_are_refused(endless: bytes, size: int) -> None:
    """Before they have filled the memory; however they come."""
    pieces = [endless[at : at + size] for at in range(0, len(endless), size)]
    outcome = talk(*pieces, steps=0, max_header_bytes=10_000, max_headers=10_000)
    assert type(outcome.failed) is HeadersTooLargeError
    assert "CONCHE_LIMITS__MAX_HEADER_BYTES" in str(outcome.failed)
    assert outcome.seen == []


@pytest.mark.parametrize("size", [1, 3000, 100_000])
def test_heads_as_large_as_they_may_be_are_read(size: int) -> None:
    """Behind others in the same piece as well; bodies may be larger."""
    head = b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nX-A: " + b"a" * 9_900 + b"\r\n\r\n"
    request = head + chunked([b"b" * 12_000, b"c"], b"")
    stream = b"GET /first HTTP/1.1\r\n" + HOST + b"\r\n" + request * 3
    outcome = talk(
        *[stream[at : at + size] for at in range(0, len(stream), size)], steps=0, max_header_bytes=10_000
    )
    assert outcome.failed is None
    assert [len(seen.body) for seen in outcome.seen] == [0, 12_001, 12_001, 12_001]


def test_requests_that_wait_are_not_begun() -> None:
    """But for those of one piece; bytes of others are held, and read in their turn."""
    small = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    outcome = talk(small * 5_000, steps=0)
    assert 1 < outcome.in_work < 500
    assert outcome.held > 100_000
    assert len(outcome.seen) == 5_000


def test_an_answer_of_unknown_length_to_http_1_0_has_no_chunks() -> None:
    """It ends with the connection; HTTP/1.1 gets chunks."""
    old = talk(b"GET / HTTP/1.0\r\n\r\n", told_length=False).written
    assert b"transfer-encoding" not in old
    assert b"\r\nconnection: close\r\n" in old
    assert old.endswith(b"\r\n\r\n0 /")
    new = talk(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", told_length=False).written
    assert b"\r\ntransfer-encoding: chunked\r\n" in new
    assert new.endswith(b"\r\n\r\n3\r\n0 /\r\n0\r\n\r\n")
    known = talk(b"GET / HTTP/1.0\r\n\r\n").written
    assert b"\r\ncontent-length: 3\r\n" in known
    assert known.endswith(b"\r\n\r\n0 /")


def test_head_and_body_of_an_answer_are_written_together() -> None:
    """But for answers that come bit by bit: their beginning is waited for."""
    request = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"
    assert talk(request).writes == 2  # the application gives the body in two parts
    assert talk(request, request).writes == 4
    assert talk(request, told_length=False).writes == 3
    assert talk(request.replace(b"GET", b"HEAD")).written.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("raises", [True, False])
def test_an_answer_whose_body_never_comes_ends_the_connection(*, raises: bool) -> None:
    """No second answer behind a head, whose status is in the log and the metrics by then."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        headers = [(b"content-length", b"3")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if raises:
            raise RuntimeError("a fault of ours")

    async def connection() -> tuple[bytes, bool]:
        limits = LimitsSettings()
        subject = Subject(limits=limits, config=CONFIG, server_state=ServerState(), app_state={})
        subject.app = application
        wire = Wire()
        subject.connection_made(wire)
        subject.data_received(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        for _ in range(20):
            await asyncio.sleep(0)
        return wire.written, wire.closed

    assert asyncio.run(connection()) == (b"", True)


def test_who_waits_to_be_asked_for_a_body_is_asked() -> None:
    """When the application wants it."""
    head = b"POST / HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    outcome = talk(head, b"ab")
    assert outcome.written.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert outcome.seen[0].body == b"ab"


def test_nobody_is_asked_for_a_body_in_http_1_0() -> None:
    """It knows no answer before the answer, and would take the first one for it."""
    head = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    outcome = talk(head, b"ab")
    assert outcome.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert outcome.seen[0].body == b"ab"


@pytest.mark.parametrize(
    ("fault", "told"), [(MemoryError(), UnavailableError), (RuntimeError("a fault of ours"), ServiceError)]
)
def test_what_goes_wrong_here_is_not_called_a_fault_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, told: type[ServiceError]
) -> None:
    """The parser tells of a callback that failed as it tells of a request that is none."""

    def on_body(_: Subject, body: bytes) -> None:
        raise fault

    monkeypatch.setattr(Subject, "on_body", on_body)
    outcome = talk(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nab")
    assert type(outcome.failed) is told
    assert outcome.seen == []

"""HTTP/1.1 on one connection: httptools parses, uvicorn keeps it open, and here is what both leave out.

With httptools (llhttp, in C) a request costs the event loop a quarter less than with h11 (bench/README.md).
Beside what uvicorn makes of it, here

- a request has one Host (RFC 9112, 3.2) and no coding but chunks, and its head is bounded while it is read,
- an offer to go on in another protocol is declined, and the request's body read all the same,
- trailers are not taken for headers,
- methods that the parser does not know reach the application, which refuses them as it does others,
- requests that come before the one in work is answered wait unread,
- an answer of unknown length to HTTP/1.0 has no chunks, and who speaks it is not told to go on with a body,
- head and body of an answer are written together.
"""

import asyncio
import logging
import re
from typing import Any, Final, Literal
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.errors import ServiceError, UnavailableError
from service.http_errors import HeadersTooLargeError, MalformedRequestError
from service.settings import LimitsSettings

logger = logging.getLogger(__name__)

# What the parser gets at a time. It cannot be stopped between two requests, so that this bounds how many
# small ones are begun while one is in work.
_PIECE_BYTES: Final = 8192
# With this much of further requests nothing is read, not even that the caller has gone.
_MOST_HELD_BYTES: Final = 2**18
_UNKNOWN_METHOD: Final = re.compile(rb"(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) \S+ HTTP/1\.[01]\r\n")
_ABSOLUTE: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*(.*)")


class _StoppedError(Exception):
    """Raised out of the parser's callbacks, to stop it; why is in the protocol."""


class Http1Protocol(HttpToolsProtocol):
    """One connection.

    Attributes:
        part: what is read: a request's "head", its "body", or nothing yet of the next one.
        held: what came of further requests while one is in work.
        in_work: requests that were begun and are not answered.
    """

    flow: "_Flow"

    def __init__(self, *, limits: LimitsSettings, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self.parser = httptools.HttpRequestParser(self)  # uvicorn's lets data follow `Connection: close`
        self.part: Literal["between", "head", "body"] = "between"
        self.held = b""
        self.in_work = 0
        self._answered: RequestResponseCycle | None = None  # now; further ones may have been begun
        self._begun = 0  # requests, in this piece
        self._head_size = 0
        self._unused = 0  # bytes that the parser has taken and not handed out
        self._method: bytes | None = None  # the one that was sent, where the parser does not know it
        self._refusal: ServiceError | None = None
        self._failure: ServiceError | None = None  # why nothing more is read

    def fail(self, error: ServiceError) -> None:
        """Answer what cannot be read, when all before it is answered, and close; for subclasses."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Begin to read."""
        super().connection_made(transport)
        self.flow = _Flow(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, whose request is not the last one that was begun."""
        super().connection_lost(exc)
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Read as far as the requests before it are answered."""
        self._read(data)
        self._see_whether_idle()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.part = "head"
        self._begun += 1
        self._head_size = 0

    def on_url(self, url: bytes) -> None:
        """Take the target, or a part of it."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer is left: it comes behind what was decided by the head."""
        if self.part != "head":
            return
        super().on_header(name, value.rstrip(b" \t"))  # before it the parser takes them away
        self._count(len(name) + len(value) + 4)
        if len(self.headers) > self._limits.max_headers:
            self._stop(
                HeadersTooLargeError(
                    f"a request may have {self._limits.max_headers} headers; setting "
                    "CONCHE_LIMITS__MAX_HEADERS"
                )
            )

    def on_headers_complete(self) -> None:
        """Begin with the request, or wait with it until those before it are answered."""
        version = self.parser.get_http_version()
        hosts = sum(name == b"host" for name, _ in self.headers)
        if version not in {"1.0", "1.1"} or hosts > 1 or (version == "1.1" and not hosts):
            self._stop(MalformedRequestError("this is not an HTTP/1.1 request, which has one Host header"))
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):  # the parser undoes the last one only
            self._stop(MalformedRequestError("the only Transfer-Encoding that is read is: chunked"))
        if self.parser.should_upgrade():
            return  # the parser stops behind the head
        self._complete_scope(version)
        self.part = "body"
        self.cycle = _Exchange(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue and version != "1.0",  # RFC 9110, 10.1.1
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.in_work += 1
        if self.in_work == 1:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._unused = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next request."""
        if self.part == "head":  # it offers another protocol
            return
        self.part = "between"
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to what waits."""
        self.in_work -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._failure is not None:
            if not self.in_work:
                self.fail(self._failure)
        elif self.held and self._may_read:
            held = self.held
            self._hold(b"")
            self.flow.resume_reading()
            self._read(held)
        self._see_whether_idle()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def _may_read(self) -> bool:
        """Whether what comes next is of the request in work, or there is none."""
        return self.in_work == 0 or (self.in_work == 1 and self.part == "body")

    def _see_whether_idle(self) -> None:
        """Time what is between two requests; what belongs to none does not make it longer."""
        if self.in_work or self.part != "between" or self.transport.is_closing():
            self._unset_keepalive_if_required()
        elif self.cycle is not None and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _read(self, data: bytes) -> None:
        for start in range(0, len(data), _PIECE_BYTES):
            if self._failure is not None or self.transport.is_closing():
                return
            if self.held or not self._may_read:
                self._hold(self.held + data[start:])
                self.flow.pause_reading()
                return
            self._parse(data[start : start + _PIECE_BYTES])

    def _hold(self, data: bytes) -> None:
        self.held = data
        self.flow.full = len(data) > _MOST_HELD_BYTES

    def _parse(self, piece: bytes) -> None:
        part, self._begun = self.part, 0
        self._unused += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(piece[upgrade.args[0] :])
            return
        except httptools.HttpParserInvalidMethodError:
            found = _UNKNOWN_METHOD.match(piece) if part == "between" and self._begun == 1 else None
            if found is None:
                self._end(MalformedRequestError("this is not an HTTP/1.1 request"))
                return
            self._method = found[1]
            self._parse_anew(b"GET" + piece[found.end(1) :])
            return
        except httptools.HttpParserError as error:
            self._end(self._refusal or _why_stopped(error))
            return
        if self.part == "between" or self._begun > (part == "between"):  # where in it is not known
            self._unused = 0
        if self._unused > self._limits.max_header_bytes:
            self._end(self._too_large())

    def _decline_upgrade(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 (RFC 9110, 7.8): Java's client offers HTTP/2 with each first request."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # to a proxy, which is asked for nothing else
            self._end(MalformedRequestError("CONNECT is for proxies, and this is none"))
            return
        head = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        head += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self._parse_anew(b"\r\n".join(head) + b"\r\n\r\n" + rest)

    def _parse_anew(self, data: bytes) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.part = "between"
        self._unused = 0
        self._parse(data)

    def _complete_scope(self, version: str) -> None:
        target = self.url
        if not target.startswith(b"/"):
            absolute = _ABSOLUTE.fullmatch(target)
            target = b"/" + (target if absolute is None else absolute[1].removeprefix(b"/"))
        raw_path, _, query_string = target.partition(b"?")  # in ASCII, the parser sees to that
        method = self._method or self.parser.get_method()
        self._method = None
        self.scope["http_version"] = version
        self.scope["method"] = method.decode("ascii")
        self.scope["path"] = self.root_path + unquote(raw_path.decode("ascii"))
        self.scope["raw_path"] = self.root_path.encode("ascii") + raw_path
        self.scope["query_string"] = query_string

    def _count(self, size: int) -> None:
        self._head_size += size
        if self._head_size > self._limits.max_header_bytes:
            self._stop(self._too_large())

    def _too_large(self) -> HeadersTooLargeError:
        return HeadersTooLargeError(
            f"URL and headers are larger than {self._limits.max_header_bytes} bytes; setting "
            "CONCHE_LIMITS__MAX_HEADER_BYTES"
        )

    def _stop(self, error: ServiceError) -> None:
        self._refusal = error
        raise _StoppedError

    def _end(self, error: ServiceError) -> None:
        """Read no more; say why when everything before is answered."""
        self._failure = error
        self._hold(b"")
        broken = self.part == "body" and self.in_work > 0  # a request whose body will not be whole
        if broken and self.in_work > 1:  # and which has not begun
            self.pipeline.popleft()
            self.in_work -= 1
            broken = False
        if self.in_work > broken:
            self.flow.pause_reading()
        else:
            self.fail(error)


class _Flow(FlowControl):
    """Reads on only where there is room; every request asks for it, also one that has come whole."""

    full = False

    def resume_reading(self) -> None:
        """Read on, unless it is full."""
        if not self.full:
            super().resume_reading()


def _why_stopped(error: httptools.HttpParserError) -> ServiceError:
    """What is wrong with a request, or with us: the parser wraps whatever its callbacks raise."""
    if not isinstance(error, httptools.HttpParserCallbackError):
        return MalformedRequestError("this is not an HTTP/1.1 request")
    if isinstance(error.__context__, MemoryError):
        return UnavailableError("there is no memory for this request at the moment")
    logger.error("unexpected error", exc_info=error)
    return ServiceError("internal error")


class _Exchange(RequestResponseCycle):
    """One request and its answer."""

    _until_closed = False  # whether the answer is as long as the connection is open (RFC 9112, 6.3)
    _start: Any = None  # of an answer whose length is known; sent with the first of its body

    async def send(self, message: Any) -> None:
        """Send a part of the answer; without chunks to HTTP/1.0, which does not know them.

        Head and body in one piece: two are two calls of the system, two packets, and two for the caller to
        read.
        """
        if message["type"] == "http.response.start":
            has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if self.scope["http_version"] == "1.0":
                self._until_closed = not has_length
                self.chunked_encoding = False if self._until_closed else None
            if has_length and self.scope["method"] != "HEAD" and not self.response_started:
                # Begun all the same: if no body comes, the connection is closed without another answer.
                self._start, self.response_started = message, True
                return
        elif self._until_closed:  # uvicorn compares
            self.expected_content_length = len(message.get("body", b""))
        if self._start is None:
            await super().send(message)
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()  # here and not below, where nobody else must get at the transport
        start, self._start, self.response_started = self._start, None, False
        transport = self.transport
        self.transport = _HeadFirst(transport)
        try:
            await super().send(start)
            await super().send(message)
        finally:
            self.transport = transport


class _HeadFirst(asyncio.Transport):
    """A transport, as far as an answer needs one, that keeps what is written first for what is next."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._head: bytes | bytearray | memoryview | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write ``data``, behind what came before it."""
        if self._head is None:
            self._head = data
        else:
            self._transport.writelines([self._head, data])

    def close(self) -> None:
        """Close, when all is written."""
        self._transport.close()

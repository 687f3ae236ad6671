"""One connection: HTTP/1.1 (`service.cli.http1`), with bounds on what comes before a request is one.

How many connections there are, those in their TLS handshake among them (`service.cli.handshakes`), how long a
request line with its headers may take and how large it may be, how long somebody may leave an answer unread:
none of that reaches the application, where the other limits are (`service.middleware`). What goes wrong here
is answered in JSON as everywhere, as far as anybody listens.
"""

import asyncio
import socket
import ssl
import uuid
from collections import Counter
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import uvicorn

from service.cli.handshakes import TlsListener
from service.cli.http1 import Http1Protocol
from service.errors import ServiceError
from service.http_errors import (
    SlowRequestError,
    TooManyConnectionsError,
    error_response,
)
from service.metrics import Metrics
from service.middleware import access_logger
from service.settings import LimitsSettings

# For the rest of a body whose answer has been sent: closing at once would reset the connection, and the
# answer would be lost.
_LINGER_S: Final = 5.0
# For a connection that is one too many to read why; and how many are let stay for that.
_REFUSED_LINGER_S: Final = 1.0
_MOST_REFUSED: Final = 64


class Connections:
    """What the connections of one server share: the limits, and how many there are."""

    def __init__(self, limits: LimitsSettings, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self.lingering = 0
        self._by_address: Counter[str] = Counter()
        self._open = 0  # read by other threads too, which must not go through what changes

    def __len__(self) -> int:
        return self._open

    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes a protocol of each connection with."""
        return cast("type[asyncio.Protocol]", partial(Connection, shared=self))

    def admit(self, address: str) -> None:
        """Count one more from ``address``; `release` has to follow.

        Raises:
            TooManyConnectionsError: there are as many as may be.
        """
        limits = self.limits
        if len(self) >= limits.max_connections:
            self.metrics.on_connection_cut("too_many")
            raise TooManyConnectionsError(
                f"{limits.max_connections} connections are open; setting CONCHE_LIMITS__MAX_CONNECTIONS"
            )
        if limits.max_connections_per_address and (
            self._by_address[address] >= limits.max_connections_per_address
        ):
            self.metrics.on_connection_cut("too_many_of_address")
            raise TooManyConnectionsError(
                f"{limits.max_connections_per_address} connections are open from this address; setting "
                "CONCHE_LIMITS__MAX_CONNECTIONS_PER_ADDRESS"
            )
        self._by_address[address] += 1
        self._open += 1

    def release(self, address: str) -> None:
        """Count one less."""
        self._by_address[address] -= 1
        self._open -= 1
        if not self._by_address[address]:
            del self._by_address[address]


class BoundedServer(uvicorn.Server):
    """uvicorn's server with TLS that is counted from before its handshakes.

    Args:
        config: without TLS, and with ``connections.protocol()``.
        connections: of this server.
        tls: for https; None = plain HTTP.
    """

    def __init__(
        self, config: uvicorn.Config, connections: Connections, *, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self.connections = connections
        self._context = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen on ``sockets``."""
        if self._context is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        invite = partial(
            Connection,
            shared=self.connections,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in sockets:
            opened = TlsListener(listener, self._context, invite, backlog=self.config.backlog)
            self.servers.append(cast("asyncio.Server", opened))


class Connection(Http1Protocol):
    """One connection, from its beginning to its end."""

    def __init__(self, *, shared: Connections, **uvicorn: Any) -> None:
        super().__init__(limits=shared.limits, **uvicorn)
        self._shared = shared
        self._address: str | None = None  # counted under it; None = not counted
        self.refused: TooManyConnectionsError | None = None
        self._lingers = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        """Count it, unless that was done before, and wait for a request; or refuse it."""
        super().connection_made(transport)
        counted = self._address is not None or self.refused is not None  # before its handshake
        if not counted and self.admit(self.client[0] if self.client else "") is None:
            transport.abort()
        elif self.refused is not None:
            self._refuse(self.refused)
        else:
            self._await_head()

    @property
    def protocol(self) -> asyncio.Protocol:
        """Itself."""
        return self

    def admit(self, address: str) -> float | None:
        """Count it, among those that are there or among those that are one too many.

        Returns:
            Seconds that it has for what comes first; None if there is not even time to tell it that it is
            one too many. `release` has to follow in any case; `connection_lost` does that.
        """
        try:
            self._shared.admit(address)
        except TooManyConnectionsError as error:
            self.refused = error
            self._shared.lingering += 1
            self._lingers = True
            return _REFUSED_LINGER_S if self._shared.lingering <= _MOST_REFUSED else None
        self._address = address
        return self._limits.header_seconds

    def on_handshake_failure(self, reason: str) -> None:
        """Tell the metrics; of those that are one too many they know."""
        if self.refused is None:
            self._shared.metrics.on_connection_cut(reason)

    def release(self) -> None:
        """Count it no more; a second time does nothing."""
        if self._address is not None:
            self._shared.release(self._address)
            self._address = None
        if self._lingers:
            self._shared.lingering -= 1
            self._lingers = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._body_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self.release()

    def data_received(self, data: bytes) -> None:
        """Take what came, and see which part of a request is awaited now."""
        if self.refused is not None or self.transport.is_closing():
            return
        super().data_received(data)
        self._set_timers()

    def on_response_complete(self) -> None:
        """Go on to the next request; do not wait for ever for a body that nobody will read."""
        super().on_response_complete()
        self._set_timers()

    def _set_timers(self) -> None:
        """See which part of a request is awaited now."""
        if self.part == "head" and not self.in_work and not self.transport.is_closing():
            self._await_head()
        elif self._head_timer is not None and self.cycle is not None:  # empty lines are no first head
            self._head_timer.cancel()
            self._head_timer = None
        unread = self.part == "body" and not self.in_work
        if unread and self._body_timer is None and not self.transport.is_closing():
            self._body_timer = self.loop.call_later(_LINGER_S, self._cut, "unread_body")
        elif not unread and self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def pause_writing(self) -> None:
        """Begin to wait for a caller who does not read the answer."""
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self._limits.request_seconds, self._cut, "slow_reader")

    def resume_writing(self) -> None:
        """Wait no more: it is being read."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def fail(self, error: ServiceError) -> None:
        """Answer what is no HTTP request, or too large a one; in JSON, where uvicorn sends text."""
        self._shared.metrics.on_connection_cut(error.code)
        self._answer_and_close(error)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.header_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.part == "between":
            self._cut("silent")
            return
        self._shared.metrics.on_connection_cut("slow_head")
        self._answer_and_close(
            SlowRequestError(
                f"request line and headers took longer than {self._limits.header_seconds:g} s; setting "
                "CONCHE_LIMITS__HEADER_SECONDS"
            )
        )

    def _cut(self, reason: str) -> None:
        self._shared.metrics.on_connection_cut(reason)
        self.transport.abort()

    def _refuse(self, error: ServiceError) -> None:
        self.transport.write(_answer(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(_REFUSED_LINGER_S, self.transport.abort)

    def _answer_and_close(self, error: ServiceError) -> None:
        """Say what was wrong, unless an answer has begun: two in one would be taken for one."""
        if self.part != "body" or not self.cycle.response_started:
            self.transport.write(_answer(error))
        if self.in_work:  # whose body will not be whole
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


def _answer(error: ServiceError) -> bytes:
    """A whole answer and its line in the log, for where there is no request that they could belong to."""
    request_id = uuid.uuid4().hex
    response = error_response(error, request_id, "")
    status = HTTPStatus(response.status_code)
    fields = {"status": status.value, "code": error.code, "request_id": request_id}
    access_logger.info("connection refused", extra=fields)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    lines += [
        b"date: " + formatdate(usegmt=True).encode(),
        b"x-request-id: " + request_id.encode(),
        b"connection: close",
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body)

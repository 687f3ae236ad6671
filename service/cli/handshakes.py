"""TLS before there is a connection that speaks HTTP: counted, timed, and given up like any other.

A server that is handed a TLS context makes handshakes by itself and tells of a connection when one is over,
so half-open ones are neither counted nor refused. Here sockets are accepted plain, and counted, before TLS is
spoken.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

logger = logging.getLogger(__name__)

# For the other side to say that it closes too; it has nothing to send by then.
_CLOSING_S: Final = 5.0
# Before the next try to accept, where there are no more files to be had, say.
_PAUSE_S: Final = 1.0


class Guest(Protocol):
    """Who connected, and the protocol that is to have the connection."""

    @property
    def protocol(self) -> asyncio.Protocol:
        """Told of the connection when its handshake is over."""
        ...

    def admit(self, address: str) -> float | None:
        """Count it; how many seconds its handshake may take, or None to close it at once."""
        ...

    def release(self) -> None:
        """Count it no more: there will be no connection. May come again behind the protocol's own end."""
        ...

    def on_handshake_failure(self, reason: str) -> None:
        """Its handshake was too slow ("slow_handshake"), or none ("failed_handshake")."""
        ...


class TlsListener:
    """Accepts on a socket, and speaks TLS with who was admitted; of asyncio's servers, what uvicorn needs.

    Args:
        listener: bound.
        context: of the server; what it holds at the time of a handshake counts.
        invite: makes a guest of whoever connects.
        backlog: connections that may wait to be accepted.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        invite: Callable[[], Guest],
        *,
        backlog: int = 2048,
    ) -> None:
        """Begin to accept; call inside the event loop."""
        self.sockets = (listener,)
        self._context = context
        self._invite = invite
        listener.listen(backlog)
        listener.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept(listener))
        self._handshakes: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Accept no more, and give up handshakes: they would become connections when nothing is served."""
        for task in (self._accepting, *self._handshakes):
            task.cancel()

    async def wait_closed(self) -> None:
        """Until all of that has come to an end."""
        await asyncio.gather(self._accepting, *self._handshakes, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listener)
            except ConnectionAbortedError:  # it went away while it waited
                continue
            except OSError:
                logger.exception("connections cannot be accepted; trying again in %g s", _PAUSE_S)
                await asyncio.sleep(_PAUSE_S)
                continue
            self._welcome(accepted, address)

    def _welcome(self, accepted: socket.socket, address: Any) -> None:
        guest = self._invite()
        seconds = guest.admit(str(address[0]) if isinstance(address, tuple) else "")
        if seconds is None:
            guest.release()
            accepted.close()
            return
        task = self._loop.create_task(self._shake_hands(accepted, guest, seconds))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, guest: Guest, seconds: float) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: guest.protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=_CLOSING_S,
            )
        except ssl.SSLError:
            guest.on_handshake_failure("failed_handshake")
            guest.release()
        except ConnectionAbortedError:  # how both loops tell that the time is over
            guest.on_handshake_failure("slow_handshake")
            guest.release()
        except OSError:  # the other side went away
            guest.release()
        except BaseException:
            guest.release()
            raise

"""``/metrics`` on a port of its own, by a thread of its own: it answers while the service's loop is busy."""

import socket
import ssl
import threading
from typing import Final

import uvicorn
from fastapi import FastAPI

from service.cli.connections import BoundedServer, Connections
from service.metrics import Metrics
from service.settings import LimitsSettings

_END_S: Final = 2.0


class MetricsServer:
    """A second, small server; under the same limits of connections, each counted for itself."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        *,
        limits: LimitsSettings,
        metrics: Metrics,
        context: ssl.SSLContext | None,
    ) -> None:
        """Take ``app`` to answer on ``listener``; nothing runs before `start`.

        Args:
            app: serves the metrics.
            listener: bound.
            limits: of connections, headers and bodies.
            metrics: told of connections that are cut.
            context: for TLS; None = plain HTTP.
        """
        connections = Connections(limits, metrics)
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=connections.protocol(),
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        config.load()
        self._listener = listener
        self._server = BoundedServer(config, connections, tls=context)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name="conche-metrics", daemon=True
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; waits a moment for what is in work."""
        self._server.should_exit = True
        self._thread.join(_END_S)

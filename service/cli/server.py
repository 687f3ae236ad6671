"""The server's life: greets when it is ready, drains when it is told to stop, and then surely ends.

It also ends by itself when a model is lost at work: a hung thread cannot be killed, nor memory that native
code has spoilt be mended, so only a new process helps. It ends rather than turn /livez red, since every
supervisor starts a process that ended anew, and only some of them look at a probe (Docker does nothing about
"unhealthy"). For an event loop that stands still `watchdog` does the same.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import click
import uvicorn
from fastapi import FastAPI

from service.cli.announcement import announce
from service.cli.awake_clock import AwakeClock
from service.cli.connections import BoundedServer, Connection, Connections
from service.cli.garbage import keep_what_is_there
from service.cli.greeting import greeting, summary
from service.cli.metrics_server import MetricsServer
from service.cli.process import LOST_MODEL, leave
from service.cli.tls import TlsFiles
from service.cli.watchdog import Watchdog
from service.cli.worker_link import WorkerLink
from service.lifespan import Services
from service.metrics import Metrics
from service.settings import OFF, Settings

logger = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

# uvicorn ticks ten times a second.
_TICKS_BETWEEN_LOOKS: Final = 100
_TICKS_BETWEEN_LOOKS_AT_MODELS: Final = 5
_STEP_S: Final = 0.05  # how soon a second signal is noticed
_LAST_WORDS_S: Final = 1.0  # for requests that were cut off to be answered
_CLOSING_S: Final = 2.0  # the least that models and files get to close


class Server(BoundedServer):
    """uvicorn, with a greeting, and with a stop of its own.

    Attributes:
        exit_code: of the process; 0 = started and stopped in order.
        metrics_server: started and stopped with this one; None if the metrics are on its own port.
    """

    def __init__(
        self,
        settings: Settings,
        app: FastAPI,
        *,
        tls: TlsFiles | None = None,
        link: WorkerLink | None = None,
        began_at: float | None = None,
    ) -> None:
        """Serve ``app``; nothing is loaded before `run_until_stopped`.

        Args:
            settings: of the process.
            app: to be served.
            tls: for https; None = plain HTTP.
            link: to the supervisor of several workers, which this is one of; None = by itself.
            began_at: when the start began, as ``time.perf_counter`` tells it; None = now.
        """
        metrics: Metrics = app.state.metrics
        connections = Connections(settings.limits, metrics)
        metrics.watch_connections(connections, limit=settings.limits.max_connections)
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=connections.protocol(),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
            ),
            connections,
            tls=None if tls is None else tls.context,
        )
        self._tls = tls
        if tls is not None:
            metrics.watch_certificate(tls)
        self.metrics_server: MetricsServer | None = None
        self._settings = settings
        self._app = app
        self._watchdog = Watchdog(loop_stall_s=settings.loop_stall_s(), startup_s=settings.startup_s())
        self._link = link
        if link is not None:
            link.on_hurry(self._stop_at_once)
        self._began_at = time.perf_counter() if began_at is None else began_at
        self._forced_by: int | None = None
        self._stopped_by: int | None = None
        self._lost_since: float | None = None
        self.exit_code = 1

    def run_until_stopped(self, listener: socket.socket) -> None:
        """Serve on ``listener`` until SIGINT or SIGTERM; returns when all is closed.

        If the start fails for a reason that the operator can change, the process ends with a line about it.
        """
        for number in STOP_SIGNALS:  # uvicorn sets them too, but puts these back when it has finished
            signal.signal(number, self.handle_exit)
        self._watchdog.start()
        try:
            self.run(sockets=[listener])
        except SystemExit:  # how uvicorn ends after a failed start
            if self.started:  # raised in the middle of work: no stop in order
                self.exit_code = LOST_MODEL
        finally:
            self._watchdog.stop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal of either kind stops waiting for requests in work.

        Before anything is served the process ends at once: loading a large FAQ may take minutes. One of
        several workers may be told twice of one signal; the supervisor says when there was a second.
        """
        del frame
        if not self.started:
            leave(0)
        if self.should_exit and self._link is None:
            self._stop_at_once(sig)
        self._stopped_by = self._stopped_by or sig
        self.should_exit = True

    def _stop_at_once(self, sig: int) -> None:
        self._forced_by = sig  # first: the loop may look meanwhile
        self.force_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, listen, then say what there is, or at once why there is nothing."""
        try:
            await super().startup(sockets)
        except SystemExit:  # how uvicorn ends after a failed start
            if (error := self._app.state.startup_error) is not None:
                click.ClickException(str(error)).show()
                leave(self.exit_code)  # what is still loading cannot be stopped, and would be waited for
            raise
        self._watchdog.started()
        keep_what_is_there()
        if self.started and sockets:
            self.exit_code = 0
            seconds = time.perf_counter() - self._began_at
            port = sockets[0].getsockname()[1]
            url = _url(self._settings.host, port, secure=self._tls is not None)
            metrics_url = None
            if self.metrics_server is not None:
                self.metrics_server.start()
                port = self.metrics_server.port
                metrics_url = _url(self._settings.host, port, secure=self._tls is not None)
            self._greet(url, seconds, metrics_url)

    def _greet(self, url: str, seconds: float, metrics_url: str | None) -> None:
        services: Services = self._app.state.services
        said: dict[str, object]
        if self._settings.log_format == "json":  # somebody collects lines, and wants no pages among them
            said = {"summary": summary(services, url=url, seconds=seconds, workers=self._settings.workers)}
        else:
            keys = self._settings.api_keys_file != OFF
            workers = self._settings.workers
            said = {
                "page": greeting(
                    services, url=url, seconds=seconds, keys=keys, metrics_url=metrics_url, workers=workers
                )
            }
        if self._link is None:
            announce(said)
        else:
            self._link.ready(said)

    async def on_tick(self, counter: int) -> bool:
        """Look for a new certificate and at the models, besides what uvicorn does ten times a second."""
        if self._link is not None:
            self._link.tick()
        if self._tls is not None and counter % _TICKS_BETWEEN_LOOKS == 0:
            self._tls.look()
        if counter % _TICKS_BETWEEN_LOOKS_AT_MODELS == 0:
            self._look_at_models()
        return await super().on_tick(counter)

    def _look_at_models(self) -> None:
        """Begin to stop when a model has been lost for as long as the settings say."""
        after_s = self._settings.recycle_after_s()
        if after_s is None or self.should_exit:
            return
        services: Services = self._app.state.services
        lost = services.lost()
        if not lost:  # an operator has unloaded it
            self._lost_since = None
            return
        if self._lost_since is None:
            self._lost_since = time.monotonic()
            logger.error("lost %s; ending in %g s, to be started anew", "; ".join(lost), after_s)
        if time.monotonic() - self._lost_since >= after_s:
            self.exit_code = LOST_MODEL
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Turn /readyz red, give load balancers time to see it, finish what is in work, close.

        Replaces uvicorn's, which leaves requests without an answer when the time is over.
        """
        services: Services = self._app.state.services
        services.draining = True
        if self._link is not None:
            self._link.stopping()
        elif self._stopped_by is not None:
            logger.info("stopping on %s", signal.Signals(self._stopped_by).name)
        clock = AwakeClock()  # who was stopped meanwhile had no time to finish
        await self._go_on_accepting(clock)
        for closable in (*self.servers, *(sockets or ())):
            closable.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # closes it, if it is idle
        ends_at = clock.now() + self._settings.shutdown_grace_seconds
        await self._finish_requests(clock, ends_at)
        in_work: set[asyncio.Task[Any]] = set(self.server_state.tasks)
        if in_work:
            await self._cut_off(in_work, clock)
        if not self.force_exit:
            closing = asyncio.create_task(self.lifespan.shutdown())  # waits for a model run that is under way
            until = max(ends_at, clock.now() + _CLOSING_S)
            await _wait_for(lambda: self.force_exit or closing.done(), clock, until=until)
            if closing.done():
                if self.metrics_server is not None:
                    self.metrics_server.stop()
                self._say_last_words()
                return
        self._say_last_words()
        leave(self.exit_code)

    def _say_last_words(self) -> None:
        if self._link is not None:
            self._link.close()

    async def _go_on_accepting(self, clock: AwakeClock) -> None:
        if self._stopped_by != signal.SIGTERM:  # Ctrl-C, or /readyz has been red for a while already
            return
        delay_s = self._settings.shutdown_delay_seconds
        if delay_s:
            logger.info("stopping in %g s, requests are taken until then; Ctrl-C again to stop now", delay_s)
        await _wait_for(lambda: self.force_exit, clock, until=clock.now() + delay_s)

    async def _finish_requests(self, clock: AwakeClock, ends_at: float) -> None:
        connections, tasks = self.server_state.connections, self.server_state.tasks
        # The task of a request ends a little after its answer.
        number = sum(connection.in_work for connection in connections if isinstance(connection, Connection))
        if number and not self.force_exit:
            logger.info(
                "finishing %d request%s, up to %d s; Ctrl-C again to stop now",
                number,
                "" if number == 1 else "s",
                self._settings.shutdown_grace_seconds,
            )
        await _wait_for(lambda: self.force_exit or not (connections or tasks), clock, until=ends_at)

    async def _cut_off(self, in_work: set[asyncio.Task[Any]], clock: AwakeClock) -> None:
        """Cancel what is in work; the middleware answers each of them 503."""
        logger.warning("cutting off %d request%s", len(in_work), "" if len(in_work) == 1 else "s")
        if self._forced_by is not None:
            self.exit_code = 128 + self._forced_by  # as if the signal had ended it
        for task in in_work:
            task.cancel()
        ends_at = clock.now() + _LAST_WORDS_S
        await asyncio.wait(in_work, timeout=_LAST_WORDS_S)
        # Answers on their way out.
        await _wait_for(lambda: not self.server_state.connections, clock, until=ends_at)


async def _wait_for(condition: Callable[[], bool], clock: AwakeClock, *, until: float) -> None:
    # Neither a signal handler nor uvicorn's sets can set an event.
    while not condition() and clock.now() < until:  # noqa: ASYNC110 - set from a signal handler
        await asyncio.sleep(_STEP_S)


def _url(host: str, port: int, *, secure: bool) -> str:
    scheme = "https" if secure else "http"
    reachable = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"

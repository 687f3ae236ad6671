"""``conche serve``: one process, one event loop, one copy of each model."""

import logging
import os
import resource
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from service.cli import process
from service.cli.options import read_settings, settings_flags
from service.cli.tls import TlsError, TlsFiles
from service.settings import OFF, Settings

logger = logging.getLogger(__name__)

# Libraries, models, stores, the event loop, connections that are refused.
_OTHER_FILES: Final = 256


@click.command()
@settings_flags()
def serve(**flags: str | None) -> None:
    """Serve over HTTP until interrupted.

    Each flag can be set by its environment variable as well; the flag goes first.

    The first Ctrl-C or SIGTERM lets requests in work finish, the second stops at once. Exit code 0 after a
    stop in order, 1 if the start failed, 70 if a model hung or broke at work (CONCHE_RECYCLE_SECONDS), or
    the event loop or the start hung (CONCHE_LOOP_STALL_SECONDS, CONCHE_STARTUP_SECONDS), 128 + the signal's
    number if a second signal cut requests off.
    """
    settings = read_settings(flags)
    # A signal while the libraries load: nothing has begun, and process 1 of a container would ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from service.app import create_app, create_metrics_app
    from service.cli.metrics_server import MetricsServer
    from service.cli.server import Server
    from service.lifespan import StartupError
    from service.log_config import configure_logging

    configure_logging(settings.log_level, settings.log_format)
    _allow_open_files(settings.limits.max_connections)
    with ExitStack() as stack:
        # Bound before the models are loaded: a port in use is said at once.
        listener = stack.enter_context(_bind(settings.host, settings.port, "port"))
        metrics_listener = None
        if isinstance(settings.metrics_port, int):
            metrics_listener = stack.enter_context(
                _bind(settings.host, settings.metrics_port, "metrics_port")
            )
        try:
            tls = _tls(settings)
            app = create_app(settings)
            server = Server(settings, app, tls=tls)
            if metrics_listener is not None:
                server.metrics_server = MetricsServer(
                    create_metrics_app(settings, app.state.metrics),
                    metrics_listener,
                    limits=settings.limits,
                    metrics=app.state.metrics,
                    context=None if tls is None else tls.context,
                )
        except (StartupError, TlsError) as error:
            raise click.ClickException(str(error)) from error
        try:
            server.run_until_stopped(listener)
        except click.ClickException as error:
            error.show()
    process.end(server.exit_code)


def _allow_open_files(connections: int) -> None:
    """Raise the process's own limit to what so many connections need: without a file none can be refused."""
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning(
            "this process may open %d files, too few for %d connections; raise it (ulimit -n) or lower "
            "CONCHE_LIMITS__MAX_CONNECTIONS",
            allowed,
            connections,
        )


def _tls(settings: Settings) -> TlsFiles | None:
    if settings.tls_cert == OFF:
        return None
    return TlsFiles(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())


def _bind(host: str, port: int, setting: str) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another with "
            f"--{setting.replace('_', '-')} or CONCHE_{setting.upper()}"
        ) from error
    return listener

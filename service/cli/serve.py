"""``conche serve``: one process, one event loop, one copy of each model; or several such behind one port."""

import logging
import os
import resource
import signal
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import click

from model.runtime.allocation import bound_free_memory
from model.runtime.threads import available_cpus, thread_count
from service.cli import process
from service.cli.announcement import announce
from service.cli.garbage import expect_to_keep
from service.cli.options import read_settings, settings_flags
from service.cli.tls import TlsError, TlsFiles
from service.cli.worker_link import WorkerLink
from service.log_config import configure_logging, label_lines
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
    configure_logging(settings.log_level, settings.log_format)
    with ExitStack() as stack:
        # Bound before the models are loaded: a port in use is said at once.
        listener = stack.enter_context(_bind(settings.host, settings.port, "port"))
        metrics_listener = None
        if isinstance(settings.metrics_port, int):
            metrics_listener = stack.enter_context(
                _bind(settings.host, settings.metrics_port, "metrics_port")
            )
        try:
            if settings.workers == 1:
                code = _serve(settings, listener, metrics_listener)
            else:
                code = _supervise(settings, listener, metrics_listener)
        except click.ClickException as error:
            error.show()
            code = error.exit_code  # models may be loading, in threads that an exit as usual would run into
    process.end(code)


def _supervise(settings: Settings, listener: socket.socket, metrics_listener: socket.socket | None) -> int:
    """Have several processes serve; this one loads nothing that they need."""
    from service.cli.supervisor import Supervisor

    began_at = time.perf_counter()
    if settings.threads == "auto":
        share = thread_count(available_cpus() / settings.workers)
        settings = settings.model_copy(update={"threads": share})

    def work(link: WorkerLink) -> int:
        label_lines(worker=link.number)
        # Set for all cores when the command began; see there.
        if os.environ.get("OPENBLAS_NUM_THREADS") == str(thread_count()):
            os.environ["OPENBLAS_NUM_THREADS"] = str(settings.threads)
        try:
            return _serve(settings, listener, metrics_listener, link, began_at=began_at)
        except click.ClickException as error:
            error.show()
            return error.exit_code

    listeners = [listener] if metrics_listener is None else [listener, metrics_listener]
    return Supervisor(settings, listeners, work, announce).run()


def _serve(
    settings: Settings,
    listener: socket.socket,
    metrics_listener: socket.socket | None,
    link: WorkerLink | None = None,
    *,
    began_at: float | None = None,
) -> int:
    """Serve in this process until told to stop; the exit code.

    Args:
        settings: of the process.
        listener: bound.
        metrics_listener: the same, for metrics only; None = they are on the other.
        link: to the supervisor; None if there is none.
        began_at: when the start began, as ``time.perf_counter`` tells it; None = now.

    Raises:
        click.ClickException: what is needed cannot be used.
    """
    from service.bundle_reading import begin_reading

    bound_free_memory()
    expect_to_keep()
    reader = begin_reading(settings)  # beside all that is imported from here on
    from service.app import create_app, create_metrics_app
    from service.cli.metrics_server import MetricsServer
    from service.cli.server import Server
    from service.lifespan import StartupError, open_services

    _allow_open_files(settings.limits.max_connections)
    try:
        tls = _tls(settings)
        app = create_app(settings, services=partial(open_services, reader=reader), team=link)
        server = Server(settings, app, tls=tls, link=link, began_at=began_at)
        if metrics_listener is not None:
            server.metrics_server = MetricsServer(
                create_metrics_app(settings, app.state.metrics, team=app.state.team),
                metrics_listener,
                limits=settings.limits,
                metrics=app.state.metrics,
                context=None if tls is None else tls.context,
            )
    except (StartupError, TlsError) as error:
        raise click.ClickException(str(error)) from error
    server.run_until_stopped(listener)
    return server.exit_code


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

"""``conche serve``: one process, one event loop, one copy of each model."""

import os
import signal
import socket

import click

from service.cli import process
from service.cli.options import read_settings, settings_flags
from service.settings import Settings


@click.command()
@settings_flags()
def serve(**flags: str | None) -> None:
    """Serve over HTTP until interrupted.

    Each flag can be set by its environment variable as well; the flag goes first.

    The first Ctrl-C or SIGTERM lets requests in work finish, the second stops at once. Exit code 0 after a
    stop in order, 1 if the start failed, 128 + the signal's number if a second signal cut requests off.
    """
    settings = read_settings(flags)
    # A signal while the libraries load: nothing has begun, and process 1 of a container would ignore it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from service.app import create_app
    from service.cli.server import Server
    from service.lifespan import StartupError
    from service.log_config import configure_logging

    configure_logging(settings.log_level, settings.log_format)
    # Bound before the models are loaded: a port in use is said at once.
    with _bind(settings) as listener:
        try:
            server = Server(settings, create_app(settings))
        except StartupError as error:
            raise click.ClickException(str(error)) from error
        try:
            server.run_until_stopped(listener)
        except click.ClickException as error:
            error.show()
    process.end(server.exit_code)


def _bind(settings: Settings) -> socket.socket:
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "choose another with --port or CONCHE_PORT"
        ) from error
    return listener

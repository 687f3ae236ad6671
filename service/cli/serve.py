"""``conche serve``: one process, one event loop, one copy of each model."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
import sys
import time
from importlib import metadata
from types import FrameType
from typing import Final

import click
import uvicorn
from fastapi import FastAPI

from model.runtime.bundle import Manifest
from service.app import create_app
from service.cli.options import read_settings, settings_flags
from service.lifespan import Services
from service.log_config import configure_logging
from service.settings import Settings

logger = logging.getLogger(__name__)

_DELAY_STEP_S: Final = 0.05


@click.command()
@settings_flags()
def serve(**flags: str | None) -> None:
    """Serve over HTTP until interrupted.

    Each flag can be set by its environment variable as well; the flag goes first.
    """
    settings = read_settings(flags)
    configure_logging(settings.log_level, settings.log_format)
    # Bound before the models are loaded: a port in use is said at once.
    with _bind(settings) as listener:
        server = _Server(settings, create_app(settings))
        server.run_until_stopped(listener)
    if not server.started and not server.interrupted:
        raise SystemExit(1)  # the reason was logged


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


class _Server(uvicorn.Server):
    """uvicorn, with readiness red before the sockets close, and a greeting."""

    def __init__(self, settings: Settings, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http="httptools",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_seconds,
                timeout_graceful_shutdown=settings.shutdown_grace_seconds,
            )
        )
        self._settings = settings
        self._app = app
        self._began_at = time.perf_counter()
        self.interrupted = False

    def run_until_stopped(self, listener: socket.socket) -> None:
        """Serve on ``listener`` until SIGINT or SIGTERM; returns when all is closed."""
        # uvicorn raises the signal again once it has shut down; by then there is nothing left to interrupt,
        # and the process should end with exit code 0 rather than as killed.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        with contextlib.suppress(SystemExit):  # how uvicorn ends after a failed start, and we before one
            self.run(sockets=[listener])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal of either kind stops waiting for requests in work.

        Raises:
            SystemExit: nothing is served yet, so there is nothing to wait for; a large FAQ may take minutes.
        """
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
        if not self.started:
            self.interrupted = True
            raise SystemExit(0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load, listen, then say what there is."""
        await super().startup(sockets)
        if self.started and sockets:
            seconds = time.perf_counter() - self._began_at
            url = _url(self._settings.host, sockets[0].getsockname()[1])
            services: Services = self._app.state.services
            if self._settings.log_format == "json":  # somebody collects lines, and wants no pages among them
                logger.info("ready", extra=summary(services, url=url, seconds=seconds))
            else:
                _greet(greeting(services, url=url, seconds=seconds))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Turn /readyz red, give load balancers time to see it, then drain."""
        services: Services = self._app.state.services
        services.draining = True
        for _ in range(round(self._settings.shutdown_delay_seconds / _DELAY_STEP_S)):
            if self.force_exit:  # set by a signal handler, where an asyncio.Event must not be touched
                break
            await asyncio.sleep(_DELAY_STEP_S)
        await super().shutdown(sockets)


def summary(services: Services, *, url: str, seconds: float) -> dict[str, object]:
    """What was loaded, as fields of a log line."""
    return {
        "url": url,
        "seconds": round(seconds, 2),
        "threads": services.threads,
        "embedding": services.embedder and _model(services.embedder.manifest),
        "ner": services.tagger and _model(services.tagger.manifest),
        "faq_entries": 0 if services.searcher is None else len(services.searcher.index),
        "unavailable": {route: absence.reason for route, absence in services.absences.items()},
    }


def greeting(services: Services, *, url: str, seconds: float) -> str:
    """What was loaded, and requests to paste."""
    lines = [f"Conche {metadata.version('conche')}, ready in {seconds:.1f} s with {services.threads} threads"]
    if services.embedder is not None:
        lines.append(f"  embeddings  {_model(services.embedder.manifest)}")
    if services.tagger is not None:
        lines.append(f"  entities    {_model(services.tagger.manifest)}")
    if services.searcher is not None:
        lines.append(f"  FAQ         {len(services.searcher.index)} entries ({services.faq_source})")
    lines += [f"  {route:<11} off: {absence.reason}" for route, absence in services.absences.items()]
    lines += ["", "Try:"]
    if services.embedder is not None:
        lines.append(_curl(url, "/embed", {"inputs": ["怎么申请退款？", "How do I get a refund?"]}))
    if services.searcher is not None:
        lines.append(_curl(url, "/search", {"query": "怎么退货？", "top_k": 2}))
    if services.tagger is not None:
        lines.append(
            _curl(url, "/ner", {"inputs": "Ada Lovelace met Charles Babbage in London. 李娜住在北京。"})
        )
    lines += ["", f"Documentation: {url}/docs   Metrics: {url}/metrics   Stop: Ctrl-C"]
    return "\n".join(lines)


def _url(host: str, port: int) -> str:
    reachable = "127.0.0.1" if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def _model(manifest: Manifest) -> str:
    megabytes = sum(entry.size for entry in manifest.files.values()) / 1e6
    languages = "+".join(manifest.languages)
    return f"{manifest.name} ({languages}, {megabytes:.0f} MB, {manifest.licence})"


def _curl(url: str, path: str, body: dict[str, object]) -> str:
    data = json.dumps(body, ensure_ascii=False)
    return f"  curl -s {url}{path} -H 'content-type: application/json' -d '{data}'"


def _greet(text: str) -> None:
    """Write to standard output, whose encoding may know no Chinese."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, errors="replace").decode(encoding))

"""``create_app``: routers, middleware, error handlers, lifespan. Wiring only."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.access import Access, document_keys
from service.api_keys import KeyFileError, KeyRing
from service.cors import CorsHeaders, Preflight
from service.direct_routes import DirectRoutes
from service.errors import (
    ForbiddenError,
    RateLimitedError,
    ServiceError,
    TooManyConcurrentError,
    UnauthorizedError,
)
from service.http_errors import (
    MalformedUrlError,
    MethodNotAllowedError,
    RequestTimeoutError,
    UnknownPathError,
    document_bodies,
    documented_codes,
    install_error_handlers,
    status_of,
)
from service.lifespan import Services, StartupError, open_services
from service.metrics import Metrics
from service.middleware import BodyLimit, RequestContext, RequestRecord, StartupErrors
from service.request_trace import MakesTraces
from service.routes import (
    admin,
    classify,
    docs,
    embed,
    faq,
    health,
    info,
    metrics,
    ner,
    openai,
    search,
    tei,
)
from service.settings import OFF, Settings
from service.team import METRICS, REINDEX, Alone, Team
from service.timing_headers import TimingHeaders

if TYPE_CHECKING:  # newer than the oldest FastAPI that will do, to which the argument means nothing
    from fastapi.telemetry import TelemetryConfig

OpenServices = Callable[[Settings, Metrics], AbstractAsyncContextManager[Services]]

# Those asked most come first: a request is compared with the routes one by one.
ROUTERS = [
    module.router
    for module in (embed, openai, search, ner, tei, classify, faq, health, admin, info, metrics, docs)
]
KEY_ERRORS = (UnauthorizedError, ForbiddenError, RateLimitedError, TooManyConcurrentError)

DESCRIPTION = "Sentence embeddings, FAQ search and named entities in Chinese and English, from one process."


# FastAPI's own takes paths, queries and messages of exceptions into spans and logs where a global provider
# is set; any of them may quote a text.
NO_TELEMETRY: "TelemetryConfig" = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


class Traces(MakesTraces, Protocol):
    """Traces requests, and sends what it has when it is closed."""

    def close(self) -> None:
        """Take no more."""
        ...


def create_app(
    settings: Settings,
    *,
    services: OpenServices = open_services,
    traces: Traces | None = None,
    team: Team | None = None,
) -> FastAPI:
    """The application; nothing is loaded before its lifespan begins.

    Args:
        settings: read once, by the caller.
        services: opens what the routes need; tests pass fakes.
        traces: closed with the app; None = as the settings say.
        team: the workers that share the port, this one among them; None = it is by itself.

    Raises:
        StartupError: the file of API keys cannot be used, or tracing cannot be set up.
    """
    traces = traces or _open_tracing(settings)
    team = team or Alone()
    registry = Metrics()
    team.answer(METRICS, lambda _: registry.snapshot())
    keys = _open_keys(settings, registry)
    if keys is not None:
        registry.watch_keys(keys)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            routes_known = asyncio.create_task(asyncio.to_thread(_work_out_routes, app))
            async with services(settings, registry) as opened:
                app.state.services = opened
                await routes_known
                team.answer(REINDEX, partial(_reindex_status, opened))
                registry.watch_readiness(opened.not_ready)
                yield
        finally:
            if traces is not None:
                await asyncio.to_thread(traces.close)

    app = FastAPI(
        title="Conche",
        description=DESCRIPTION,
        version=metadata.version("conche"),
        lifespan=lifespan,
        telemetry=NO_TELEMETRY,
        docs_url=None,  # FastAPI's pages fetch their scripts from a CDN; ours does not
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.metrics = registry
    app.state.team = team
    app.state.startup_error = None  # why the lifespan could not begin, for whoever runs the app
    # With a port of its own /metrics is there and nowhere else.
    elsewhere = [] if settings.metrics_port == OFF else [metrics.router]
    routers = [router for router in ROUTERS if router not in elsewhere]
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes]
    install_error_handlers(app, [*app.routes, *routes])

    registry.expect_requests(
        {
            (method, route.path_format): documented_codes(route.responses)
            for route in routes
            if isinstance(route, APIRoute)
            for method in route.methods or ()
        },
        on_any=_series(ServiceError, RequestTimeoutError, *(KEY_ERRORS if keys is not None else ())),
        on_wrong_method=_series(MethodNotAllowedError),
        on_no_route=_series(UnknownPathError, MalformedUrlError),
    )

    def keep_startup_error(error: Exception) -> None:
        app.state.startup_error = error

    # Added last = outermost.
    app.add_middleware(DirectRoutes, routes=routes)
    app.add_middleware(BodyLimit, limit=settings.limits.max_body_bytes, within_s=settings.limits.body_seconds)
    _document(app, document_bodies)
    if keys is not None:
        app.add_middleware(Access, keys=keys, routes=routes, metrics_need_key=settings.metrics_need_key)
        _document(app, partial(document_keys, metrics_need_key=settings.metrics_need_key))
    origins = settings.allowed_origins()
    if origins:
        app.add_middleware(Preflight, origins=origins)
    app.add_middleware(TimingHeaders)
    _add_context(app, settings, registry, traces)
    if origins:
        app.add_middleware(CorsHeaders, origins=origins)
    app.add_middleware(StartupErrors, expected=(StartupError,), report=keep_startup_error)
    return app


def _work_out_routes(app: FastAPI) -> None:
    """Have FastAPI work out what each included router's routes take, which it puts off until it is asked.

    It takes a quarter of a second, which would be the first request's; here models are loading meanwhile.
    """
    nowhere = {"type": "http", "method": "GET", "path": "/", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(dict(nowhere))


def create_metrics_app(settings: Settings, registry: Metrics, *, team: Team | None = None) -> FastAPI:
    """What answers on a port for metrics only: /metrics, with the same errors, keys and log lines.

    Args:
        settings: read once, by the caller.
        registry: of the application whose metrics these are.
        team: of that application.

    Raises:
        StartupError: a key is needed, and the file of API keys cannot be used.
    """
    app = FastAPI(
        docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False, telemetry=NO_TELEMETRY
    )
    app.state.metrics = registry
    app.state.team = team or Alone()
    app.include_router(metrics.router)
    install_error_handlers(app, metrics.router.routes)
    # Of its own: it runs in another thread, and the file is read when a key is looked for.
    keys = _open_keys(settings, registry) if settings.metrics_need_key else None
    _document(app, document_bodies)
    if keys is not None:
        app.add_middleware(Access, keys=keys, routes=metrics.router.routes, metrics_need_key=True)
    _add_context(app, settings, registry)
    return app


def _reindex_status(services: Services, words: Sequence[str]) -> dict[str, Any] | None:
    (collection,) = words
    status = None if services.catalogue is None else services.catalogue.reindex_status(collection)
    return None if status is None else asdict(status)


def _open_tracing(settings: Settings) -> Traces | None:
    if not settings.tracing:
        return None
    try:
        from service.tracing import TracingError, open_tracing  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise StartupError(
            "CONCHE_TRACING needs OpenTelemetry's SDK, which is not installed: pip install -e '.[tracing]'"
        ) from error
    try:
        return open_tracing()
    except TracingError as error:
        raise StartupError(f"CONCHE_TRACING: {error}") from error


def _add_context(
    app: FastAPI, settings: Settings, registry: Metrics, traces: MakesTraces | None = None
) -> None:
    def observe(record: RequestRecord) -> None:
        registry.observe_request(
            method=record.method,
            route=record.route,
            status=record.status,
            code=record.code,
            seconds=record.seconds,
            key=record.key,
            trace_id=record.trace_id,
        )

    app.add_middleware(
        RequestContext,
        timeout_s=settings.limits.request_seconds,
        observe=observe,
        log_probes=settings.log_probes,
        log_share=settings.access_log_sample,
        log_slower_s=settings.access_log_slow_ms / 1000,
        traces=traces,
    )


def _series(*kinds: type[ServiceError]) -> list[tuple[int, str]]:
    """(HTTP status, code) of each; two kinds may share one of them, or both."""
    return sorted({(int(status_of(kind)), kind.code) for kind in kinds})


def _open_keys(settings: Settings, metrics: Metrics) -> KeyRing | None:
    if settings.api_keys_file == OFF:
        return None
    try:
        keys = KeyRing(
            Path(settings.api_keys_file).expanduser(), on_reload_failure=metrics.on_key_reload_failure
        )
    except KeyFileError as error:
        raise StartupError(f"CONCHE_API_KEYS_FILE: {error}") from error
    return keys


def _document(app: FastAPI, add: Callable[[dict[str, Any]], None]) -> None:
    """Have ``add`` change the OpenAPI document, once it is asked for."""
    without = app.openapi

    def with_more() -> dict[str, Any]:
        if app.openapi_schema is None:
            add(without())
        return app.openapi_schema or {}

    app.openapi = with_more  # type: ignore[method-assign]  # as FastAPI's documentation has it

"""``create_app``: routers, middleware, error handlers, lifespan. Wiring only."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import metadata

from fastapi import FastAPI
from fastapi.routing import APIRoute

from service.errors import ServiceError
from service.http_errors import (
    MalformedUrlError,
    MethodNotAllowedError,
    RequestTimeoutError,
    UnknownPathError,
    documented_codes,
    install_error_handlers,
    status_of,
)
from service.lifespan import Services, StartupError, open_services
from service.metrics import Metrics
from service.middleware import BodyLimit, RequestContext, RequestRecord, StartupErrors
from service.routes import admin, docs, embed, faq, health, info, metrics, ner, openai, search, tei
from service.settings import Settings

OpenServices = Callable[[Settings, Metrics], AbstractAsyncContextManager[Services]]

DESCRIPTION = "Sentence embeddings, FAQ search and named entities in Chinese and English, from one process."


def create_app(settings: Settings, *, services: OpenServices = open_services) -> FastAPI:
    """The application; nothing is loaded before its lifespan begins.

    Args:
        settings: read once, by the caller.
        services: opens what the routes need; tests pass fakes.
    """
    registry = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with services(settings, registry) as opened:
            app.state.services = opened
            yield

    app = FastAPI(
        title="Conche",
        description=DESCRIPTION,
        version=metadata.version("conche"),
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages fetch their scripts from a CDN; ours does not
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.metrics = registry
    app.state.startup_error = None  # why the lifespan could not begin, for whoever runs the app
    install_error_handlers(app)
    routers = [
        module.router for module in (embed, search, ner, faq, openai, tei, admin, health, info, metrics, docs)
    ]
    for router in routers:
        app.include_router(router)

    registry.expect_requests(
        {
            (method, route.path_format): documented_codes(route.responses)
            for router in routers
            for route in router.routes
            if isinstance(route, APIRoute)
            for method in route.methods or ()
        },
        on_any=_series(ServiceError, RequestTimeoutError),
        on_wrong_method=_series(MethodNotAllowedError),
        on_no_route=_series(UnknownPathError, MalformedUrlError),
    )

    def observe(record: RequestRecord) -> None:
        registry.observe_request(
            method=record.method,
            route=record.route,
            status=record.status,
            code=record.code,
            seconds=record.seconds,
        )

    def keep_startup_error(error: Exception) -> None:
        app.state.startup_error = error

    # Added last = outermost.
    app.add_middleware(BodyLimit, limit=settings.limits.max_body_bytes)
    app.add_middleware(
        RequestContext,
        timeout_s=settings.limits.request_seconds,
        observe=observe,
        log_probes=settings.log_probes,
    )
    app.add_middleware(StartupErrors, expected=(StartupError,), report=keep_startup_error)
    return app


def _series(*kinds: type[ServiceError]) -> list[tuple[int, str]]:
    """(HTTP status, code) of each; two kinds may share one of them, or both."""
    return sorted({(int(status_of(kind)), kind.code) for kind in kinds})

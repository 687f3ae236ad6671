"""Who may do what, as plain ASGI: decided by the key, the method and the path, before any body is read."""

import re
from collections.abc import Sequence
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from service.api_keys import KeyHolder, KeyRing, Scope
from service.errors import ForbiddenError, RateLimitedError, ServiceError, UnauthorizedError
from service.http_errors import ErrorBody, OpenAIErrorBody, in_openai_interface

# What probes and browsers ask for before they can have a key; nothing of the FAQ or of callers is in it.
OPEN_PATHS: Final = frozenset({"/", "/docs", "/health", "/livez", "/openapi.json", "/readyz"})

_READERS: Final = frozenset({"GET", "HEAD"})
# POST because of their bodies; they change nothing.
_FAQ_READ_BY_POST: Final = re.compile(r"/faq/[^/]+/evaluate")


def scope_for(method: str, path: str, *, metrics_need_key: bool = False) -> Scope | None:
    """The scope that a request takes; None = it takes no key.

    What is not named here changes nothing and takes `read`: so does a path that leads nowhere.

    Args:
        method: of the request, in capitals.
        path: of the request, decoded.
        metrics_need_key: whether /metrics takes `read`; else no key.
    """
    reading = method in _READERS
    if reading and path in OPEN_PATHS:
        return None
    if path == "/metrics":
        return "read" if metrics_need_key or not reading else None
    if path == "/admin" or path.startswith("/admin/"):
        return "admin"
    # Whoever may change the FAQ must not also take away the way back, nor fill the disk.
    if not reading and path.startswith("/snapshots"):
        return "admin"
    if not reading and path.startswith("/faq") and not _FAQ_READ_BY_POST.fullmatch(path):
        return "write"
    return "read"


def document_keys(document: dict[str, Any], *, metrics_need_key: bool) -> None:
    """Say in an OpenAPI document which operations take a key, and what they answer without it."""
    document.setdefault("components", {})["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            needed = scope_for(method.upper(), path, metrics_need_key=metrics_need_key)
            if needed is None:
                continue
            operation["security"] = [{"bearer": []}, {"header": []}]
            error = OpenAIErrorBody if in_openai_interface(path) else ErrorBody
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error.__name__}"}}}
            for status, said in (
                ("401", f"`unauthorized`: {UnauthorizedError.__doc__}"),
                ("403", f"`forbidden`: the API key lacks the scope `{needed}`."),
                ("429", f"`rate_limited`, `too_many_concurrent`: {RateLimitedError.__doc__}"),
            ):
                answer = operation["responses"].setdefault(status, {"description": "", "content": content})
                answer["description"] = f"{answer['description']}\n\n{said}".strip()


class Access:
    """Let a request pass if its key has the scope that it takes, and within what the key may use.

    Inside ``RequestContext``, whose id, log line and metrics a refusal gets; around everything that reads.
    """

    def __init__(
        self, app: ASGIApp, *, keys: KeyRing, routes: Sequence[BaseRoute], metrics_need_key: bool
    ) -> None:
        self._app = app
        self._keys = keys
        self._routes = routes
        self._metrics_need_key = metrics_need_key

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection.

        Raises:
            UnauthorizedError: there is no key, or nobody has it.
            ForbiddenError: the key lacks the scope.
            RateLimitedError, TooManyConcurrentError: the key has used up what it may.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        needed = scope_for(scope["method"], scope["path"], metrics_need_key=self._metrics_need_key)
        if needed is None:
            await self._app(scope, receive, send)
            return
        try:
            holder = self._holder(scope, needed)
            holder.begin()
        except ServiceError:
            self._name_route(scope)
            raise
        try:
            await self._app(scope, receive, send)
        finally:
            holder.end()

    def _holder(self, scope: AsgiScope, needed: Scope) -> KeyHolder:
        presented = presented_key(Headers(scope=scope))
        holder = None if presented is None else self._keys.find(presented)
        if holder is None:
            raise UnauthorizedError(
                "send an API key of this service, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        scope["conche.key"] = holder.key.name
        if needed not in holder.key.scopes:
            raise ForbiddenError(f"this takes a key with the scope `{needed}`")
        return holder

    def _name_route(self, scope: AsgiScope) -> None:
        """Find the route that would have answered, for the log and the metrics."""
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                scope["route"] = route
                return


def presented_key(headers: Headers) -> bytes | None:
    """The key that a request brings; None if it brings none.

    ``x-api-key`` goes first: a proxy in front may have put credentials of its own into ``Authorization``.
    Some clients send the key there without the word Bearer.
    """
    key = headers.get("x-api-key")
    if key is None:
        scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
        key = scheme if not credentials else credentials if scheme.lower() == "bearer" else ""
    key = key.strip()
    return key.encode("latin-1") if key else None

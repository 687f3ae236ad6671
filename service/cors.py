"""What browsers ask before a page of another origin may use the service, as plain ASGI; only if set.

Source: the Fetch standard, section 3.2 (CORS protocol).
"""

import re
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.response_headers import RESULT_HEADERS

ANY_ORIGIN: Final = "*"

_METHODS: Final = "GET, HEAD, POST, PUT, PATCH, DELETE"
_ALLOWED: Final = "authorization, content-type, x-api-key, x-request-id"
_EXPOSED: Final = ", ".join(
    (
        *RESULT_HEADERS,
        "content-disposition",
        "retry-after",
        "retry-after-ms",
        "www-authenticate",
        "x-request-id",
    )
)
_HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9_-]+(\s*,\s*[A-Za-z0-9_-]+)*")
_MOST_NAMES_CHARACTERS: Final = 2000
_PREFLIGHT_SECONDS: Final = 600  # as long as most browsers keep it


class CorsHeaders:
    """Add to every answer, errors of any kind included, that pages of allowed origins may read it.

    Outermost, or an error made further out would look to a page like no answer at all.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add(MutableHeaders(scope=message), origin)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _add(self, headers: MutableHeaders, origin: str | None) -> None:
        if ANY_ORIGIN in self._origins:
            if origin is None:
                return
            headers["access-control-allow-origin"] = ANY_ORIGIN
        else:
            headers.add_vary_header("Origin")
            if origin not in self._origins:
                return
            headers["access-control-allow-origin"] = str(origin)
            # A proxy in front may know its users by a cookie. Never for any origin: then any page could.
            headers["access-control-allow-credentials"] = "true"
        headers["access-control-expose-headers"] = _EXPOSED


class Preflight:
    """Answer a browser's question whether a page may send a request; before a key is asked for: it has none.

    The headers that a page asks for are allowed whatever they are called: clients of OpenAI's send many of
    their own, and none but the key means anything here.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            headers = Headers(scope=scope)
            allowed = ANY_ORIGIN in self._origins or headers.get("origin") in self._origins
            if allowed and "origin" in headers and "access-control-request-method" in headers:
                await _permit(headers.get("access-control-request-headers", ""))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _permit(wanted: str) -> Response:
    usable = len(wanted) <= _MOST_NAMES_CHARACTERS and _HEADER_NAMES.fullmatch(wanted.strip())
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": _METHODS,
            "access-control-allow-headers": f"{_ALLOWED}, {wanted.strip()}" if usable else _ALLOWED,
            "access-control-max-age": str(_PREFLIGHT_SECONDS),
        },
    )

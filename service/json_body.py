"""Strict JSON bodies: announced as JSON, UTF-8, finite numbers, bounded depth; refused before validation."""

import json
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute

from service.errors import UnavailableError
from service.http_errors import MalformedBodyError, UnsupportedMediaTypeError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_TYPE = re.compile(r"application/(\S+\+)?json")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json(body: bytes) -> Any:
    """The value of a JSON text; half a surrogate pair in a string is kept, for validation to name its index.

    Raises:
        MalformedBodyError: not UTF-8, not strict JSON (``NaN`` and ``1e999`` included), or nested too deep.
        UnavailableError: there is no memory to read it.
    """
    body = body.removeprefix(_BYTE_ORDER_MARK)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "memory" in error.msg:  # how orjson says that it got none; the body may be right
            raise UnavailableError("there is no memory to read the body at the moment") from error
        fault = f"the body is not JSON: {error.msg} (character {error.pos})"
    if _SURROGATE_ESCAPE.search(body):
        try:
            # The standard library reads lone surrogates, which orjson refuses without saying in which item.
            return json.loads(body.decode(), parse_constant=_refuse_constant, parse_float=_finite)
        except (ValueError, RecursionError):
            pass
    raise MalformedBodyError(fault)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if math.isinf(value):
        raise ValueError("a number is too large for JSON readers")
    return value


def require_json(content_type: str | None) -> None:
    """Refuse a body that is not announced as JSON.

    Args:
        content_type: the header; None if there is none.

    Raises:
        UnsupportedMediaTypeError: it names something else, or nothing.
    """
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if not _JSON_TYPE.fullmatch(media_type):
        raise UnsupportedMediaTypeError("send the body with the header content-type: application/json")


class _ParsedRequest(Request):
    """A request whose JSON has been read by ``parse_json`` and lies in the scope, for error messages too."""

    async def json(self) -> Any:
        """The body's value, parsed once."""
        return self.scope["conche.body"]


class StrictJsonRoute(APIRoute):
    """A route that checks media type and JSON before FastAPI looks at the body.

    `service.direct_routes` does the same without FastAPI, where it can.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """FastAPI's handler, behind the checks."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            if self.body_field is None:
                return await handle(request)
            require_json(request.headers.get("content-type"))
            strict = _ParsedRequest(request.scope, request.receive)
            # Parsed here, because FastAPI turns whatever goes wrong inside its own reading into a plain 400.
            if "conche.body" not in strict.scope:
                strict.scope["conche.body"] = parse_json(await strict.body())
            return await handle(strict)

        return handle_strictly

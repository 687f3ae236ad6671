"""Error type -> HTTP answer: one table, one body, the handlers, and the OpenAPI entries.

Every answer that is not a success is JSON, on every path. The routes of the OpenAI interface nest it as
OpenAI does, all others have a flat body, which clients of text-embeddings-inference read as well::

    {"error": {"message": "...", "type": "invalid_request_error", "param": "input", "code": "input_too_long",
               "index": 3}, "request_id": "..."}

    {"error": "...", "error_type": "Validation", "code": "input_too_long", "index": 3, "param": "inputs",
     "request_id": "..."}

The errors defined here are those that only HTTP can make: a body that is no JSON, a path that leads nowhere.
"""

import math
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from service.absence import FaqFailedError, ModelFailedError, NoFaqError, NoModelError
from service.admission import TooManyCharactersError
from service.errors import (
    ConflictError,
    EmptyInputError,
    ForbiddenError,
    InferenceError,
    InvalidInputError,
    InvalidTextError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    ReadOnlyStoreError,
    ServiceError,
    StorageError,
    StorageFullError,
    TooManyInputsError,
    UnauthorizedError,
    UnavailableError,
)


class MalformedBodyError(InvalidInputError):
    """The body is not strict JSON in UTF-8."""

    code = "malformed_json"


class MalformedUrlError(InvalidInputError):
    """The path or the query is not UTF-8, percent-encoded."""

    code = "malformed_url"


class UnsupportedMediaTypeError(InvalidInputError):
    """The body is not announced as a type that the route reads."""

    code = "unsupported_media_type"


class MalformedRequestError(InvalidInputError):
    """What was sent is no HTTP/1.1 request."""

    code = "malformed_request"


class HeadersTooLargeError(InvalidInputError):
    """URL and headers are larger, or more, than the service reads."""

    code = "headers_too_large"


class SlowRequestError(ServiceError):
    """The request, its body included, came in too slowly."""

    code = "request_timeout"


class TooManyConnectionsError(UnavailableError):
    """As many connections are open as may be; the message names the setting."""

    code = "too_many_connections"


class UnknownPathError(NotFoundError):
    """No route has this path."""

    code = "unknown_path"


class MethodNotAllowedError(ServiceError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"


class RequestTimeoutError(UnavailableError):
    """The answer took longer than ``limits.request_seconds``."""

    code = "timeout"


# Of an OpenAPI response: the codes that its body may have.
_CODES: Final = "x-error-codes"
_REFERENCE: Final = "#/components/schemas/{model}"
# A field that there is not is named if it could be one, mistyped; any other key may be a text.
_FIELD_NAME: Final = re.compile("[A-Za-z_]{1,20}")

STATUS: dict[type[ServiceError], HTTPStatus] = {  # looked up along the MRO
    ServiceError: HTTPStatus.INTERNAL_SERVER_ERROR,
    InvalidInputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    MalformedBodyError: HTTPStatus.BAD_REQUEST,
    MalformedUrlError: HTTPStatus.BAD_REQUEST,
    MalformedRequestError: HTTPStatus.BAD_REQUEST,
    HeadersTooLargeError: HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    SlowRequestError: HTTPStatus.REQUEST_TIMEOUT,
    UnsupportedMediaTypeError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NotFoundError: HTTPStatus.NOT_FOUND,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    ConflictError: HTTPStatus.CONFLICT,
    PayloadTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    TooManyCharactersError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    OverloadedError: HTTPStatus.TOO_MANY_REQUESTS,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageError: HTTPStatus.INTERNAL_SERVER_ERROR,
    StorageFullError: HTTPStatus.INSUFFICIENT_STORAGE,
    ReadOnlyStoreError: HTTPStatus.FORBIDDEN,
    UnauthorizedError: HTTPStatus.UNAUTHORIZED,
    ForbiddenError: HTTPStatus.FORBIDDEN,
    InferenceError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# What every route that takes texts may answer. Those that read a text whole add InputTooLongError.
TEXT_ERRORS: tuple[type[ServiceError], ...] = (
    MalformedBodyError,
    PayloadTooLargeError,
    SlowRequestError,
    UnsupportedMediaTypeError,
    InvalidInputError,
    EmptyInputError,
    InvalidTextError,
    TooManyInputsError,
    TooManyCharactersError,
    NoModelError,
    OverloadedError,
    ModelFailedError,
    UnavailableError,
    RequestTimeoutError,
    InferenceError,
)

# What every route of the FAQ may answer, those that only read; and those that write, besides.
FAQ_ERRORS: tuple[type[ServiceError], ...] = (
    MalformedUrlError,
    NoFaqError,
    FaqFailedError,
    StorageError,
    *TEXT_ERRORS,
)
FAQ_WRITE_ERRORS: tuple[type[ServiceError], ...] = (StorageFullError, ReadOnlyStoreError, *FAQ_ERRORS)


class ErrorBody(BaseModel):
    """The body of every answer that is not a success, but for the routes of the OpenAI interface."""

    error: str = Field(description="For people; may change.")
    error_type: str = Field(description="The kind of error, as text-embeddings-inference names it.")
    code: str = Field(description="Stable name of the error.")
    index: int | None = Field(
        description="Position of the offending item, from 0; null if not about one item."
    )
    param: str | None = Field(description="The field at fault; null if not about one field.")
    request_id: str = Field(description="As in the header x-request-id.")


class OpenAIErrorDetail(BaseModel):
    """What went wrong, in OpenAI's terms."""

    message: str = Field(description="For people; may change.")
    type: str = Field(description="The kind of error, as OpenAI names it.")
    param: str | None = Field(description="The field at fault; null if not about one field.")
    code: str = Field(description="Stable name of the error.")
    index: int | None = Field(
        description="Position of the offending item, from 0; null if not about one item."
    )


class OpenAIErrorBody(BaseModel):
    """The body of every answer of the OpenAI interface that is not a success."""

    error: OpenAIErrorDetail
    request_id: str = Field(description="As in the header x-request-id.")


# (text-embeddings-inference, OpenAI); looked up along the MRO.
_TYPES: dict[type[ServiceError], tuple[str, str]] = {
    ServiceError: ("Backend", "server_error"),
    InvalidInputError: ("Validation", "invalid_request_error"),
    EmptyInputError: ("Empty", "invalid_request_error"),
    NotFoundError: ("NotFound", "not_found_error"),
    ConflictError: ("Conflict", "invalid_request_error"),
    MethodNotAllowedError: ("Validation", "invalid_request_error"),
    PayloadTooLargeError: ("Validation", "invalid_request_error"),
    SlowRequestError: ("Validation", "invalid_request_error"),
    UnauthorizedError: ("Unauthorized", "authentication_error"),
    ForbiddenError: ("Forbidden", "permission_error"),
    OverloadedError: ("Overloaded", "rate_limit_error"),
    UnavailableError: ("Unhealthy", "service_unavailable_error"),
}


def in_openai_interface(path: str) -> bool:
    """Whether a path is of the OpenAI interface, where errors are nested."""
    return path == "/embeddings" or path.startswith("/v1/")


def status_of(error: ServiceError | type[ServiceError]) -> HTTPStatus:
    """The HTTP status of an error, by the nearest entry of the table along its MRO."""
    kind = error if isinstance(error, type) else type(error)
    return next(STATUS[parent] for parent in kind.__mro__ if parent in STATUS)


def documented(
    *kinds: type[ServiceError], body: type[BaseModel] = ErrorBody
) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI ``responses`` of a route that raises ``kinds``; from the same table as the answers.

    `documented_codes` reads the codes out of them again. The body is named, not given as a ``model``: FastAPI
    would build a validator of it for each route and status, twice, a third of a second in all at every start.
    `document_bodies` has it in the document.
    """
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model=body.__name__)}}}
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        entry = responses.setdefault(
            int(status_of(kind)), {"content": content, "description": "", _CODES: []}
        )
        entry["description"] = f"{entry['description']}\n\n`{kind.code}`: {_summary(kind)}".strip()
        if kind.code not in entry[_CODES]:
            entry[_CODES].append(kind.code)
    return responses


def document_bodies(document: dict[str, Any]) -> None:
    """Add the bodies that `documented` names to an OpenAPI document."""
    _, schema = models_json_schema(
        [(ErrorBody, "serialization"), (OpenAIErrorBody, "serialization")], ref_template=_REFERENCE
    )
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(schema["$defs"])


def documented_codes(responses: Mapping[int | str, Mapping[str, Any]]) -> set[tuple[int, str]]:
    """(HTTP status, error code) of all errors in a route's ``responses``."""
    return {(int(status), code) for status, entry in responses.items() for code in entry.get(_CODES, ())}


def _summary(kind: type[ServiceError]) -> str:
    """First sentence of the docstring, in Markdown; what follows is for those who read the code."""
    sentence, dot, _ = (kind.__doc__ or "").partition("\n")[0].partition(". ")
    return (sentence + dot.strip()).replace("``", "`")


def error_response(error: ServiceError, request_id: str, path: str) -> Response:
    """The answer for ``error``; nothing of the request is in it but what the error's message says.

    Args:
        error: any.
        request_id: of the request.
        path: of the request; the body has the shape that clients of this path read.
    """
    tei_type, openai_type = next(_TYPES[parent] for parent in type(error).__mro__ if parent in _TYPES)
    body: BaseModel
    if in_openai_interface(path):
        detail = OpenAIErrorDetail(
            message=error.message, type=openai_type, param=error.param, code=error.code, index=error.index
        )
        body = OpenAIErrorBody(error=detail, request_id=request_id)
    else:
        body = ErrorBody(
            error=error.message,
            error_type=tei_type,
            code=error.code,
            index=error.index,
            param=error.param,
            request_id=request_id,
        )
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    if isinstance(error, UnauthorizedError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, PayloadTooLargeError | SlowRequestError):
        headers["connection"] = "close"  # what is left of the body would be taken for the next request
    return Response(
        orjson.dumps(body.model_dump()),
        status_code=status_of(error),
        headers=headers,
        media_type="application/json",
    )


def request_id_of(scope: Scope) -> str:
    """The id that the outermost middleware gave this request."""
    return str(scope.get("conche.request_id", ""))


def service_error_response(scope: Scope, error: ServiceError) -> Response:
    """The answer for ``error`` of the request of ``scope``, where access log and metrics find it."""
    name_as_sent(error, scope.get("conche.body"))
    scope["conche.error"] = error
    return error_response(error, request_id_of(scope), scope["path"])


def name_as_sent(error: ServiceError, body: object) -> None:
    """Make ``inputs[0]`` plain ``inputs`` in an error about a field that was sent as one text, in no list."""
    if error.index == 0 and isinstance(body, dict) and isinstance(body.get(error.param), str):
        error.call_item(str(error.param), index=None)


def forget_frames(faults: Sequence[Any]) -> None:
    """Take from validation's faults the frames that they came through.

    These refer back to the faults and have all of the request: it would stay until Python looks for garbage.

    Args:
        faults: as pydantic and FastAPI tell them.
    """
    for fault in faults:
        error = fault.get("ctx", {}).get("error") if isinstance(fault, dict) else None
        while isinstance(error, BaseException):
            error.__traceback__ = None
            error = error.__context__


def install_error_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer our own errors, FastAPI's validation errors and the router's 404 and 405 with one body.

    Args:
        app: gets the handlers.
        routes: all of its own; a path may have several, each for other methods.
    """

    async def on_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)  # noqa: S101 - registered for this type below
        return service_error_response(request.scope, error)

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
        forget_frames(error.errors())
        return await on_service_error(request, _first_fault(error))

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
        allowed = _methods(request, routes) if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else ""
        response = await on_service_error(request, _routing_error(error, allowed))
        if allowed:
            response.headers["allow"] = allowed
        return response

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)


def _first_fault(error: RequestValidationError) -> InvalidInputError:
    """Pydantic's first complaint, as ours; never its ``input``, which is the caller's text."""
    fault = error.errors()[0]
    # The first part says where the field stands: in the body, the path or the query.
    path = list(fault["loc"])[1:]
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = "there is no such field"
        if not _FIELD_NAME.fullmatch(str(path[-1])):
            path.pop()
    elif fault["type"] == "missing":  # null means "not said", see `lenient_body`
        message = "the field is required; it is missing or null"
    param = next((part for part in path if isinstance(part, str)), None)
    index = next((part for part in path if isinstance(part, int)), None)
    # Of an item of a list, the field at fault: `entries[3].question`.
    inner = path[2] if len(path) > 2 and path[:2] == [param, index] and isinstance(path[2], str) else None
    where = f"{param}[{index}].{inner}" if inner else param
    return InvalidInputError(f"{where}: {message}" if where else message, param=param, index=index)


def _methods(request: Request, routes: Sequence[BaseRoute]) -> str:
    """The methods of a path, comma-separated; the router tells those of one of its routes only."""
    methods: set[str] = set()
    for route in routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return ", ".join(sorted(methods))


def _routing_error(error: HTTPException, allowed: str) -> ServiceError:
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return UnknownPathError("no such path; /docs lists what there is")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return MethodNotAllowedError(f"this path takes {allowed}")
        case status if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return MalformedBodyError("the request cannot be read")
        case _:
            return ServiceError("internal error")

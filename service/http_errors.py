"""Error type -> HTTP answer: one table, one body, the handlers, and the OpenAPI entries.

Every answer that is not a success has the same body, on every path::

    {"error": {"code": "input_too_long", "message": "...", "index": 3, "param": "inputs"},
     "request_id": "..."}

The errors defined here are those that only HTTP can make: a body that is no JSON, a path that leads nowhere.
"""

import math
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from service.absence import ModelFailedError, NoModelError
from service.admission import TooManyCharactersError
from service.errors import (
    ConflictError,
    EmptyInputError,
    InferenceError,
    InvalidInputError,
    InvalidTextError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    ServiceError,
    StorageError,
    TooManyInputsError,
    UnavailableError,
)


class MalformedBodyError(InvalidInputError):
    """The body is not strict JSON in UTF-8."""

    code = "malformed_json"


class UnsupportedMediaTypeError(InvalidInputError):
    """The body is not announced as a type that the route reads."""

    code = "unsupported_media_type"


class UnknownPathError(NotFoundError):
    """No route has this path."""

    code = "unknown_path"


class MethodNotAllowedError(ServiceError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"


class RequestTimeoutError(UnavailableError):
    """The answer took longer than ``limits.request_seconds``."""

    code = "timeout"


STATUS: dict[type[ServiceError], HTTPStatus] = {  # looked up along the MRO
    ServiceError: HTTPStatus.INTERNAL_SERVER_ERROR,
    InvalidInputError: HTTPStatus.UNPROCESSABLE_ENTITY,
    MalformedBodyError: HTTPStatus.BAD_REQUEST,
    UnsupportedMediaTypeError: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    NotFoundError: HTTPStatus.NOT_FOUND,
    MethodNotAllowedError: HTTPStatus.METHOD_NOT_ALLOWED,
    ConflictError: HTTPStatus.CONFLICT,
    PayloadTooLargeError: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    OverloadedError: HTTPStatus.TOO_MANY_REQUESTS,
    UnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageError: HTTPStatus.INTERNAL_SERVER_ERROR,
    InferenceError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# What every route that takes texts may answer. Those that read a text whole add InputTooLongError.
TEXT_ERRORS: tuple[type[ServiceError], ...] = (
    MalformedBodyError,
    PayloadTooLargeError,
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


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="Stable name of the kind of error.")
    message: str = Field(description="For people; may change.")
    index: int | None = Field(
        description="Position of the offending item, from 0; null if not about one item."
    )
    param: str | None = Field(description="The field at fault; null if not about one field.")


class ErrorBody(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail
    request_id: str = Field(description="As in the header x-request-id.")


def status_of(error: ServiceError | type[ServiceError]) -> HTTPStatus:
    """The HTTP status of an error, by the nearest entry of the table along its MRO."""
    kind = error if isinstance(error, type) else type(error)
    return next(STATUS[parent] for parent in kind.__mro__ if parent in STATUS)


def documented(*kinds: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI ``responses`` of a route that raises ``kinds``; from the same table as the answers."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        entry = responses.setdefault(int(status_of(kind)), {"model": ErrorBody, "description": ""})
        entry["description"] = f"{entry['description']}\n\n`{kind.code}`: {_summary(kind)}".strip()
    return responses


def _summary(kind: type[ServiceError]) -> str:
    """First sentence of the docstring, in Markdown; what follows is for those who read the code."""
    sentence, dot, _ = (kind.__doc__ or "").partition("\n")[0].partition(". ")
    return (sentence + dot.strip()).replace("``", "`")


def error_response(error: ServiceError, request_id: str) -> Response:
    """The answer for ``error``; nothing of the request is in it but what the error's message says."""
    detail = ErrorDetail(code=error.code, message=error.message, index=error.index, param=error.param)
    body = ErrorBody(error=detail, request_id=request_id)
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        headers["retry-after-ms"] = str(math.ceil(error.retry_after_s * 1000))
    if isinstance(error, PayloadTooLargeError):
        headers["connection"] = "close"  # what is left of the body would be taken for the next request
    return Response(
        orjson.dumps(body.model_dump()),
        status_code=status_of(error),
        headers=headers,
        media_type="application/json",
    )


def request_id_of(request: Request) -> str:
    """The id that the outermost middleware gave this request."""
    return str(request.scope.get("conche.request_id", ""))


def name_as_sent(error: ServiceError, body: object) -> None:
    """Make ``inputs[0]`` plain ``inputs`` in an error about a field that was sent as one text, in no list."""
    if error.index == 0 and isinstance(body, dict) and isinstance(body.get(error.param), str):
        error.message = error.message.replace(f"{error.param}[0]", str(error.param))
        error.index = None


def install_error_handlers(app: FastAPI) -> None:
    """Answer our own errors, FastAPI's validation errors and the router's 404 and 405 with one body."""

    async def on_service_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ServiceError)  # noqa: S101 - registered for this type below
        name_as_sent(error, request.scope.get("conche.body"))
        request.scope["conche.error"] = error  # for the access log and the metrics
        return error_response(error, request_id_of(request))

    async def on_validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type
        return await on_service_error(request, _first_fault(error))

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for this type
        response = await on_service_error(request, _routing_error(error))
        response.headers.update(error.headers or {})  # 405 says what is allowed
        return response

    app.add_exception_handler(ServiceError, on_service_error)
    app.add_exception_handler(RequestValidationError, on_validation_error)
    app.add_exception_handler(HTTPException, on_http_exception)


def _first_fault(error: RequestValidationError) -> InvalidInputError:
    """Pydantic's first complaint, as ours; never its ``input``, which is the caller's text."""
    fault = error.errors()[0]
    # The first part says where the field stands: in the body, the path or the query.
    path = list(fault["loc"])[1:]
    param = next((part for part in path if isinstance(part, str)), None)
    index = next((part for part in path if isinstance(part, int)), None)
    message = str(fault["msg"]).removeprefix("Value error, ")
    # Of an item of a list, the field at fault: `entries[3].question`.
    inner = path[2] if len(path) > 2 and path[:2] == [param, index] and isinstance(path[2], str) else None
    where = f"{param}[{index}].{inner}" if inner else param
    return InvalidInputError(f"{where}: {message}" if where else message, param=param, index=index)


def _routing_error(error: HTTPException) -> ServiceError:
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return UnknownPathError("no such path; /docs lists what there is")
        case HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "another method")
            return MethodNotAllowedError(f"this path takes {allowed}")
        case status if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return MalformedBodyError("the request cannot be read")
        case _:
            return ServiceError("internal error")

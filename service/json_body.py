"""Strict JSON bodies: announced as JSON, UTF-8, finite numbers, bounded depth; refused before validation."""

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson
from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
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


class _ParsedRequest(Request):
    """A request whose JSON has been read by ``parse_json`` and lies in the scope, for error messages too."""

    async def json(self) -> Any:
        """The body's value, parsed once."""
        return self.scope["conche.body"]


class StrictJsonRoute(APIRoute):
    """A route that checks media type and JSON before FastAPI looks at the body."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """FastAPI's handler, behind the checks; around it where `_Arguments` can do as much."""
        handle = super().get_route_handler()
        arguments = _Arguments.of(handle)

        async def handle_strictly(request: Request) -> Response:
            if self.body_field is None:
                return await handle(request)
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if not _JSON_TYPE.fullmatch(media_type):
                raise UnsupportedMediaTypeError(
                    "send the body with the header content-type: application/json"
                )
            strict = _ParsedRequest(request.scope, request.receive)
            # Parsed here, because FastAPI turns whatever goes wrong inside its own reading into a plain 400.
            body = request.scope["conche.body"] = parse_json(await strict.body())
            if arguments is not None and (found := await arguments.find(strict, body)) is not None:
                return await arguments.call(**found)
            return await handle(strict)

        return handle_strictly


@dataclass(frozen=True, slots=True)
class _Step:
    """One dependency, a coroutine function.

    Attributes:
        call: the function.
        request: the name under which it wants the request; None if it does not.
        needs: its other arguments, by name: the number of the step that gives each.
    """

    call: Callable[..., Awaitable[Any]]
    request: str | None
    needs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Arguments:
    """The arguments of an endpoint that takes a body and dependencies of ours, and gives a whole response.

    FastAPI goes through the tree of dependencies anew for each request, a fifth of what one short text costs
    beside its model run (bench/README.md). Here their order is worked out once.

    Attributes:
        call: the endpoint.
        body: the parameter's name.
        validate: of the body's field.
        steps: the dependencies, each behind those that it needs.
        needs: the endpoint's other arguments, as of `_Step`.
    """

    call: Callable[..., Awaitable[Response]]
    body: str
    validate: Callable[..., tuple[Any, Any]]
    steps: tuple[_Step, ...]
    needs: Mapping[str, int]

    @classmethod
    def of(cls, handle: Callable[..., Any]) -> "_Arguments | None":
        """What a handler of FastAPI's takes; None if it is anything else than described, and left to it.

        Asked of the handler, since the route does not know of dependencies that came with its inclusion.
        """
        known = inspect.getclosurevars(handle).nonlocals if inspect.isfunction(handle) else {}
        dependant, body_field = known.get("dependant"), known.get("body_field")
        if not isinstance(dependant, Dependant) or dependant.call is None:
            return None
        returns = inspect.get_annotations(dependant.call, eval_str=True).get("return")
        # Several parameters of a body would be put into one field of FastAPI's making.
        fields = dependant.body_params
        if len(fields) != 1 or fields[0] is not body_field or returns is not Response:
            return None
        if not _is_plain(dependant) or dependant.request_param_name is not None:
            return None
        steps: list[_Step] = []
        needs = _add_steps(dependant, steps)
        if needs is None:
            return None
        return cls(dependant.call, fields[0].name, fields[0].validate, tuple(steps), needs)

    async def find(self, request: Request, body: Any) -> dict[str, Any] | None:
        """The arguments; None if the body is not as it should be.

        FastAPI will say why, and asks the dependencies once more.
        """
        values: list[Any] = []
        for step in self.steps:
            given = {name: values[number] for name, number in step.needs.items()}
            if step.request is not None:
                given[step.request] = request
            values.append(await step.call(**given))
        value, faults = self.validate(body, {}, loc=("body",))
        if faults:
            return None
        return {self.body: value, **{name: values[number] for name, number in self.needs.items()}}


def _add_steps(dependant: Dependant, steps: list[_Step]) -> dict[str, int] | None:
    """Put what ``dependant`` needs behind ``steps``; its arguments, or None where FastAPI has to do it."""
    needs = {}
    for needed in dependant.dependencies:
        if needed.call is None or needed.body_params or not _is_plain(needed):
            return None
        number = next((number for number, step in enumerate(steps) if step.call is needed.call), None)
        if number is None:
            arguments = _add_steps(needed, steps)
            if arguments is None:
                return None
            number = len(steps)
            steps.append(_Step(needed.call, needed.request_param_name, arguments))
        if needed.name is not None:
            needs[needed.name] = number
    return needs


def _is_plain(dependant: Dependant) -> bool:
    """Whether it is a coroutine function that takes the request, other dependencies, a body and no more."""
    others = (
        *dependant.path_params,
        *dependant.query_params,
        *dependant.header_params,
        *dependant.cookie_params,
        dependant.websocket_param_name,
        dependant.http_connection_param_name,
        dependant.response_param_name,
        dependant.background_tasks_param_name,
        dependant.security_scopes_param_name,
    )
    return not any(others) and inspect.iscoroutinefunction(dependant.call) and dependant.use_cache

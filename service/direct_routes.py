"""``DirectRoutes``: requests straight to the endpoints asked most, past FastAPI's routing, as plain ASGI.

Of what the application does for one short request, a fifth was FastAPI's routing and the stacks that it opens
(bench/README.md), and as much, before, its way through the tree of dependencies. An endpoint that takes a
body and dependencies of ours, under a path without parameters, and gives a whole response needs none of it:
its path is looked up, and the order of its dependencies is known beforehand. FastAPI still has the route, for
the document and for whatever is not as it should be: it says what is wrong with a body.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError
from service.http_errors import forget_frames, service_error_response
from service.json_body import StrictJsonRoute, parse_json, require_json


class DirectRoutes:
    """Answer what it can by itself, and leave the rest to the application. To be added innermost.

    Args:
        app: answers the rest.
        routes: all that ``app`` has; what was included with dependencies of its own must not be among them.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes: dict[tuple[str, str], tuple[StrictJsonRoute, Arguments]] = {}
        for route in routes:
            if isinstance(route, StrictJsonRoute) and (arguments := Arguments.of(route)) is not None:
                for method in route.methods or ():
                    self._routes.setdefault((method, route.path), (route, arguments))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection.

        Raises:
            ClientDisconnect: the caller has gone before the body had come.
        """
        # Behind a prefix paths are the router's business.
        direct = scope["type"] == "http" and not scope.get("root_path")
        found = self._routes.get((scope["method"], scope["path"])) if direct else None
        if found is None:
            await self._app(scope, receive, send)
            return
        route, arguments = found
        scope["route"] = route
        body = b""
        try:
            require_json(Headers(scope=scope).get("content-type"))
            body = await _read(receive)
            value = scope["conche.body"] = parse_json(body)
            response = await arguments.answer(_ReadRequest(scope, body), value)
        except ServiceError as error:
            response = service_error_response(scope, error)
        if response is None:  # FastAPI says what is wrong with the body, and asks the dependencies once more
            await self._app(scope, _again(body, receive), send)
            return
        await response(scope, receive, send)


class _ReadRequest(Request):
    """A request whose body has been read."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        super().__init__(scope)
        self._whole = body

    async def body(self) -> bytes:
        """All of it."""
        return self._whole

    async def json(self) -> Any:
        """Its value, parsed once."""
        return self.scope["conche.body"]


@dataclass(frozen=True, slots=True)
class _Step:
    """A coroutine function that gives a dependency, or the answer.

    Attributes:
        call: the function.
        request: the name under which it wants the request; None if it does not.
        needs: its other arguments, by name: the number of the step that gives each.
    """

    call: Callable[..., Awaitable[Any]]
    request: str | None
    needs: Mapping[str, int]

    def arguments(self, request: Request, values: Sequence[Any]) -> dict[str, Any]:
        """For ``call``, out of what the steps before it gave."""
        given = {name: values[number] for name, number in self.needs.items()}
        if self.request is not None:
            given[self.request] = request
        return given


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of an endpoint that takes a body and dependencies of ours, and gives a whole response.

    Attributes:
        steps: the dependencies, each behind those that it needs.
        endpoint: the last step.
        body: the name under which the endpoint wants the body.
        validate: of the body's field.
    """

    steps: tuple[_Step, ...]
    endpoint: _Step
    body: str
    validate: Callable[..., tuple[Any, Any]]

    @classmethod
    def of(cls, route: APIRoute) -> "Arguments | None":
        """What a route's endpoint takes; None if it is anything else than described, and left to FastAPI."""
        dependant, body_field = route.dependant, route.body_field
        if dependant.call is None or "{" in route.path:
            return None
        returns = inspect.get_annotations(dependant.call, eval_str=True).get("return")
        # Several parameters of a body would be put into one field of FastAPI's making.
        fields = dependant.body_params
        if len(fields) != 1 or fields[0] is not body_field or returns is not Response:
            return None
        if not _is_plain(dependant):
            return None
        steps: list[_Step] = []
        needs = _add_steps(dependant, steps)
        if needs is None:
            return None
        last = _Step(dependant.call, dependant.request_param_name, needs)
        return cls(tuple(steps), last, fields[0].name, fields[0].validate)

    async def answer(self, request: Request, body: Any) -> Response | None:
        """The endpoint's answer; None if the body is not as it should be.

        Dependencies come first, as with FastAPI: what they raise goes before what is wrong with the body.
        """
        values: list[Any] = []
        for step in self.steps:
            values.append(await step.call(**step.arguments(request, values)))
        value, faults = self.validate(body, {}, loc=("body",))
        if faults:
            forget_frames(faults)
            return None
        response: Response = await self.endpoint.call(
            **{self.body: value}, **self.endpoint.arguments(request, values)
        )
        return response


async def _read(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)


def _again(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives ``body``, which has been read, before all else."""
    given = False

    async def receive_again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


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

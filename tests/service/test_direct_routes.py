"""Direct routes: the same answers as FastAPI's, without asking it."""

import functools
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, routing
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from service.direct_routes import DirectRoutes
from service.errors import UnavailableError
from service.http_errors import install_error_handlers
from service.json_body import StrictJsonRoute
from service.middleware import BodyLimit


class _Wish(BaseModel):
    number: int


_calls: Counter[str] = Counter()


async def _path(request: Request) -> str:
    _calls["path"] += 1
    return request.url.path


async def _shout(path: Annotated[str, Depends(_path)]) -> str:
    return path.upper()


async def _refusal(path: Annotated[str, Depends(_path)]) -> None:
    raise UnavailableError(path)


async def _size(request: Request) -> int:
    return len(await request.body())


def _threaded(path: Annotated[str, Depends(_path)]) -> str:
    return path


async def _whole(
    body: _Wish, shout: Annotated[str, Depends(_shout)], path: Annotated[str, Depends(_path)]
) -> Response:
    return Response(f"{body.number} {shout} {path}")


async def _with_query(
    body: _Wish, shout: Annotated[str, Depends(_shout)], times: Annotated[int, Query()] = 2
) -> Response:
    return Response(f"{body.number} {shout} {times}")


async def _with_thread(body: _Wish, path: Annotated[str, Depends(_threaded)]) -> Response:
    return Response(f"{body.number} {path}")


async def _with_size(body: _Wish, size: Annotated[int, Depends(_size)]) -> Response:
    return Response(f"{body.number} {size}")


async def _with_request(body: _Wish, request: Request) -> Response:
    return Response(f"{body.number} {request.headers['x-name']} {len(await request.body())}")


async def _model(body: _Wish, path: Annotated[str, Depends(_path)]) -> _Wish:
    return _Wish(number=body.number + len(path))


async def _refusing(body: _Wish, _: Annotated[None, Depends(_refusal)]) -> Response:
    raise AssertionError(body)


async def _raising(body: _Wish) -> Response:
    raise ValueError(body.number)


_ENDPOINTS = {
    "whole": _whole,
    "query": _with_query,
    "thread": _with_thread,
    "size": _with_size,
    "request": _with_request,
    "model": _model,
    "refusing": _refusing,
    "raising": _raising,
}


@functools.cache
def _app(*, direct: bool) -> FastAPI:
    router = APIRouter(route_class=StrictJsonRoute)
    for name, endpoint in _ENDPOINTS.items():
        router.add_api_route(f"/{name}", endpoint, methods=["POST"])  # type: ignore[arg-type]
        router.add_api_route(f"/of/{{place}}/{name}", endpoint, methods=["POST"])  # type: ignore[arg-type]
    app = FastAPI()
    app.include_router(router)
    install_error_handlers(app, router.routes)
    if direct:
        app.add_middleware(DirectRoutes, routes=router.routes)
    app.add_middleware(BodyLimit, limit=1000, within_s=10)
    return app


_BODIES = [
    b'{"number": 3}',
    b'{"number": "a"}',
    b"[]",
    b"null",
    b"{}",
    b"",
    b"{",
    b'{"number": NaN}',
    b"1" * 1001,
]


def _client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://conche", headers={"x-name": "Ada"})


@pytest.fixture
def times_asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often FastAPI looked for arguments."""
    calls = 0
    solve = routing.solve_dependencies

    async def counted(**arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return await solve(**arguments)

    monkeypatch.setattr(routing, "solve_dependencies", counted)
    return lambda: calls


@pytest.mark.parametrize("name", sorted(set(_ENDPOINTS) - {"raising"}))
@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD"])
async def test_answers_are_those_of_fastapi(name: str, method: str) -> None:
    """Whichever of the two gives them: values, faults, and whose fault comes first."""
    for body, media_type in itertools.product(_BODIES, ["application/json", "text/plain", None]):
        answers = []
        for direct in (True, False):
            async with _client(_app(direct=direct)) as client:
                headers = {} if media_type is None else {"content-type": media_type}
                answer = await client.request(method, f"/{name}", content=body, headers=headers)
            answers.append((answer.status_code, answer.headers, answer.content))
        assert answers[0] == answers[1], (body, media_type)


@pytest.mark.parametrize("name", ["whole", "size", "request", "refusing"])
async def test_fastapi_is_not_asked(name: str, times_asked: Callable[[], int]) -> None:
    """Or each request would pay for it, and nobody would notice."""
    async with _client(_app(direct=True)) as client:
        await client.post(f"/{name}", json={"number": 3})
        assert times_asked() == 0
        await client.post(f"/of/here/{name}", json={"number": 3})
        assert times_asked() == 1


async def test_the_busiest_routes_are_direct(
    times_asked: Callable[[], int], client: httpx.AsyncClient
) -> None:
    """A parameter or a return type too many, and they would be slower again."""
    for path, body in (
        ("/embed", {"inputs": "hello"}),
        ("/v1/embeddings", {"input": "hello", "model": "tiny-embedding"}),
        ("/search", {"query": "password"}),
        ("/ner", {"inputs": "Ada lives in Paris"}),
    ):
        assert (await client.post(path, json=body)).status_code == 200, path
    assert times_asked() == 0


async def test_a_dependency_is_asked_once_a_request() -> None:
    """However many others need it."""
    _calls.clear()
    async with _client(_app(direct=True)) as client:
        answer = await client.post("/whole", json={"number": 3})
    assert (answer.text, _calls["path"]) == ("3 /WHOLE /whole", 1)


async def test_an_error_that_nobody_expects_goes_on_to_the_last_net() -> None:
    """Which logs it and answers 500; here it would be hidden."""
    async with _client(_app(direct=True)) as client:
        with pytest.raises(ValueError, match="3"):
            await client.post("/raising", json={"number": 3})


async def test_behind_a_prefix_the_router_decides() -> None:
    """There a path is not what the routes say."""
    transport = httpx.ASGITransport(app=_app(direct=True), root_path="/conche")
    async with httpx.AsyncClient(transport=transport, base_url="http://conche") as client:
        answer = await client.post("/conche/whole", json={"number": 3})
    assert answer.text == "3 /CONCHE/WHOLE /conche/whole"


async def test_a_caller_who_goes_before_the_body_has_come_is_noticed() -> None:
    """Half a body is none."""
    messages = iter(
        [
            {"type": "http.request", "body": b'{"number": 3}', "more_body": True},
            {"type": "http.disconnect"},
        ]
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(_: Any) -> None:
        raise AssertionError("an answer")

    router = APIRouter(route_class=StrictJsonRoute)
    router.add_api_route("/whole", _whole, methods=["POST"])
    app = DirectRoutes(_app(direct=False), routes=router.routes)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/whole",
        "headers": [(b"content-type", b"application/json")],
    }
    with pytest.raises(ClientDisconnect):
        await app(scope, receive, send)


async def test_a_body_in_pieces_is_put_together() -> None:
    """As servers give it."""

    async def pieces() -> Any:
        for piece in (b'{"num', b'ber": ', b"3}"):
            yield piece

    async with _client(_app(direct=True)) as client:
        headers = {"content-type": "application/json"}
        assert (await client.post("/whole", content=pieces(), headers=headers)).text == "3 /WHOLE /whole"
        assert (await client.post("/size", content=pieces(), headers=headers)).text == "3 13"

"""Strict JSON: what is refused, and that the reason never quotes the body."""

from collections import Counter
from typing import Annotated

import httpx
import orjson
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response, routing
from pydantic import BaseModel

from service.errors import UnavailableError
from service.http_errors import MalformedBodyError
from service.json_body import StrictJsonRoute, parse_json


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud83d", "b": NaN}',  # also on the way taken for lone surrogates
        b'{"a": "\\ud83d", "b": 1e999}',
        b'{"a": "\\ud83d", "b": [-1.5e400]}',
        b"\xff\xfe{\x00}\x00",  # UTF-16
        '{"a": "退货"}'.encode("gb18030"),
        b'{"a": "\xed\xa0\xbd"}',  # a surrogate in UTF-8's clothes
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a": "\\ud83d", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": 1} trailing',
    ],
)
def test_what_is_not_strict_json_in_utf8_is_refused(body: bytes) -> None:
    """A parser that lets it pass fails later, where it costs a 500."""
    with pytest.raises(MalformedBodyError):
        parse_json(body)


def test_a_body_for_which_there_is_no_memory_is_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sent it would look for a fault of theirs, and not send it again."""

    def loads(body: bytes) -> object:
        raise orjson.JSONDecodeError("Not enough memory to allocate buffer for parsing", "", 0)

    monkeypatch.setattr(orjson, "loads", loads)
    with pytest.raises(UnavailableError):
        parse_json(b"{}")


def test_a_byte_order_mark_is_passed_over() -> None:
    """Some editors write one."""
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_half_a_surrogate_pair_is_kept_for_validation_to_name() -> None:
    """Refused here, nobody could say which of 2,000 texts it is in."""
    assert parse_json(b'{"inputs": ["ok", "\\ud83d parcel"]}') == {"inputs": ["ok", "\ud83d parcel"]}
    assert parse_json(b'"\\ud83d\\ude00"') == "😀"


def test_the_reason_does_not_quote_the_body() -> None:
    """Bodies hold what people wrote."""
    with pytest.raises(MalformedBodyError) as caught:
        parse_json(b'{"inputs": "my secret diagnosis')
    assert "secret" not in str(caught.value)


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


async def _model(body: _Wish, path: Annotated[str, Depends(_path)]) -> _Wish:
    return _Wish(number=body.number + len(path))


async def _refusing(body: _Wish, _: Annotated[None, Depends(_refusal)]) -> Response:
    raise AssertionError(body)


@pytest.mark.parametrize("endpoint", [_whole, _with_query, _with_thread, _with_size, _model, _refusing])
@pytest.mark.parametrize("body", [b'{"number": 3}', b'{"number": "a"}', b"[]", b"null", b"{}"])
async def test_arguments_are_those_that_fastapi_finds(endpoint: object, body: bytes) -> None:
    """Whichever of the two looks for them: values, faults, and whose fault comes first."""
    answers = []
    for route in (StrictJsonRoute, None):
        router = APIRouter() if route is None else APIRouter(route_class=route)
        router.add_api_route("/there", endpoint, methods=["POST"])  # type: ignore[arg-type]
        app = FastAPI()
        app.include_router(router)

        async def refused(_: Request, error: Exception) -> Response:
            return Response(str(error), 503)

        app.add_exception_handler(UnavailableError, refused)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://conche") as client:
            answer = await client.post("/there", content=body, headers={"content-type": "application/json"})
        answers.append((answer.status_code, answer.text))
    assert answers[0] == answers[1]


async def test_a_dependency_that_comes_with_the_inclusion_is_asked() -> None:
    """It may be what keeps strangers out, and the route itself does not know of it."""
    router = APIRouter(route_class=StrictJsonRoute)
    router.add_api_route("/there", _whole, methods=["POST"])
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(_refusal)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://conche") as client:
        with pytest.raises(UnavailableError):
            await client.post("/there", json={"number": 3})


async def test_fastapi_is_not_asked_where_the_order_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each request would pay for it, and nobody would notice."""
    router = APIRouter(route_class=StrictJsonRoute)
    router.add_api_route("/there", _whole, methods=["POST"])
    app = FastAPI()
    app.include_router(router)

    def refuse(**_: object) -> None:
        raise AssertionError("FastAPI was asked")

    monkeypatch.setattr(routing, "solve_dependencies", refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://conche") as client:
        assert (await client.post("/there", json={"number": 3})).text == "3 /THERE /there"


async def test_a_dependency_is_asked_once_a_request() -> None:
    """However many others need it."""
    router = APIRouter(route_class=StrictJsonRoute)
    router.add_api_route("/there", _whole, methods=["POST"])
    app = FastAPI()
    app.include_router(router)
    _calls.clear()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://conche") as client:
        answer = await client.post("/there", json={"number": 3})
    assert (answer.text, _calls["path"]) == ("3 /THERE /there", 1)

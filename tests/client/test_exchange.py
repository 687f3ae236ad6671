"""Both clients against a stub: retries, errors, and long lists in parts."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import opentelemetry.propagate  # noqa: F401 - the client looks whether the program has loaded it
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

import conche_client
from conche_client import (
    ApiError,
    AsyncClient,
    AsyncCollection,
    Client,
    Collection,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    RateLimitedError,
    Retries,
    ServerFailedError,
    TimedOutError,
    UnavailableError,
    UnexpectedAnswerError,
)

AT_ONCE = Retries(first_wait_s=0.0)
VECTORS = httpx.Response(
    200,
    json=[[1.0, 0.0]],
    headers={"x-conche-model": "m", "x-conche-tokens": "3", "x-conche-tokens-by-input": "3"},
)
Step = httpx.Response | Exception
Call = Callable[[Any], Any]


class Stub:
    """Answers with the steps in turn, and remembers what was asked."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """As `httpx.MockTransport` calls it."""
        self.requests.append(request)
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        # One of its own: a response can be sent once.
        return httpx.Response(step.status_code, headers=step.headers, content=step.content)

    @property
    def bodies(self) -> list[Any]:
        """What was sent, read."""
        return [json.loads(request.content) for request in self.requests]


def error(status: int, code: str, **fields: object) -> httpx.Response:
    """An error as the server has it."""
    body = {"error": "no", "error_type": "x", "code": code, "index": None, "param": None, "request_id": "r-7"}
    hints = {"retry-after-ms": "1", "retry-after": "1"} if status in {429, 503} else {}
    return httpx.Response(status, json=body | fields, headers=hints)


Caller = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
async def call(request: pytest.FixtureRequest) -> Caller:
    """Makes a call of the one client and of the other."""

    async def with_client(stub: Stub, do: Call, **options: Any) -> Any:
        options = {"retries": AT_ONCE} | options
        if request.param == "sync":
            with Client("http://conche.test", transport=httpx.MockTransport(stub), **options) as client:
                return do(client)
        async with AsyncClient("http://conche.test", transport=httpx.MockTransport(stub), **options) as other:
            return await do(other)

    return with_client


async def test_a_refused_call_is_sent_again(call: Caller) -> None:
    """An overload passes in moments; the caller need not know."""
    stub = Stub([error(429, "overloaded"), error(503, "unavailable"), VECTORS])
    found = await call(stub, lambda client: client.embed("a"))
    assert found.vectors == [[1.0, 0.0]]
    assert len(stub.requests) == 3
    assert len({request.content for request in stub.requests}) == 1


async def test_a_broken_connection_is_tried_again(call: Caller) -> None:
    """A server that restarts is back soon."""
    stub = Stub([httpx.ConnectError("refused"), httpx.ReadError("reset"), VECTORS])
    assert len(await call(stub, lambda client: client.embed("a"))) == 1


async def test_tries_are_bounded_and_the_last_error_tells_all(call: Caller) -> None:
    """Whoever catches it knows what to do next."""
    stub = Stub([error(429, "overloaded") for _ in range(3)])
    with pytest.raises(RateLimitedError) as raised:
        await call(stub, lambda client: client.embed("a"), retries=Retries(most=2, first_wait_s=0))
    assert (raised.value.code, raised.value.status) == ("overloaded", 429)
    assert (raised.value.request_id, raised.value.retry_after) == ("r-7", 0.001)
    assert not stub.steps


async def test_a_server_that_asks_for_too_long_a_wait_is_not_waited_for(call: Caller) -> None:
    """The caller is told at once how long it would be."""
    stub = Stub([httpx.Response(503, json={}, headers={"retry-after": "3600"})])
    with pytest.raises(UnavailableError) as raised:
        await call(stub, lambda client: client.embed("a"))
    assert raised.value.retry_after == 3600


@pytest.mark.parametrize(
    "write",
    [
        lambda client: client.faq("f").upsert([{"question": "q", "answer": "a"}], on_duplicate="error"),
        lambda client: client.faq("f").delete("one"),
        lambda client: client.faq("f").delete_many(ids=["one"]),
        lambda client: client.faq("f").drop(),
        lambda client: client.faq("f").start_reindex(),
    ],
)
async def test_a_write_that_counts_is_not_repeated_unless_nothing_was_begun(
    call: Caller, write: Call
) -> None:
    """The second try would find what the first one did, and report it wrongly."""
    with pytest.raises(ConnectionFailedError):
        await call(Stub([httpx.ReadError("reset")]), write)
    with pytest.raises(UnavailableError):
        await call(Stub([error(503, "timeout")]), write)
    with pytest.raises(NotFoundError):  # sent again after both of those
        await call(
            Stub([httpx.ConnectError("refused"), error(429, "overloaded"), error(404, "unknown_entry")]),
            write,
        )


async def test_a_slow_answer_is_not_asked_for_again(call: Caller) -> None:
    """The server may still be at work on the first."""
    with pytest.raises(TimedOutError, match="POST /embed: ReadTimeout"):
        await call(Stub([httpx.ReadTimeout("slow")]), lambda client: client.embed("a"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, conche_client.AuthenticationError),
        (403, conche_client.PermissionDeniedError),
        (404, NotFoundError),
        (409, conche_client.ConflictError),
        (413, conche_client.TooLargeError),
        (422, InvalidRequestError),
        (500, ServerFailedError),
        (507, ServerFailedError),
    ],
)
async def test_each_status_has_its_class(call: Caller, status: int, kind: type[ApiError]) -> None:
    """Programs catch classes; the code is there for what they do not tell."""
    with pytest.raises(kind, match=r"no \(HTTP \d+, some_code\)") as raised:
        await call(Stub([error(status, "some_code", param="x")]), lambda client: client.info())
    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.param, raised.value.index) == ("no", "x", None)


async def test_errors_of_the_openai_interface_and_of_proxies_are_read(call: Caller) -> None:
    """Nested there; a page of HTML, or nothing, here."""
    nested = httpx.Response(
        404, json={"error": {"message": "m", "code": "unknown_path", "param": None}, "request_id": "r"}
    )
    with pytest.raises(NotFoundError) as raised:
        await call(Stub([nested]), lambda client: client.models())
    assert (raised.value.message, raised.value.code, raised.value.request_id) == ("m", "unknown_path", "r")
    for body in (b"<html>", b"[]", b'"no"', b""):
        with pytest.raises(ServerFailedError) as of_proxy:
            await call(Stub([httpx.Response(502, content=body)]), lambda client: client.models())
        assert of_proxy.value.code is None


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b"<html>", headers={"content-type": "text/html"}),
        httpx.Response(200, json={"id": 1}),
        httpx.Response(200, json=None),
        httpx.Response(302, headers={"location": "http://elsewhere.test/"}),
    ],
)
async def test_an_answer_of_another_server_is_no_result(call: Caller, answer: httpx.Response) -> None:
    """A wrong URL must not look like an empty FAQ."""
    with pytest.raises(UnexpectedAnswerError):
        await call(Stub([answer]), lambda client: client.collections())


async def test_long_lists_are_sent_in_parts_and_put_together(call: Caller) -> None:
    """2,048 is what a server takes; positions are those of the caller's list."""

    def part(count: int, **headers: str) -> httpx.Response:
        common = {"x-conche-model": "m", "x-conche-tokens": str(2 * count), "x-request-id": f"r{count}"}
        listed = {"x-conche-tokens-by-input": ",".join(["2"] * count)}
        return httpx.Response(200, json=[[float(count)]] * count, headers=common | listed | headers)

    stub = Stub(
        [
            part(2048, **{"server-timing": "queue;dur=1.5, total;dur=20.25"}),
            part(2048, **{"x-conche-truncated": "0:5,7:9"}),
            part(4, **{"x-conche-truncated": "3:1,..."}),
        ]
    )
    found = await call(stub, lambda client: client.embed([str(n) for n in range(4100)], truncate=True))
    assert [len(body["inputs"]) for body in stub.bodies] == [2048, 2048, 4]
    assert [text for body in stub.bodies for text in body["inputs"]] == [str(n) for n in range(4100)]
    assert all(body["truncate"] is True for body in stub.bodies)
    assert len(found) == 4100
    assert (found[0], found[4099]) == ([2048.0], [4.0])
    assert found.numpy().shape == (4100, 1)
    usage = found.usage
    assert (usage.model, usage.tokens, usage.tokens_by_input) == ("m", 8200, [2] * 4100)
    assert (usage.truncated, usage.truncated_complete) == ({2048: 5, 2055: 9, 4099: 1}, False)
    assert usage.request_ids == ["r2048", "r2048", "r4"]
    assert usage.times_ms == [{"queue": 1.5, "total": 20.25}, {}, {}]


async def test_texts_without_anything_to_read_are_named_by_the_callers_positions(call: Caller) -> None:
    """Their vectors say nothing; the server counts from the beginning of its own request."""

    def part(**headers: str) -> httpx.Response:
        return httpx.Response(200, json=[[1.0]] * 2, headers=headers)

    stub = Stub([part(**{"x-conche-empty": "1"}), part(), part(**{"x-conche-empty": "0,1"})])
    found = await call(stub, lambda client: client.embed(["a", "", "b", "c", "", ""]), batch_size=2)
    assert (found.usage.empty, found.usage.truncated_complete) == ([1, 4, 5], True)
    more = await call(Stub([part(**{"x-conche-empty": "0,..."})]), lambda client: client.embed(["", ""]))
    assert (more.usage.empty, more.usage.truncated_complete) == ([0], False)


async def test_long_texts_are_parted_by_their_characters_too(call: Caller) -> None:
    """Or the body of a list of documents would be more than the server reads."""
    stub = Stub([VECTORS] * 3)
    texts = ["a" * 1_500_000, "b" * 700_000, "c", "d" * 3_000_000]
    await call(stub, lambda client: client.embed(texts))
    assert [len(body["inputs"]) for body in stub.bodies] == [1, 2, 1]


async def test_pairs_are_parted_by_the_characters_of_both(call: Caller) -> None:
    """Each text in a list of its own, since two in one list are a pair to the route."""
    labels = httpx.Response(200, json=[[{"label": "x", "score": 1.0, "rank": 3}]])
    stub = Stub([labels] * 2)
    pair = ("a" * 1_000_000, "b" * 1_000_000)
    found = await call(stub, lambda client: client.predict([pair, "c"], top_k=1))
    assert [body["inputs"] for body in stub.bodies] == [[list(pair)], [["c"]]]
    assert all(body["parameters"] == {"top_k": 1} for body in stub.bodies)
    assert [one.label for one in found[1]] == ["x"]


async def test_an_error_in_a_later_part_names_the_callers_position(call: Caller) -> None:
    """The server counts from the beginning of its own request."""
    refusal = error(422, "empty_input", error="inputs[1] is empty", index=1, param="inputs")
    stub = Stub([VECTORS, refusal])
    with pytest.raises(InvalidRequestError, match=r"inputs\[3\] is empty") as raised:
        await call(stub, lambda client: client.embed(["a", "b", "c", ""]), batch_size=2)
    assert raised.value.index == 3


async def test_a_ranking_in_parts_is_one_ranking(call: Caller) -> None:
    """By cosine over all texts; negative ones are told apart before they become 0."""

    def part(*scores: float) -> httpx.Response:
        ranked = sorted(enumerate(scores), key=lambda one: -one[1])
        headers = {
            "x-conche-tokens": "5",
            "x-conche-tokens-by-input": "2,2",
            "x-conche-tokens-query": "1",
            "x-conche-truncated": "query:8,1:3",
        }
        return httpx.Response(200, json=[{"index": n, "score": s} for n, s in ranked], headers=headers)

    stub = Stub([part(-0.5, 0.2), part(0.9, -0.1)])
    ranking = await call(stub, lambda client: client.rerank("q", ["a", "b", "c", "d"]), batch_size=2)
    assert [(one.index, one.score) for one in ranking] == [(2, 0.9), (1, 0.2), (3, 0.0), (0, 0.0)]
    assert ranking.usage.tokens_by_input == [2, 2, 2, 2]
    assert (ranking.usage.tokens_query, ranking.usage.tokens) == (1, 10)
    assert ranking.usage.truncated == {-1: 8, 1: 3, 3: 3}
    raw = await call(Stub([part(-0.5, 0.2)]), lambda client: client.rerank("q", ["a", "b"], raw_scores=True))
    assert [one.score for one in raw] == [0.2, -0.5]


async def test_a_misspelt_option_is_refused_before_anything_is_sent(call: Caller) -> None:
    """The server ignores fields that it does not know."""
    for wrong in (
        lambda client: client.embed("a", trunkate=True),
        lambda client: client.search("a", top=1),
        lambda client: client.faq().patch("one", anwser="b"),
        lambda client: client.faq().delete_many(),
        lambda client: client.classify("a", top_k=1),
        lambda client: client.predict([("a", "b", "c")]),
        lambda client: client.predict([["a", 1]]),
        lambda client: client.predict([b"a"]),
    ):
        with pytest.raises(TypeError, match=r"no such option|say either|a pair of texts"):
            await call(Stub([]), wrong)


async def test_what_is_not_said_is_not_sent(call: Caller) -> None:
    """Then the model and the server decide; and the key goes with every request."""
    stub = Stub([VECTORS])
    await call(stub, lambda client: client.embed("退款", model=None, normalize=False), api_key="secret")
    assert stub.bodies == [{"inputs": ["退款"], "normalize": False}]
    assert "退款".encode() in stub.requests[0].content
    assert stub.requests[0].headers["authorization"] == "Bearer secret"


async def test_the_trace_of_the_program_goes_on_at_the_server(call: Caller) -> None:
    """Every try is part of it; a program without a trace sends none."""
    stub = Stub([error(429, "overloaded"), VECTORS, VECTORS])
    trace_id, span_id = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
    span = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    with use_span(NonRecordingSpan(span)):
        await call(stub, lambda client: client.embed("a"))
    await call(stub, lambda client: client.embed("a"))
    parents = [request.headers.get("traceparent") for request in stub.requests]
    traced = f"00-{trace_id:032x}-{span_id:016x}-01"
    assert parents == [traced, traced, None]


def test_a_program_that_does_not_trace_loads_nothing_for_it() -> None:
    """OpenTelemetry is none of the client's needs."""
    program = (
        "import sys; from conche_client.exchange import Request; "
        "headers = Request('POST', '/embed', {}).arguments()['headers']; "
        "assert headers == {'content-type': 'application/json'}, headers; "
        "sys.exit('imported' if any(name.startswith('opentelemetry') for name in sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_half_a_surrogate_pair_is_left_to_the_server_to_name(call: Caller) -> None:
    """It knows the position; here it would only be a UnicodeEncodeError."""
    stub = Stub([error(422, "invalid_text", index=1, param="inputs")])
    with pytest.raises(InvalidRequestError) as raised:
        await call(stub, lambda client: client.embed(["a", "\ud800"]))
    assert (raised.value.code, raised.value.index) == ("invalid_text", 1)
    assert stub.bodies == [{"inputs": ["a", "\ud800"]}]


@pytest.mark.parametrize(
    "arguments",
    [{"url": "conche.test"}, {"api_key": ""}, {"api_key": "a\nb"}, {"timeout_s": 0}, {"batch_size": 0}],
)
def test_wrong_settings_are_refused_at_once(arguments: dict[str, Any]) -> None:
    """And not at the first call, somewhere else."""
    for kind in (Client, AsyncClient):
        with pytest.raises(ValueError, match=r"URL|API key|at least 1"):
            kind(**arguments)


def test_both_clients_offer_the_same_calls() -> None:
    """One is no use if it lags behind the other."""
    for one, other in ((Client, AsyncClient), (Collection, AsyncCollection)):
        assert _calls(one) == _calls(other)


def _calls(kind: type) -> dict[str, dict[str, Any]]:
    return {
        name: {each: parameter.kind for each, parameter in inspect.signature(method).parameters.items()}
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and not name.startswith("_")
    }


def test_all_names_that_are_offered_are_there() -> None:
    """`from conche_client import *` reads the list."""
    assert all(hasattr(conche_client, name) for name in conche_client.__all__)


def test_a_plain_copy_of_the_folder_is_enough(tmp_path: Path) -> None:
    """With httpx, and nothing of the service or of what it needs."""
    shutil.copytree(Path(conche_client.__file__).parent, tmp_path / "conche_client")
    script = (
        "import sys, conche_client; print(conche_client.__file__);"
        "print({'model', 'service', 'numpy', 'orjson', 'pydantic', 'fastapi'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    place, reached = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert reached == "set()"

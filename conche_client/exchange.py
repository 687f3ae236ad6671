"""Requests and answers without sending them: what both clients have in common."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import httpx

from conche_client.errors import (
    ApiError,
    ConnectionFailedError,
    TimedOutError,
    UnexpectedAnswerError,
    kind_of,
)
from conche_client.retries import Retries, hint_s, retried_failure, retried_status

Result = TypeVar("Result")

DEFAULT_URL: Final = "http://127.0.0.1:8080"


def connection(
    url: str, *, api_key: str | None, timeout_s: float, headers: Mapping[str, str] | None, batch_size: int
) -> dict[str, Any]:
    """Arguments of an httpx client.

    Raises:
        ValueError: the URL is not of http or https, the key is no header's value, or a number is too small.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"the URL must begin with http:// or https://, unlike {url!r}")
    if timeout_s <= 0 or batch_size < 1:
        raise ValueError(
            f"timeout_s must be above 0 and batch_size at least 1; they are {timeout_s} and {batch_size}"
        )
    sent = {"user-agent": "conche-client", "accept": "application/json", **(headers or {})}
    if api_key is not None:
        if not api_key.isascii() or not api_key.isprintable() or not api_key.strip():
            raise ValueError("the API key is empty, or has characters that a header cannot hold")
        sent["authorization"] = f"Bearer {api_key}"
    return {"base_url": url, "headers": sent, "timeout": timeout_s}


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        method, path: the path begins with / and is percent-encoded.
        body: sent as JSON; None = none.
        content: sent as it is, if there is no ``body``.
        content_type: of ``content``.
        query: of the URL.
        repeatable: sent twice, it does what it does sent once.
        items: the field that holds a part of the caller's list, or "".
        first: position of its first item in that list.
        read_anyway: a status of 400 or more that is an answer all the same.
    """

    method: str
    path: str
    body: Mapping[str, object] | None = None
    content: bytes | None = None
    content_type: str = "application/json"
    query: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    items: str = ""
    first: int = 0
    read_anyway: int | None = None

    def arguments(self) -> dict[str, Any]:
        """For ``httpx.Client.request`` and its like."""
        content = self.content if self.body is None else _encode(self.body)
        headers = _trace_context()
        if content is not None:
            headers["content-type"] = self.content_type
        return {
            "method": self.method,
            "url": self.path,
            "content": content,
            "headers": headers,
            "params": dict(self.query) or None,
        }


def _trace_context() -> dict[str, str]:
    """Headers by which the server's trace goes on from that of a program that traces with OpenTelemetry.

    Looked for and not imported: a program that does not trace shall not need it, nor load it.
    """
    headers: dict[str, str] = {}
    inject = getattr(sys.modules.get("opentelemetry.propagate"), "inject", None)
    if inject is not None:
        inject(headers)
    return headers


def _encode(body: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair: sent so that the server can say where it is
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; names of headers are looked up in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body.

        Raises:
            UnexpectedAnswerError: it is not JSON.
        """
        try:
            return json.loads(self.body)
        except ValueError:
            kind = self.headers.get("content-type", "an unnamed type")
            raise UnexpectedAnswerError(f"the answer is no JSON, but {kind} (HTTP {self.status})") from None


@dataclass(frozen=True, slots=True)
class Plan(Generic[Result]):
    """A call: the requests it takes, one after the other, and what their answers come to."""

    requests: Sequence[Request]
    join: Callable[[list[Answer]], Result]

    def result(self, answers: list[Answer]) -> Result:
        """What the call returns.

        Raises:
            UnexpectedAnswerError: an answer lacks what Conche's has.
        """
        try:
            return self.join(answers)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswerError(
                f"not an answer of Conche: {type(error).__name__}: {error}"
            ) from error


class Attempts:
    """The tries of one request: whether to wait and try again, or what to raise."""

    def __init__(self, request: Request, retries: Retries) -> None:
        self._request = request
        self._retries = retries
        self._tried = 0

    def judge(self, answer: Answer) -> float | None:
        """Seconds to wait for the next try; None = this is the answer.

        Raises:
            ApiError: it is an error, and not to be tried again.
        """
        self._tried += 1
        if answer.status < 300 or answer.status == self._request.read_anyway:
            return None
        if answer.status < 400:
            raise UnexpectedAnswerError(f"the answer leads elsewhere (HTTP {answer.status})")
        if retried_status(answer.status, repeatable=self._request.repeatable):
            wait_s = self._retries.wait_s(self._tried, hint_s(answer.headers))
            if wait_s is not None:
                return wait_s
        raise _api_error(answer, self._request)

    def judge_failure(self, error: httpx.RequestError) -> float:
        """Seconds to wait for the next try.

        Raises:
            ConnectionFailedError: there is to be none.
        """
        self._tried += 1
        if retried_failure(error, repeatable=self._request.repeatable):
            wait_s = self._retries.wait_s(self._tried)
            if wait_s is not None:
                return wait_s
        kind = TimedOutError if isinstance(error, httpx.TimeoutException) else ConnectionFailedError
        tries = f", tried {self._tried} times" if self._tried > 1 else ""
        raise kind(
            f"{self._request.method} {self._request.path}: {type(error).__name__}: {error}{tries}"
        ) from error


def _api_error(answer: Answer, request: Request) -> ApiError:
    try:
        body = json.loads(answer.body)
        detail = body["error"]
        # The routes of OpenAI's interface nest it.
        fields = body | {"message": detail} if isinstance(detail, str) else body | detail
    except (ValueError, KeyError, TypeError):
        fields = {}
    message = str(fields.get("message", "the server, or a proxy before it, answered without a reason"))
    index, param = fields.get("index"), fields.get("param")
    if isinstance(index, int) and param == request.items and request.first:
        message = message.replace(f"{param}[{index}]", f"{param}[{index + request.first}]")
        index += request.first
    return kind_of(answer.status)(
        message,
        status=answer.status,
        code=fields.get("code"),
        index=index,
        param=param,
        request_id=fields.get("request_id") or answer.headers.get("x-request-id"),
        retry_after=hint_s(answer.headers),
    )

"""What surrounds every request, as plain ASGI: id, time limit, disconnects, body limit, access record.

Outermost first: ``StartupErrors`` (start-up only), ``RequestContext``, ``Access`` (`service.access`, if there
are keys), ``BodyLimit``, then the routes.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import PayloadTooLargeError, ServiceError, UnavailableError
from service.http_errors import (
    MalformedUrlError,
    RequestTimeoutError,
    SlowRequestError,
    UnsupportedMediaTypeError,
    error_response,
)
from service.log_config import request_id_var
from service.request_trace import MakesTraces, RequestTrace

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("service.access")

UNMATCHED = "unmatched"
CLIENT_GONE = 499  # no answer was sent, because nobody waits for it; nginx's number for that

PROBE_ROUTES = frozenset({"/livez", "/readyz", "/health", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SANE_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, after its answer.

    Attributes:
        method: one of the usual methods, or "other": callers must not be able to invent metric labels.
        route: the route's template, or "unmatched".
        status: the status sent; 499 if the caller had gone.
        code: the error's code; None if there was none.
        seconds: from the first byte of the request to the last of the answer, as the application sees them.
        key: name of the API key; None if none was needed, or none is known.
        trace_id: of the request's trace; None if none is kept.
    """

    method: str
    route: str
    status: int
    code: str | None
    seconds: float
    key: str | None = None
    trace_id: str | None = None


class RequestContext:
    """Give each request an id and a time limit, stop it when its caller goes, and record how it went."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        timeout_s: float,
        observe: Callable[[RequestRecord], None],
        log_probes: bool,
        log_share: float = 1.0,
        log_slower_s: float = 1.0,
        chance: Callable[[], float] = random.random,
        traces: MakesTraces | None = None,
    ) -> None:
        """Wrap ``app``.

        Args:
            app: gets at most ``timeout_s`` for a request.
            timeout_s: in seconds.
            observe: told of every request.
            log_probes: whether successful probes are logged too.
            log_share: of the requests that went well, 0..1, those that are logged.
            log_slower_s: requests that took this long are always logged, as are those that went wrong.
            chance: gives numbers in [0, 1). By chance and not by the request's id: a caller chooses that.
            traces: measures requests, probes excepted; None = nobody does.
        """
        self._app = app
        self._timeout_s = timeout_s
        self._observe = observe
        self._log_probes = log_probes
        self._log_share = log_share
        self._log_slower_s = log_slower_s
        self._chance = chance
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        wanted = Headers(scope=scope).get("x-request-id", "")
        request_id = wanted if _SANE_ID.fullmatch(wanted) else _new_id()
        scope["conche.request_id"] = request_id
        _drop_trailing_slash(scope)
        token = request_id_var.set(request_id)
        answer = _Answer(send, request_id)
        with self._trace(scope, request_id) as trace:
            try:
                await self._run(scope, receive, answer)
            finally:
                self._record(scope, answer.status, time.perf_counter() - started_at, trace)
                request_id_var.reset(token)
                # Its frames have the scope: a refused request would stay until Python looks for garbage.
                scope.pop("conche.error", None)

    def _trace(self, scope: Scope, request_id: str) -> AbstractContextManager[RequestTrace | None]:
        if self._traces is None or scope["path"] in PROBE_ROUTES:
            return nullcontext()
        attributes = {"url.scheme": scope["scheme"], "conche.request_id": request_id}
        return self._traces.begin(scope["headers"], attributes)

    async def _run(self, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        caller = _Caller(receive)
        timer = asyncio.timeout(self._timeout_s)
        try:
            _refuse_other_encodings(scope)
            async with timer:
                watcher = asyncio.create_task(caller.stop_when_gone(timer, answer))
                try:
                    await self._app(scope, caller.receive, answer)
                finally:
                    watcher.cancel()  # inside the timer: it must not touch one that has ended
        except asyncio.CancelledError:
            await self._cut_off(scope, answer)
        except ClientDisconnect:
            answer.status = CLIENT_GONE
        except ServiceError as error:  # raised by a middleware below, outside the router's handlers
            await answer.fail(scope, error)
        except Exception as error:  # noqa: BLE001 - the last net: whatever went wrong, the caller gets an answer
            if caller.gone:
                answer.status = CLIENT_GONE
                return
            await answer.fail(scope, self._judge(error, timer, caller))

    async def _cut_off(self, scope: Scope, answer: "_Answer") -> None:
        """Answer a request that the server cancels, which it does when it will wait no longer to stop."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that was cancelled runs in one
        task.uncancel()
        if answer.complete:
            return
        error = UnavailableError("the service is shutting down and could not finish this; send it again")
        if not answer.begun:
            await answer.fail(scope, error)
            return
        # The server closes the connection of an answer that ends early: half of it must not look whole.
        scope["conche.error"] = error

    def _judge(self, error: Exception, timer: asyncio.Timeout, caller: "_Caller") -> ServiceError:
        if isinstance(error, TimeoutError) and timer.expired():
            if caller.owes_body:
                return SlowRequestError(
                    f"the body had not come after {self._timeout_s:g} s; setting "
                    "CONCHE_LIMITS__REQUEST_SECONDS"
                )
            return RequestTimeoutError(
                f"no answer within {self._timeout_s:g} s; setting CONCHE_LIMITS__REQUEST_SECONDS"
            )
        if isinstance(error, MemoryError):
            logger.error("no memory for a request", exc_info=error)
            return UnavailableError("there is no memory for this request at the moment")
        logger.error("unexpected error", exc_info=error)
        return ServiceError("internal error")

    def _record(self, scope: Scope, status: int, seconds: float, trace: RequestTrace | None) -> None:
        error = scope.get("conche.error")
        record = RequestRecord(
            method=scope["method"] if scope["method"] in _METHODS else "other",
            route=getattr(scope.get("route"), "path_format", UNMATCHED),
            status=status,
            code=error.code if isinstance(error, ServiceError) else None,
            seconds=seconds,
            key=scope.get("conche.key"),
            trace_id=trace.trace_id if trace is not None and trace.recorded else None,
        )
        if trace is not None:
            route = None if record.route == UNMATCHED else record.route
            trace.end(method=record.method, route=route, status=status, code=record.code)
        self._observe(record)
        if record.route in PROBE_ROUTES and record.code is None and not self._log_probes:
            return
        fields: dict[str, object] = {
            "method": record.method,
            "route": record.route,
            "status": status,
            "ms": round(seconds * 1000, 2),
        }
        if self._log_share < 1 and status < HTTPStatus.BAD_REQUEST and seconds < self._log_slower_s:
            if self._chance() >= self._log_share:
                return
            fields["share"] = self._log_share  # so that whoever counts lines can count requests
        if record.key is not None:
            fields["key"] = record.key
        if record.code is not None:
            fields["code"] = record.code
        level = logging.WARNING if status >= HTTPStatus.INTERNAL_SERVER_ERROR else logging.INFO
        access_logger.log(level, "request", extra=fields)


class _Caller:
    """The ``receive`` of one request: notices when nobody waits for the answer any more.

    An ASGI server does not cancel the handler of a closed connection; its texts would stay in the queue.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body_read = asyncio.Event()
        self._asked = False
        self.gone = False

    @property
    def owes_body(self) -> bool:
        """Whether the body was asked for and has not come whole."""
        return self._asked and not self._body_read.is_set()

    async def receive(self) -> Message:
        self._asked = True
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._body_read.set()
        return message

    async def stop_when_gone(self, timer: asyncio.Timeout, answer: "_Answer") -> None:
        """End ``timer``, and with it the handler, if the connection closes between body and whole answer."""
        await self._body_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if answer.complete or timer.expired():  # servers also say "disconnect" when all has been sent
            return
        self.gone = True
        timer.reschedule(asyncio.get_running_loop().time())


class _Answer:
    """The ``send`` of one request: adds the id, and knows how far the answer has got."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.begun = False
        self.complete = False
        self.status = 500

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            self.status = message["status"]
            headers = message["headers"] = list(message.get("headers", ()))
            headers.append((b"x-request-id", self._request_id.encode("latin-1")))
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True

    async def fail(self, scope: Scope, error: ServiceError) -> None:
        """Answer with ``error``; if an answer has begun, break the connection instead of completing it.

        Raises:
            ServiceError: ``error``, so that the server closes the connection: half an answer must not look
                whole.
        """
        scope["conche.error"] = error
        if self.begun:
            raise error
        await error_response(error, self._request_id, scope["path"])(scope, _nothing_more, self)


class BodyLimit:
    """Refuse a body that is too large (as announced, or while it comes in), too slow, or compressed."""

    def __init__(self, app: ASGIApp, *, limit: int, within_s: float, linger_s: float = 2.0) -> None:
        """Wrap ``app``.

        Args:
            app: gets no more than ``limit`` bytes of a body.
            limit: in bytes.
            within_s: from when the body is asked for until it has come whole.
            linger_s: how long the rest of a refused body is read and thrown away.
        """
        self._app = app
        self._limit = limit
        self._within_s = within_s
        self._linger_s = linger_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection.

        Raises:
            PayloadTooLargeError: from the read that passes the limit.
            UnsupportedMediaTypeError: from the first read, of a compressed body.
            SlowRequestError: from the read that takes too long.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        announced = headers.get("content-length", "")
        announced_too_much = announced.isdecimal() and int(announced) > self._limit
        encoding = headers.get("content-encoding", "identity").strip().lower()
        received = 0
        ends_at: float | None = None
        whole = False

        # Checked when the body is asked for and not before: by then the route is known, and can be named in
        # the metrics; and what nobody reads cannot be too large.
        async def receive_within_limit() -> Message:
            nonlocal received, ends_at, whole
            if whole:  # asked whether the caller is still there
                return await receive()
            if encoding != "identity":
                raise UnsupportedMediaTypeError(
                    "the body is compressed (content-encoding), which is not read; send it as it is"
                )
            if announced_too_much:
                if "expect" not in headers:  # else the caller has not sent it yet, and need not
                    await self._discard(receive)
                raise self._error()
            ends_at = ends_at or asyncio.get_running_loop().time() + self._within_s
            try:
                async with asyncio.timeout_at(ends_at):
                    message = await receive()
            except TimeoutError:
                raise SlowRequestError(
                    f"the body took longer than {self._within_s:g} s; setting CONCHE_LIMITS__BODY_SECONDS"
                ) from None
            whole = not message.get("more_body", False)
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._limit:
                    await self._discard(receive)
                    raise self._error()
            return message

        await self._app(scope, receive_within_limit, send)

    def _error(self) -> PayloadTooLargeError:
        return PayloadTooLargeError(
            f"the body is larger than {self._limit} bytes; setting CONCHE_LIMITS__MAX_BODY_BYTES",
            limit=self._limit,
            setting="CONCHE_LIMITS__MAX_BODY_BYTES",
        )

    async def _discard(self, receive: Receive) -> None:
        """Read on for a moment: closing with bytes unread resets the connection, and the answer is lost."""
        left = 4 * self._limit
        try:
            async with asyncio.timeout(self._linger_s):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return
        except TimeoutError:
            return


class StartupErrors:
    """Hand over why the start failed; without this the server logs the whole traceback.

    Only errors of the ``expected`` types are taken: any other is a fault of ours and keeps its traceback.
    """

    def __init__(
        self, app: ASGIApp, *, expected: tuple[type[Exception], ...], report: Callable[[Exception], None]
    ) -> None:
        self._app = app
        self._expected = expected
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything through but the lifespan's failure message."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        failure: Message | None = None

        async def hold_failure(message: Message) -> None:
            nonlocal failure
            if message["type"] == "lifespan.startup.failed":
                failure = message
            else:
                await send(message)

        silent: Message = {"type": "lifespan.startup.failed", "message": ""}
        try:
            await self._app(scope, receive, hold_failure)
        except self._expected as error:
            self._report(error)
            await send(silent)
        except asyncio.CancelledError:  # stopped while loading, by a signal: nothing to report
            await send(silent)
            raise
        except BaseException:
            if failure is not None:
                await send(failure)
            raise


def _new_id() -> str:
    # In a tenth of the time of `uuid.uuid4`, which asks the system; an id is no secret.
    return random.randbytes(16).hex()  # noqa: S311


async def _nothing_more() -> Message:
    return {"type": "http.disconnect"}


def _refuse_other_encodings(scope: Scope) -> None:
    """Servers put U+FFFD for bytes that are not UTF-8: an entry would get an id that nobody meant.

    Raises:
        MalformedUrlError: the path or the query has such bytes.
    """
    for part, name in (("raw_path", "path"), ("query_string", "query")):
        spelt: bytes = scope.get(part) or b""
        if b"%" not in spelt and spelt.isascii():
            continue
        try:
            unquote_to_bytes(spelt).decode()
        except UnicodeDecodeError:
            raise MalformedUrlError(f"the {name} of the URL is not percent-encoded UTF-8") from None


def _drop_trailing_slash(scope: Scope) -> None:
    """``/embed/`` is ``/embed``: a redirect would lose scheme, method or key on the way."""
    path: str = scope["path"]
    if len(path) > 1 and path.endswith("/"):
        scope["path"] = path[:-1]
        raw_path = scope.get("raw_path")
        if raw_path:
            scope["raw_path"] = raw_path.removesuffix(b"/")

"""The trace of the request that is being answered: what takes time says so here, whoever listens.

As with `service.request_work`, the request is found by a context variable, so that nothing has to be handed
on. Without tracing there is no trace, and a stage costs one look at that variable. What a trace becomes is
`service.tracing`'s affair, which is imported only where tracing is on.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

Attribute = str | int | float | bool

_current: ContextVar["RequestTrace | None"] = ContextVar("conche_request_trace", default=None)
_UNTRACED: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class PastStage:
    """A stage that was measured where no trace was at hand, as a run that several requests share.

    Attributes:
        name: of a closed set.
        started_at, ended_at: in seconds of ``time.monotonic``.
        attributes: numbers and names of the service's own, never a caller's text.
        error: a code, if it came to nothing.
        parts: stages within this one.
    """

    name: str
    started_at: float
    ended_at: float
    attributes: Mapping[str, Attribute]
    error: str | None = None
    parts: tuple["PastStage", ...] = ()


class RequestTrace(Protocol):
    """What stages are told to."""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits: the caller's, if it sent one."""
        ...

    @property
    def recorded(self) -> bool:
        """Whether the trace was chosen to be kept, and its request is not over."""
        ...

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Say something of the request as a whole."""
        ...

    def stage(self, name: str, attributes: Mapping[str, Attribute]) -> AbstractContextManager[None]:
        """Measure what happens inside; what it raises is noted by its kind, and goes on."""
        ...

    def add(self, stage: PastStage) -> None:
        """Put in a stage that is over."""
        ...

    def end(self, *, method: str, route: str | None, status: int, code: str | None) -> None:
        """Say how the request went; ``route`` is its template, None if it met none."""
        ...


class MakesTraces(Protocol):
    """Begins the traces of requests."""

    def begin(
        self, headers: Iterable[tuple[bytes, bytes]], attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[RequestTrace]:
        """Measure a request, as part of its caller's trace if ``headers`` name one."""
        ...


def trace_of_request() -> RequestTrace | None:
    """The trace of the request that is being answered; None outside of one, and without tracing."""
    return _current.get()


def recorded_trace_id() -> str | None:
    """The id of that trace if it is kept, so that somebody who looks for it will find it."""
    trace = _current.get()
    return trace.trace_id if trace is not None and trace.recorded else None


def stage(name: str, **attributes: Attribute) -> AbstractContextManager[None]:
    """Measure what happens inside as a stage of the request; attributes never hold a caller's text."""
    trace = _current.get()
    return _UNTRACED if trace is None else trace.stage(name, attributes)


@contextmanager
def tracing_request(trace: RequestTrace) -> Iterator[None]:
    """Make ``trace`` that of the request whose handling is inside."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)

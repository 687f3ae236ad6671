"""What the models did for one request: gathered where it is done, told in the headers of the answer.

The request is found by a context variable, so that nothing between a route and a model has to hand it on; a
task made for the request, or a thread, adds to the same account. Where there is no request, as in the
one-shot commands, nothing is gathered.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_current: ContextVar["RequestWork | None"] = ContextVar("conche_request_work", default=None)


@dataclass(slots=True)
class RequestWork:
    """The account of one request; several calls of models add up.

    Attributes:
        used: whether anything was done at all.
        characters: code points tokenised.
        tokens: read by models; special ones, prompts and the overlaps of windows included.
        tokenize_seconds: until all texts were tokenised, waiting for the threads included.
        run_seconds: in which runs that held rows of the request were going on, other requests' rows included.
        decode_seconds: in which entities were made of what the model gave; None where there are none to make.
        lookup_seconds: in which an index was searched; None where none was.
    """

    used: bool = False
    characters: int = 0
    tokens: int = 0
    tokenize_seconds: float = 0.0
    run_seconds: float = 0.0
    decode_seconds: float | None = None
    lookup_seconds: float | None = None
    _rows: int = 0
    _waited_seconds: float = 0.0

    @property
    def queue_seconds(self) -> float:
        """How long a row waited for its run, the mean over all rows."""
        return self._waited_seconds / self._rows if self._rows else 0.0

    def add_tokenizing(self, seconds: float, *, characters: int) -> None:
        """Texts were tokenised."""
        self.used = True
        self.tokenize_seconds += seconds
        self.characters += characters

    def add_rows(self, rows: int, *, tokens: int, queue_seconds: float, run_seconds: float) -> None:
        """Rows were run; ``queue_seconds`` is the mean over them."""
        self.used = True
        self.tokens += tokens
        self.run_seconds += run_seconds
        self._rows += rows
        self._waited_seconds += queue_seconds * rows

    def add_decoding(self, seconds: float) -> None:
        """Entities were made of a model's outputs."""
        self.decode_seconds = (self.decode_seconds or 0.0) + seconds

    def add_lookup(self, seconds: float) -> None:
        """An index was searched."""
        self.lookup_seconds = (self.lookup_seconds or 0.0) + seconds


def work_of_request() -> RequestWork | None:
    """The account of the request that is being answered; None outside of one."""
    return _current.get()


@contextmanager
def gathering_work() -> Iterator[RequestWork]:
    """Begin an account; what is awaited inside adds to it."""
    work = RequestWork()
    token = _current.set(work)
    try:
        yield work
    finally:
        _current.reset(token)

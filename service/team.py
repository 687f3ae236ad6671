"""The worker processes of one service, as one of them sees them; one process by itself is a team of one."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

METRICS: Final = "metrics"
"""The question for the metrics of a worker; what ended workers counted is kept."""

REINDEX: Final = "reindex"
"""The question for the latest reindex of a collection that a worker began; None if it began none."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Gathered:
    """What all workers answered.

    Attributes:
        answers: by the worker's number; of one that does not answer in time the last it gave, if any.
        ended: to `METRICS`, what workers had counted that are no more; None = nothing.
        ready: workers that serve.
        restarts: of workers, by reason.
    """

    answers: dict[int, Any]
    ended: Any = None
    ready: int = 1
    restarts: dict[str, int] = field(default_factory=dict)


class Team(Protocol):
    """All workers of one service, this one among them."""

    @property
    def size(self) -> int:
        """How many there are to be, 1 at least."""
        ...

    @property
    def number(self) -> int:
        """Which one this process is, from 1."""
        ...

    def answer(self, question: str, answer: Callable[[Sequence[str]], Any]) -> None:
        """Answer a question, whoever asks it, with what ``answer`` returns, which JSON can say.

        Args:
            question: one word.
            answer: takes the words that come with it; called in any thread.
        """
        ...

    async def gather(self, question: str, *words: str) -> Gathered:
        """Ask all."""
        ...

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do what takes long for an event loop, in a thread."""
        ...


class Alone:
    """One process by itself."""

    size: Final = 1
    number: Final = 1

    def __init__(self) -> None:
        self._answers: dict[str, Callable[[Sequence[str]], Any]] = {}

    def answer(self, question: str, answer: Callable[[Sequence[str]], Any]) -> None:
        """As `Team.answer`."""
        self._answers[question] = answer

    async def gather(self, question: str, *words: str) -> Gathered:
        """As `Team.gather`."""
        return Gathered({self.number: self._answers[question](words)})

    async def run(self, work: Callable[[], Result]) -> Result:
        """As `Team.run`."""
        return await asyncio.to_thread(work)

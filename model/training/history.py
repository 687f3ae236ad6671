"""What a training run reports while it goes on; needs no torch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from model.training.scoring import Score

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, after each step; ``seconds`` of training, those before an interruption included."""

    epoch: int
    step: int
    steps: int
    loss: float
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch came to. ``dev`` holds one overall score for each development set."""

    epoch: int
    loss: float
    dev: dict[str, Score]
    seconds: float

    @property
    def dev_f1(self) -> float:
        """Mean F1 over the development sets: each language counts alike, whatever its size."""
        return sum(score.f1 for score in self.dev.values()) / len(self.dev)

    def as_state(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EpochReport:
        """Back from ``as_state``."""
        return cls(**{**state, "dev": {name: Score(**score) for name, score in state["dev"].items()}})


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """A run from its first step: the loss of each step, a report of each epoch."""

    losses: list[float] = dataclasses.field(default_factory=list)
    epochs: list[EpochReport] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> EpochReport:
        """The epoch whose weights are kept."""
        return best_of(self.epochs)


def best_of(reports: Sequence[EpochReport]) -> EpochReport:
    """The epoch whose weights are kept: the first of those with the highest mean F1."""
    return max(reports, key=lambda report: report.dev_f1)

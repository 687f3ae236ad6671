"""Averages of the weights that a training run passes through; they often do better than the last ones."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from model.training.options import TrainingOptions

    Weights = Mapping[str, Tensor]


class Average(Protocol):
    """What follows a run and says which weights to measure and keep."""

    def after_step(self, weights: Weights) -> None:
        """Told after each optimiser step."""
        ...

    def after_epoch(self, weights: Weights) -> None:
        """Told after each epoch's last step."""
        ...

    def weights(self) -> Weights | None:
        """The averaged weights; None = take the run's own."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        ...


class NoAverage:
    """The run's own weights."""

    def after_step(self, weights: Weights) -> None:
        """Nothing to do."""

    def after_epoch(self, weights: Weights) -> None:
        """Nothing to do."""

    def weights(self) -> Weights | None:
        """The run's own."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to do."""


class MovingAverage:
    """Exponential moving average over the steps (Polyak and Juditsky 1992, as practised since).

    The first steps count less than ``decay`` would have it, (1 + t) / (10 + t), or the average would remember
    the starting point for 1 / (1 - decay) steps.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._steps = 0
        self._average: dict[str, Tensor] = {}

    def after_step(self, weights: Weights) -> None:
        """Move a little towards the new weights."""
        self._steps += 1
        if not self._average:
            self._average = {name: tensor.detach().clone() for name, tensor in weights.items()}
            return
        share = 1 - min(self._decay, (1 + self._steps) / (10 + self._steps))
        torch._foreach_lerp_(
            list(self._average.values()), [weights[name].detach() for name in self._average], share
        )

    def after_epoch(self, weights: Weights) -> None:
        """Nothing to do."""

    def weights(self) -> Weights | None:
        """The average so far."""
        return self._average

    def state_dict(self) -> dict[str, Any]:
        """The average and its age."""
        return {"steps": self._steps, "average": self._average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._steps, self._average = state["steps"], dict(state["average"])


class LastEpochs:
    """Mean over the ends of the last ``count`` epochs (of those so far, if there are fewer)."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ends: list[dict[str, Tensor]] = []

    def after_step(self, weights: Weights) -> None:
        """Nothing to do."""

    def after_epoch(self, weights: Weights) -> None:
        """Take the weights in, let the oldest go."""
        self._ends.append({name: tensor.detach().clone() for name, tensor in weights.items()})
        del self._ends[: -self._count]

    def weights(self) -> Weights | None:
        """The mean."""
        return {name: torch.stack([end[name] for end in self._ends]).mean(0) for name in self._ends[0]}

    def state_dict(self) -> dict[str, Any]:
        """The ends that are averaged."""
        return {"ends": self._ends}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._ends = list(state["ends"])


def average_for(options: TrainingOptions) -> Average:
    """The average that the options ask for."""
    if options.averaging == "ema":
        return MovingAverage(options.ema_decay)
    return LastEpochs(options.average_last) if options.averaging == "last" else NoAverage()


@contextlib.contextmanager
def lent(parameters: Mapping[str, Tensor], weights: Weights | None) -> Iterator[None]:
    """Let a network compute with other weights for a while; None = its own."""
    if weights is None:
        yield
        return
    own = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    copy_into(parameters, weights)
    try:
        yield
    finally:
        copy_into(parameters, own)


def copy_into(parameters: Mapping[str, Tensor], weights: Weights) -> None:
    """Overwrite the values of ``parameters``; the names must be the same."""
    if parameters.keys() != weights.keys():
        raise ValueError(f"other names: {sorted(parameters.keys() ^ weights.keys())}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])

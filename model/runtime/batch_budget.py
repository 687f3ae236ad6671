"""How many tokens a batch should have on this machine: the fewest from which on more are no quicker.

Larger batches keep others waiting for longer and take more memory, and where the caches are small they are
slower as well; smaller ones spend more on what each run costs beside its tokens. Curves: ``bench/README.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from model.runtime.bundle import Bundle
from model.runtime.engine import Engine
from model.runtime.engine_choice import network_key
from model.runtime.processor import read_processor
from model.runtime.records import FOR_NOW_SECONDS, read_record, write_record
from model.runtime.run_times import compared_times, timed_batch, timed_output, timed_run

logger = logging.getLogger(__name__)

DEFAULT_BATCH_TOKENS: Final = 2048
# Tokens of the batches that are tried, in rows of _LENGTH.
_SIZES: Final = (512, 1024, 2048)
_LENGTH: Final = 64
# Less is lost again where each client sends one text: of batches that take not all who wait, one is answered
# while the next one runs (bench/README.md).
_WORTH_MORE: Final = 0.9
# Between two runs lies the answering of one and the forming of the next (bench/between_runs.py).
_BETWEEN_RUNS_S: Final = 0.0006
# Where the smallest takes this long the machine is slow or has no time just now, and somebody waits.
_MOST_SECONDS_OF_SMALLEST: Final = 1.0
# For comparing one size with the next; where two rounds take longer there is no next one.
_MOST_SECONDS_OF_PAIR: Final = 3.0
# To be raised with any change of what is measured or how it decides: older files are then passed over.
_PROCEDURE: Final = 5

How = Literal["set", "measured", "remembered", "unsettled", "unmeasured"]


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """Tokens of a batch, and why so many.

    Attributes:
        tokens: rows times longest row.
        how: set by the operator, measured now or by an earlier start or with another bundle of the same
            network, or told by times that contradict each other, or there was no time to measure.
        microseconds: of one token, by tokens of the batch; those that were tried.
    """

    tokens: int
    how: How
    microseconds: Mapping[int, float] = field(default_factory=dict)


class BudgetTuner:
    """Measures budgets, and keeps them.

    Args:
        tokens: what the operator set; None = to be measured.
        threads: of each engine.
        streams: of each engine, as set; None = as each has.
        folder: where budgets are kept; made when one is. None = nowhere.
    """

    def __init__(
        self, tokens: int | None, *, threads: int, streams: int | None = 1, folder: Path | None = None
    ) -> None:
        self._tokens = tokens
        self._threads = threads
        self._streams = streams
        self._folder = folder
        self._measured: dict[str, BatchBudget] = {}  # by network

    def is_to_measure(self, bundle: Bundle) -> bool:
        """Whether `budget` would measure ``bundle``, beside which nothing else should compute.

        Where it was measured on another engine than now, which is not chosen yet, that is not foreseen.
        """
        if self._tokens is not None:
            return False
        network = f"{network_key(bundle.manifest)} "
        if any(key.startswith(network) for key in self._measured):
            return False

        return not read_record(self._path(bundle), "budget of batches", self._machine(), lambda _: True)

    def budget(self, bundle: Bundle, engine: Engine, pad_token_id: int) -> BatchBudget:
        """Of ``bundle``, which ``engine`` runs."""
        if self._tokens is not None:
            return BatchBudget(self._tokens, "set")
        name = bundle.manifest.name
        key = f"{network_key(bundle.manifest)} {engine.name} {engine.precision}"
        known, kept = self._measured.get(key), self._recall(bundle, engine)
        if known is not None and kept is None:
            # Under this bundle's name too: the next start asks before it has read another of this network.
            self._keep(bundle, engine, known)
        if kept is not None and (known is None or known.how == "unsettled"):
            known = kept
        if known is not None:
            self._measured.setdefault(key, known)
            logger.info("%s runs batches of %d tokens, measured before", name, known.tokens)
            return known
        measured = measure_budget(bundle, engine, pad_token_id)
        if measured is None:
            logger.info(
                "%s runs batches of %d tokens; there was no time to measure which are the quickest, so the "
                "next start measures",
                name,
                DEFAULT_BATCH_TOKENS,
            )
            return BatchBudget(DEFAULT_BATCH_TOKENS, "unmeasured")
        self._measured[key] = measured
        tried = ", ".join(f"{tokens}: {us:.0f}" for tokens, us in measured.microseconds.items())
        if measured.how == "unsettled":
            logger.warning(
                "%s runs batches of %d tokens for now; too much else to do here to rely upon what was "
                "measured, so a start in %g minutes or later measures again: microseconds a token: %s",
                name,
                measured.tokens,
                FOR_NOW_SECONDS / 60,
                tried,
            )
        else:
            logger.info(
                "%s runs batches of %d tokens; measured microseconds a token: %s",
                name,
                measured.tokens,
                tried,
            )
        self._keep(bundle, engine, measured)
        return measured

    def _path(self, bundle: Bundle) -> Path | None:
        return None if self._folder is None else self._folder / f"{bundle.digest}.batches.json"

    def _circumstances(self, engine: Engine) -> dict[str, Any]:
        """What a budget depends on, beside the bundle."""
        return {**self._machine(), "engine": engine.name, "precision": engine.precision}

    def _machine(self) -> dict[str, Any]:
        return {
            "procedure": _PROCEDURE,
            "processor": read_processor().name,
            "threads": self._threads,
            "streams": self._streams,
        }

    def _recall(self, bundle: Bundle, engine: Engine) -> BatchBudget | None:
        def read(record: Any) -> BatchBudget:
            microseconds = {int(key): float(value) for key, value in record["microseconds"].items()}
            tokens = int(record["tokens"])
            if tokens not in microseconds:
                raise ValueError(f"{tokens} tokens were not measured")
            return BatchBudget(tokens, "remembered", microseconds)

        return read_record(self._path(bundle), "budget of batches", self._circumstances(engine), read)

    def _keep(self, bundle: Bundle, engine: Engine, budget: BatchBudget) -> None:
        write_record(
            self._path(bundle),
            "budget of batches",
            self._circumstances(engine),
            asdict(budget),
            for_now=budget.how == "unsettled",
        )


def measure_budget(bundle: Bundle, engine: Engine, pad_token_id: int) -> BatchBudget | None:
    """Try larger batches while they are quicker by the token and there is time; see ``compared_times``.

    Returns:
        None: the smallest took so long that the others would keep the start waiting.
    """
    output = timed_output(bundle.manifest)
    length = min(_LENGTH, bundle.manifest.max_tokens)
    microseconds: dict[int, float] = {}
    chosen, *larger = _SIZES
    with ThreadPoolExecutor(engine.streams) as callers:

        def seconds(size: int) -> float:
            return timed_run(engine, batches[size], output, callers)

        def seconds_of_token(size: int) -> float:
            return (seconds(size) + _BETWEEN_RUNS_S) / (engine.streams * batches[size].input_ids.size)

        batches = {
            size: timed_batch(bundle.manifest, [length] * max(1, size // length), pad_token_id)
            for size in _SIZES
        }
        if seconds(chosen) > _MOST_SECONDS_OF_SMALLEST:
            return None
        for size in larger:
            times, plain = compared_times(
                {one: partial(seconds_of_token, one) for one in (chosen, size)},
                partial(_worthwhile, chosen, size),
                most_seconds=_MOST_SECONDS_OF_PAIR,
            )
            # The machine may have another pace than when the smaller one was compared with one smaller yet.
            of_smaller = microseconds.setdefault(chosen, round(1e6 * times[chosen], 3))
            microseconds[size] = round(of_smaller * times[size] / times[chosen], 3)
            smaller, chosen = chosen, _worthwhile(chosen, size, times)
            of_round = sum(times[one] * engine.streams * batches[one].input_ids.size for one in times)
            if chosen == smaller or not plain or 2 * of_round > _MOST_SECONDS_OF_PAIR:
                break
    return BatchBudget(chosen, "measured" if plain else "unsettled", microseconds)


def _worthwhile(smaller: int, larger: int, seconds: Mapping[int, float]) -> int:
    return larger if seconds[larger] <= seconds[smaller] * _WORTH_MORE else smaller

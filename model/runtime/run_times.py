"""How long runs take on this machine, for choices between them; others may have its cores meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

import numpy as np

from model.runtime.bundle import Manifest
from model.runtime.engine import Engine, TokenBatch, pad_batch

Key = TypeVar("Key", bound=Hashable)

# Two times as near to one another were not disturbed, or both alike: the first run of a shape waits for
# kernels, and any for whoever else computes here.
_AGREEMENT: Final = 1.1
_LEAST_ROUNDS: Final = 3


def least_times(
    timers: Mapping[Key, Callable[[], float]], *, most_seconds: float
) -> tuple[dict[Key, float], bool]:
    """Time what is to be compared, in turns, until the two least times of each agree.

    In turns, so that what else runs here slows all of them; the least, because others can only make a run
    longer.

    Args:
        timers: each runs once and returns the seconds it took.
        most_seconds: no round is begun later than this, but for the second.

    Returns:
        The least seconds of each, and whether they agree: if not, there was too much else to do here for a
        comparison that is to be relied upon.
    """
    ends_at = time.perf_counter() + most_seconds
    taken: dict[Key, list[float]] = {key: [] for key in timers}
    rounds, agreed = 0, False
    while not agreed and (rounds < 2 or time.perf_counter() < ends_at):
        for key, timer in timers.items():
            taken[key] = sorted([*taken[key], timer()])[:2]
        rounds += 1
        agreed = rounds >= _LEAST_ROUNDS and all(
            second <= _AGREEMENT * least for least, second in taken.values()
        )
    return {key: times[0] for key, times in taken.items()}, agreed


def timed_run(engine: Engine, batch: TokenBatch, output: str, callers: Executor | None = None) -> float:
    """Seconds that a run takes.

    Args:
        engine: what runs.
        batch: what it runs.
        output: that is asked for.
        callers: as many of them as the engine has streams run the batch, all at a time; None = one by itself,
            which may have more of the cores.
    """
    began = time.perf_counter()
    if callers is None or engine.streams == 1:
        engine.run(batch, [output])
    else:
        for run in [callers.submit(engine.run, batch, [output]) for _ in range(engine.streams)]:
            run.result()
    return time.perf_counter() - began


def timed_output(manifest: Manifest) -> str:
    """The output to ask for when a run is timed."""
    return {
        "embedding": "embeddings_mean",
        "token-classification": "logits",
        "sequence-classification": "sequence_logits",
    }[manifest.task]


def timed_batch(manifest: Manifest, lengths: Sequence[int], pad_token_id: int) -> TokenBatch:
    """Rows of any tokens: which they are makes no difference to the time.

    Args:
        manifest: of the bundle; its longest text bounds the rows.
        lengths: tokens of each row.
        pad_token_id: of its tokenizer.
    """
    vocabulary = manifest.architecture.vocab_size
    rows = [np.arange(min(length, manifest.max_tokens), dtype=np.int64) % vocabulary for length in lengths]
    return pad_batch(rows, pad_token_id)

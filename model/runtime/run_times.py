"""How long runs take on this machine, for choices between them; others may have its cores meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Manifest
from model.runtime.engine import Engine, TokenBatch, pad_batch

Key = TypeVar("Key", bound=Hashable)

# Rounds that count; fewer once _ENOUGH_SECONDS have passed.
_ROUNDS: Final = 5
_FEWEST_ROUNDS: Final = 3
_ENOUGH_SECONDS: Final = 1.5
# What was not chosen is not to have been quicker by a fifth in a quarter of the rounds: a machine's pace
# moves by a tenth in peace, and by a half where others have much to do.
_QUICKER: Final = 0.8
_SHARE_OF_ROUNDS: Final = 0.25


def compared_times(
    timers: Mapping[Key, Callable[[], float]],
    choose: Callable[[Mapping[Key, float]], Key],
    *,
    most_seconds: float,
) -> tuple[dict[Key, float], bool]:
    """Time what is to be compared, round by round, until hardly a round contradicts the choice by a fifth.

    All take turns, and are compared within a round, so that what else runs here slows all of them; what slows
    some of them for a few rounds is no matter to a median. The least of several times would not do: ONNX
    Runtime's one short text has a quick run now and then, when the threads of its pool happen to be awake.

    Args:
        timers: each runs what it times and returns the seconds that count: of a run, of several, or by the
            token.
        choose: the one to take, by what is returned.
        most_seconds: no round is begun later than this, but for the second: where two take this long, one is
            the mean of much.

    Returns:
        Of each the median over the rounds, without the first, which waits for kernels to be made: of its
        share of what a round's timers return, times the sum that the middle one of the rounds has. And
        whether the choice is plain: if not, there was too much else to do here for a comparison that is to be
        relied upon.
    """
    began = time.perf_counter()
    rounds: list[list[float]] = []

    def typical() -> tuple[dict[Key, float], bool]:
        times = np.array(rounds[1:])
        of_each = dict(zip(timers, _typical(times).tolist(), strict=True))
        return of_each, _is_plain(times, list(timers).index(choose(of_each)))

    def last_round() -> bool:
        seconds = time.perf_counter() - began
        enough = len(rounds) > _ROUNDS or (len(rounds) > _FEWEST_ROUNDS and seconds >= _ENOUGH_SECONDS)
        return (enough and typical()[1]) or (len(rounds) > 1 and seconds >= most_seconds)

    while not last_round():
        rounds.append([timer() for timer in timers.values()])
    return typical()


def _typical(times: NDArray[np.float64]) -> NDArray[np.float64]:
    of_round = times.sum(axis=1)
    typical: NDArray[np.float64] = np.median(times / of_round[:, None], axis=0) * np.median(of_round)
    return typical


def _is_plain(times: NDArray[np.float64], chosen: int) -> bool:
    """Whether hardly any of the rounds contradicts the choice.

    Args:
        times: of each round, a column for each that is compared.
        chosen: the column to be taken.
    """
    contradicts: NDArray[np.float64] = (times < _QUICKER * times[:, chosen, None]).mean(axis=0)
    return bool((contradicts < _SHARE_OF_ROUNDS).all())


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

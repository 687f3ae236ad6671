"""Doubles shared by the tests; importable as ``tests.fakes``."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from model.runtime.engine import Precision, TokenBatch

HANG_LIMIT_S = 20.0  # only stops a test that hangs; no test waits for it to pass


@dataclass(frozen=True, slots=True)
class Job:
    """An item for a batcher: who it is, and how long."""

    name: int
    length: int


class FakeModel:
    """Answers each job with its name; records the batches; runs only while its gate is open.

    Attributes:
        batches: the batches run so far, oldest first.
        gate: a run waits for it; set = open.
        error: raised by the next runs instead of answering.
    """

    def __init__(self, *, gate_open: bool = True) -> None:
        self.batches: list[list[Job]] = []
        self.gate = threading.Event()
        self.error: BaseException | None = None
        self.threads: set[str] = set()
        self._started = threading.Semaphore(0)
        if gate_open:
            self.gate.set()

    def run(self, jobs: Sequence[Job]) -> list[int]:
        """A ``run_batch``: called in the execution thread."""
        self.batches.append(list(jobs))
        self.threads.add(threading.current_thread().name)
        self._started.release()
        if not self.gate.wait(HANG_LIMIT_S):
            raise TimeoutError("the test never opened the gate")
        if self.error is not None:
            raise self.error
        return [job.name for job in jobs]

    async def started(self) -> None:
        """Wait until one more run has begun."""
        if not await asyncio.to_thread(self._started.acquire, timeout=HANG_LIMIT_S):
            raise TimeoutError("no run began")


async def settle(turns: int = 20) -> None:
    """Let everything that is ready on the event loop run."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds; for what happens in other threads."""
    for _ in range(int(HANG_LIMIT_S * 1000)):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("the condition never held")


def without_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the user has no home: an id without an account, as a container may run under."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


@dataclass
class FakeEngine:
    """An ``Engine`` whose hidden states are a fixed function of the token ids alone.

    Attributes:
        size: H, or the number of labels.
        asked: the outputs of each run.
        spoil: token id that turns its row into NaN.
        broken: every row is NaN.
        error: raised instead of answering.
        gate: a run waits for it; open unless cleared.
        entered: how many runs have begun.
    """

    name: str = "fake"
    threads: int = 1
    streams: int = 1
    precision: Precision = "float32"
    padding_cost: float = 1.0
    size: int = 8
    asked: list[tuple[str, ...]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    spoil: int | None = None
    broken: bool = False
    error: Exception | None = None
    closed: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    entered: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def lends_threads(self, rows: int) -> bool:
        """Always."""
        del rows
        return True

    def computed_tokens(self, lengths: Sequence[int]) -> int:
        """A token more than rows times longest row, so that nobody counts for himself."""
        return len(lengths) * max(lengths) + 1

    def export(self) -> bytes | None:
        """Nothing."""
        return None

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the outputs asked for."""
        self.entered += 1
        self.gate.wait(HANG_LIMIT_S)
        self.asked.append(tuple(outputs))
        self.shapes.append(batch.input_ids.shape)
        if self.error is not None:
            raise self.error
        dimensions = np.arange(1, self.size + 1)
        hidden = np.sin(batch.input_ids[..., None] * dimensions).astype(np.float32)  # [B, S, H]
        if self.spoil is not None:
            hidden[(batch.input_ids == self.spoil).any(axis=1)] = np.nan
        if self.broken:
            hidden[:] = np.nan
        mask = batch.attention_mask[..., None].astype(np.float32)
        pooled = {
            "embeddings_cls": hidden[:, 0],
            "embeddings_mean": (hidden * mask).sum(axis=1) / mask.sum(axis=1),
        }
        for key in list(pooled):
            norm = np.maximum(np.linalg.norm(pooled[key], axis=1, keepdims=True), np.finfo(np.float32).tiny)
            pooled[f"{key}_normalized"] = pooled[key] / norm
        computed = {"logits": hidden, "last_hidden_state": hidden, **pooled}
        return {output: computed[output].astype(np.float32) for output in outputs}

    def close(self) -> None:
        """Note that the engine was closed."""
        self.closed = True

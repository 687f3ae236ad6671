"""How long the model stands still between two runs while much waits: the batcher's own part, without a model.

    .venv-dev/bin/python bench/between_runs.py

The service's batcher and execution thread at saturation; in place of the model the thread pads the batch and
then sleeps, as an engine leaves the interpreter alone while it computes. Clients send requests of texts with
4 to 256 tokens, most of them short, and wait for their answers. Told is the time from the end of one run to
the next one's start (results handed out, the batch noted, the next one formed) and what padding takes inside
a run, in ms; the least holds beside other work on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runtime.engine import pad_batch
from service.batching import DynamicBatcher
from service.execution import ExecutionThreads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LENGTHS = (4, 8, 8, 12, 12, 16, 16, 24, 32, 48, 64, 128, 256)


async def measure(
    clients: int, texts: int, runs: int, run_seconds: float
) -> tuple[list[float], list[float], list[int]]:
    """Seconds between runs and of padding, and rows of the runs.

    Args:
        clients: that send one request after the other.
        texts: of a request.
        runs: to wait for.
        run_seconds: what the model would take.
    """
    between: list[float] = []
    padding: list[float] = []
    rows: list[int] = []
    ended_at = 0.0

    def run(batch: Sequence[NDArray[np.int64]]) -> list[int]:
        nonlocal ended_at
        began = time.perf_counter()
        if ended_at:
            between.append(began - ended_at)
        pad_batch(batch, 1)
        padding.append(time.perf_counter() - began)
        rows.append(len(batch))
        time.sleep(run_seconds)
        ended_at = time.perf_counter()
        return [0] * len(batch)

    async def client(number: int) -> None:
        rng = np.random.default_rng(number)
        while len(rows) < runs:
            await batcher.submit_many(
                [np.zeros(length, np.int64) for length in rng.choice(LENGTHS, texts).tolist()]
            )

    execution = ExecutionThreads()
    batcher: DynamicBatcher[NDArray[np.int64], int] = DynamicBatcher(run, length=len, execution=execution)
    async with batcher:
        await asyncio.gather(*map(client, range(clients)))
    execution.close()
    return between, padding, rows


def main() -> None:
    """Print a line for each kind of load."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200, help="of each load (200)")
    parser.add_argument("--run-ms", type=float, default=20.0, help="what the model would take (20)")
    arguments = parser.parse_args()
    print(f"{'clients':>8}{'texts':>7}{'rows':>7}{'between: least':>16}{'median':>9}{'padding: least':>16}")
    for clients, texts in ((8, 32), (32, 1), (2, 2048)):
        between, padding, rows = asyncio.run(measure(clients, texts, arguments.runs, arguments.run_ms / 1000))
        print(
            f"{clients:>8}{texts:>7}{np.mean(rows):>7.1f}{1e3 * min(between):>16.3f}"
            f"{1e3 * float(np.median(between)):>9.3f}{1e3 * min(padding):>16.3f}"
        )


if __name__ == "__main__":
    main()

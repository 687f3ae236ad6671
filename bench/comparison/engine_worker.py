"""Runs the bare engine, without service and HTTP: ``python engine_worker.py SCHEDULE ENGINE BUNDLE``.

SCHEDULE ``packed`` is the limit: texts that are tokenised already, in batches of like length that are made
beforehand. ``tei`` is the model of TEI's schedule. Orders and answers are as in ``worker.py``.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from comparison import tei_schedule
from comparison.engines import engine_by_name
from comparison.packing import length_grouped
from comparison.worker import plain, serve
from model.runtime.bundle import Bundle
from model.runtime.engine import TokenBatch, pad_batch
from model.runtime.threads import give_way
from model.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from comparison.worker import Handlers

# Tokens of a batch that are tried before the first measurement; the best one stays.
BUDGETS: Final = (512, 1024, 2048, 4096)
# Texts that are packed together: as many as can be waited for at once.
WINDOW: Final = 512


class BareEngine:
    """An engine and the texts that it is given, tokenised once."""

    def __init__(self, engine: str, folder: str) -> None:
        self._bundle = Bundle.load(Path(folder))
        self._tokenizer = Tokenizer.from_bundle(self._bundle)
        self._engine = engine_by_name(self._bundle, engine)
        self._callers = ThreadPoolExecutor(self._engine.streams, initializer=give_way)
        manifest = self._bundle.manifest
        normalized = "_normalized" if manifest.normalize else ""
        self._output = f"embeddings_{manifest.pooling}{normalized}"
        self._prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
        self._budget: int | None = None
        self._texts: list[str] = []
        self._rows: list[Any] = []

    def tokenise(self, texts: list[str]) -> list[int]:
        """Take ``texts`` as the ones to come; return their lengths."""
        if texts != self._texts:
            self._texts = texts
            self._rows = [one.input_ids for one in self._tokenizer.tokenize(texts, prefix=self._prompt)]
        return [len(row) for row in self._rows]

    def batch(self, positions: list[int]) -> TokenBatch:
        """Pad the texts at ``positions`` to the longest."""
        return pad_batch([self._rows[position] for position in positions], self._tokenizer.pad_token_id)

    def run(self, batch: TokenBatch) -> float:
        """Run a batch; return the seconds it took."""
        return self.run_all([batch])

    def run_all(self, batches: list[TokenBatch]) -> float:
        """Run batches, as many at a time as the engine has streams; return the seconds they took together."""
        began = time.perf_counter()
        if len(batches) == 1:
            self._engine.run(batches[0], (self._output,))
        else:
            for _ in self._callers.map(lambda batch: self._engine.run(batch, (self._output,)), batches):
                pass
        return time.perf_counter() - began

    def outputs(self, order: dict[str, Any]) -> dict[str, Any]:
        """Vectors of a few texts, each run alone."""
        self.tokenise(order["texts"])
        rows = range(len(self._rows))
        return {
            "outputs": [
                plain(self._engine.run(self.batch([row]), (self._output,))[self._output][0]) for row in rows
            ]
        }

    def packed(self, order: dict[str, Any]) -> dict[str, Any]:
        """Time batches packed beforehand; with requests of one text from one client, each text alone."""
        lengths = self.tokenise(order["texts"])
        alone = order["clients"] == order["per_request"] == 1
        if alone:
            windows = [[[position]] for position in range(len(lengths))]
        else:
            if self._budget is None:
                self._budget = self._best_budget(lengths)
            windows = [
                self._window(lengths, first, self._budget)
                for first in range(0, len(lengths) - len(lengths) % WINDOW or len(lengths), WINDOW)
            ]
        seconds, done, latencies = 0.0, 0, []
        computed = tokens = 0
        number = 0
        while seconds < order["seconds"] or number < order["least_requests"]:
            window = windows[number % len(windows)]
            batches = [self.batch(positions) for positions in window]
            taken = self.run_all(batches)
            seconds += taken
            latencies.append(taken)
            done += sum(map(len, window))
            rows = [[lengths[position] for position in positions] for positions in window]
            computed += sum(map(self._engine.computed_tokens, rows))
            tokens += sum(map(sum, rows))
            number += 1
        return {
            "seconds": seconds, "texts": done, "tokens": tokens, "padding": computed / tokens,
            "latencies": latencies if alone else [], "detail": f"budget {self._budget}",
        }  # fmt: skip

    def _window(self, lengths: list[int], first: int, budget: int) -> list[list[int]]:
        batches = length_grouped(lengths[first : first + WINDOW], most_tokens=budget)
        return [[first + position for position in batch] for batch in batches]

    def _best_budget(self, lengths: list[int]) -> int:
        taken = {}
        few = lengths[:128]
        for budget in BUDGETS:
            batches = [self.batch(batch) for batch in length_grouped(few, most_tokens=budget)]
            self.run(batches[0])
            taken[budget] = self.run_all(batches)
        return min(taken, key=taken.__getitem__)

    def tei(self, order: dict[str, Any]) -> dict[str, Any]:
        """Time TEI's schedule."""
        outcome = tei_schedule.closed_loop(
            self.tokenise(order["texts"]),
            lambda positions: self.run(self.batch(positions)),
            clients=order["clients"],
            per_request=order["per_request"],
            seconds=order["seconds"],
            least_requests=order["least_requests"],
        )
        return {
            "seconds": outcome.seconds, "texts": outcome.texts, "tokens": outcome.tokens,
            "padding": outcome.computed_tokens / outcome.tokens, "latencies": outcome.latencies,
        }  # fmt: skip


def load_engine() -> Handlers:
    """Load the engine that the command line names."""
    schedule, engine, folder = sys.argv[1:]
    bare = BareEngine(engine, folder)
    return {"time": bare.packed if schedule == "packed" else bare.tei, "outputs": bare.outputs}


if __name__ == "__main__":
    serve(load_engine)

"""How many texts a second N cores answer as one process, as N, and between: a simulation, no measurement.

    python bench/many_cores.py --loop-ms L --batch-ms F --text-ms T --serial S
    python bench/many_cores.py --measure              # the share S of a run that more threads do not shorten

What goes in is measured on the cores that there are: what the event loop takes a text (bench/workers.py),
what a run of the model takes and each text in it (bench/service_curve.py; CPU time), and S, from runs with
one thread and with two.

Each worker has its share of the cores. Its event loop takes requests and answers one after the other, on one
core; its model runs what waits, up to a batch's worth, on the cores that the loop leaves: a run of n texts
takes `F + n * T` on one core, of which S stays as it is and the rest is divided by the cores (Amdahl's law).
Clients send one text, wait for the answer and send the next; each keeps to the worker that took its
connection, any with equal chance. Left out: memory bandwidth and caches that cores share, turbo clocks, the
network, and what the loop pays for threads that want Python's lock at the same time. So these are upper
ends; measure before you buy.

Source: Amdahl, "Validity of the single processor approach to achieving large scale computing capabilities",
AFIPS 1967.
"""

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tokenization import Tokenizer
from service.faq.queries import demo_queries
from service.settings import Settings

CORES = (1, 2, 4, 8, 16, 32, 64)
CLIENTS_A_CORE = 16
TEXTS_A_CLIENT = 100
SEED = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU milliseconds, on one core.

    Attributes:
        loop_ms: of the event loop, a text, there and back.
        batch_ms, text_ms: of a run, and of each text in it.
        serial: share of a run that is not divided, 0 to 1.
        most: texts of a batch.
    """

    loop_ms: float
    batch_ms: float
    text_ms: float
    serial: float
    most: int = 64

    def run_ms(self, texts: int, cores: float) -> float:
        """How long a run takes on so many cores."""
        alone = self.batch_ms + texts * self.text_ms
        return alone * (self.serial + (1 - self.serial) / max(cores, 1.0))


@dataclass(slots=True)
class Worker:
    """One process: two stages, a loop and a model.

    Attributes:
        loop: jobs of the loop in order: (client, whether it is an answer).
        waiting: clients whose text waits for the model.
        loop_until, model_until: when a stage is done with what it has; None = it has nothing.
        loop_busy_ms: in all.
    """

    cores: float
    loop: deque[tuple[int, bool]] = field(default_factory=deque)
    waiting: deque[int] = field(default_factory=deque)
    running: list[int] = field(default_factory=list)
    loop_until: float | None = None
    model_until: float | None = None
    loop_busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one simulation."""

    texts_a_second: float
    p50_ms: float
    p99_ms: float
    loop_use: float


def simulate(costs: Costs, *, cores: int, workers: int, clients: int) -> Outcome:
    """Have ``clients`` send their texts to ``workers`` that share ``cores``."""
    chance = random.Random(SEED)
    team = [Worker(cores / workers) for _ in range(workers)]
    home = [chance.randrange(workers) for _ in range(clients)]
    sent_at = [0.0] * clients
    left = [TEXTS_A_CLIENT] * clients
    took: list[float] = []
    now = 0.0
    for client in range(clients):
        team[home[client]].loop.append((client, False))
    while any(left):
        for worker in team:
            _begin(worker, costs, now)
        now, number, is_loop = min(
            (until, number, is_loop)
            for number, worker in enumerate(team)
            for until, is_loop in ((worker.loop_until, True), (worker.model_until, False))
            if until is not None
        )
        done = team[number]
        if not is_loop:
            done.model_until = None
            done.loop.extend((client, True) for client in done.running)
            done.running.clear()
            continue
        done.loop_until = None
        client, is_answer = done.loop.popleft()
        if not is_answer:
            done.waiting.append(client)
            continue
        took.append(now - sent_at[client])
        left[client] -= 1
        if left[client]:
            sent_at[client] = now
            done.loop.append((client, False))
    took.sort()
    busy = max(worker.loop_busy_ms for worker in team)
    return Outcome(1000 * len(took) / now, took[len(took) // 2], took[len(took) * 99 // 100], busy / now)


def _begin(worker: Worker, costs: Costs, now: float) -> None:
    """Start whichever stage is free and has something to do."""
    if worker.loop_until is None and worker.loop:
        worker.loop_until = now + costs.loop_ms / 2
        worker.loop_busy_ms += costs.loop_ms / 2
    if worker.model_until is None and worker.waiting:
        texts = min(costs.most, len(worker.waiting))
        worker.running.extend(worker.waiting.popleft() for _ in range(texts))
        # On a single core the loop and the model take turns, near enough.
        share = max(worker.cores - min(1.0, worker.loop_busy_ms / now if now else 0.0), 0.05)
        stretched = costs.run_ms(texts, share) / min(1.0, share)
        worker.model_until = now + stretched


def best_run_ms(threads: int, texts: int, runs: int) -> float:
    """The least that one of some runs of the default model took."""
    settings = Settings()
    bundle = Bundle.load(settings.bundle_path(settings.bundle_names("embedding_bundle")[0]))
    tokenizer = Tokenizer.from_bundle(bundle)
    tokens = tokenizer.tokenize([query.query for query in demo_queries()][:texts])
    batch = pad_batch([one.input_ids for one in tokens], tokenizer.pad_token_id)
    engine = OnnxRuntimeEngine(bundle, threads=threads)
    least = float("inf")
    for _ in range(runs):
        began = time.perf_counter()
        engine.run(batch, ["embeddings_mean"])
        least = min(least, time.perf_counter() - began)
    engine.close()
    return 1000 * least


def shapes(cores: int) -> Sequence[int]:
    """Numbers of workers that divide ``cores``: one, two, four, ..., one a core."""
    return [workers for workers in CORES if workers <= cores]


def main() -> None:
    """Simulate, or measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loop-ms", type=float, default=1.0)
    parser.add_argument("--batch-ms", type=float, default=7.75)
    parser.add_argument("--text-ms", type=float, default=16.36)
    parser.add_argument("--serial", type=float, default=0.05)
    parser.add_argument("--cores", type=int, nargs="+", default=[2, 8, 16, 32])
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args()
    if options.measure:
        for texts in (1, 4, 16, 64):
            one, two = (best_run_ms(threads, texts, 40) for threads in (1, 2))
            # one = a + p, two = a + p / 2
            print(
                f"{texts} texts: {one:.2f} ms, {two:.2f} ms with two threads, serial {2 * two / one - 1:.2f}"
            )
        return
    costs = Costs(options.loop_ms, options.batch_ms, options.text_ms, options.serial)
    print("| cores | workers x cores each | texts/s | p50, p99 ms | busiest loop |")
    print("| --- | --- | --- | --- | --- |")
    for cores in options.cores:
        for workers in shapes(cores):
            found = simulate(costs, cores=cores, workers=workers, clients=CLIENTS_A_CORE * cores)
            print(
                f"| {cores} | {workers} x {cores // workers} | {found.texts_a_second:.0f} "
                f"| {found.p50_ms:.0f}, {found.p99_ms:.0f} | {found.loop_use:.0%} |"
            )


if __name__ == "__main__":
    main()

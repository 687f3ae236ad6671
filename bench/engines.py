"""Engines and precisions beside each other, on one bundle: speed, memory, nearness to the golden texts.

    python bench/engines.py                    # the shipped embedder, all that this processor has
    python bench/engines.py --texts 64 --rounds 3

Prints the tables of bench/README.md. The engines take turns, batch by batch, and medians over the rounds are
printed: on a machine that does other things meanwhile, compare CPU time. Memory is measured in a process for
each engine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.engine import Engine, pad_batch
from model.runtime.engine_choice import EngineChooser, EngineWishes, candidates, open_engine
from model.runtime.golden import check_alike
from model.runtime.openvino_engine import OpenVinoEngine
from model.runtime.processor import read_processor
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer

ROOT: Final = Path(__file__).parents[1]
OUTPUT: Final = "embeddings_mean_normalized"
BUDGETS: Final = (512, 1024, 2048)
SINGLE: Final = (8, 16, 32)
# Tokens of a text: log-normal about this median, as those of questions and answers are.
MEDIAN, SPREAD, LEAST, MOST = 25, 1.0, 2, 256

Rows = list[NDArray[np.int64]]
Open = Callable[[Bundle, int], Engine]


def kinds() -> dict[str, Open]:
    """Every engine and precision that this machine has, and OpenVINO with its weights unpacked beside."""
    found: dict[str, Open] = {}
    for candidate in candidates(EngineWishes()):
        found[str(candidate)] = lambda bundle, threads, one=candidate: open_engine(  # type: ignore[misc]
            bundle, one, threads=threads
        )
        if candidate.engine == "openvino":
            found[f"{candidate}, unpacked"] = lambda bundle, threads, one=candidate: OpenVinoEngine(  # type: ignore[misc]
                bundle, threads=threads, precision=one.precision, packed=False
            )
    return found


def texts(count: int, vocabulary: int) -> Rows:
    """Texts of any tokens; which they are makes no difference to the time."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(MEDIAN), SPREAD, count), LEAST, MOST).astype(int)
    return [rng.integers(5, vocabulary, length) for length in lengths]


def grouped(rows: Rows, budget: int) -> list[Rows]:
    """By length, as many to a batch as ``budget`` tokens hold, padding counted."""
    batches: list[Rows] = []
    for row in sorted(rows, key=len):
        if not batches or len(row) * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(row)
    return batches


def measured(
    engines: dict[str, Engine], batches: Sequence[Rows], pad: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Median seconds on the clock and of CPU for all batches, by engine; they take turns at each batch."""
    clock: dict[str, list[float]] = {name: [] for name in engines}
    cpu: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        sums = {name: [0.0, 0.0] for name in engines}
        for rows in batches:
            batch = pad_batch(rows, pad)
            for name, engine in engines.items():
                began, used = time.perf_counter(), time.process_time()
                engine.run(batch, [OUTPUT])
                sums[name][0] += time.perf_counter() - began
                sums[name][1] += time.process_time() - used
        for name, (seconds, used) in sums.items():
            clock[name].append(seconds)
            cpu[name].append(used)
    return {name: (statistics.median(clock[name]), statistics.median(cpu[name])) for name in engines}


def memory(path: Path, name: str, threads: int) -> dict[str, float]:
    """What one engine takes in this process, in MiB and CPU seconds, and its likeness."""
    bundle = Bundle.load(path)
    tokenizer = Tokenizer.from_bundle(bundle)
    before, used = resident("VmRSS"), time.process_time()
    with closing(kinds()[name](bundle, threads)) as engine:
        loaded, load = resident("VmRSS"), time.process_time() - used
        cosine = check_alike(bundle, tokenizer, engine).least_cosine
        rows = texts(8, bundle.manifest.architecture.vocab_size)
        engine.run(pad_batch([np.resize(rows[0], 256)] * 8, tokenizer.pad_token_id), [OUTPUT])
        return {
            "load": load,
            "loaded": loaded - before,
            "after": resident("VmRSS") - before,
            "peak": resident("VmHWM"),
            "cosine": cosine,
        }


def start(path: Path, threads: int) -> dict[str, float]:
    """CPU seconds until an engine is chosen and proved: measured, as at the first start, and remembered."""
    bundle = Bundle.load(path)
    tokenizer = Tokenizer.from_bundle(bundle)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            used = time.process_time()
            chooser = EngineChooser(EngineWishes(), threads=threads, folder=Path(folder))
            engine, choice = chooser.open(bundle, tokenizer)
            seconds[f"{choice.how} ({choice.candidate})"] = time.process_time() - used
            engine.close()
    return seconds


def resident(field: str) -> float:
    """MiB of this process: VmRSS now, VmHWM at most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, default=ROOT / "models" / "multilingual-e5-small-zh-en")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=thread_count())
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(memory(options.bundle, options.memory, options.threads)))
        return
    processor = read_processor()
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    has = [name for name in wanted if name in processor.features]
    print(f"{processor.name} ({', '.join(has)}), {options.threads} threads, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| engine | load, CPU s | MiB loaded | MiB after work | peak of the process | least golden cosine |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for name in kinds():
        command = [sys.executable, __file__, "--bundle", str(options.bundle), "--memory", name]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        told = json.loads(done.stdout)
        mebibytes = " | ".join(f"{told[key]:.0f}" for key in ("loaded", "after", "peak"))
        print(f"| {name} | {told['load']:.1f} | {mebibytes} | {told['cosine']:.7f} |", flush=True)
    for how, seconds in start(options.bundle, options.threads).items():
        print(f"\nEngine chosen and proved, {how}: {seconds:.1f} CPU s")
    bundle = Bundle.load(options.bundle)
    pad = bundle.manifest.architecture.pad_token_id
    rows = texts(options.texts, bundle.manifest.architecture.vocab_size)
    engines = {name: open_one(bundle, options.threads) for name, open_one in kinds().items()}
    measured(engines, [rows[:1], rows[:8]], pad, 1)  # warm
    print(f"\n{len(rows)} texts, {sum(map(len, rows))} tokens; {options.rounds} rounds\n")
    print("| batches | padding | " + " | ".join(f"{name}: texts/s, CPU ms a text" for name in engines) + " |")
    print("| --- | --- |" + " --- |" * len(engines))
    plans = [(f"one text of {length}", [[np.resize(rows[0], length)]] * 8) for length in SINGLE]
    plans += [(f"grouped, {budget} tokens", grouped(rows, budget)) for budget in BUDGETS]
    for label, batches in plans:
        count = sum(map(len, batches))
        padded = sum(len(batch) * max(map(len, batch)) for batch in batches)
        padding = padded / sum(len(row) for batch in batches for row in batch)
        results = measured(engines, batches, pad, options.rounds)
        cells = [f"{count / clock:.0f}, {1e3 * cpu / count:.2f}" for clock, cpu in results.values()]
        print(f"| {label} | {padding:.2f} | " + " | ".join(cells) + " |", flush=True)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()

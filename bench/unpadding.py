"""What it gives to leave padding out of layers in OpenVINO, batch by batch; runs graphs, no service.

    .venv-dev/bin/python bench/unpadding.py models/multilingual-e5-small-zh-en

The graph of a bundle as OpenVINO reads it, without the guards of its attention (`openvino_graph`), and
without padding. Of each batch the first run, which waits for kernels to be made, and the median of the later
ones, by the clock; 1 x 12 is one row of 12 tokens, 24 of 20 to 44 are rows of lengths from one to the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.engine import GRAPH_NAME, TokenBatch, pad_batch
from model.runtime.openvino_engine import graph_folder
from model.runtime.openvino_graph import drop_nan_guards, floor_quotients, unpad, unpadded_inputs
from model.runtime.openvino_library import core, multiplies_bfloat16
from model.runtime.run_times import timed_output
from model.runtime.threads import thread_count

# Rows, and tokens of the shortest and of the longest.
BATCHES: Final = (
    (1, 12, 12),
    (1, 48, 48),
    (5, 32, 32),
    (10, 32, 32),
    (28, 32, 32),
    (4, 256, 256),
    (10, 30, 33),
    (24, 20, 44),
    (32, 2, 64),
    (8, 10, 250),
)
WARM_UP: Final = (9, 28, 31)
SECONDS: Final = 0.5

Run = Callable[[TokenBatch], NDArray[np.float32]]
FORMS: Final = ("as read", "without guards", "without padding")


def compiled(bundle: Bundle, form: str, precision: str, threads: int) -> Run:
    """The graph in one of its ``FORMS``."""
    options = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    with graph_folder(bundle) as folder:
        model = core().read_model(folder / GRAPH_NAME)
        floor_quotients(model)
        if form != "as read":
            drop_nan_guards(model)
        unpadded = form == "without padding" and unpad(model)
        request: Any = core().compile_model(model, "CPU", options).create_infer_request()
    output = timed_output(bundle.manifest)

    def run(batch: TokenBatch) -> NDArray[np.float32]:
        mask = batch.attention_mask
        feeds: Mapping[str, Any] = {
            "input_ids": batch.input_ids,
            "attention_mask": mask,
            "token_type_ids": batch.token_type_ids,
        }
        if unpadded:
            feeds = {**feeds, **unpadded_inputs(mask, int(mask.sum()))}
        request.infer(feeds, share_inputs=True, share_outputs=True)
        return np.array(request.get_tensor(output).data)

    return run


def batch_of(bundle: Bundle, rows: int, shortest: int, longest: int) -> TokenBatch:
    """Rows whose lengths go evenly from the one to the other."""
    rng = np.random.default_rng(rows)
    lengths = np.linspace(shortest, min(longest, bundle.manifest.max_tokens), rows).round().astype(int)
    vocabulary = bundle.manifest.architecture.vocab_size
    pad = bundle.manifest.architecture.pad_token_id
    return pad_batch([rng.integers(0, vocabulary, length) for length in lengths], pad)


def timed(run: Run, batch: TokenBatch) -> tuple[float, float, NDArray[np.float32]]:
    """Milliseconds of the first run and of the later ones, and what came out."""
    times: list[float] = []
    while len(times) < 5 or sum(times) < SECONDS:
        began = time.perf_counter()
        values = run(batch)
        times.append(time.perf_counter() - began)
    if values.ndim == 3:  # numbers for each token; of padding they are anything
        values = values[batch.attention_mask == 1]
    return 1e3 * times[0], 1e3 * float(np.median(times[1:])), values


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--threads", type=int, help="Of a run; as many as the service would take.")
def main(folder: Path, threads: int | None) -> None:
    """Print a table for each precision that the processor has."""
    bundle = Bundle.load(folder)
    threads = threads or thread_count()
    for precision in ("float32", "bfloat16") if multiplies_bfloat16() else ("float32",):
        runs = {form: compiled(bundle, form, precision, threads) for form in FORMS}
        for run in runs.values():
            run(batch_of(bundle, *WARM_UP))
        print(f"\n{bundle.manifest.name}, {precision}, {threads} threads; ms of the first run, later ones\n")
        print("| rows of tokens | tokens, padded | " + " | ".join(FORMS) + " | us a token | apart |")
        print("| --- " * (len(FORMS) + 4) + "|")
        for rows, shortest, longest in BATCHES:
            batch = batch_of(bundle, rows, shortest, longest)
            tokens = int(batch.attention_mask.sum())
            results = [timed(run, batch) for run in runs.values()]
            apart = max(float(np.abs(one[2] - results[0][2]).max()) for one in results)
            what = f"{rows} x {longest}" if shortest == longest else f"{rows} of {shortest} to {longest}"
            cells = [f"{first:.1f}, {later:.2f}" for first, later, _ in results]
            each = ", ".join(f"{1e3 * later / tokens:.1f}" for _, later, _ in results)
            print(
                f"| {what} | {tokens}, {batch.input_ids.size} | {' | '.join(cells)} | {each} | {apart:.0e} |"
            )


if __name__ == "__main__":
    main()

"""How far a real checkpoint's vectors are from those that transformers computes for it.

    .venv-dev/bin/python bench/parity.py CHECKPOINT

CHECKPOINT is a folder or a hub id of an embedding model. Our own Chinese and English texts (the golden ones
and the questions of the demo FAQ), cut to the model's longest input, go in ragged batches through
transformers' model on one side and, on the other, through our encoder and through the float32 bundle that
`conche export` writes, in ONNX Runtime. Prints the largest absolute difference over real positions, and how
many texts both tokenizers cut alike.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path

import click
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from model.encoder.checkpoint import Checkpoint, read_checkpoint
from model.encoder.pooling import cls_pool, l2_normalise, mean_pool
from model.export.from_checkpoint import Choices, contents_of
from model.export.golden import TEXTS
from model.export.graph import GraphModule
from model.export.writer import write_bundle
from model.runtime.bundle import Bundle
from model.runtime.engine import OUTPUT_NAMES, TokenBatch, pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer
from service.faq.entry_files import demo_entries

BATCHES = (1, 3, 8, 16)
OUTPUTS = OUTPUT_NAMES["embedding"]

Arrays = Mapping[str, NDArray[np.float32]]


def transformers_outputs(model: torch.nn.Module, batch: TokenBatch) -> Arrays:
    """The graph's outputs, from the hidden states of transformers."""
    mask = torch.from_numpy(batch.attention_mask)
    with torch.inference_mode():
        hidden_states = model(torch.from_numpy(batch.input_ids), attention_mask=mask).last_hidden_state
        pooled = (cls_pool(hidden_states), mean_pool(hidden_states, mask))
        tensors = (hidden_states, *pooled, *map(l2_normalise, pooled))
    return {name: tensor.numpy() for name, tensor in zip(OUTPUTS, tensors, strict=True)}


def largest_difference(ours: Arrays, theirs: Arrays, name: str, mask: NDArray[np.int64]) -> float:
    """Over real positions, or over all components of pooled vectors."""
    difference = np.abs(ours[name] - theirs[name])
    return float((difference[mask.astype(bool)] if difference.ndim == 3 else difference).max())


def ragged_batches(rows: Sequence[NDArray[np.int64]], pad_token_id: int) -> list[TokenBatch]:
    """Every row once, in batches of changing size whose rows differ in length."""
    batches: list[TokenBatch] = []
    start = 0
    for size in cycle(BATCHES):
        if start >= len(rows):
            return batches
        batches.append(pad_batch(rows[start : start + size], pad_token_id))
        start += size
    raise AssertionError


def same_ids(checkpoint: Checkpoint, texts: Sequence[str], rows: Sequence[NDArray[np.int64]]) -> int:
    """How many texts transformers' tokenizer turns into the same ids."""
    theirs = AutoTokenizer.from_pretrained(checkpoint.path)
    encoded = theirs(list(texts), truncation=True, max_length=checkpoint.max_tokens)["input_ids"]
    return sum(list(ids) == row.tolist() for ids, row in zip(encoded, rows, strict=True))


@click.command()
@click.argument("checkpoint")
@click.option("--revision", help="Branch, tag or commit, for a model of the hub.")
def main(checkpoint: str, revision: str | None) -> None:
    """Compare CHECKPOINT's vectors here with those of transformers."""
    read = read_checkpoint(checkpoint, revision=revision)
    reference = AutoModel.from_pretrained(read.path, dtype=torch.float32).eval()
    contents, _ = contents_of(read, Choices(name="parity", task="embedding"))
    encoder = GraphModule.of(contents.model)
    texts = [*TEXTS, *(entry.question for entry in demo_entries())]
    with tempfile.TemporaryDirectory() as folder:
        written = write_bundle(contents, Path(folder) / "parity")
        bundle = Bundle.load(written.path)
        tokenizer = Tokenizer.from_bundle(bundle)
        rows = [tokenizer.truncate(one, read.max_tokens).input_ids for one in tokenizer.tokenize(texts)]
        agreeing = same_ids(read, texts, rows)
        batches = ragged_batches(rows, tokenizer.pad_token_id)
        worst = {side: dict.fromkeys(OUTPUTS, 0.0) for side in ("encoder", "bundle")}
        with closing(OnnxRuntimeEngine(bundle, threads=thread_count())) as engine:
            for batch in batches:
                theirs = transformers_outputs(reference, batch)
                feeds = {
                    "input_ids": batch.input_ids,
                    "attention_mask": batch.attention_mask,
                    "token_type_ids": batch.token_type_ids,
                }
                for side, ours in (("encoder", encoder.run(feeds)), ("bundle", engine.run(batch, OUTPUTS))):
                    for name in OUTPUTS:
                        difference = largest_difference(ours, theirs, name, batch.attention_mask)
                        worst[side][name] = float(np.maximum(worst[side][name], difference))
    click.echo(
        f"{read.name}: {len(texts)} texts in {len(batches)} batches of {min(BATCHES)} to {max(BATCHES)}"
    )
    click.echo(f"same token ids as transformers: {agreeing} of {len(texts)} texts")
    click.echo(f"{'largest absolute difference':<30}{'encoder':>10}{'bundle':>10}")
    for name in OUTPUTS:
        click.echo(f"{name:<30}{worst['encoder'][name]:>10.1e}{worst['bundle'][name]:>10.1e}")


if __name__ == "__main__":
    main()

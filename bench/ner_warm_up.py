"""Lets a tagger guess masked tokens of open text for a while, before it learns from labelled text again.

    .venv-dev/bin/python bench/ner_warm_up.py models/ner-zh-en TEXTS... -o models/warm

TEXTS are files of JSON lines with a "text". The encoder learns, the head of labels and the tables stay; what
guesses (a layer as BERT has it, and the word table) is thrown away. The result is a bundle to train on from:
`conche train ner --base models/warm`. Source: Gururangan et al. 2020, arXiv:2004.10964, section 4, and Devlin
et al. 2019, arXiv:1810.04805, task 1.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import numpy as np
import tokenizers
import torch
from torch import Tensor, nn

from model.encoder.heads import TokenClassifier
from model.runtime.bundle import Bundle
from model.runtime.tokenization import TOKENIZER_NAME
from model.training.tagger import classifier_on, freeze_tables, write_tagger

MASKED: Final = 0.15
AS_IT_WAS, AT_RANDOM = 0.1, 0.1  # of the masked ones
WARM_UP_SHARE: Final = 0.1
MASK_TOKENS: Final = ("<mask>", "[MASK]", "<unk>", "[UNK]")


@dataclasses.dataclass(frozen=True, slots=True)
class Warmed:
    """A tagger as ``write_tagger`` takes it."""

    network: TokenClassifier
    tokenizer: tokenizers.Tokenizer
    crf: None = None


def rows_of(files: Sequence[Path], tokenizer: tokenizers.Tokenizer, longest: int) -> list[list[int]]:
    """Token ids of each text, cut to ``longest``."""
    tokenizer.enable_truncation(longest)
    texts = [json.loads(line)["text"] for file in files for line in file.read_text("utf-8").splitlines()]
    rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    tokenizer.no_truncation()
    return rows


def batches(rows: Sequence[list[int]], size: int, steps: int, pad: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and mask of ``steps`` batches of texts of like length, [B, S] each."""
    groups: list[list[int]] = []
    for _ in range(steps):
        if not groups:
            order = sorted(torch.randperm(len(rows)).tolist(), key=lambda i: len(rows[i]))
            groups = [order[first : first + size] for first in range(0, len(order), size)]
            groups = [groups[i] for i in torch.randperm(len(groups)).tolist()]
        chosen = [torch.tensor(rows[i]) for i in groups.pop()]
        ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=pad)
        yield ids, (ids != pad).long()


@click.command(help=__doc__)
@click.argument("base", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument(
    "texts", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--steps", default=150, show_default=True)
@click.option("--batch-size", default=32, show_default=True)
@click.option("--learning-rate", default=1e-4, show_default=True)
@click.option("--head-learning-rate", default=2e-3, show_default=True)
@click.option("--max-tokens", default=96, show_default=True)
@click.option("--seed", default=13, show_default=True)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def main(
    *,
    base: Path,
    texts: Sequence[Path],
    steps: int,
    batch_size: int,
    learning_rate: float,
    head_learning_rate: float,
    max_tokens: int,
    seed: int,
    output: Path,
) -> None:
    """Mask, guess, learn, write."""
    torch.manual_seed(seed)
    manifest = Bundle.load(base).manifest
    network = classifier_on(base, manifest.labels or ())
    freeze_tables(network.encoder)
    network.classifier.requires_grad_(False)
    tokenizer = tokenizers.Tokenizer.from_file(str(base / TOKENIZER_NAME))
    tokenizer.no_padding()
    pad = manifest.architecture.pad_token_id
    mask = next(found for found in map(tokenizer.token_to_id, MASK_TOKENS) if found is not None)
    rows = rows_of(texts, tokenizer, max_tokens)
    # Only tokens of these texts are ever the answer: the others would cost time and teach nothing.
    seen = torch.from_numpy(np.unique(np.concatenate([np.array(row) for row in rows])))
    answers = network.encoder.embeddings.word.weight[seen].detach()
    place_of = torch.zeros(manifest.architecture.vocab_size, dtype=torch.int64)
    place_of[seen] = torch.arange(len(seen))
    width = manifest.architecture.hidden_size
    guesser = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
    bias = nn.Parameter(torch.zeros(len(seen)))
    encoder = [parameter for parameter in network.encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": encoder, "lr": learning_rate},
            {"params": [*guesser.parameters(), bias], "lr": head_learning_rate},
        ],
        weight_decay=0.01,
        fused=True,
    )
    rise = max(1, round(WARM_UP_SHARE * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (steps - step) / max(1, steps - rise))
    )
    network.train()
    began, losses = time.monotonic(), []
    for step, (ids, attention) in enumerate(batches(rows, batch_size, steps, pad), start=1):
        special = (ids == pad) | (ids == ids[0, 0]) | (ids == ids[0, attention[0].sum() - 1])
        chosen = (torch.rand(ids.shape) < MASKED) & ~special
        how = torch.rand(ids.shape)
        shown = ids.masked_fill(chosen & (how >= AS_IT_WAS + AT_RANDOM), mask)
        random = seen[torch.randint(len(seen), ids.shape)]
        shown = torch.where(chosen & (how < AT_RANDOM), random, shown)
        hidden = network.encoder(shown, attention)
        logits = guesser(hidden[chosen]) @ answers.T + bias
        loss = nn.functional.cross_entropy(logits, place_of[ids[chosen]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_([*encoder, *guesser.parameters(), bias], 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps:
            lately = sum(losses[-10:]) / len(losses[-10:])
            click.echo(f"{step} of {steps}: loss {lately:.3f}, {time.monotonic() - began:.0f} s")
    write_tagger(
        Warmed(network.eval(), tokenizer),
        base,
        output,
        languages=manifest.languages,
        licence=manifest.licence,
        description=f"{manifest.name} after {steps} steps of guessing masked tokens",
        notices={},
        quality={
            "warm_up": {
                "steps": steps,
                "texts": len(rows),
                "last_loss": round(float(np.mean(losses[-10:])), 3),
            }
        },
        storage="float16",
    )


if __name__ == "__main__":
    main()

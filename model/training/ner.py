"""Fine-tuning of the encoder for named entities."""

from __future__ import annotations

import dataclasses
import math
import random
import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from model.training.scoring import Score, score_spans
from model.training.spans import IGNORED_LABEL, LabelledText, Span, align, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from model.encoder.heads import TokenClassifier
    from model.training.options import TrainingOptions

    Tokenise = Callable[[Sequence[str]], Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]]
    """texts -> (input_ids [S], offsets [S, 2] in code points) of each."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, after each step."""

    epoch: int
    step: int
    steps: int
    loss: float
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch came to. ``dev`` holds one overall score for each development set."""

    epoch: int
    loss: float
    dev: dict[str, Score]
    seconds: float

    @property
    def dev_f1(self) -> float:
        """Mean F1 over the development sets: each language counts alike, whatever its size."""
        return sum(score.f1 for score in self.dev.values()) / len(self.dev)


def best_of(reports: Sequence[EpochReport]) -> EpochReport:
    """The epoch whose weights are kept: the first of those with the highest mean F1."""
    return max(reports, key=lambda report: report.dev_f1)


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
    """One text as the network sees it."""

    input_ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    label_ids: list[int]
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """Examples, and what was lost on the way to them."""

    examples: list[Example]
    misfits: list[Span]
    shortened: int


def prepare(
    texts: Sequence[LabelledText], tokenise: Tokenise, labels: Sequence[str], *, max_tokens: int
) -> Prepared:
    """Tokenise and label.

    Args:
        texts: Labelled texts; labels outside ``labels`` are an error, not dropped.
        tokenise: Text to ids and offsets, special tokens included.
        labels: ``O``, ``B-X``, ``I-X``, in logit order.
        max_tokens: Longer texts lose their end, closing special token kept, and are counted.

    Returns:
        One example a text, the spans that do not fall on token borders, and how many texts were cut.

    Raises:
        KeyError: A span has a label that ``labels`` lacks.
    """
    label_ids = {name: index for index, name in enumerate(labels)}
    examples: list[Example] = []
    misfits: list[Span] = []
    shortened = 0
    for text, (ids, offsets) in zip(texts, tokenise([text.text for text in texts]), strict=True):
        if len(ids) > max_tokens:
            shortened += 1
            keep = [*range(max_tokens - 1), len(ids) - 1]
            ids, offsets = ids[keep], offsets[keep]  # noqa: PLW2901 - the pair, shortened
        label_of, missed = align(text.spans, offsets, label_ids)
        misfits += missed
        examples.append(Example(ids, offsets, label_of, text.spans))
    return Prepared(examples, misfits, shortened)


class NerTrainer:
    """Full fine-tuning of a :class:`TokenClassifier` with its embedding tables frozen.

    The tables stay as they are so that a tagger can share them with the embedding model it came
    from, and because AdamW would otherwise walk the whole vocabulary at every step.

    Source of the recipe: Devlin et al. 2019, arXiv:1810.04805, section 5.3 and appendix A.3.
    """

    def __init__(
        self,
        classifier: TokenClassifier,
        options: TrainingOptions,
        *,
        pad_token_id: int,
        unknown_token_id: int,
    ) -> None:
        self.classifier = classifier
        self.options = options
        self.pad_token_id = pad_token_id
        self.unknown_token_id = unknown_token_id
        self._random = random.Random(options.seed)  # noqa: S311 - shuffling, not secrets
        torch.manual_seed(options.seed)
        embeddings = classifier.encoder.embeddings
        for table in (embeddings.word, embeddings.position, embeddings.token_type):
            if table is not None:
                table.weight.requires_grad_(False)

    def train(
        self,
        train: Sequence[Example],
        dev: dict[str, Sequence[Example]],
        *,
        best_weights: Path,
        on_step: Callable[[Progress], None] = lambda _: None,
        on_epoch: Callable[[EpochReport], None] = lambda _: None,
    ) -> list[EpochReport]:
        """Run every epoch; leave the classifier with the weights of the best one on ``dev``.

        Args:
            train: Examples to learn from.
            dev: Named development sets; ``best_of`` says which epoch wins.
            best_weights: File for the best state so far, which is read back at the end. It is not enough
                to go on from: a run that is stopped begins anew.
            on_step: Called after each optimiser step.
            on_epoch: Called after each epoch with its development scores.

        Raises:
            FloatingPointError: The loss is not a finite number.
        """
        steps_per_epoch = math.ceil(len(train) / self.options.batch_size)
        steps = steps_per_epoch * self.options.epochs
        optimizer, scheduler = self._optimizer(steps)
        reports: list[EpochReport] = []
        started = time.monotonic()
        step = 0
        for epoch in range(1, self.options.epochs + 1):
            losses: list[float] = []
            self.classifier.train()
            for batch in self._batches(train):
                losses.append(self._step([train[i] for i in batch], optimizer))
                scheduler.step()
                step += 1
                on_step(Progress(epoch, step, steps, losses[-1], time.monotonic() - started))
            scores = {
                name: score_spans([e.spans for e in examples], self.predict(examples))[0]
                for name, examples in dev.items()
            }
            reports.append(EpochReport(epoch, sum(losses) / len(losses), scores, time.monotonic() - started))
            if best_of(reports) is reports[-1]:
                torch.save(self.classifier.state_dict(), best_weights)
            on_epoch(reports[-1])
        self.classifier.load_state_dict(torch.load(best_weights, weights_only=True))
        self.classifier.eval()
        return reports

    def predict(self, examples: Sequence[Example], *, batch_size: int = 64) -> list[list[Span]]:
        """The most likely label of each token, read back as spans.

        Returns:
            Spans of each example, in the order given.
        """
        self.classifier.eval()
        order = sorted(range(len(examples)), key=lambda i: len(examples[i].input_ids))
        found: list[list[Span]] = [[] for _ in examples]
        for first in range(0, len(order), batch_size):
            rows = order[first : first + batch_size]
            input_ids, attention_mask, _ = self._collate([examples[i] for i in rows])
            with torch.inference_mode(), self._autocast():
                best = self.classifier(input_ids, attention_mask).argmax(-1)
            for row, i in enumerate(rows):
                names = [self.classifier.labels[k] for k in best[row, : len(examples[i].input_ids)].tolist()]
                found[i] = spans_of(names, examples[i].offsets)
        return found

    def _step(self, batch: Sequence[Example], optimizer: torch.optim.Optimizer) -> float:
        input_ids, attention_mask, label_ids = self._collate(batch)
        # Special tokens and padding have no label and stay as they are.
        hidden = (torch.rand(input_ids.shape) < self.options.token_dropout) & (label_ids != IGNORED_LABEL)
        input_ids = input_ids.masked_fill(hidden, self.unknown_token_id)
        with self._autocast():
            logits = self.classifier(input_ids, attention_mask)
        loss = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), label_ids.flatten(), ignore_index=IGNORED_LABEL
        )
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss became {loss.item()}; a lower learning_rate may help")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._trainable(), self.options.max_gradient_norm)
        optimizer.step()
        return loss.item()

    def _batches(self, examples: Sequence[Example]) -> list[list[int]]:
        """Shuffled batches of like length: sorted within stretches of twenty batches."""
        order = list(range(len(examples)))
        self._random.shuffle(order)
        size = self.options.batch_size
        batches = []
        for first in range(0, len(order), size * 20):
            stretch = sorted(order[first : first + size * 20], key=lambda i: len(examples[i].input_ids))
            batches += [stretch[k : k + size] for k in range(0, len(stretch), size)]
        self._random.shuffle(batches)
        return batches

    def _collate(self, batch: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        """Pad to the longest: input_ids, attention_mask, label_ids, each [B, S] int64."""
        longest = max(len(example.input_ids) for example in batch)
        input_ids = torch.full((len(batch), longest), self.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        label_ids = torch.full_like(input_ids, IGNORED_LABEL)
        for row, example in enumerate(batch):
            length = len(example.input_ids)
            input_ids[row, :length] = torch.from_numpy(example.input_ids)
            attention_mask[row, :length] = 1
            label_ids[row, :length] = torch.tensor(example.label_ids)
        return input_ids, attention_mask, label_ids

    def _optimizer(self, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        head = list(self.classifier.classifier.parameters())
        in_head = {id(parameter) for parameter in head}
        body = [parameter for parameter in self._trainable() if id(parameter) not in in_head]
        optimizer = torch.optim.AdamW(
            [
                {"params": body, "lr": self.options.learning_rate},
                {"params": head, "lr": self.options.head_learning_rate},
            ],
            weight_decay=self.options.weight_decay,
            fused=True,
        )
        warmup = max(1, round(self.options.warmup_share * steps))

        def factor(step: int) -> float:
            return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def _trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.classifier.parameters() if parameter.requires_grad]

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16)

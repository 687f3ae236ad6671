"""The training loop for named entities."""

from __future__ import annotations

import math
import re
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from model.runtime.entities import EntityFinder
from model.runtime.processor import read_processor
from model.training.averaging import average_for, copy_into, lent
from model.training.crf import CrfLayer
from model.training.examples import Batch, Example, MeasuredText, collate, shuffled_batches
from model.training.history import EpochReport, History, Progress, best_of
from model.training.losses import balanced_weights, disagreement, token_loss
from model.training.scoring import Score, score_spans
from model.training.spans import IGNORED_LABEL, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from model.runtime.documents import Document
    from model.runtime.label_schemes import LabelScheme
    from model.runtime.tagging import Entity
    from model.training.averaging import Average
    from model.training.checkpoints import WorkFolder
    from model.training.options import TrainingOptions

_LAYER: Final = re.compile(r"network\.encoder\.layers\.(\d+)\.")


class NerTrainer:
    """Trains whatever of a network takes gradients, and a CRF on it if the options want one.

    Args:
        network: (input_ids, attention_mask), [B, S] int64 each -> logits [B, S, L]; its last layer is called
            ``classifier``.
        scheme: The labels, in logit order.
        options: How to train.
        pad_token_id: What fills rows up.
        unknown_token_id: What ``token_dropout`` puts in the place of tokens.

    Source of the recipe: Devlin et al. 2019, arXiv:1810.04805, section 5.3 and appendix A.3.
    """

    def __init__(
        self,
        network: nn.Module,
        scheme: LabelScheme,
        options: TrainingOptions,
        *,
        pad_token_id: int,
        unknown_token_id: int,
    ) -> None:
        self.network = network
        self.scheme = scheme
        self.options = options
        self.crf = CrfLayer(scheme) if options.crf else None
        self.pad_token_id = pad_token_id
        self.unknown_token_id = unknown_token_id
        self.bfloat16 = options.precision == "bfloat16" or (
            options.precision == "auto" and gains_by_bfloat16(read_processor().features)
        )
        modules = {"network": network} | ({} if self.crf is None else {"crf": self.crf})
        self._parameters: dict[str, nn.Parameter] = {
            f"{prefix}.{name}": parameter
            for prefix, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._class_weights: Tensor | None = None

    def train(
        self,
        train: Sequence[Example],
        dev: Mapping[str, Sequence[MeasuredText]],
        work: WorkFolder,
        *,
        checkpoint_seconds: float = 120.0,
        on_step: Callable[[Progress], None] = lambda _: None,
        on_dev: Callable[[str, int, int], None] = lambda *_: None,
        on_epoch: Callable[[EpochReport], None] = lambda _: None,
    ) -> History:
        """Run until the last epoch or until patience ends; leave the weights of the best epoch on ``dev``.

        A run that was interrupted goes on from what ``work`` holds, and comes to the same weights as one
        that was not.

        Args:
            train: Examples to learn from.
            dev: Named development sets; ``best_of`` says which epoch wins.
            work: An open folder for checkpoints.
            checkpoint_seconds: At least so long between two checkpoints within an epoch.
            on_step: Called after each optimiser step, with those before an interruption counted.
            on_dev: Called while an epoch is measured, with the name of the development set, and how many of
                how many windows are read.
            on_epoch: Called after each epoch with its development scores; for those before an interruption,
                at once.

        Raises:
            FloatingPointError: The loss is not a finite number.
        """
        steps_per_epoch = math.ceil(len(train) / self.options.batch_size)
        steps = steps_per_epoch * self.options.epochs
        if self.options.class_weights == "balanced":
            self._class_weights = balanced_weights(_label_counts(train, len(self.scheme.labels)))
        run = _Run(self._parameters, *self._optimizer(steps), average_for(self.options))
        torch.manual_seed(self.options.seed)
        saved = work.load_state()
        if saved is not None:
            run.load_state_dict(saved)
        history = run.history
        for report in history.epochs:
            on_epoch(report)
        last_saved = time.monotonic()
        while not self._ended(history):
            epoch = len(history.epochs) + 1
            batches = shuffled_batches(
                train, size=self.options.batch_size, seed=self.options.seed, epoch=epoch
            )
            self.network.train()
            for batch in batches[len(history.losses) - (epoch - 1) * steps_per_epoch :]:
                loss = self._step(collate([train[i] for i in batch], pad_token_id=self.pad_token_id), run)
                history.losses.append(loss)
                on_step(Progress(epoch, len(history.losses), steps, loss, run.seconds()))
                if time.monotonic() - last_saved >= checkpoint_seconds:
                    work.save_state(run.state_dict())
                    last_saved = time.monotonic()
            run.average.after_epoch(self._parameters)
            history.epochs.append(self._close_epoch(epoch, steps_per_epoch, dev, run, work, on_dev=on_dev))
            work.save_state(run.state_dict())
            last_saved = time.monotonic()
            on_epoch(history.epochs[-1])
        copy_into(self._parameters, work.load_best())
        self.network.eval()
        return history

    def predict(
        self, texts: Sequence[MeasuredText], *, on_windows: Callable[[int, int], None] = lambda *_: None
    ) -> list[list[Span]]:
        """Spans of each text, in the order given; ``on_windows`` as in ``find``."""
        return [
            [Span(entity.start, entity.end, entity.label) for entity in found]
            for found in self.find([text.document for text in texts], on_windows=on_windows)
        ]

    def find(
        self,
        documents: Sequence[Document],
        *,
        batch_size: int = 32,
        on_windows: Callable[[int, int], None] = lambda *_: None,
    ) -> list[list[Entity]]:
        """Read documents as the service does: windows put together, then decoded under the scheme's rules.

        Args:
            documents: As read.
            batch_size: Windows of similar length that are read at once.
            on_windows: Told after each batch how many windows are read, and how many there are.

        Returns:
            Entities of each document, in the order given.
        """
        self.network.eval()
        finder = EntityFinder(self.scheme, None if self.crf is None else self.crf.learned())
        windows = [window for document in documents for window in document.windows]
        logits: list[NDArray[np.float32]] = [np.empty((0, 0), np.float32)] * len(windows)
        order = sorted(range(len(windows)), key=lambda index: len(windows[index].input_ids))
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            outputs = self._logits([windows[index].input_ids for index in chosen])
            for index, output in zip(chosen, outputs, strict=True):
                logits[index] = output
            on_windows(first + len(chosen), len(order))
        of_windows = iter(logits)
        return [
            finder.find(document, list(islice(of_windows, len(document.windows)))) for document in documents
        ]

    def _close_epoch(
        self,
        epoch: int,
        steps: int,
        dev: Mapping[str, Sequence[MeasuredText]],
        run: _Run,
        work: WorkFolder,
        *,
        on_dev: Callable[[str, int, int], None],
    ) -> EpochReport:
        """Measure, and keep the weights if they are the best so far."""
        with lent(self._parameters, run.average.weights()):
            scores: dict[str, Score] = {
                name: score_spans(
                    [text.spans for text in texts], self.predict(texts, on_windows=partial(on_dev, name))
                )[0]
                for name, texts in dev.items()
            }
            losses = run.history.losses[-steps:]
            report = EpochReport(epoch, sum(losses) / len(losses), scores, run.seconds())
            if best_of([*run.history.epochs, report]) is report:
                work.save_best({name: tensor.detach() for name, tensor in self._parameters.items()})
        return report

    def _ended(self, history: History) -> bool:
        done = len(history.epochs)
        if done >= self.options.epochs:
            return True
        return bool(self.options.patience and done and done - history.best.epoch >= self.options.patience)

    def _step(self, batch: Batch, run: _Run) -> float:
        logits = self._read(batch)
        loss = self._loss(logits, batch)
        if self.options.consistency:
            again = self._read(batch)
            apart = disagreement(logits, again, batch.label_ids != IGNORED_LABEL)
            loss = (loss + self._loss(again, batch)) / 2 + self.options.consistency * apart
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss became {loss.item()}; a lower learning rate may help")
        run.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters.values(), self.options.max_gradient_norm)
        run.optimizer.step()
        run.scheduler.step()
        run.average.after_step(self._parameters)
        return loss.item()

    def _read(self, batch: Batch) -> Tensor:
        """Logits of a batch, [B, S, L] float32, with values and tokens dropped anew."""
        # Special tokens and padding have no label and stay as they are.
        hidden = (torch.rand(batch.input_ids.shape) < self.options.token_dropout) & (
            batch.label_ids != IGNORED_LABEL
        )
        input_ids = batch.input_ids.masked_fill(hidden, self.unknown_token_id)
        with self._autocast():
            logits: Tensor = self.network(input_ids, batch.attention_mask)
        return logits.float()

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        def of_tokens() -> Tensor:
            return token_loss(
                logits,
                batch.label_ids,
                class_weights=self._class_weights,
                focal_gamma=self.options.focal_gamma,
                label_smoothing=self.options.label_smoothing,
            )

        if self.crf is None:
            return of_tokens()
        emissions = logits.gather(1, batch.word_tokens[:, :, None].expand(-1, -1, logits.shape[-1]))
        surprise = self.crf.negative_log_likelihood(emissions, batch.word_labels, batch.word_mask)
        loss = surprise.sum() / batch.word_mask.sum().clamp(min=1)
        if not self.options.token_loss_weight:
            return loss
        # Beside the sequence's loss, so that the logits by themselves stay probabilities: scores of
        # entities are made from them.
        return loss + self.options.token_loss_weight * of_tokens()

    def _logits(self, rows: Sequence[NDArray[np.int64]]) -> list[NDArray[np.float32]]:
        """Of windows, without padding: [S_i, L] each."""
        input_ids = torch.full((len(rows), max(map(len, rows))), self.pad_token_id)
        attention_mask = torch.zeros_like(input_ids)
        for index, row in enumerate(rows):
            input_ids[index, : len(row)] = torch.from_numpy(row)
            attention_mask[index, : len(row)] = 1
        with torch.inference_mode(), self._autocast():
            logits = self.network(input_ids, attention_mask).float().numpy()
        return [logits[index, : len(row)] for index, row in enumerate(rows)]

    def _optimizer(self, steps: int) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LambdaLR]:
        rates: dict[float, list[nn.Parameter]] = {}
        layers = max(
            (int(match[1]) + 1 for name in self._parameters if (match := _LAYER.match(name))), default=0
        )
        for name, parameter in self._parameters.items():
            rates.setdefault(self._rate_of(name, layers), []).append(parameter)
        groups = [{"params": parameters, "lr": rate} for rate, parameters in rates.items()]
        optimizer = torch.optim.AdamW(groups, weight_decay=self.options.weight_decay, fused=True)
        warmup = max(1, round(self.options.warmup_share * steps))

        def factor(step: int) -> float:
            return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))

        return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def _rate_of(self, name: str, layers: int) -> float:
        """The peak learning rate of a parameter; the embeddings' LayerNorm counts as a layer below all."""
        if name.startswith(("network.classifier.", "crf.")):
            return self.options.head_learning_rate
        match = _LAYER.match(name)
        below_top = layers - 1 - int(match[1]) if match else layers
        return self.options.learning_rate * self.options.layer_decay**below_top

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16)


def gains_by_bfloat16(features: frozenset[str]) -> bool:
    """Whether a processor computes products faster in bfloat16 than in float32.

    It is twice as fast by instructions for it. Without them PyTorch takes longer: four times as long with
    AVX-512 (80 and 21 ms for [2048, 384] by [384, 1536]), fifty times with AVX2.

    Args:
        features: As ``model.runtime.processor.Processor`` has them.
    """
    return not features.isdisjoint({"avx512_bf16", "amx_bf16"})


class _Run:
    """All that changes while training: what a checkpoint holds."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LambdaLR,
        average: Average,
    ) -> None:
        self.parameters = parameters
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.average = average
        self.history = History()
        self._started = time.monotonic()

    def seconds(self) -> float:
        """Spent training, those before an interruption included."""
        return time.monotonic() - self._started

    def state_dict(self) -> dict[str, Any]:
        return {
            "parameters": {name: tensor.detach() for name, tensor in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": self.average.state_dict(),
            "random": torch.get_rng_state(),
            "losses": self.history.losses,
            "epochs": [report.as_state() for report in self.history.epochs],
            "seconds": self.seconds(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        copy_into(self.parameters, state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.average.load_state_dict(state["average"])
        torch.set_rng_state(state["random"])
        self.history.losses[:] = state["losses"]
        self.history.epochs[:] = map(EpochReport.from_state, state["epochs"])
        self._started = time.monotonic() - state["seconds"]


def _label_counts(examples: Sequence[Example], labels: int) -> list[int]:
    counts = np.zeros(labels, dtype=np.int64)
    for example in examples:
        counts += np.bincount(example.label_ids[example.label_ids != IGNORED_LABEL], minlength=labels)
    return [int(count) for count in counts]

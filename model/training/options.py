"""How to train; apart from the training itself, so that the command line knows it without torch."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal, get_args

ClassWeights = Literal["none", "balanced"]
Averaging = Literal["none", "ema", "last"]
Architecture = Literal["encoder", "bilstm-crf"]
Precision = Literal["auto", "float32", "bfloat16"]
CLASS_WEIGHTS: Final[tuple[ClassWeights, ...]] = get_args(ClassWeights)
AVERAGINGS: Final[tuple[Averaging, ...]] = get_args(Averaging)
ARCHITECTURES: Final[tuple[Architecture, ...]] = get_args(Architecture)
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train. Learning rates are the peak of a warm-up followed by a linear fall to zero.

    Attributes:
        epochs: Passes over the training texts, at most.
        patience: Epochs without a better dev F1 after which training stops; 0 = never before ``epochs``.
        batch_size: Windows a step.
        learning_rate: Of the network below the head.
        head_learning_rate: Of the head and of the CRF.
        layer_decay: Each layer of the encoder learns at the rate of the one above it times this.
        frozen_layers: So many of the encoder's lowest layers stay as they are.
        weight_decay: Of AdamW.
        warmup_share: Share of all steps in which the rates rise.
        max_gradient_norm: Longer gradients are shortened to it.
        max_tokens: Longer texts are learned from in windows of this many tokens.
        dropout: Share of hidden values set to zero.
        token_dropout: Share of tokens hidden behind the unknown token, so that a name is learned from what
            stands around it and not by heart.
        label_smoothing: Share of a label's probability given to all labels alike.
        consistency: Above 0, each batch is read twice, with other values and tokens dropped, and this is the
            weight of the loss of reading it differently; see ``losses.disagreement``. A step costs twice as
            much.
        class_weights: ``balanced`` lets rare labels count more; see ``losses.balanced_weights``.
        focal_gamma: Above 0, tokens that are right already count less (Lin et al. 2017).
        crf: Learn scores of label sequences as well.
        token_loss_weight: With a CRF: weight of the loss of single tokens beside that of the sequence.
        lora_rank: Above 0, the encoder's matrices stay as they are and changes of this rank are learned.
        lora_alpha: Their scale is ``lora_alpha / lora_rank``.
        averaging: Which weights are measured and kept: those of the last step, a moving average over the
            steps (``ema``), or the mean over the ends of the last epochs (``last``).
        ema_decay: Of the moving average, a step.
        average_last: Epochs that ``last`` averages.
        seed: Same seed, data, machine and number of threads: same weights, to the bit.
        precision: In what products are computed, while the weights stay float32; ``auto`` takes bfloat16
            where the processor gains by it.

    Raises:
        ValueError: A number out of its range, with both.
    """

    epochs: int = 4
    patience: int = 0
    batch_size: int = 32
    learning_rate: float = 3e-4
    head_learning_rate: float = 1e-3
    layer_decay: float = 1.0
    frozen_layers: int = 0
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    max_gradient_norm: float = 1.0
    max_tokens: int = 128
    dropout: float = 0.1
    token_dropout: float = 0.1
    label_smoothing: float = 0.0
    consistency: float = 0.0
    class_weights: ClassWeights = "none"
    focal_gamma: float = 0.0
    crf: bool = False
    token_loss_weight: float = 1.0
    lora_rank: int = 0
    lora_alpha: float = 16.0
    averaging: Averaging = "none"
    ema_decay: float = 0.999
    average_last: int = 3
    seed: int = 13
    precision: Precision = "auto"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(
                f"epochs and batch_size must be at least 1, not {self.epochs} and {self.batch_size}"
            )
        for name in ("warmup_share", "dropout", "token_dropout", "label_smoothing", "ema_decay"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(f"layer_decay must be in (0, 1], not {self.layer_decay}")
        for name in (
            "patience",
            "consistency",
            "focal_gamma",
            "token_loss_weight",
            "lora_rank",
            "frozen_layers",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.average_last < 1:
            raise ValueError(f"average_last must be at least 1, not {self.average_last}")


DEFAULTS: Final[dict[Architecture, TrainingOptions]] = {
    "encoder": TrainingOptions(),
    # From random weights: more epochs, larger steps, more dropout, no loss but the CRF's (Lample et al. 2016,
    # arXiv:1603.01360), and float32, since the LSTM gains nothing from bfloat16 here.
    "bilstm-crf": TrainingOptions(
        epochs=30,
        patience=6,
        learning_rate=2e-3,
        head_learning_rate=2e-3,
        dropout=0.5,
        crf=True,
        token_loss_weight=0.0,
        precision="float32",
    ),
}
LORA_LEARNING_RATE: Final = 1e-3
"""Fresh low-rank factors take, and need, larger steps than trained matrices."""

"""How to train; apart from the training itself, so that the command line knows it without torch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How to train. Learning rates are the peak of a warm-up followed by a linear fall to zero.

    ``token_dropout`` is the share of tokens hidden behind the unknown token while training, so that
    a name is learned from what stands around it and not by heart.
    """

    epochs: int = 4
    batch_size: int = 32
    learning_rate: float = 3e-4
    head_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    max_gradient_norm: float = 1.0
    max_tokens: int = 128
    token_dropout: float = 0.1
    seed: int = 13
    bfloat16: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(
                f"epochs and batch_size must be at least 1, not {self.epochs} and {self.batch_size}"
            )
        if not 0.0 <= self.warmup_share < 1.0:
            raise ValueError(f"warmup_share must be in [0, 1), not {self.warmup_share}")
        if not 0.0 <= self.token_dropout < 1.0:
            raise ValueError(f"token_dropout must be in [0, 1), not {self.token_dropout}")

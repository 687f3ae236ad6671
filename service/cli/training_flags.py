"""The flags of ``conche train ner`` that say how to train, and the options that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from model.training.options import (
    ARCHITECTURES,
    AVERAGINGS,
    CLASS_WEIGHTS,
    DEFAULTS,
    LORA_LEARNING_RATE,
    PRECISIONS,
    Architecture,
    TrainingOptions,
)

Command = TypeVar("Command", bound=Callable[..., Any])

_SHARE: Final = click.FloatRange(min=0, max=1, max_open=True)
_SHARE_OR_ALL: Final = click.FloatRange(min=0, min_open=True, max=1)
_ABOVE_ZERO: Final = click.FloatRange(min=0, min_open=True)
_COUNT: Final = click.IntRange(min=0)

# By field of TrainingOptions, whose docstring says more.
_FLAGS: Final[Mapping[str, tuple[Any, str]]] = {
    "epochs": (click.IntRange(min=1), "Passes over the training files, at most."),
    "patience": (_COUNT, "Stop after so many epochs without a better dev F1; 0 = never."),
    "batch_size": (click.IntRange(min=1), "Texts a step."),
    "learning_rate": (_ABOVE_ZERO, f"Peak, below the head; with LoRA {LORA_LEARNING_RATE} by default."),
    "head_learning_rate": (_ABOVE_ZERO, "Peak, for the head and the CRF."),
    "layer_decay": (_SHARE_OR_ALL, "Rate of each of the encoder's layers, of that of the one above."),
    "frozen_layers": (_COUNT, "So many of the encoder's lowest layers stay as they are."),
    "max_tokens": (click.IntRange(min=3), "Longer training texts are read in windows of so many tokens."),
    "dropout": (_SHARE, "Share of hidden values set to zero."),
    "token_dropout": (_SHARE, "Share of tokens hidden, so that names are not learned by heart."),
    "label_smoothing": (_SHARE, "Share of a label's probability given to all labels alike."),
    "consistency": (
        click.FloatRange(min=0),
        "Above 0, read each batch twice with other values dropped; the weight of reading it differently.",
    ),
    "class_weights": (click.Choice(CLASS_WEIGHTS), "balanced: rare labels count more."),
    "focal_gamma": (click.FloatRange(min=0), "Above 0, tokens that are right already count less."),
    "lora_rank": (_COUNT, "Above 0, learn only changes of this rank to the encoder's matrices."),
    "lora_alpha": (_ABOVE_ZERO, "Scale of those changes, times the rank."),
    "averaging": (
        click.Choice(AVERAGINGS),
        "Keep averaged weights: ema, over the steps; last, over the ends of the last epochs.",
    ),
    "ema_decay": (_SHARE, "A step's share of the average that stays."),
    "average_last": (click.IntRange(min=1), "Epochs that --averaging last takes."),
    "precision": (
        click.Choice(PRECISIONS),
        "Of the products; auto: bfloat16 where the processor gains by it, else float32.",
    ),
    "seed": (click.INT, "Same seed, data, machine and threads: same model, to the bit."),
}


def training_flags(command: Command) -> Command:
    """``--architecture``, ``--crf`` and a flag a field of ``TrainingOptions``; see ``training_options``."""
    for name in reversed(list(_FLAGS)):
        kind, meaning = _FLAGS[name]
        by_default = [f"{getattr(DEFAULTS['encoder'], name)}"]
        if getattr(DEFAULTS["bilstm-crf"], name) != getattr(DEFAULTS["encoder"], name):
            by_default.append(f"{getattr(DEFAULTS['bilstm-crf'], name)} for bilstm-crf")
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=kind,
            help=f"{meaning}  [default: {', '.join(by_default)}]",
        )(command)
    command = click.option("--crf/--no-crf", default=None, help="Learn which label follows which as well.")(
        command
    )
    return click.option(
        "--architecture",
        default="encoder",
        show_default=True,
        type=click.Choice(ARCHITECTURES),
        help="encoder: fine-tune the base. bilstm-crf: a yardstick from before Transformers, trained from "
        "nothing; it is measured, not written as a bundle.",
    )(command)


def training_options(
    architecture: Architecture, flags: Mapping[str, Any], *, longest: int
) -> TrainingOptions:
    """What was said, and for the rest what the architecture does by default.

    Args:
        architecture: Of the network.
        flags: By field; None = not said.
        longest: Most tokens that the base reads; ``max_tokens`` is held to it.

    Raises:
        click.UsageError: The options do not go together.
    """
    said = {name: value for name, value in flags.items() if value is not None}
    if architecture == "bilstm-crf" and (said.get("lora_rank") or said.get("crf") is False):
        raise click.UsageError("--architecture bilstm-crf has a CRF, and no matrices for --lora-rank")
    if said.get("frozen_layers") and (architecture == "bilstm-crf" or said.get("lora_rank")):
        raise click.UsageError("--frozen-layers is for training an encoder as a whole, without --lora-rank")
    if said.get("lora_rank"):
        said.setdefault("learning_rate", LORA_LEARNING_RATE)
    options = dataclasses.replace(DEFAULTS[architecture], **said)
    return dataclasses.replace(options, max_tokens=min(options.max_tokens, longest))

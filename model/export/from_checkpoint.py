"""From a published checkpoint to what a bundle is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from tokenizers import Tokenizer

from model.encoder.weights import (
    LoadReport,
    load_encoder,
    load_sequence_classifier,
    load_token_classifier,
)
from model.export.writer import BundleContents, ExportError
from model.runtime.bundle import FILE_NAME, Family, Source, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from model.encoder.checkpoint import Checkpoint
    from model.encoder.encoder import Encoder
    from model.encoder.heads import SequenceClassifier, TokenClassifier

UNKNOWN_LICENCE: Final = "LicenseRef-unknown"
_NOTICES: Final = ("LICENSE*", "LICENCE*", "NOTICE*")
LOADERS: Final[
    Mapping[
        Task,
        Callable[[Checkpoint], tuple[Encoder | TokenClassifier | SequenceClassifier, LoadReport]],
    ]
] = {
    "embedding": load_encoder,
    "token-classification": load_token_classifier,
    "sequence-classification": load_sequence_classifier,
}


@dataclass(frozen=True, slots=True)
class Choices:
    """What whoever exports may decide against, or in place of, the checkpoint.

    Attributes:
        name: Of the bundle.
        task: None = what the checkpoint was trained for.
        pooling: None = as the checkpoint says, else the mean.
        normalize: None = as the checkpoint says.
        licence: None = as the checkpoint's card says.
        languages: None = as the checkpoint's card says.
        description: None = one made from source and task.
    """

    name: str
    task: Task | None = None
    pooling: Literal["cls", "mean"] | None = None
    normalize: bool | None = None
    licence: str | None = None
    languages: Sequence[str] | None = None
    description: str | None = None


def contents_of(checkpoint: Checkpoint, choices: Choices) -> tuple[BundleContents, LoadReport]:
    """Load a checkpoint's weights and gather what it says of itself.

    Returns:
        What ``write_bundle`` takes, and what became of the checkpoint's tensors.

    Raises:
        CheckpointError: The weights do not fit, or the task is one that the checkpoint is not for.
        ExportError: The tokeniser is broken, or texts want a prompt that classifiers are not given here.
    """
    task: Task = choices.task or checkpoint.task
    if task == "sequence-classification" and checkpoint.default_prompt_name is not None:
        raise ExportError(
            f"{checkpoint.name} puts a prompt before its texts (default_prompt_name "
            f"{checkpoint.default_prompt_name!r}), which is not done for classifiers: scores would differ"
        )
    loaded, report = LOADERS[task](checkpoint)
    try:
        tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json())
    except ValueError as error:
        raise ExportError(f"{checkpoint.tokenizer_file}: {error}") from error
    source = Source(
        name=checkpoint.name,
        revision=checkpoint.revision,
        url=f"https://huggingface.co/{checkpoint.hub_id}" if checkpoint.hub_id else None,
    )
    licence = choices.licence or checkpoint.licence or UNKNOWN_LICENCE
    normalize = checkpoint.normalize if choices.normalize is None else choices.normalize
    contents = BundleContents(
        name=choices.name,
        model=loaded,
        family=cast("Family", checkpoint.family),
        tokenizer=tokenizer,
        source=source,
        licence=licence,
        languages=tuple(checkpoint.languages if choices.languages is None else choices.languages),
        description=choices.description or f"{checkpoint.name}, exported for {task}",
        max_tokens=checkpoint.max_tokens,
        pooling=choices.pooling or checkpoint.pooling or "mean" if task == "embedding" else None,
        normalize=normalize,
        prompts={} if task == "sequence-classification" else checkpoint.prompts,
        default_prompt_name=checkpoint.default_prompt_name,
        label_activation=checkpoint.label_activation if task == "sequence-classification" else None,
        pair_token_types=checkpoint.pair_token_types and task == "sequence-classification",
        notices=_notices(checkpoint, source, licence),
    )
    return contents, report


def notice_files(folder: Path) -> dict[str, Path]:
    """Find a checkpoint's licence texts.

    Returns:
        Files by the name that a bundle gives them: their own, where it is a plain one, else what is left of
        it (``LICENSE (MIT).txt`` becomes ``LICENSE-MIT.txt``), numbered if that is taken.
    """
    found = {path for pattern in _NOTICES for path in folder.glob(pattern) if path.is_file()}
    named: dict[str, Path] = {}
    for path in sorted(found, key=lambda path: (FILE_NAME.fullmatch(path.name) is None, path.name)):
        stem, suffix = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-") for part in (path.stem, path.suffix))
        name, number = path.name if FILE_NAME.fullmatch(path.name) else stem + suffix, 1
        while name in named:
            number += 1
            name = f"{stem}-{number}{suffix}"
        named[name] = path
    return named


def _notices(checkpoint: Checkpoint, source: Source, licence: str) -> dict[str, str]:
    """The checkpoint's own licence texts, and a line saying where the weights are from."""
    notices = {
        name: path.read_text(encoding="utf-8", errors="replace")
        for name, path in notice_files(checkpoint.path).items()
    }
    revision = f", revision {source.revision}" if source.revision else ""
    origin = f"{source.name}{f' ({source.url})' if source.url else ''}{revision}"
    notices.setdefault("NOTICE", f"Weights and tokeniser: {origin}. Licence: {licence}.\n")
    return notices

"""From an embedding bundle and labelled files to a tagging bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tokenizers
import torch

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.export.writer import BundleContents, WrittenBundle, read_bundle_weights, write_bundle
from model.runtime.bundle import Bundle, Manifest, Source
from model.runtime.tokenization import TOKENIZER_NAME, Tokenizer
from model.training.ner import NerTrainer, best_of, prepare
from model.training.spans import count_spans
from model.training.tokens import write_tagging_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from model.runtime.bundle import Storage
    from model.training.ner import EpochReport, Progress, Tokenise
    from model.training.options import TrainingOptions
    from model.training.spans import LabelledText

UNKNOWN_TOKENS: Final = ("[UNK]", "<unk>")


class UnfitBaseError(ValueError):
    """A bundle that no tagger can be trained from."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataReport:
    """What became of the labelled texts before training.

    Attributes:
        texts: Training texts.
        spans: Training spans, by label.
        misfits: Training spans whose borders are not token borders: they cannot be learned exactly.
        shortened: Training texts that were cut at ``max_tokens``.
    """

    texts: int
    spans: Mapping[str, int]
    misfits: int
    shortened: int


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedTagger:
    """A fine-tuned classifier, ready to be written as a bundle."""

    classifier: TokenClassifier
    tokenizer: tokenizers.Tokenizer
    data: DataReport
    epochs: Sequence[EpochReport]

    @property
    def best_epoch(self) -> int:
        """The epoch whose weights these are, from 1."""
        return best_of(self.epochs).epoch


def read_base(base: Path) -> Manifest:
    """Check the bundle to start from, before anything slow.

    Raises:
        BundleError: The bundle is damaged.
        UnfitBaseError: It is not one for embedding.
    """
    manifest = Bundle.load(base).manifest
    if manifest.task != "embedding":
        raise UnfitBaseError(
            f"{manifest.name} is for {manifest.task}; a tagger is trained from an embedding bundle"
        )
    return manifest


def classifier_on(base: Path, labels: Sequence[str]) -> TokenClassifier:
    """Put a fresh head on a bundle's encoder.

    Args:
        base: An embedding bundle.
        labels: In logit order.

    Raises:
        BundleError: The bundle is damaged.
        UnfitBaseError: It is not one for embedding.
        RuntimeError: Its tensors are not those of its architecture.
    """
    architecture = read_base(base).architecture.model_dump(exclude={"family", "parameters"})
    # With few labels, dropping attention weights only slows learning; hidden dropout stays.
    config = EncoderConfig(**architecture, attention_probs_dropout_prob=0.0)
    classifier = TokenClassifier(config, labels)
    weights = {name: torch.from_numpy(array) for name, array in read_bundle_weights(base).items()}
    classifier.encoder.load_state_dict(weights)
    return classifier


def fine_tune(
    base: Path,
    labels: Sequence[str],
    train: Sequence[LabelledText],
    dev: Mapping[str, Sequence[LabelledText]],
    options: TrainingOptions,
    *,
    on_data: Callable[[DataReport], None] = lambda _: None,
    on_step: Callable[[Progress], None] = lambda _: None,
    on_epoch: Callable[[EpochReport], None] = lambda _: None,
) -> TrainedTagger:
    """Train a tagger from an embedding bundle.

    Args:
        base: The embedding bundle to start from.
        labels: ``O``, ``B-X``, ``I-X``, in logit order.
        train: Texts to learn from.
        dev: Named sets that choose the epoch.
        options: How to train.
        on_data: Told about the training texts before the first step.
        on_step: Told about each step.
        on_epoch: Told about each epoch.

    Raises:
        BundleError: The base is damaged.
        UnfitBaseError: It is not one for embedding, reads fewer tokens than ``options`` say, or has no
            unknown token.
    """
    longest = read_base(base).max_tokens
    if options.max_tokens > longest:
        raise UnfitBaseError(f"{base.name} reads {longest} tokens, max_tokens is {options.max_tokens}")
    torch.manual_seed(options.seed)
    classifier = classifier_on(base, labels)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer_file = Path(scratch) / TOKENIZER_NAME
        write_tagging_tokenizer(base / TOKENIZER_NAME, tokenizer_file)
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        tokenise = _tokenise_with(Tokenizer.from_file(tokenizer_file))
        prepared = prepare(train, tokenise, labels, max_tokens=options.max_tokens)
        data = DataReport(len(train), count_spans(train), len(prepared.misfits), prepared.shortened)
        on_data(data)
        trainer = NerTrainer(
            classifier,
            options,
            pad_token_id=classifier.encoder.config.pad_token_id,
            unknown_token_id=_unknown_token_id(tokenizer),
        )
        reports = trainer.train(
            prepared.examples,
            {
                name: prepare(texts, tokenise, labels, max_tokens=options.max_tokens).examples
                for name, texts in dev.items()
            },
            best_weights=Path(scratch) / "best.pt",
            on_step=on_step,
            on_epoch=on_epoch,
        )
    return TrainedTagger(classifier, tokenizer, data, reports)


def write_tagger(
    trained: TrainedTagger,
    base: Path,
    target: Path,
    *,
    languages: Sequence[str],
    licence: str,
    description: str,
    notices: Mapping[str, str],
    quality: Mapping[str, Any],
    storage: Storage = "int8_row",
    overwrite: bool = False,
) -> WrittenBundle:
    """Write a trained tagger beside the bundle it came from, sharing that one's tables if both are siblings.

    Raises:
        ExportError, ParityError, FidelityError: See :func:`model.export.writer.write_bundle`.
    """
    manifest = Bundle.load(base).manifest
    siblings = base.resolve().parent == target.resolve().parent
    contents = BundleContents(
        name=target.name,
        model=trained.classifier,
        family=manifest.architecture.family,
        tokenizer=trained.tokenizer,
        source=Source(name=f"fine-tuned from {manifest.name} with conche train ner"),
        licence=licence,
        languages=languages,
        description=description,
        max_tokens=manifest.max_tokens,
        notices=notices,
        quality=quality,
    )
    return write_bundle(
        contents,
        target,
        storage=storage,
        share_embeddings_of=base if siblings else None,
        overwrite=overwrite,
    )


def _tokenise_with(tokenizer: Tokenizer) -> Tokenise:
    def tokenise(texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return [(tokenized.input_ids, tokenized.offsets) for tokenized in tokenizer.tokenize(texts)]

    return tokenise


def _unknown_token_id(tokenizer: tokenizers.Tokenizer) -> int:
    for token in UNKNOWN_TOKENS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return int(token_id)
    raise UnfitBaseError(f"the tokenizer has none of {', '.join(UNKNOWN_TOKENS)}")

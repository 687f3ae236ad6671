"""From an embedding bundle and labelled files to a tagging bundle."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import tokenizers
import torch
from torch import nn

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.export.writer import (
    EMBEDDINGS_FILE,
    BundleContents,
    WrittenBundle,
    read_bundle_weights,
    write_bundle,
)
from model.runtime.bundle import Bundle, Manifest, Source
from model.runtime.crf import CRF_NAME
from model.runtime.documents import read_documents
from model.runtime.label_schemes import LabelScheme
from model.runtime.tokenization import TOKENIZER_NAME, Tokenizer
from model.training.bilstm import BiLstm
from model.training.examples import measured_texts, prepare
from model.training.lora import add_lora, merge_lora
from model.training.ner import NerTrainer
from model.training.spans import count_spans
from model.training.tokens import write_tagging_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from model.encoder.encoder import Encoder
    from model.export.writer import Measure
    from model.export.writer import Progress as WriteProgress
    from model.runtime.bundle import Storage
    from model.runtime.tagging import Entity
    from model.training.checkpoints import WorkFolder
    from model.training.crf import CrfLayer
    from model.training.history import EpochReport, History, Progress
    from model.training.options import Architecture as ArchitectureName
    from model.training.options import TrainingOptions
    from model.training.spans import LabelledText

UNKNOWN_TOKENS: Final = ("[UNK]", "<unk>")
_HEAD: Final = "classifier."


class UnfitBaseError(ValueError):
    """A bundle that no tagger can be trained from."""


@dataclasses.dataclass(frozen=True, slots=True)
class DataReport:
    """What became of the labelled texts before training.

    Attributes:
        texts: Training texts.
        spans: Training spans, by label.
        misfits: Training spans that cannot be learned exactly; see ``word_fit``.
        split: Training texts that are longer than ``max_tokens`` and are read in windows.
    """

    texts: int
    spans: Mapping[str, int]
    misfits: int
    split: int


@dataclasses.dataclass(frozen=True, slots=True)
class TrainedTagger:
    """A trained network, ready to be measured and, if it is an encoder's, to be written as a bundle.

    Attributes:
        network: With the weights of the best epoch; changes of low rank are merged.
        crf: The CRF trained with it, if there is one.
        tokenizer: As it was trained with.
        data: What it learned from.
        history: How that went.
        find: The entities of a text, without a bundle.
    """

    network: TokenClassifier | BiLstm
    crf: CrfLayer | None
    tokenizer: tokenizers.Tokenizer
    data: DataReport
    history: History
    find: Callable[[str], list[Entity]]


class WritableTagger(Protocol):
    """What a bundle is written from."""

    @property
    def network(self) -> nn.Module:
        """A ``TokenClassifier``, or there is no bundle."""

    @property
    def crf(self) -> CrfLayer | None:
        """The CRF trained with it, if there is one."""

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        """As it was trained with."""


def read_base(base: Path) -> Manifest:
    """Check the bundle to start from, before anything slow.

    Args:
        base: An embedding bundle, or a tagger to train on.

    Raises:
        BundleError: The bundle is damaged.
        UnfitBaseError: It is a tagger with a CRF, which cannot be gone on with, or a classifier of texts.
    """
    bundle = Bundle.load(base)
    if bundle.manifest.task == "sequence-classification":
        raise UnfitBaseError(
            f"{bundle.manifest.name} classifies texts; a tagger starts from an embedding bundle or a tagger"
        )
    if CRF_NAME in bundle.manifest.files:
        raise UnfitBaseError(f"{bundle.manifest.name} has a CRF; a tagger without one can be trained on")
    return bundle.manifest


def classifier_on(base: Path, labels: Sequence[str], *, dropout: float = 0.1) -> TokenClassifier:
    """Put a fresh head on a bundle's encoder, or take a tagger with its own.

    Args:
        base: An embedding bundle, or a tagger of the same labels.
        labels: In logit order.
        dropout: Of hidden values, while training.

    Raises:
        BundleError: The bundle is damaged.
        UnfitBaseError: It is a tagger of other labels, or with a CRF.
        RuntimeError: Its tensors are not those of its architecture.
    """
    manifest = read_base(base)
    if manifest.labels and tuple(manifest.labels) != tuple(labels):
        raise UnfitBaseError(
            f"{manifest.name} has the labels {', '.join(manifest.labels)}, not {', '.join(labels)}"
        )
    architecture = manifest.architecture.model_dump(exclude={"family", "parameters"})
    # With few labels, dropping attention weights only slows learning; hidden dropout stays.
    config = EncoderConfig(**architecture, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0)
    classifier = TokenClassifier(config, labels)
    weights = {name: torch.from_numpy(array) for name, array in read_bundle_weights(base).items()}
    head = {name: weights.pop(name) for name in list(weights) if name.startswith(_HEAD)}
    classifier.encoder.load_state_dict(weights)
    if head:
        classifier.load_state_dict(head, strict=False)
    return classifier


def freeze_tables(encoder: Encoder) -> None:
    """Keep the embedding tables as they are.

    So a tagger can share them with the embedding model it came from; and AdamW would otherwise walk the whole
    vocabulary at every step.
    """
    for table in (encoder.embeddings.word, encoder.embeddings.position, encoder.embeddings.token_type):
        if table is not None:
            table.weight.requires_grad_(False)


def freeze_layers(encoder: Encoder, count: int) -> None:
    """Keep the lowest ``count`` layers, and the LayerNorm below them, as they are: a step costs less."""
    if count:
        for module in (encoder.embeddings.norm, *encoder.layers[:count]):
            module.requires_grad_(False)


def fine_tune(
    base: Path,
    labels: Sequence[str],
    train: Sequence[LabelledText],
    dev: Mapping[str, Sequence[LabelledText]],
    options: TrainingOptions,
    *,
    work: WorkFolder,
    architecture: ArchitectureName = "encoder",
    restart: bool = False,
    on_data: Callable[[DataReport], None] = lambda _: None,
    on_step: Callable[[Progress], None] = lambda _: None,
    on_dev: Callable[[str, int, int], None] = lambda *_: None,
    on_epoch: Callable[[EpochReport], None] = lambda _: None,
) -> TrainedTagger:
    """Train a tagger from a bundle, or go on with a training that was interrupted.

    Args:
        base: The embedding bundle to start from, or a tagger of the same labels to train on.
        labels: ``O``, ``B-X``, ``I-X``, in logit order.
        train: Texts to learn from.
        dev: Named sets that choose the epoch.
        options: How to train.
        work: Where checkpoints are kept; left as it is at the end.
        architecture: ``encoder`` learns on from the base; ``bilstm-crf`` takes its tokenizer only.
        restart: Forget an interrupted run.
        on_data: Told about the training texts before the first step.
        on_step: Told about each step.
        on_dev: Told, while a development set is read, its name and how many of how many windows are.
        on_epoch: Told about each epoch.

    Raises:
        BundleError: The base is damaged.
        UnfitBaseError: It is a tagger of other labels or with a CRF, has fewer layers or reads fewer tokens
            than ``options`` say, or has no unknown token.
        OtherRunError: ``work`` holds an interrupted run of something else.
        FloatingPointError: The loss is not a finite number.
    """
    manifest = read_base(base)
    if options.max_tokens > manifest.max_tokens:
        raise UnfitBaseError(
            f"{base.name} reads {manifest.max_tokens} tokens, max_tokens is {options.max_tokens}"
        )
    layers = manifest.architecture.num_hidden_layers
    if options.frozen_layers and options.frozen_layers >= layers:
        raise UnfitBaseError(f"frozen_layers is {options.frozen_layers}, and {base.name} has {layers} layers")
    identity = {
        "base": Bundle.load(base).digest,
        "architecture": architecture,
        "labels": list(labels),
        "training texts": _digest(train),
        "development texts": {name: _digest(texts) for name, texts in dev.items()},
        "torch": torch.__version__,
        **dataclasses.asdict(options),
    }
    work.open(identity, restart=restart)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer_file = Path(scratch) / TOKENIZER_NAME
        if manifest.task == "embedding":
            write_tagging_tokenizer(base / TOKENIZER_NAME, tokenizer_file)
        else:  # Han characters are tokens of their own already
            shutil.copyfile(base / TOKENIZER_NAME, tokenizer_file)
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        reader = Tokenizer.from_file(tokenizer_file)
    scheme = LabelScheme.from_labels(labels)
    prepared = prepare(train, reader, scheme, max_tokens=options.max_tokens)
    data = DataReport(len(train), count_spans(train), len(prepared.misfits), prepared.split)
    on_data(data)
    torch.manual_seed(options.seed)
    network: TokenClassifier | BiLstm
    if architecture == "encoder":
        network = classifier_on(base, labels, dropout=options.dropout)
        if options.lora_rank:
            add_lora(network.encoder, rank=options.lora_rank, alpha=options.lora_alpha)
        else:
            freeze_tables(network.encoder)
            freeze_layers(network.encoder, options.frozen_layers)
    else:
        seen = np.unique(np.concatenate([example.input_ids for example in prepared.examples]))
        network = BiLstm(seen.tolist(), manifest.architecture.vocab_size, labels, dropout=options.dropout)
    trainer = NerTrainer(
        network,
        scheme,
        options,
        pad_token_id=manifest.architecture.pad_token_id,
        unknown_token_id=_unknown_token_id(tokenizer),
    )
    history = trainer.train(
        prepared.examples,
        {name: measured_texts(texts, reader, max_tokens=manifest.max_tokens) for name, texts in dev.items()},
        work,
        on_step=on_step,
        on_dev=on_dev,
        on_epoch=on_epoch,
    )
    merge_lora(network)

    def find(text: str) -> list[Entity]:
        return trainer.find(read_documents([text], reader, max_tokens=manifest.max_tokens))[0]

    return TrainedTagger(network, trainer.crf, tokenizer, data, history, find)


def write_tagger(
    trained: WritableTagger,
    base: Path,
    target: Path,
    *,
    languages: Sequence[str],
    licence: str,
    description: str,
    notices: Mapping[str, str],
    quality: Mapping[str, Any],
    storage: Storage = "int8_block",
    rounded: Mapping[str, NDArray[np.float32]] | None = None,
    link_embeddings: bool = False,
    overwrite: bool = False,
    measure: Measure | None = None,
    progress: WriteProgress = lambda *_: None,
) -> WrittenBundle:
    """Write a trained tagger, with the tables of the bundle it came from: they were frozen.

    One that was trained on from another tagger names that one's source, and has the tables that it has. For
    ``rounded`` and ``link_embeddings`` see ``write_bundle``.

    Raises:
        UnfitBaseError: The network is no encoder's.
        ExportError, ParityError, FidelityError: See :func:`model.export.writer.write_bundle`.
    """
    if not isinstance(trained.network, TokenClassifier):
        raise UnfitBaseError("only a tagger on an encoder can be written as a bundle")
    manifest = Bundle.load(base).manifest
    learned = {} if trained.crf is None else {CRF_NAME: trained.crf.learned().to_json(trained.network.labels)}
    contents = BundleContents(
        name=target.name,
        model=trained.network,
        family=manifest.architecture.family,
        tokenizer=trained.tokenizer,
        source=(
            manifest.source
            if manifest.task == "token-classification"
            else Source(name=f"fine-tuned from {manifest.name} with conche train ner")
        ),
        licence=licence,
        languages=languages,
        description=description,
        max_tokens=manifest.max_tokens,
        notices={**notices, **learned},
        quality=quality,
    )
    return write_bundle(
        contents,
        target,
        storage=storage,
        rounded=rounded,
        share_embeddings_of=owner_of_tables(base),
        link_embeddings=link_embeddings,
        overwrite=overwrite,
        measure=measure,
        progress=progress,
    )


def owner_of_tables(base: Path) -> Path:
    """The bundle whose file the tables of ``base`` are: another's if it has a link, else its own."""
    return (base / EMBEDDINGS_FILE).resolve().parent


def _digest(texts: Sequence[LabelledText]) -> str:
    hashed = hashlib.sha256()
    for text in texts:
        hashed.update(json.dumps(dataclasses.astuple(text)).encode() + b"\n")
    return hashed.hexdigest()


def _unknown_token_id(tokenizer: tokenizers.Tokenizer) -> int:
    for token in UNKNOWN_TOKENS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return int(token_id)
    raise UnfitBaseError(f"the tokenizer has none of {', '.join(UNKNOWN_TOKENS)}")

"""From an embedding bundle and labelled files to a tagging bundle, and how good a tagging bundle is."""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tokenizers
import torch

from model.encoder.config import EncoderConfig
from model.encoder.heads import TokenClassifier
from model.export.writer import BundleContents, WrittenBundle, read_bundle_weights, write_bundle
from model.runtime.bundle import Bundle, Source
from model.runtime.engine import OnnxRuntimeEngine, pad_batch
from model.runtime.tagging import LabelScheme, find_entities, softmax
from model.runtime.tokenization import Tokenizer
from model.runtime.windows import plan_windows, stitch
from model.training.ner import NerTrainer, TrainingOptions, prepare
from model.training.scoring import Score, score_spans
from model.training.spans import Span
from model.training.tokens import write_tagging_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from model.runtime.bundle import Storage
    from model.training.ner import EpochReport, Progress, Tokenise
    from model.training.spans import LabelledText

UNKNOWN_TOKENS: Final = ("[UNK]", "<unk>")


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


def classifier_on(base: Path, labels: Sequence[str]) -> TokenClassifier:
    """Put a fresh head on a bundle's encoder.

    Args:
        base: An embedding bundle.
        labels: In logit order.

    Raises:
        BundleError: The bundle is damaged.
        RuntimeError: Its tensors are not those of its architecture.
    """
    architecture = Bundle.load(base).manifest.architecture.model_dump(exclude={"family", "parameters"})
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
    """
    torch.manual_seed(options.seed)
    classifier = classifier_on(base, labels)
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer_file = Path(scratch) / "tokenizer.json"
        write_tagging_tokenizer(base / "tokenizer.json", tokenizer_file)
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


def evaluate_tagger(
    path: Path, texts: Sequence[LabelledText], *, threads: int, on_text: Callable[[], None] = lambda: None
) -> tuple[Score, dict[str, Score]]:
    """Score a tagging bundle on labelled texts, read exactly as the service reads them.

    Args:
        path: The bundle.
        texts: With spans whose labels are the bundle's entity types.
        threads: Compute threads.
        on_text: Called after each text.

    Returns:
        Micro-averaged over all labels, and by label.

    Raises:
        BundleError: The bundle is damaged.
    """
    bundle = Bundle.load(path)
    tokenizer = Tokenizer.from_bundle(bundle)
    scheme = LabelScheme.from_labels(bundle.manifest.labels)
    found: list[list[Span]] = []
    with closing(OnnxRuntimeEngine(bundle, threads=threads)) as engine:
        for labelled, tokenized in zip(texts, tokenizer.tokenize([t.text for t in texts]), strict=True):
            windows = plan_windows(labelled.text, tokenized, max_tokens=bundle.manifest.max_tokens)
            logits = [
                engine.run(pad_batch([window.input_ids], tokenizer.pad_token_id), ["logits"])["logits"][0]
                for window in windows
            ]
            probabilities = softmax(stitch(windows, logits))
            entities = find_entities(
                labelled.text, tokenized.offsets, tokenized.word_ids, probabilities, scheme
            )
            found.append([Span(entity.start, entity.end, entity.label) for entity in entities])
            on_text()
    return score_spans([labelled.spans for labelled in texts], found)


def count_spans(texts: Sequence[LabelledText]) -> dict[str, int]:
    """Spans by label, most frequent first."""
    counts: dict[str, int] = {}
    for text in texts:
        for span in text.spans:
            counts[span.label] = counts.get(span.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _tokenise_with(tokenizer: Tokenizer) -> Tokenise:
    def tokenise(texts: Sequence[str]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return [(tokenized.input_ids, tokenized.offsets) for tokenized in tokenizer.tokenize(texts)]

    return tokenise


def _unknown_token_id(tokenizer: tokenizers.Tokenizer) -> int:
    for token in UNKNOWN_TOKENS:
        token_id = tokenizer.token_to_id(token)
        if token_id is not None:
            return int(token_id)
    raise ValueError(f"the tokenizer has none of {', '.join(UNKNOWN_TOKENS)}")

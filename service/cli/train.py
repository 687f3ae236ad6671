"""``conche train ner`` and ``conche eval ner``: a tagger from your own labelled file, and how good it is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from model.encoder.errors import CheckpointError
from model.export.golden import FidelityError
from model.export.graph import GraphError
from model.export.parity import ParityError
from model.export.storage import StorageError
from model.export.writer import ExportError, WrittenBundle, record_quality
from model.runtime.bundle import BundleError
from model.runtime.threads import thread_count
from model.training.ner import EpochReport, Progress, TrainingOptions
from model.training.scoring import Score
from model.training.spans import LabelledText, bio_labels, read_spans
from model.training.tagger import (
    DataReport,
    TrainedTagger,
    count_spans,
    evaluate_tagger,
    fine_tune,
    write_tagger,
)

DEFAULTS = TrainingOptions()
_EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FAILURES = (
    BundleError,
    CheckpointError,
    ExportError,
    FidelityError,
    FloatingPointError,
    GraphError,
    ParityError,
    StorageError,
)


@click.group()
def train() -> None:
    """Fine-tune a model on your own files."""


@click.group()
def evaluate() -> None:
    """Measure a model on your own files."""


@train.command("ner")
@click.option(
    "--train",
    "train_files",
    multiple=True,
    required=True,
    type=_EXISTING_FILE,
    help="JSONL to learn from; repeatable.",
)
@click.option(
    "--dev",
    "dev_files",
    multiple=True,
    required=True,
    type=_EXISTING_FILE,
    help="JSONL that chooses the epoch; repeatable.",
)
@click.option(
    "--test",
    "test_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="JSONL measured once, at the end; repeatable.",
)
@click.option(
    "--base",
    default="models/multilingual-e5-small-zh-en",
    type=_EXISTING_FOLDER,
    show_default=True,
    help="Embedding bundle to start from.",
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle."
)
@click.option("--epochs", default=DEFAULTS.epochs, show_default=True, help="Passes over the training files.")
@click.option("--batch-size", default=DEFAULTS.batch_size, show_default=True, help="Texts a step.")
@click.option(
    "--learning-rate", default=DEFAULTS.learning_rate, show_default=True, help="Peak, for the encoder."
)
@click.option(
    "--max-tokens",
    default=DEFAULTS.max_tokens,
    show_default=True,
    help="Longer training texts are cut, and counted.",
)
@click.option(
    "--seed", default=DEFAULTS.seed, show_default=True, help="Same seed, data and machine: same model."
)
@click.option(
    "--storage",
    default="int8_row",
    show_default=True,
    type=click.Choice(["float32", "float16", "int8_row", "q4_block32"]),
    help="How weights lie on disk.",
)
@click.option(
    "--languages", default="zh,en", show_default=True, help="Codes, comma separated, for the manifest."
)
@click.option(
    "--licence",
    default="LicenseRef-unknown",
    show_default=True,
    help="SPDX identifier that your data allows.",
)
@click.option(
    "--description",
    default="Named entities, fine-tuned with conche train ner",
    show_default=True,
    help="One sentence for the manifest.",
)
@click.option("--notice", type=_EXISTING_FILE, help="Text file to put into the bundle as NOTICE.")
@click.option("--overwrite", is_flag=True, help="Replace the output folder if it exists.")
def train_ner(
    *,
    train_files: Sequence[Path],
    dev_files: Sequence[Path],
    test_files: Sequence[Path],
    base: Path,
    output: Path,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    max_tokens: int,
    seed: int,
    storage: Any,
    languages: str,
    licence: str,
    description: str,
    notice: Path | None,
    overwrite: bool,
) -> None:
    """Fine-tune a tagger on labelled texts and write it as a bundle.

    A line of a file: {"text": "...", "spans": [{"start": 0, "end": 2, "label": "PER"}]}, offsets in
    code points, end exclusive. Lines that do not fit are reported and left out.
    """
    if output.exists() and not overwrite:
        raise click.ClickException(f"{output} exists; choose another folder or add --overwrite")
    options = TrainingOptions(
        epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, max_tokens=max_tokens, seed=seed
    )
    texts = [text for file in train_files for text in _read(file)]
    dev = {_name(file): _read(file) for file in dev_files}
    tests = {_name(file): _read(file) for file in test_files}
    types = list(count_spans(texts))
    if not types:
        raise click.ClickException("the training files hold no spans")
    _refuse_new_labels(types, dev | tests)
    try:
        trained = _train_with_progress(base, bio_labels(types), texts, dev, options)
        written = write_tagger(
            trained,
            base,
            output,
            languages=[code.strip() for code in languages.split(",") if code.strip()],
            licence=licence,
            description=description,
            notices={} if notice is None else {"NOTICE": notice.read_text(encoding="utf-8")},
            quality={"training": _training_summary(trained, options)},
            storage=storage,
            overwrite=overwrite,
        )
        _measure(written, tests)
    except _FAILURES as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{output}: {written.nbytes / 1e6:.1f} MB, shared tables included")


@evaluate.command("ner")
@click.argument("bundle", type=_EXISTING_FOLDER)
@click.argument("file", type=_EXISTING_FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def evaluate_ner(*, bundle: Path, file: Path, as_json: bool) -> None:
    """Score BUNDLE on the labelled texts of FILE: exact borders and label, as seqeval counts."""
    try:
        overall, per_label = _evaluate(bundle, _read(file), f"reading {file.name}")
    except BundleError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(score_summary(overall, per_label)))
        return
    for name, score in [*per_label.items(), ("all", overall)]:
        click.echo(
            f"{name:12} precision {100 * score.precision:5.1f}  recall {100 * score.recall:5.1f}  "
            f"F1 {100 * score.f1:5.1f}  ({score.gold} spans)"
        )


def score_summary(overall: Score, per_label: dict[str, Score]) -> dict[str, float | int]:
    """F1 of all and of each label in percent, rounded as a manifest keeps it."""
    return {
        "f1": round(100 * overall.f1, 2),
        "precision": round(100 * overall.precision, 2),
        "recall": round(100 * overall.recall, 2),
        "spans": overall.gold,
        **{f"f1_{label}": round(100 * score.f1, 2) for label, score in per_label.items()},
    }


def _read(path: Path) -> list[LabelledText]:
    texts, bad = read_spans(path)
    for line in bad:
        click.echo(f"left out: {line}", err=True)
    if not texts:
        raise click.ClickException(f"{path} holds no usable line ({len(bad)} bad ones)")
    return texts


def _name(path: Path) -> str:
    """``data/uner_en_ewt/dev.jsonl`` -> ``uner_en_ewt/dev``: the folder usually names the set."""
    return f"{path.resolve().parent.name}/{path.stem}"


def _refuse_new_labels(types: Sequence[str], sets: dict[str, list[LabelledText]]) -> None:
    for name, texts in sets.items():
        unknown = sorted(count_spans(texts).keys() - set(types))
        if unknown:
            raise click.ClickException(f"{name} has labels that no training file has: {', '.join(unknown)}")


def _train_with_progress(
    base: Path,
    labels: Sequence[str],
    texts: Sequence[LabelledText],
    dev: dict[str, list[LabelledText]],
    options: TrainingOptions,
) -> TrainedTagger:
    with tqdm(unit="step", desc="training") as bar:

        def on_data(data: DataReport) -> None:
            counts = ", ".join(f"{count} {label}" for label, count in data.spans.items())
            bar.write(f"{data.texts} texts with {counts}")
            if data.misfits:
                bar.write(f"{data.misfits} spans do not fall on token borders and cannot be learned exactly")
            if data.shortened:
                bar.write(f"{data.shortened} texts are longer than {options.max_tokens} tokens and were cut")

        def on_step(progress: Progress) -> None:
            bar.total = progress.steps
            bar.set_postfix(epoch=progress.epoch, loss=f"{progress.loss:.3f}", refresh=False)
            bar.update(1)

        def on_epoch(report: EpochReport) -> None:
            scores = ", ".join(f"{name} F1 {100 * score.f1:.2f}" for name, score in report.dev.items())
            bar.write(f"epoch {report.epoch}: loss {report.loss:.4f}, {scores}")

        return fine_tune(
            base, labels, texts, dev, options, on_data=on_data, on_step=on_step, on_epoch=on_epoch
        )


def _training_summary(trained: TrainedTagger, options: TrainingOptions) -> dict[str, Any]:
    best = max(trained.epochs, key=lambda report: report.dev_f1)
    return {
        "texts": trained.data.texts,
        "spans": dict(trained.data.spans),
        "epochs": options.epochs,
        "best_epoch": best.epoch,
        "learning_rate": options.learning_rate,
        "seed": options.seed,
        "dev_f1": {name: round(100 * score.f1, 2) for name, score in best.dev.items()},
    }


def _measure(written: WrittenBundle, tests: dict[str, list[LabelledText]]) -> None:
    quality = {
        name: score_summary(*_evaluate(written.path, texts, f"testing on {name}"))
        for name, texts in tests.items()
    }
    record_quality(written.path, quality)
    for name, summary in quality.items():
        click.echo(f"{name}: {json.dumps(summary)}")


def _evaluate(bundle: Path, texts: Sequence[LabelledText], what: str) -> tuple[Score, dict[str, Score]]:
    with tqdm(total=len(texts), unit="text", desc=what) as bar:

        def on_text() -> None:
            bar.update()

        return evaluate_tagger(bundle, texts, threads=thread_count(), on_text=on_text)

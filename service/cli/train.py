"""``conche train ner`` and ``conche eval ner``: a tagger from your own labelled file, and how good it is.

Training needs the ``train`` extra, measuring only what serving needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from model.runtime.bundle import STORAGES, BundleError
from model.training.options import TrainingOptions
from model.training.spans import EncodingError, LabelledText, bio_labels, count_spans, read_spans
from service.cli.languages import languages_option
from service.cli.training_packages import require_training_packages

if TYPE_CHECKING:
    from model.export.writer import WrittenBundle
    from model.runtime.bundle import Storage
    from model.training.ner import EpochReport, Progress
    from model.training.scoring import Score
    from model.training.tagger import DataReport, TrainedTagger

DEFAULTS: Final = TrainingOptions()
_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


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
@click.option(
    "--labels",
    help="Entity types, comma separated, in the order that the bundle names them; by default those of the "
    "training files, most frequent first.",
)
@click.option(
    "--epochs",
    default=DEFAULTS.epochs,
    show_default=True,
    type=click.IntRange(min=1),
    help="Passes over the training files.",
)
@click.option(
    "--batch-size",
    default=DEFAULTS.batch_size,
    show_default=True,
    type=click.IntRange(min=1),
    help="Texts a step.",
)
@click.option(
    "--learning-rate",
    default=DEFAULTS.learning_rate,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Peak, for the encoder.",
)
@click.option(
    "--max-tokens",
    default=DEFAULTS.max_tokens,
    show_default=True,
    type=click.IntRange(min=3),
    help="Longer training texts are cut, and counted.",
)
@click.option(
    "--seed", default=DEFAULTS.seed, show_default=True, help="Same seed, data and machine: same model."
)
@click.option(
    "--storage",
    default="int8_row",
    show_default=True,
    type=click.Choice(STORAGES),
    help="How weights lie on disk.",
)
@languages_option(default="zh,en", help="Codes, comma separated, for the manifest.")
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
    labels: str | None,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    max_tokens: int,
    seed: int,
    storage: Storage,
    languages: Sequence[str],
    licence: str,
    description: str,
    notice: Path | None,
    overwrite: bool,
) -> None:
    """Fine-tune a tagger on labelled texts and write it as a bundle.

    A line of a file: {"text": "...", "spans": [{"start": 0, "end": 2, "label": "PER"}]}, offsets in
    code points, end exclusive. Lines that do not fit are reported and left out.
    """
    require_training_packages()
    from model.encoder.errors import CheckpointError
    from model.export.golden import FidelityError
    from model.export.graph import GraphError
    from model.export.parity import ParityError
    from model.export.storage import StorageError
    from model.export.writer import ExportError, check_target
    from model.training.tagger import UnfitBaseError, read_base, write_tagger

    try:
        # Everything that can be wrong with the command is found before the hours of training.
        check_target(output.resolve().name, output, overwrite=overwrite)
        options = TrainingOptions(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            max_tokens=min(max_tokens, read_base(base).max_tokens),
            seed=seed,
        )
        notices = {} if notice is None else {"NOTICE": _read_notice(notice)}
        train_sets, dev, tests = (_read_sets(files) for files in (train_files, dev_files, test_files))
        texts = [text for labelled in train_sets.values() for text in labelled]
        types = _entity_types(texts, labels)
        _refuse_new_labels(types, train_sets | dev | tests)
        trained = _train_with_progress(base, bio_labels(types), texts, dev, options)
        written = write_tagger(
            trained,
            base,
            output,
            languages=languages,
            licence=licence,
            description=description,
            notices=notices,
            quality={"training": _training_summary(trained, options, sets=list(train_sets))},
            storage=storage,
            overwrite=overwrite,
        )
        _measure(written, dev | tests)
    except (
        BundleError,
        CheckpointError,
        EncodingError,
        ExportError,
        FidelityError,
        FloatingPointError,
        GraphError,
        OSError,
        ParityError,
        StorageError,
        UnfitBaseError,
    ) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{output}: {written.nbytes / 1e6:.1f} MB, shared tables included")


@evaluate.command("ner")
@click.argument("bundle", type=_EXISTING_FOLDER)
@click.argument("file", type=_EXISTING_FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def evaluate_ner(*, bundle: Path, file: Path, as_json: bool) -> None:
    """Score BUNDLE on the labelled texts of FILE: exact borders and label, as seqeval counts."""
    from model.training.evaluation import NotATaggerError

    try:
        overall, per_label = _evaluate(bundle, _read(file), f"reading {file.name}")
    except (BundleError, EncodingError, NotATaggerError) as error:
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


def _read_notice(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8") from error


def _read_sets(files: Sequence[Path]) -> dict[str, list[LabelledText]]:
    """Texts by the set's name: ``data/uner_en_ewt/dev.jsonl`` is ``uner_en_ewt/dev``."""
    sets: dict[str, list[LabelledText]] = {}
    for path in files:
        name = f"{path.resolve().parent.name}/{path.stem}"
        if name in sets:
            raise click.ClickException(f"two files would be reported as {name}; {path} is the second")
        sets[name] = _read(path)
    return sets


def _entity_types(texts: Sequence[LabelledText], labels: str | None) -> list[str]:
    found = list(count_spans(texts))
    if not found:
        raise click.ClickException("the training files hold no spans")
    if labels is None:
        return found
    types = [name.strip() for name in labels.split(",") if name.strip()]
    if sorted(types) != sorted(found):
        raise click.ClickException(f"--labels {labels}, but the training files have {','.join(found)}")
    return types


def _refuse_new_labels(types: Sequence[str], sets: Mapping[str, Sequence[LabelledText]]) -> None:
    for name, texts in sets.items():
        unknown = sorted(count_spans(texts).keys() - set(types))
        if unknown:
            raise click.ClickException(f"{name} has labels that no training file has: {', '.join(unknown)}")


def _train_with_progress(
    base: Path,
    labels: Sequence[str],
    texts: Sequence[LabelledText],
    dev: Mapping[str, Sequence[LabelledText]],
    options: TrainingOptions,
) -> TrainedTagger:
    from tqdm import tqdm

    from model.training.tagger import fine_tune

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


def _training_summary(
    trained: TrainedTagger, options: TrainingOptions, *, sets: Sequence[str]
) -> dict[str, Any]:
    """What the model was made from and how; ``models/ner-zh-en`` has exactly this."""
    return {
        "texts": trained.data.texts,
        "spans": dict(trained.data.spans),
        "sets": list(sets),
        "epochs": options.epochs,
        "best_epoch": trained.best_epoch,
        "learning_rate": options.learning_rate,
        "token_dropout": options.token_dropout,
        "seed": options.seed,
    }


def _measure(written: WrittenBundle, sets: Mapping[str, Sequence[LabelledText]]) -> None:
    """Score the finished bundle, as it is served, and write the figures into its manifest."""
    from model.export.writer import record_quality

    quality = {
        name: score_summary(*_evaluate(written.path, texts, f"measuring on {name}"))
        for name, texts in sets.items()
    }
    record_quality(written.path, quality)
    for name, summary in quality.items():
        click.echo(f"{name}: {json.dumps(summary)}")


def _evaluate(bundle: Path, texts: Sequence[LabelledText], what: str) -> tuple[Score, dict[str, Score]]:
    from model.runtime.threads import thread_count
    from model.training.evaluation import evaluate_tagger

    with click.progressbar(length=len(texts), label=what, file=sys.stderr) as bar:
        return evaluate_tagger(bundle, texts, threads=thread_count(), on_text=lambda: bar.update(1))

"""``conche train ner``: a tagger from your own labelled files.

Training needs the ``train`` extra, ``--check`` only what serving needs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from model.runtime.bundle import STORAGES, BundleError
from model.training.data_checks import DEFAULT_MIN_EXAMPLES, check_data
from model.training.spans import LabelledText, bio_labels, count_spans
from model.training.word_fit import tagger_reader
from service.cli.labelled_files import labelled_file_options, read_sets, texts_of
from service.cli.languages import languages_option
from service.cli.progress import ProgressLine
from service.cli.training_flags import training_flags, training_options
from service.cli.training_packages import require_training_packages

if TYPE_CHECKING:
    from model.runtime.bundle import Storage
    from model.training.checkpoints import WorkFolder
    from model.training.data_checks import DataCheck
    from model.training.history import EpochReport, Progress
    from model.training.label_files.reader import LabelFormat
    from model.training.label_files.readings import Reading
    from model.training.options import Architecture, TrainingOptions
    from model.training.tagger import DataReport, TrainedTagger

_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def train() -> None:
    """Fine-tune a model on your own files."""


@train.command("ner")
@click.option(
    "--train",
    "train_files",
    multiple=True,
    required=True,
    type=_EXISTING_FILE,
    help="Labelled file to learn from; repeatable.",
)
@click.option(
    "--dev",
    "dev_files",
    multiple=True,
    required=True,
    type=_EXISTING_FILE,
    help="Labelled file that chooses the epoch; repeatable.",
)
@click.option(
    "--test",
    "test_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="Labelled file measured once, at the end; repeatable.",
)
@click.option(
    "--base",
    default="models/multilingual-e5-small-zh-en",
    type=_EXISTING_FOLDER,
    show_default=True,
    help="Embedding bundle to start from.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder of the new bundle.")
@labelled_file_options
@click.option("--check", is_flag=True, help="Report on the labelled files, and train nothing.")
@click.option(
    "--min-examples",
    default=DEFAULT_MIN_EXAMPLES,
    show_default=True,
    type=click.IntRange(min=0),
    help="Warn of labels with fewer examples to learn from.",
)
@click.option(
    "--labels",
    help="Entity types, comma separated, in the order that the bundle names them; by default those of the "
    "training files, most frequent first.",
)
@training_flags
@click.option(
    "--restart", is_flag=True, help="Forget an interrupted training of this output; without it, go on."
)
@click.option(
    "--storage",
    default="int8_block",
    show_default=True,
    type=click.Choice(STORAGES),
    help="How weights lie on disk, but for the embedding tables, which are as in the base.",
)
@click.option(
    "--link-embeddings",
    is_flag=True,
    help="Link to the base's embedding tables, of a bundle beside the output, instead of having them in it: "
    "for two that stay together, as in a repository.",
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
@click.option(
    "--card-examples",
    default=10,
    show_default=True,
    type=click.IntRange(min=0),
    help="Most texts of each dev and test file that the model card quotes for their mistakes.",
)
@click.option("--notice", type=_EXISTING_FILE, help="Text file to put into the bundle as NOTICE.")
@click.option("--overwrite", is_flag=True, help="Replace the output folder if it exists.")
def train_ner(
    *,
    train_files: Sequence[Path],
    dev_files: Sequence[Path],
    test_files: Sequence[Path],
    base: Path,
    output: Path | None,
    form: LabelFormat | None,
    max_bad_share: float,
    check: bool,
    min_examples: int,
    labels: str | None,
    architecture: Architecture,
    restart: bool,
    storage: Storage,
    link_embeddings: bool,
    languages: Sequence[str],
    licence: str,
    description: str,
    card_examples: int,
    notice: Path | None,
    overwrite: bool,
    **flags: Any,
) -> None:
    """Fine-tune a tagger on labelled texts and write it as a bundle.

    Files may be JSON lines, {"text": "...", "spans": [{"start": 0, "end": 2, "label": "PER"}]} with offsets
    in code points and end exclusive; columns of tokens and tags (CoNLL; IOB1, IOB2, BIOES, BILOU, BMES);
    exports of Label Studio (JSON, JSON-MIN) and doccano (JSONL). What does not fit is reported and left out;
    --check prints the report and stops.

    A training that was interrupted, by whatever, goes on when the same command is given again.
    """
    if check:
        sets = [read_sets(files, form, max_bad_share) for files in (train_files, dev_files, test_files)]
        _check(sets, base, min_examples, labels)
        return
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output'.")
    require_training_packages()
    from model.encoder.errors import CheckpointError
    from model.export.golden import FidelityError
    from model.export.graph import GraphError
    from model.export.parity import ParityError
    from model.export.storage import StorageError
    from model.export.writer import ExportError, check_link, check_target
    from model.training.checkpoints import OtherRunError, WorkFolder
    from model.training.tagger import UnfitBaseError, fine_tune, owner_of_tables, read_base, write_tagger
    from service.cli.training_results import Results

    try:
        # Everything that can be wrong with the command is found before the hours of training.
        check_target(output.resolve().name, output, overwrite=overwrite)
        if link_embeddings:
            check_link(owner_of_tables(base), output)
        options = training_options(architecture, flags, longest=read_base(base).max_tokens)
        notices = {} if notice is None else {"NOTICE": _read_notice(notice)}
        readings = [read_sets(files, form, max_bad_share) for files in (train_files, dev_files, test_files)]
        train_sets, dev, tests = map(texts_of, readings)
        texts = [text for labelled in train_sets.values() for text in labelled]
        data = _check(readings, base, min_examples, labels)
        types = _entity_types(texts, labels)
        work = WorkFolder.beside(output)
        with ProgressLine() as progress:
            listener = _Listener(
                progress, work, options.max_tokens, left="nothing" if restart else work.left()
            )
            trained = fine_tune(
                base,
                bio_labels(types),
                texts,
                dev,
                options,
                work=work,
                architecture=architecture,
                restart=restart,
                on_data=listener.on_data,
                on_step=listener.on_step,
                on_dev=listener.on_dev,
                on_epoch=listener.on_epoch,
            )
            results = Results(
                output=output.resolve(),
                trained=trained,
                sets=dev | tests,
                facts={
                    "name": output.resolve().name,
                    "description": description,
                    "licence": licence,
                    "languages": languages,
                    "base": read_base(base).name,
                    "architecture": architecture,
                    "options": options,
                    "data": data,
                    "roles": {
                        name: role
                        for role, sets in zip(("train", "dev", "test"), readings, strict=True)
                        for name in sets
                    },
                },
                examples=card_examples,
                progress=progress,
            )
            if architecture == "encoder":
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
                    link_embeddings=link_embeddings,
                    overwrite=overwrite,
                    measure=results.of_bundle,
                    progress=progress.show,
                )
                size = f"{written.nbytes / 1e6:.1f} MB"
                size += ", the tables that it links to included" if link_embeddings else ""
            else:
                results.without_bundle(overwrite=overwrite)
                size = "a yardstick: its card and figures, no bundle"
        work.remove()
    except (
        BundleError,
        CheckpointError,
        ExportError,
        FidelityError,
        FloatingPointError,
        GraphError,
        OSError,
        OtherRunError,
        ParityError,
        StorageError,
        UnfitBaseError,
    ) as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException(
            "stopped; the same command goes on, or begins anew with --restart"
        ) from None
    for line in results.table():
        click.echo(line)
    click.echo(results.scores)
    click.echo(f"{output}: {size}")


def _check(
    readings: Sequence[Mapping[str, Reading]], base: Path, min_examples: int, labels: str | None
) -> DataCheck:
    """Report on the sets that train, choose and test.

    Raises:
        click.ClickException: The base is damaged, or the labels are not those that training would take.
    """
    train_sets, dev, tests = readings
    try:
        reader = tagger_reader(base)
    except BundleError as error:
        raise click.ClickException(str(error)) from error
    data = check_data(train_sets, {**dev, **tests}, reader=reader, min_examples=min_examples)
    for line in data.lines():
        click.echo(line)
    texts = [text for reading in train_sets.values() for text in reading.texts]
    _refuse_new_labels(_entity_types(texts, labels), texts_of({**dev, **tests}))
    return data


def _read_notice(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{path} is not UTF-8") from error


def _entity_types(texts: Sequence[LabelledText], labels: str | None) -> list[str]:
    found = list(count_spans(texts))
    if not found:
        raise click.ClickException("the training files hold no spans")
    if labels is None:
        return found
    types = [name.strip() for name in labels.split(",") if name.strip()]
    if sorted(types) != sorted(found):
        unknown = [name for name in types if name not in found]
        missing = [name for name in found if name not in types]
        faults = [
            *([f"no training file has {', '.join(unknown)}"] if unknown else []),
            *([f"{', '.join(missing)} is missing"] if missing else []),
        ] or ["a label is there twice"]
        raise click.ClickException(
            f"--labels {labels}: {'; '.join(faults)}; the training files have {','.join(found)}"
        )
    return types


def _refuse_new_labels(types: Sequence[str], sets: Mapping[str, Sequence[LabelledText]]) -> None:
    for name, texts in sets.items():
        unknown = sorted(count_spans(texts).keys() - set(types))
        if unknown:
            raise click.ClickException(f"{name} has labels that no training file has: {', '.join(unknown)}")


class _Listener:
    """Shows how far a training is, and says what each epoch came to."""

    def __init__(
        self,
        progress: ProgressLine,
        work: WorkFolder,
        max_tokens: int,
        *,
        left: Literal["nothing", "unsaved", "saved"],
    ) -> None:
        self._left = left
        self._progress = progress
        self._work = work
        self._max_tokens = max_tokens
        self._recent: deque[float] = deque(maxlen=50)
        self._dev_f1 = ""

    def on_data(self, data: DataReport) -> None:
        if self._left == "unsaved":
            self._progress.say(
                "the training of this output that was interrupted had saved nothing yet: it begins anew"
            )
        elif self._left == "saved":
            self._progress.say(
                f"the training that was interrupted is gone on with, from the state in {self._work.path}"
            )
        if data.split:
            self._progress.say(
                f"{data.split} texts are longer than {self._max_tokens} tokens and are read in windows"
            )

    def on_step(self, progress: Progress) -> None:
        if not self._recent and progress.step > 1:
            self._progress.say(f"going on behind step {progress.step - 1}")
        self._recent.append(progress.loss)
        loss = sum(self._recent) / len(self._recent)
        facts = f"epoch {progress.epoch}, loss {loss:.3f}{self._dev_f1}"
        self._progress.show("training", progress.step, progress.steps, facts)

    def on_dev(self, name: str, done: int, total: int) -> None:
        self._progress.show(f"measuring the epoch on {name}", done, total)

    def on_epoch(self, report: EpochReport) -> None:
        self._dev_f1 = f", dev F1 {100 * report.dev_f1:.1f}"
        scores = ", ".join(f"{name} F1 {100 * score.f1:.2f}" for name, score in report.dev.items())
        self._progress.say(
            f"epoch {report.epoch}: loss {report.loss:.4f}, {scores} ({report.seconds:.0f} s in all)"
        )


def _training_summary(
    trained: TrainedTagger, options: TrainingOptions, *, sets: Sequence[str]
) -> dict[str, Any]:
    """What the model was made from and how, for the manifest."""
    return {
        "texts": trained.data.texts,
        "spans": dict(trained.data.spans),
        "sets": list(sets),
        "epochs": options.epochs,
        "best_epoch": trained.history.best.epoch,
        "learning_rate": options.learning_rate,
        "token_dropout": options.token_dropout,
        "seed": options.seed,
    }

"""``conche eval ner``: how good a tagger is on your own labelled file; needs only what serving needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.runtime.bundle import BundleError
from model.training.spans import LabelledText
from service.cli.labelled_files import labelled_file_options, read_or_refuse

if TYPE_CHECKING:
    from model.training.label_files.reader import LabelFormat
    from model.training.scoring import Score

_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def evaluate() -> None:
    """Measure a model on your own files."""


@evaluate.command("ner")
@click.argument("bundle", type=_EXISTING_FOLDER)
@click.argument("file", type=_EXISTING_FILE)
@labelled_file_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def evaluate_ner(
    *, bundle: Path, file: Path, form: LabelFormat | None, max_bad_share: float, as_json: bool
) -> None:
    """Score BUNDLE on the labelled texts of FILE: exact borders and label, as seqeval counts."""
    from model.training.evaluation import NotATaggerError

    reading = read_or_refuse(file, form, max_bad_share)
    try:
        overall, per_label = measured(bundle, reading.texts, f"reading {file.name}")
    except (BundleError, NotATaggerError) as error:
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


def measured(bundle: Path, texts: Sequence[LabelledText], what: str) -> tuple[Score, dict[str, Score]]:
    """Scores over all labels and by label, with a progress bar on standard error."""
    from model.runtime.threads import thread_count
    from model.training.evaluation import evaluate_tagger

    with click.progressbar(length=len(texts), label=what, file=sys.stderr) as bar:
        return evaluate_tagger(bundle, texts, threads=thread_count(), on_text=lambda: bar.update(1))

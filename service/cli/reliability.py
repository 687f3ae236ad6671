"""``conche eval ner-scores``: whether a tagger's scores mean what they say, and how to make them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.runtime.bundle import BundleError
from service.cli.labelled_files import labelled_file_options, read_sets
from service.cli.progress import ProgressLine
from service.cli.training_packages import require_training_packages

if TYPE_CHECKING:
    from model.training.evaluation import Tagged
    from model.training.label_files.reader import LabelFormat
    from model.training.reliability import Judged
    from model.training.spans import LabelledText

_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("ner-scores")
@click.argument("bundle", type=_EXISTING_FOLDER)
@click.argument("files", nargs=-1, required=True, type=_EXISTING_FILE)
@labelled_file_options
@click.option(
    "--fit", is_flag=True, help="Fit the scores on FILES, which no training saw, and write that into BUNDLE."
)
def ner_scores(
    *, bundle: Path, files: Sequence[Path], form: LabelFormat | None, max_bad_share: float, fit: bool
) -> None:
    """Compare BUNDLE's entity scores with the share of its entities that is right in FILES.

    Prints, for each file, the expected calibration error (ECE): by how much scores miss that share.
    """
    from model.training.evaluation import NotATaggerError
    from model.training.reliability import TooFewSpansError, calibrate, calibration_error

    if fit:
        require_training_packages()
    readings = read_sets(files, form, max_bad_share)
    texts = {name: reading.texts for name, reading in readings.items()}
    try:
        if not fit:
            for name, judged in _judged(bundle, texts, as_it_is=False).items():
                click.echo(f"{name}: {len(judged.scores)} spans, ECE {calibration_error(judged):.3f}")
                for line in _table(judged):
                    click.echo(line)
            return
        judged_sets = _judged(bundle, texts, as_it_is=True)
        calibration, figures = calibrate(judged_sets)
        _write(bundle, calibration.slope, calibration.intercept, figures)
    except (BundleError, NotATaggerError, OSError, TooFewSpansError) as error:
        raise click.ClickException(str(error)) from error
    for name, figure in figures.items():
        click.echo(f"{name}: {json.dumps(figure)}")
    click.echo(f"{bundle}: slope {calibration.slope}, intercept {calibration.intercept} written")


def _judged(path: Path, sets: Mapping[str, Sequence[LabelledText]], *, as_it_is: bool) -> dict[str, Judged]:
    """The spans found in each set, with scores as served, or not calibrated."""
    from model.runtime.threads import thread_count
    from model.training.evaluation import read_tagger, tag_texts
    from model.training.reliability import judge, without_calibration

    bundle = read_tagger(path)
    if as_it_is:
        bundle = without_calibration(bundle)
    with ProgressLine() as progress:

        def tagged(name: str, texts: Sequence[LabelledText]) -> Tagged:
            read = count(1)
            return tag_texts(
                bundle,
                [labelled.text for labelled in texts],
                threads=thread_count(),
                on_text=lambda: progress.show(f"reading {name}", next(read), len(texts)),
            )

        return {name: judge(tagged(name, texts).found, texts) for name, texts in sets.items()}


def _table(judged: Judged) -> list[str]:
    from model.training.reliability import bins_of

    return [
        f"  score {each.score:.3f}  right {each.right:.3f}  {each.spans:5} spans" for each in bins_of(judged)
    ]


def _write(bundle: Path, slope: float, intercept: float, figures: dict[str, dict[str, float]]) -> None:
    from model.export.writer import record_calibration, record_quality
    from model.runtime.bundle import ScoreCalibration

    record_calibration(bundle, ScoreCalibration(slope=slope, intercept=intercept))
    record_quality(bundle, {"calibration": figures})

"""How far a tagger's entity scores are from the share of its entities that is right.

    .venv-dev/bin/python bench/ner_reliability.py BUNDLE FILE...

FILE holds labelled texts. Prints, for three kinds of score (the mean of a span's label probabilities, the
least of them, and the latter through the bundle's calibration if it has one), the expected calibration error
over ten bins, the Brier score, and the bins of the score that the bundle serves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from model.runtime.bundle import Bundle, ScoreCalibration
from model.runtime.calibration import AS_IT_IS
from model.runtime.threads import thread_count
from model.training.evaluation import read_tagger, tag_texts
from model.training.label_files.reader import read_labelled
from model.training.reliability import Judged, bins_of, calibration_error, judge
from model.training.spans import LabelledText


def brier(judged: Judged) -> float:
    """Mean squared distance of the scores from 1 (right) or 0 (wrong)."""
    return float(((judged.scores - judged.right) ** 2).mean())


def judged_by(tagger: Bundle, calibration: ScoreCalibration | None, texts: Sequence[LabelledText]) -> Judged:
    """What the tagger finds, with scores through ``calibration`` in place of its own."""
    other = replace(tagger, manifest=tagger.manifest.model_copy(update={"calibration": calibration}))
    return judge(tag_texts(other, [each.text for each in texts], threads=thread_count()).found, texts)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def main(bundle: Path, files: tuple[Path, ...]) -> None:
    """Measure how reliable BUNDLE's entity scores are on the labelled texts of FILES."""
    tagger = read_tagger(bundle)
    calibration = tagger.manifest.calibration
    for file in files:
        texts = read_labelled(file).texts
        kinds = {
            "mean of the words": judged_by(tagger, None, texts),
            "least sure word": judged_by(tagger, AS_IT_IS, texts),
        }
        if calibration is not None:
            kinds["calibrated"] = kinds["least sure word"].calibrated(calibration)
        click.echo(f"{file.parent.name}/{file.name}: {len(kinds['least sure word'].scores)} spans")
        for kind, judged in kinds.items():
            click.echo(f"  {kind:18} ECE {calibration_error(judged):.3f}  Brier {brier(judged):.3f}")
        for each in bins_of(kinds[list(kinds)[0 if calibration is None else -1]]):
            click.echo(f"    score {each.score:.3f}  right {each.right:.3f}  {each.spans:5} spans")


if __name__ == "__main__":
    main()

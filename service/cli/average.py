"""``conche average``: the mean of taggers' weights, as a bundle. Needs the ``train`` extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.runtime.bundle import STORAGES, BundleError
from model.training.scoring import score_summary
from service.cli.evaluate import tagged_by
from service.cli.labelled_files import labelled_file_options, read_sets, texts_of
from service.cli.languages import languages_option
from service.cli.models import find_bundle, models_dir_option
from service.cli.progress import ProgressLine
from service.cli.training_packages import require_training_packages

if TYPE_CHECKING:
    from model.export.writer import Measured
    from model.runtime.bundle import Storage
    from model.training.label_files.reader import LabelFormat
    from model.training.report import NerReport

_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("taggers", nargs=-1, required=True)
@models_dir_option
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the new bundle."
)
@click.option(
    "--measure", "files", multiple=True, type=_EXISTING_FILE, help="Labelled file to measure on; repeatable."
)
@labelled_file_options
@click.option(
    "--storage",
    default="int8_block",
    show_default=True,
    type=click.Choice(STORAGES),
    help="How weights lie on disk, but for the embedding tables, which are as in the first tagger.",
)
@click.option(
    "--outside-bias",
    default=0.0,
    show_default=True,
    help="Added to the logit of O: above 0, fewer names are found, and more of them are right.",
)
@click.option(
    "--round-for",
    "rounding_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="Labelled file, such as a training set: round the weights of int8_block so that the layers' answers "
    "to its texts stay as they are, and not each weight to the nearest; repeatable.",
)
@click.option(
    "--link-embeddings",
    is_flag=True,
    help="Link to the first tagger's embedding tables, or to what those link to, instead of having them.",
)
@languages_option(help="Codes, comma separated, for the manifest; by default the first tagger's.")
@click.option("--licence", help="SPDX identifier that the data allows; by default the first tagger's.")
@click.option("--description", help="One sentence for the manifest; by default the first tagger's.")
@click.option("--notice", type=_EXISTING_FILE, help="Text file to put into the bundle as NOTICE.")
@click.option("--overwrite", is_flag=True, help="Replace the output folder if it exists.")
def average(
    *,
    taggers: Sequence[str],
    models_dir: Path,
    output: Path,
    files: Sequence[Path],
    form: LabelFormat | None,
    max_bad_share: float,
    storage: Storage,
    outside_bias: float,
    rounding_files: Sequence[Path],
    link_embeddings: bool,
    languages: Sequence[str] | None,
    licence: str | None,
    description: str | None,
    notice: Path | None,
    overwrite: bool,
) -> None:
    """Make one tagger of several: the mean of their weights.

    TAGGERS are bundles, by name or path, that were trained on from one of them, or from a common one (conche
    train ner --base TAGGER), with other data, seeds or settings. Their mean is often better than each of
    them, and costs nothing more to serve. A tagger that is named twice counts twice. Scores are to be
    calibrated anew (conche eval ner-scores --fit).
    """
    require_training_packages()
    from model.encoder.errors import CheckpointError
    from model.export.golden import FidelityError
    from model.export.graph import GraphError
    from model.export.parity import ParityError
    from model.export.storage import StorageError
    from model.export.writer import ExportError, Measured, check_target
    from model.training.card import CARD_NAME
    from model.training.evaluation import NotATaggerError, read_tagger
    from model.training.mean import mean_card, mean_of_taggers, rounded_for
    from model.training.report import make_report
    from model.training.tagger import UnfitBaseError, write_tagger

    if rounding_files and storage != "int8_block":
        raise click.UsageError("--round-for is for --storage int8_block")
    name = output.resolve().name
    try:
        check_target(name, output, overwrite=overwrite)
        sets = texts_of(read_sets(files, form, max_bad_share))
        read_for_rounding = texts_of(read_sets(rounding_files, form, max_bad_share))
        notices = {} if notice is None else {"NOTICE": notice.read_text(encoding="utf-8")}
        paths = [find_bundle(models_dir, tagger) for tagger in taggers]
        mean = mean_of_taggers(paths, outside_bias=outside_bias)
        first = mean.parts[0]
        description = description or first.description
        licence = licence or first.licence
        languages = languages or first.languages
        reports: dict[str, NerReport] = {}
        with ProgressLine() as progress:

            def measured(folder: Path) -> Measured:
                tagger = read_tagger(folder)
                for of, texts in sets.items():
                    tagged = tagged_by(tagger, [text.text for text in texts], f"measuring on {of}", progress)
                    reports[of] = make_report(texts, tagged, examples=0)
                card = mean_card(
                    name,
                    {"description": description, "licence": licence, "languages": ", ".join(languages)},
                    mean,
                    reports,
                )
                return Measured(
                    {of: score_summary(report.overall, report.per_label) for of, report in reports.items()},
                    {CARD_NAME: card},
                )

            written = write_tagger(
                mean,
                paths[0],
                output,
                languages=languages,
                licence=licence,
                description=description,
                notices=notices,
                quality={
                    "mean_of": [part.name for part in mean.parts],
                    **({"outside_bias": outside_bias} if outside_bias else {}),
                },
                storage=storage,
                rounded=rounded_for(
                    mean, [text.text for texts in read_for_rounding.values() for text in texts]
                )
                if rounding_files
                else None,
                link_embeddings=link_embeddings,
                overwrite=overwrite,
                measure=measured,
                progress=progress.show,
            )
    except (
        BundleError,
        CheckpointError,
        ExportError,
        FidelityError,
        GraphError,
        NotATaggerError,
        OSError,
        ParityError,
        StorageError,
        UnfitBaseError,
    ) as error:
        raise click.ClickException(str(error)) from error
    for of, report in reports.items():
        click.echo(f"{of}: F1 {100 * report.overall.f1:.2f}")
    click.echo(f"{output}: {written.nbytes / 1e6:.1f} MB")

"""``conche eval ner``: how good a tagger is on your own labelled file; needs only what serving needs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.runtime.bundle import BundleError
from model.training.spans import count_spans
from service.cli.labelled_files import labelled_file_options, read_or_refuse
from service.cli.progress import ProgressLine
from service.cli.reliability import ner_scores

if TYPE_CHECKING:
    from model.runtime.bundle import Bundle
    from model.training.evaluation import Tagged
    from model.training.label_files.reader import LabelFormat
    from model.training.label_files.readings import Reading
    from model.training.report import NerReport

_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group()
def evaluate() -> None:
    """Measure a model on your own files."""


evaluate.add_command(ner_scores)


@evaluate.command("ner")
@click.argument("bundle", type=_EXISTING_FOLDER)
@click.argument("file", type=_EXISTING_FILE)
@labelled_file_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option(
    "--html",
    "html_page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report as a page, with gold and predicted entities marked in the examples.",
)
@click.option(
    "--examples",
    default=50,
    show_default=True,
    type=click.IntRange(min=0),
    help="Most texts with mistakes to put into --json and --html.",
)
def evaluate_ner(
    *,
    bundle: Path,
    file: Path,
    form: LabelFormat | None,
    max_bad_share: float,
    as_json: bool,
    html_page: Path | None,
    examples: int,
) -> None:
    """Score BUNDLE on the labelled texts of FILE: exact borders and label, as seqeval counts."""
    from model.runtime.tokenization import Tokenizer
    from model.training.data_checks import check_data
    from model.training.evaluation import NotATaggerError, read_tagger
    from model.training.report import make_report

    reading = read_or_refuse(file, form, max_bad_share)
    try:
        tagger = read_tagger(bundle)
        with ProgressLine() as progress:
            texts = [labelled.text for labelled in reading.texts]
            tagged = tagged_by(tagger, texts, f"reading {file.name}", progress)
    except (BundleError, NotATaggerError) as error:
        raise click.ClickException(str(error)) from error
    report = make_report(reading.texts, tagged, examples=examples)
    remarks = [
        *_unknown_labels(tagger, reading),
        *(f"note: {note}" for note in reading.notes),
        *check_data({}, {file.name: reading}, reader=Tokenizer.from_bundle(tagger)).warnings(),
    ]
    for remark in remarks:
        click.echo(remark, err=True)
    if html_page is not None:
        if reading.bad:
            remarks.append(f"{len(reading.bad)} texts left out, the first: {reading.bad[0]}")
        _write_page(html_page, tagger, report, remarks, file)
    if as_json:
        about = {"bundle": tagger.manifest.name, "file": file.name, "format": reading.format}
        click.echo(json.dumps({**report.summary(), **about, "texts_left_out": len(reading.bad)}))
        return
    for line in _table(report):
        click.echo(line)


def tagged_by(tagger: Bundle, texts: Sequence[str], what: str, progress: ProgressLine) -> Tagged:
    """What a tagger finds in texts; ``progress`` shows how far it is, under the name ``what``."""
    from model.runtime.threads import thread_count
    from model.training.evaluation import tag_texts

    read = count(1)
    return tag_texts(
        tagger,
        texts,
        threads=thread_count(),
        on_text=lambda: progress.show(what, next(read), len(texts)),
    )


def _entity_types(tagger: Bundle) -> tuple[str, ...]:
    from model.runtime.label_schemes import LabelScheme

    types = LabelScheme.from_labels(tagger.manifest.labels).types
    return tuple(dict.fromkeys(name for name in types if name is not None))


def _unknown_labels(tagger: Bundle, reading: Reading) -> Iterator[str]:
    known = _entity_types(tagger)
    unknown = {label: count for label, count in count_spans(reading.texts).items() if label not in known}
    if unknown:
        yield (
            f"warning: {tagger.manifest.name} has no {', '.join(unknown)} (it has {', '.join(known)}); "
            f"{sum(unknown.values())} spans count as missed or of the wrong type"
        )


def _table(report: NerReport) -> Iterator[str]:
    from model.training.mistakes import MISTAKES

    for name, score in [*report.per_label.items(), ("all", report.overall)]:
        yield (
            f"{name:12} precision {100 * score.precision:5.1f}  recall {100 * score.recall:5.1f}  "
            f"F1 {100 * score.f1:5.1f}  ({score.gold} spans)"
        )
    for name, average in (("macro", report.macro), ("weighted", report.weighted)):
        yield (
            f"{name:12} precision {100 * average.precision:5.1f}  recall {100 * average.recall:5.1f}  "
            f"F1 {100 * average.f1:5.1f}"
        )
    yield "mistakes: " + ", ".join(f"{report.kinds.get(kind, 0)} {kind}" for kind in MISTAKES)
    confused = [
        f"{gold} as {predicted} {count}"
        for (gold, predicted), count in sorted(report.confusion.items(), key=lambda item: -item[1])
        if gold != predicted and gold in report.per_label and predicted in report.per_label
    ]
    if confused:
        yield "confused: " + ", ".join(confused)
    yield f"{report.milliseconds_per_1000_characters:.1f} ms per 1,000 characters"


def _write_page(path: Path, tagger: Bundle, report: NerReport, remarks: Sequence[str], file: Path) -> None:
    from model.runtime.entity_page import PAGE_END, Looks, page_start
    from model.training.report_page import report_fragments
    from service.cli.entity_pages import replaced

    looks = Looks([*_entity_types(tagger), *report.labels])
    with replaced(path) as page:
        page.write(page_start(f"{tagger.manifest.name} on {file.name}"))
        page.writelines(report_fragments(report, looks, remarks=remarks))
        page.write(PAGE_END)
    click.echo(f"{path}: {len(report.examples)} examples", err=True)

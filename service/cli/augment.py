"""``conche augment``: more labelled text out of what there is. Needs only what serving needs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.training.augmentation import (
    Mixture,
    NameFileError,
    Names,
    names_in,
    one_pass,
    read_names,
    read_templates,
)
from model.training.spans import LabelledText, Span, count_spans
from service.cli.labelled_files import labelled_file_options, read_or_refuse

if TYPE_CHECKING:
    from model.training.label_files.reader import LabelFormat

DEFAULTS: Final = Mixture()
_EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHARE: Final = click.FloatRange(0, 1)


@click.command()
@click.option(
    "--texts",
    "whole_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="Labelled file, read whole in each pass; repeatable.",
)
@click.option(
    "--some",
    "partial_files",
    multiple=True,
    type=(_EXISTING_FILE, _SHARE),
    metavar="FILE SHARE",
    help="Labelled file of which each pass reads a share (0..1), drawn anew; repeatable.",
)
@click.option(
    "--rename",
    "renamed",
    multiple=True,
    metavar="FROM=TO",
    help="Labels of the files that mean one of yours; repeatable.",
)
@click.option("--labels", help="Labels to keep, comma separated; spans of others are dropped. Default: all.")
@click.option(
    "--names",
    "name_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="Lists of names (model/training/names); repeatable.",
)
@click.option(
    "--templates",
    "template_files",
    multiple=True,
    type=_EXISTING_FILE,
    help="Sentences with {LABEL} where a name goes; repeatable.",
)
@click.option(
    "--passes", default=1, show_default=True, type=click.IntRange(min=1), help="Passes over the files."
)
@click.option(
    "--rate", default=DEFAULTS.rate, show_default=True, type=_SHARE, help="Share of the names replaced."
)
@click.option(
    "--listed-share",
    default=DEFAULTS.listed_share,
    show_default=True,
    type=_SHARE,
    help="Share of the new names that come from the lists, not from the files.",
)
@click.option(
    "--template-copies",
    default=DEFAULTS.template_copies,
    show_default=True,
    type=click.IntRange(min=0),
    help="Fillings of each template in a pass.",
)
@click.option(
    "--empty-share",
    default=DEFAULTS.empty_share,
    show_default=True,
    type=_SHARE,
    help="Share of the texts without a name that a pass keeps.",
)
@click.option(
    "--recased-share",
    default=DEFAULTS.recased_share,
    show_default=True,
    type=_SHARE,
    help="Share of the texts written in capitals, in small letters, or with their names in small letters.",
)
@click.option("--seed", default=13, show_default=True, help="Same seed and files: same output.")
@labelled_file_options
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="JSONL to write.")
@click.option("--overwrite", is_flag=True, help="Replace the output file if it exists.")
def augment(
    *,
    whole_files: Sequence[Path],
    partial_files: Sequence[tuple[Path, float]],
    renamed: Sequence[str],
    labels: str | None,
    name_files: Sequence[Path],
    template_files: Sequence[Path],
    passes: int,
    rate: float,
    listed_share: float,
    template_copies: int,
    empty_share: float,
    recased_share: float,
    seed: int,
    form: LabelFormat | None,
    max_bad_share: float,
    output: Path,
    overwrite: bool,
) -> None:
    """Write labelled texts with other names in the place of theirs, to train a tagger from.

    A name is replaced by one of the same label and script, from the files or from lists of your own.
    """
    if output.exists() and not overwrite:
        raise click.ClickException(f"{output} exists; choose another file or add --overwrite")
    parts = [name.partition("=") for name in renamed]
    if wrong := ["".join(part) for part in parts if not (part[0] and part[2])]:
        raise click.BadParameter(f"{wrong[0]} is not FROM=TO", param_hint="--rename")
    new_names = {old: new for old, _, new in parts}
    kept = None if labels is None else {name.strip() for name in labels.split(",") if name.strip()}
    sets: list[tuple[list[LabelledText], float]] = []
    for path, share in [*((path, 1.0) for path in whole_files), *partial_files]:
        texts = read_or_refuse(path, form, max_bad_share).texts
        sets.append(([_relabelled(text, new_names, kept) for text in texts], share))
    mixture = Mixture(
        rate=rate,
        listed_share=listed_share,
        template_copies=template_copies,
        empty_share=empty_share,
        recased_share=recased_share,
    )
    chooser = random.Random(seed)  # noqa: S311 - drawing names, not secrets
    try:
        names = Names(read_names(name_files), names_in(text for texts, _ in sets for text in texts))
        templates = read_templates(template_files)
        with output.open("w", encoding="utf-8") as file:
            for number in range(1, passes + 1):
                made = one_pass(sets, names, templates, mixture, chooser)
                file.writelines(_as_line(text) for text in made)
                counts = ", ".join(f"{count} {label}" for label, count in count_spans(made).items())
                click.echo(f"pass {number}: {len(made)} texts with {counts or 'no names'}", err=True)
    except (NameFileError, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from error


def _relabelled(text: LabelledText, new_names: dict[str, str], kept: set[str] | None) -> LabelledText:
    spans = (Span(span.start, span.end, new_names.get(span.label, span.label)) for span in text.spans)
    return LabelledText(text.text, tuple(span for span in spans if kept is None or span.label in kept))


def _as_line(text: LabelledText) -> str:
    spans = [{"start": span.start, "end": span.end, "label": span.label} for span in text.spans]
    return json.dumps({"text": text.text, "spans": spans}, ensure_ascii=False) + "\n"

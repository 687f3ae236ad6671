"""Labelled files on the command line: the options that say how to read them, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from model.training.label_files.reader import LABEL_FORMATS, LabelFormat, read_labelled
from model.training.label_files.readings import EncodingError, FormatError, Reading
from model.training.spans import LabelledText

Command = TypeVar("Command", bound=Callable[..., Any])

_BAD_LINES_SHOWN: Final = 20


def labelled_file_options(command: Command) -> Command:
    """``--format`` and ``--max-bad-share``; the command gets ``form`` and ``max_bad_share`` (0..1)."""
    share = click.option(
        "--max-bad-share",
        default=0.1,
        show_default=True,
        type=click.FloatRange(0, 1),
        help="Refuse a file of whose texts more than this share cannot be used.",
    )
    form = click.option(
        "--format",
        "form",
        type=click.Choice(LABEL_FORMATS),
        help="Format of the labelled files; by default told from each one's content.",
    )
    return form(share(command))


def read_or_refuse(path: Path, form: LabelFormat | None, max_bad_share: float) -> Reading:
    """Read a file, saying on standard error what is left out.

    Raises:
        click.ClickException: It cannot be read, or too little of it can be used.
    """
    try:
        reading = read_labelled(path, form)
    except (EncodingError, FormatError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for line in reading.bad[:_BAD_LINES_SHOWN]:
        click.echo(f"left out: {line}", err=True)
    hidden = len(reading.bad) - _BAD_LINES_SHOWN
    if hidden > 0:
        click.echo(f"left out: {hidden} more texts of {path}", err=True)
    if not reading.texts:
        faults = "; ".join([f"{len(reading.bad)} bad ones", *reading.notes])
        raise click.ClickException(f"{path} holds no usable text ({faults})")
    if reading.bad_share > max_bad_share:
        raise click.ClickException(
            f"{len(reading.bad)} of {len(reading.bad) + len(reading.texts)} texts of {path} cannot be used "
            f"({100 * reading.bad_share:.1f} %), more than --max-bad-share {max_bad_share:g} allows"
        )
    return reading


def read_sets(files: Sequence[Path], form: LabelFormat | None, max_bad_share: float) -> dict[str, Reading]:
    """Read files by the set's name: ``data/uner_en_ewt/dev.jsonl`` is ``uner_en_ewt/dev``.

    Raises:
        click.ClickException: A file is refused, or two have one name.
    """
    sets: dict[str, Reading] = {}
    for path in files:
        name = f"{path.resolve().parent.name}/{path.stem}"
        if name in sets:
            raise click.ClickException(f"two files would be reported as {name}; {path} is the second")
        sets[name] = read_or_refuse(path, form, max_bad_share)
    return sets


def texts_of(sets: Mapping[str, Reading]) -> dict[str, list[LabelledText]]:
    """The usable texts of each set."""
    return {name: reading.texts for name, reading in sets.items()}

"""From a labelled file in any known format to texts with spans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Literal, get_args

from model.training.label_files.conll import CONLL, CONLL_SPACED, has_tag_column, read_conll
from model.training.label_files.json_lines import DOCCANO, JSONL, json_lines_form, parsed, read_json_lines
from model.training.label_files.label_studio import LABEL_STUDIO, read_label_studio
from model.training.label_files.readings import FormatError, Reading, read_lines

LabelFormat = Literal["conll", "conll-spaced", "jsonl", "label-studio", "doccano"]
LABEL_FORMATS: Final[tuple[LabelFormat, ...]] = get_args(LabelFormat)
# Enough to tell the formats apart.
_FIRST_LINES: Final = 200


def read_labelled(path: Path, form: LabelFormat | None = None) -> Reading:
    """Read a labelled file.

    Args:
        path: The file, in UTF-8.
        form: Its format; by default told from the content.

    Raises:
        OSError: The file cannot be read.
        EncodingError: It is not UTF-8.
        FormatError: It is in none of the formats, or not in the one said.
    """
    lines = read_lines(path)
    form = form or _recognise(path, lines)
    if form in {CONLL, CONLL_SPACED}:
        return read_conll(path, lines, spaced=form == CONLL_SPACED)
    if form == LABEL_STUDIO:
        return read_label_studio(path, lines)
    return read_json_lines(path, lines, form)


def _recognise(path: Path, lines: Sequence[str]) -> LabelFormat:
    first = list(islice((line for line in lines if line.strip()), _FIRST_LINES))
    if not first:
        raise FormatError(f"{path} is empty")
    # Brackets are tokens too, but then a column follows.
    opening = "".join("".join(first[:2]).split())[:2]
    if opening in {"[{", "[]"} or (opening == "[" and len(lines) == 1):
        return LABEL_STUDIO
    if opening.startswith('{"') or opening == "{}":
        return DOCCANO if json_lines_form(_objects(first)) == DOCCANO else JSONL
    if has_tag_column(first):
        return CONLL
    raise FormatError(
        f"{path} is neither in columns (token, tag) nor JSON lines nor a JSON list; if it is "
        f"one of these all the same, say which with --format {'|'.join(LABEL_FORMATS)}"
    )


def _objects(lines: Sequence[str]) -> list[object]:
    objects = []
    for line in lines:
        try:
            objects.append(parsed(line))
        except ValueError:
            continue
    return objects

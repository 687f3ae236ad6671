"""One JSON object a line: our own form, and what doccano exports for sequence labelling."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from model.training.label_files.readings import BadLine, Reading
from model.training.label_files.span_rules import checked_span, checked_text, labelled_text
from model.training.spans import LabelledText, Span

JSONL: Final = "jsonl"
DOCCANO: Final = "doccano"

# In the order in which they are looked for.
_TEXT_KEYS: Final = {JSONL: ("text",), DOCCANO: ("text", "data")}
_SPAN_KEYS: Final = {JSONL: ("spans", "entities"), DOCCANO: ("label", "labels", "entities", "annotations")}


def read_json_lines(path: Path, lines: Sequence[str], form: str) -> Reading:
    """Read ``{"text": str, "spans": [{"start", "end", "label"}]}`` and the like, an object a line.

    Offsets are code points, ``end`` exclusive. A span may also be ``[start, end, label]`` or name its
    offsets ``start_offset`` and ``end_offset``. Nothing is repaired in silence: a line that does not fit
    is left out whole and reported.

    Args:
        path: Named in what is reported.
        lines: Of the file.
        form: ``JSONL`` (spans under ``spans`` or ``entities``) or ``DOCCANO`` (``label``, ``labels``,
            ``entities`` or ``annotations``).
    """
    texts: list[LabelledText] = []
    bad: list[BadLine] = []
    starts: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            texts.append(_read_record(parsed(line), form))
        except ValueError as error:
            bad.append(BadLine(path, number, str(error)))
        else:
            starts.append(number)
    return Reading(path, form, texts, bad, starts)


def parsed(line: str) -> Any:
    """The JSON value of a line.

    Raises:
        ValueError: It is none.
    """
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None


def json_lines_form(records: Sequence[Any]) -> str:
    """Which of the two forms the first records of a file have."""
    for record in records:
        if not isinstance(record, dict) or "spans" in record:
            continue
        if not record.keys().isdisjoint(("label", "labels", "annotations")):
            return DOCCANO
        entities = record.get("entities")
        if isinstance(entities, list) and any(
            isinstance(item, dict) and "start_offset" in item for item in entities
        ):
            return DOCCANO
    return JSONL


def _read_record(record: Any, form: str) -> LabelledText:
    text_key = _first_key(record, _TEXT_KEYS[form])
    if text_key is None or not isinstance(record[text_key], str):
        raise ValueError('not an object with a string under "text"')
    checked_text(record[text_key])
    spans_key = _first_key(record, _SPAN_KEYS[form])
    if spans_key is None:
        names = ", ".join(f'"{key}"' for key in _SPAN_KEYS[form])
        raise ValueError(f"has none of {names}; a text without entities has an empty list")
    listed = record[spans_key]
    if not isinstance(listed, list):
        raise ValueError(f'"{spans_key}" is not a list')
    return labelled_text(record[text_key], [_read_span(item) for item in listed])


def _first_key(record: Any, keys: Sequence[str]) -> str | None:
    return next((key for key in keys if isinstance(record, dict) and key in record), None)


def _read_span(item: Any) -> Span:
    if isinstance(item, list) and len(item) == 3:
        return checked_span(*item)
    if not isinstance(item, dict):
        raise ValueError(f"span {item!r} is neither an object nor [start, end, label]")
    return checked_span(
        item.get("start", item.get("start_offset")),
        item.get("end", item.get("end_offset")),
        item.get("label"),
    )

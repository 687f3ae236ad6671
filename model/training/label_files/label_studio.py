"""What Label Studio exports for labelled text: JSON in full, and JSON-MIN."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from model.training.label_files.readings import BadLine, FormatError, Reading
from model.training.label_files.span_rules import checked_span, labelled_text
from model.training.spans import LabelledText, Span

LABEL_STUDIO: Final = "label-studio"
_BETWEEN_TASKS: Final = " \t\n\r,"


def read_label_studio(path: Path, lines: Sequence[str]) -> Reading:
    """Read a JSON list of tasks.

    A region says what it covers (its ``text``), so its offsets are held against that: where they fit as
    UTF-16 units only, as browsers count, they are taken so, and the reading's notes say how often. Of several
    annotations of a task the one marked as ground truth counts; else they have to agree. A task that nobody
    annotated, or that was skipped, is no fault: it is left out, and counted in the notes. One that was
    annotated with nothing is a text without entities.

    Args:
        path: Named in what is reported.
        lines: Of the file.

    Raises:
        FormatError: It is not a JSON list.
    """
    texts: list[LabelledText] = []
    unannotated = 0
    bad: list[BadLine] = []
    starts: list[int] = []
    in_utf16 = 0
    for rank, (line, task) in enumerate(_tasks(path, lines), start=1):
        try:
            text, labelled = _read_task(task)
            spans, converted = _spans_of(labelled, text)
            texts.append(labelled_text(text, spans))
        except _NotAnnotatedError:
            unannotated += 1
        except ValueError as error:
            bad.append(BadLine(path, line, f"task {_name(task, rank)}: {error}"))
        else:
            starts.append(line)
            in_utf16 += converted
    notes = []
    if unannotated:
        notes.append(f"{unannotated} tasks are not annotated, or were skipped, and are left out")
    if in_utf16:
        notes.append(f"{in_utf16} texts have offsets in UTF-16 units, which were converted")
    return Reading(path, LABEL_STUDIO, texts, bad, starts, notes)


class _NotAnnotatedError(ValueError):
    """Nobody has said what is in a task."""


def _tasks(path: Path, lines: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Each task with the line it begins on."""
    text = "\n".join(lines)
    try:
        listed = json.loads(text)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise FormatError(f"{path}: not JSON that can be read: {error}") from error
    if not isinstance(listed, list):
        raise FormatError(f"{path}: not a JSON list of tasks")
    # Once more task by task, since the parser keeps no places.
    decoder = json.JSONDecoder()
    position = text.index("[") + 1
    line, counted_to = 1, 0
    for _ in listed:
        start = position
        while text[start] in _BETWEEN_TASKS:
            start += 1
        line, counted_to = line + text.count("\n", counted_to, start), start
        task, position = decoder.raw_decode(text, start)
        yield line, task


def _name(task: Any, rank: int) -> str:
    return f"{rank} (id {task['id']})" if isinstance(task, dict) and "id" in task else str(rank)


def _read_task(task: Any) -> tuple[str, list[Mapping[str, Any]]]:
    """Its text, and the values of its labelled regions."""
    if not isinstance(task, dict):
        raise ValueError("not an object")
    if isinstance(task.get("data"), dict):
        values = _values_of(_chosen(task.get("annotations", task.get("completions"))))
        return _text_among(task["data"], values), values
    listed = [item for value in task.values() if isinstance(value, list) for item in value]
    regions: list[Mapping[str, Any]] = [
        item for item in listed if isinstance(item, dict) and "labels" in item
    ]
    if "annotation_id" not in task and not regions:
        raise _NotAnnotatedError
    return _text_among(task, regions), regions


def _chosen(annotations: Any) -> Mapping[str, Any]:
    if not isinstance(annotations, list):
        raise ValueError("it has no list of annotations")
    done = [one for one in annotations if isinstance(one, dict) and not one.get("was_cancelled")]
    if not done:
        raise _NotAnnotatedError
    truths = [one for one in done if one.get("ground_truth")]
    first, *others = truths or done
    if any(_comparable(_values_of(one)) != _comparable(_values_of(first)) for one in others):
        raise ValueError(
            f"{len(others) + 1} annotations that differ"
            + ("" if truths else ", and none of them is marked as ground truth")
        )
    return first


def _values_of(annotation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of the regions with labels; relations, choices and ratings are no spans."""
    result = annotation.get("result")
    if not isinstance(result, list):
        raise ValueError("its annotation has no result")
    values = [region.get("value") for region in result if isinstance(region, dict)]
    return [value for value in values if isinstance(value, dict) and "labels" in value]


def _comparable(values: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(
        json.dumps([value.get(key) for key in ("start", "end", "labels")], sort_keys=True) for value in values
    )


def _text_among(fields: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> str:
    """The field that was labelled: called ``text``, else the one in which the regions are found."""
    named = fields.get("text")
    if isinstance(named, str):
        return named
    covered = [value["text"] for value in values if isinstance(value.get("text"), str)]
    fitting = [
        field
        for field in fields.values()
        if isinstance(field, str) and all(part in field for part in covered)
    ]
    if covered and len(fitting) == 1:
        return fitting[0]
    raise ValueError('it has no string under "text"')


def _spans_of(values: Sequence[Mapping[str, Any]], text: str) -> tuple[list[Span], bool]:
    """The spans, in code points, and whether they were given in UTF-16 units."""
    spans = [_span_of(value) for value in values]
    covered = [value.get("text") for value in values]
    if _fit(spans, covered, text):
        return spans, False
    units = list(itertools.accumulate((1 + (ord(character) > 0xFFFF) for character in text), initial=0))
    code_points = {unit: index for index, unit in enumerate(units)}
    converted = [
        Span(code_points.get(span.start, -1), code_points.get(span.end, -1), span.label) for span in spans
    ]
    if _fit(converted, covered, text):
        return converted, True
    span, part = next(
        pair for pair in zip(spans, covered, strict=True) if not _fit([pair[0]], [pair[1]], text)
    )
    raise ValueError(
        f"span {span.start}..{span.end} {span.label} covers {text[max(span.start, 0) : span.end]!r}, "
        f"but was made on {part!r}"
    )


def _fit(spans: Sequence[Span], covered: Sequence[Any], text: str) -> bool:
    """Whether each span covers what it says; one that does not say fits."""
    return all(
        part is None or (0 <= span.start <= span.end and text[span.start : span.end] == part)
        for span, part in zip(spans, covered, strict=True)
    )


def _span_of(value: Mapping[str, Any]) -> Span:
    start, end, labels = value.get("start"), value.get("end"), value["labels"]
    if not isinstance(labels, list) or len(labels) > 1:
        raise ValueError(f"span {start}..{end} has the labels {labels!r}; one is wanted")
    if isinstance(start, str):
        raise ValueError(
            f"span {start}..{end} is a place in HTML; use a Text tag for the text instead of HyperText"
        )
    return checked_span(start, end, labels[0] if labels else None)

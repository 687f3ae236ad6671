"""Exports of Label Studio, in full and MIN; the shapes are real, the texts our own."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.training.label_files.label_studio import LABEL_STUDIO
from model.training.label_files.reader import read_labelled
from model.training.label_files.readings import FormatError, Reading
from model.training.spans import Span


def region(start: Any, end: Any, covered: str | None, *labels: str) -> dict[str, Any]:
    """A labelled stretch as the JSON export has it."""
    value = {"start": start, "end": end, "labels": list(labels)}
    if covered is not None:
        value["text"] = covered
    return {
        "value": value,
        "id": "qKk3vH1w",
        "from_name": "label",
        "to_name": "text",
        "type": "labels",
        "origin": "manual",
    }


def annotation(*regions: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One annotator's work."""
    return {
        "id": 11,
        "completed_by": 1,
        "result": list(regions),
        "was_cancelled": False,
        "ground_truth": False,
        "created_at": "2026-05-04T09:12:44.120831Z",
        "lead_time": 21.4,
        **more,
    }


def task(text: str, *annotations: dict[str, Any], key: str = "text") -> dict[str, Any]:
    """A task of the JSON export."""
    return {
        "id": 41,
        "annotations": list(annotations),
        "file_upload": "0c1f-notes.csv",
        "drafts": [],
        "predictions": [],
        "data": {key: text, "source": "ward 3"},
        "meta": {},
        "inner_id": 1,
        "project": 2,
    }


def read(tmp_path: Path, content: Any, **how: Any) -> Reading:
    """What such an export holds."""
    path = tmp_path / "project-2-at-2026-05-04.json"
    path.write_text(json.dumps(content, ensure_ascii=False, **how), encoding="utf-8")
    return read_labelled(path)


def test_the_full_export_is_read(tmp_path: Path) -> None:
    """Regions become spans, relations and choices do not; a task without regions has no spans."""
    relation = {"from_id": "a", "to_id": "b", "type": "relation", "direction": "right"}
    choice = {"value": {"choices": ["urgent"]}, "from_name": "kind", "to_name": "text", "type": "choices"}
    reading = read(
        tmp_path,
        [
            task(
                "予阿莫西林胶囊口服",
                annotation(region(1, 7, "阿莫西林胶囊", "DRUG"), relation, choice),
            ),
            task("没有药", annotation()),
        ],
    )
    assert reading.format == LABEL_STUDIO
    assert not reading.bad
    assert reading.texts[0].spans == (Span(1, 7, "DRUG"),)
    assert reading.texts[1].spans == ()


def test_the_min_export_is_read(tmp_path: Path) -> None:
    """The fields of a task side by side; the text may have another name."""
    common = {"annotator": 1, "annotation_id": 7, "created_at": "2026-05-04", "lead_time": 3.1}
    reading = read(
        tmp_path,
        [
            {
                "note": "Ada took aspirin",
                "id": 1,
                "ward": "3",
                "label": [{"start": 9, "end": 16, "text": "aspirin", "labels": ["DRUG"]}],
                **common,
            },
            {"text": "nothing here", "id": 2, **common},
        ],
    )
    assert not reading.bad
    assert reading.texts[0].spans == (Span(9, 16, "DRUG"),)
    assert reading.texts[1].spans == ()


def test_offsets_in_utf16_units_are_converted_and_counted(tmp_path: Path) -> None:
    """A browser counts an emoji as two; the region's own text tells."""
    reading = read(
        tmp_path,
        [task("🙂 Oslo 🙂 Rio", annotation(region(3, 7, "Oslo", "LOC"), region(11, 14, "Rio", "LOC")))],
    )
    assert [(span.start, span.end) for span in reading.texts[0].spans] == [(2, 6), (9, 12)]
    assert reading.notes == ["1 texts have offsets in UTF-16 units, which were converted"]


def test_of_several_annotations_the_truth_counts(tmp_path: Path) -> None:
    """One that was cancelled does not; those that differ without a truth cannot be used."""
    oslo, town = region(0, 4, "Oslo", "LOC"), region(0, 4, "Oslo", "ORG")
    text = "Oslo is cold"
    reading = read(
        tmp_path,
        [
            task(text, annotation(oslo), annotation(oslo)),
            task(text, annotation(town), annotation(oslo, ground_truth=True)),
            task(text, annotation(town, was_cancelled=True), annotation(oslo)),
            task(text, annotation(town), annotation(oslo)),
            task(text, annotation(town, was_cancelled=True)),
            task(text),
        ],
    )
    assert [text.spans for text in reading.texts] == [(Span(0, 4, "LOC"),)] * 3
    assert ["ground truth" in line.reason for line in reading.bad] == [True]
    assert reading.notes == ["2 tasks are not annotated, or were skipped, and are left out"]


def test_a_task_that_nobody_annotated_is_no_fault_and_no_text(tmp_path: Path) -> None:
    """Exports of projects under way have many; one that was annotated with nothing teaches something."""
    undone = [task("Oslo is cold")] * 9
    reading = read(tmp_path, [task("nothing here", annotation()), *undone, {"id": 9, "text": "Oslo"}])
    assert [text.text for text in reading.texts] == ["nothing here"]
    assert not reading.bad
    assert reading.notes == ["10 tasks are not annotated, or were skipped, and are left out"]


def test_every_task_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """By the line it begins on, its rank and its id."""
    faults: list[tuple[Any, str]] = [
        (7, "task 2: not an object"),
        (task("Oslo", annotation(region(0, 4, "Rio", "LOC"))), "covers 'Oslo', but was made on 'Rio'"),
        (task("Oslo", annotation(region(-3, 4, "Rio", "LOC"))), "but was made on 'Rio'"),
        (task("Oslo", annotation(region(0, 9, None, "LOC"))), "behind the text"),
        (task("Oslo", annotation(region(0, 4, "Oslo", "LOC", "ORG"))), "one is wanted"),
        (task("Oslo", annotation(region(0, 4, "Oslo"))), "no label"),
        (
            task("Oslo", annotation(region("/p[1]/text()[1]", "/p[1]/text()[1]", None, "LOC"))),
            "place in HTML",
        ),
        (task("Oslo", {"id": 1}), "no result"),
        ({"id": 9, "data": {"text": "Oslo"}}, "no list of annotations"),
        (task("a.png", annotation(), key="image"), 'no string under "text"'),
    ]
    reading = read(tmp_path, [task("Oslo", annotation()), *(fault for fault, _ in faults)], indent=1)
    assert len(reading.texts) == 1
    for bad, (_, words) in zip(reading.bad, faults, strict=True):
        assert words in bad.reason
    content = (tmp_path / "project-2-at-2026-05-04.json").read_text(encoding="utf-8").split("\n")
    assert content[reading.bad[0].line - 1].strip() == "7,"


def test_a_broken_export_is_refused_whole(tmp_path: Path) -> None:
    """A download that stopped midway is no smaller set."""
    path = tmp_path / "half.json"
    path.write_text('[\n{"id": 1,\n "da', encoding="utf-8")
    with pytest.raises(FormatError, match=r"half\.json:3: not JSON"):
        read_labelled(path)

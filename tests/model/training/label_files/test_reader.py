"""Which format a file is in."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.training.label_files.reader import LABEL_FORMATS, LabelFormat, read_labelled
from model.training.label_files.readings import FormatError


@pytest.mark.parametrize(
    ("content", "form"),
    [
        ('{"text": "a", "spans": []}\n', "jsonl"),
        ('{"text": "a", "label": []}\n', "doccano"),
        ('{"broken\n{"text": "a", "labels": []}\n', "doccano"),
        ('[{"id": 1, "text": "a", "annotation_id": 2}]', "label-studio"),
        ('[\n  {"id": 1, "text": "a", "annotation_id": 2}\n]\n', "label-studio"),
        ("[ O\n1 B-REF\n] O\n", "conll, IOB2"),
        ("{ O\nx B-SET\n} O\n", "conll, IOB2"),
        ("\n\n# a remark\nOslo\tB-LOC\n", "conll, IOB2"),
    ],
)
def test_the_format_is_told_from_the_content(tmp_path: Path, content: str, form: str) -> None:
    """Names of files say nothing: a bracket may be a token."""
    path = tmp_path / "data"
    path.write_text(content, encoding="utf-8")
    assert read_labelled(path).format == form


@pytest.mark.parametrize("content", ["", "\n \n", "Just a letter.\nNo tags.\n", "<xml/>"])
def test_what_is_in_no_format_is_refused(tmp_path: Path, content: str) -> None:
    """With the file's name."""
    path = tmp_path / "letter.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FormatError, match=r"letter\.txt"):
        read_labelled(path)


@pytest.mark.parametrize("form", ["conll", "label-studio"])
def test_a_format_that_was_said_is_held_to(tmp_path: Path, form: LabelFormat) -> None:
    """An override is no hint."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "spans": []}\n', encoding="utf-8")
    with pytest.raises(FormatError):
        read_labelled(path, form)


KEYS = st.sampled_from(
    [
        *("text", "data", "label", "labels", "spans", "entities", "annotations", "result", "value"),
        *("start", "end", "start_offset", "end_offset", "annotation_id", "was_cancelled", "ground_truth"),
    ]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 0, 1, -1, 3, 1.5, float("inf"), "", "Oslo", "🙂 Oslo"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
COLUMNS = st.sampled_from(
    ["O", "B-PER", "I-PER", "S-LOC", "北", "\t", " ", "\n", "\n\n", "#", "[", "{", "\u3000", "\r\n"]
)
CONTENTS = (
    st.lists(VALUES, max_size=3).map(json.dumps)
    | st.lists(VALUES, max_size=3).map(lambda records: "\n".join(map(json.dumps, records)))
    | st.lists(COLUMNS, max_size=20).map("".join)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CONTENTS, st.sampled_from([None, *LABEL_FORMATS]))
def test_whatever_a_file_holds_is_read_or_refused(
    tmp_path: Path, content: str, form: LabelFormat | None
) -> None:
    """In words; what comes out has spans that lie in their text, in order."""
    path = tmp_path / "anything"
    path.write_text(content, encoding="utf-8", newline="")
    try:
        texts = read_labelled(path, form).texts
    except FormatError:
        return
    for text in texts:
        borders = [border for span in text.spans for border in (span.start, span.end)]
        assert borders == sorted(borders)
        assert all(0 <= span.start < span.end <= len(text.text) for span in text.spans)

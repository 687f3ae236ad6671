"""Which format a file is in."""

from pathlib import Path

import pytest

from model.training.label_files.reader import LabelFormat, read_labelled
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

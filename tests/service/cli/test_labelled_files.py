"""Labelled files on the command line: what is said about them, and when they are refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from tests.bundles import write_tiny_ner_bundle


def run(*arguments: str | Path) -> Result:
    """`conche ARGUMENTS`."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def columns(tmp_path: Path) -> Path:
    """A column file."""
    path = tmp_path / "mine" / "train.conll"
    path.parent.mkdir()
    path.write_text("Tim B-PER\nCook I-PER\nworks O\nin O\nParis B-LOC\n\n" * 9, encoding="utf-8")
    return path


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """The same sentence as JSON lines."""
    path = tmp_path / "mine" / "dev.jsonl"
    record = {"text": "Tim Cook works in Paris", "spans": [[0, 8, "PER"], [18, 23, "LOC"]]}
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


def test_a_check_reports_and_needs_neither_output_nor_training(columns: Path, objects: Path) -> None:
    """Before hours of training: counts, shares, what repeats and what leaks."""
    result = run("train", "ner", "--train", columns, "--dev", objects, "--check", "--min-examples", "10")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "mine/train: conll, IOB2, 9 texts (0 without spans), 207 characters, 18 spans",
        "  PER                    9   50.0 %",
        "  LOC                    9   50.0 %",
        "  note: 8 texts are there more than once, with the same spans",
        "mine/dev: jsonl, 1 texts (0 without spans), 23 characters, 2 spans",
        "  PER                    1   50.0 %",
        "  LOC                    1   50.0 %",
        (
            "warning: 1 of 1 texts of mine/dev are in mine/train too (1 with spans), which flatters scores: "
            "'Tim Cook works in Paris'"
        ),
        "warning: LOC has 9 examples to learn from, fewer than 10",
        "warning: PER has 9 examples to learn from, fewer than 10",
    ]


def test_training_needs_an_output(columns: Path, objects: Path) -> None:
    """Only a check does not."""
    result = run("train", "ner", "--train", columns, "--dev", objects)
    assert result.exit_code == 2
    assert "'-o' / '--output'" in result.output


def test_a_file_with_too_much_left_out_is_refused(columns: Path, tmp_path: Path) -> None:
    """Named with its share, the limit and the option that sets it; below it, each line is named."""
    tagger = write_tiny_ner_bundle(tmp_path / "tiny-ner")
    with columns.open("a", encoding="utf-8") as file:
        file.write("lonely\n\nlonely\n")
    result = run("eval", "ner", tagger, columns)
    assert result.exit_code == 1
    assert "2 of 11 texts" in result.stderr
    assert "(18.2 %), more than --max-bad-share 0.1 allows" in result.stderr
    result = run("eval", "ner", tagger, columns, "--max-bad-share", "0.2")
    assert result.exit_code == 0, result.output
    assert f"left out: {columns}:55: 1 columns where the file has 2" in result.stderr
    assert "PER          precision 100.0" in result.stdout


def test_a_file_of_bad_lines_only_is_refused_and_named_in_short(tmp_path: Path) -> None:
    """Whatever share is allowed; a flood of lines helps nobody."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": 1}\n' * 30, encoding="utf-8")
    result = run("eval", "ner", write_tiny_ner_bundle(tmp_path / "t"), path, "--max-bad-share", "1")
    assert result.exit_code == 1
    assert f"left out: 10 more texts of {path}" in result.stderr
    assert "holds no usable text (30 bad ones)" in result.stderr


def test_the_format_can_be_said(columns: Path, tmp_path: Path) -> None:
    """Then nothing else is tried."""
    tagger = write_tiny_ner_bundle(tmp_path / "tiny-ner")
    result = run("eval", "ner", tagger, columns, "--format", "label-studio")
    assert result.exit_code == 1
    assert "train.conll:1: not JSON" in result.stderr

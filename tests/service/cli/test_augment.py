"""`conche augment`: other names into labelled files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main


def run(*arguments: str | Path) -> Result:
    """`conche augment ARGUMENTS`."""
    return CliRunner().invoke(main, ["augment", *map(str, arguments)])


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Two labelled texts, one without a name of ours."""
    path = tmp_path / "train.jsonl"
    lines = [
        {"text": "Ann left.", "spans": [{"start": 0, "end": 3, "label": "person"}]},
        {"text": "I like Sprite.", "spans": [{"start": 7, "end": 13, "label": "product"}]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """One person."""
    path = tmp_path / "names.txt"
    path.write_text("[PER]\nZoe Ray\n", encoding="utf-8")
    return path


def test_it_renames_drops_replaces_and_fills(tmp_path: Path, texts: Path, names: Path) -> None:
    """Offsets are those of the new names; each pass is a fresh draw, one after another in the file."""
    templates, output = tmp_path / "templates.txt", tmp_path / "more.jsonl"
    templates.write_text("# ours\nThanks, {PER}.\n", encoding="utf-8")
    result = run(
        *("--texts", texts, "--rename", "person=PER", "--labels", "PER", "--names", names, "-o", output),
        *("--templates", templates, "--template-copies", 1, "--rate", 1, "--listed-share", 1, "--passes", 2),
    )
    assert result.exit_code == 0, result.output
    assert "pass 2: 3 texts with 2 PER" in result.output
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 6
    assert lines[0] == {"text": "Zoe Ray left.", "spans": [{"start": 0, "end": 7, "label": "PER"}]}
    assert lines[1] == {"text": "I like Sprite.", "spans": []}
    name = lines[2]["text"].removeprefix("Thanks, ").removesuffix(".")
    assert name in {"Zoe Ray", "Ann"}
    assert lines[2]["spans"] == [{"start": 8, "end": 8 + len(name), "label": "PER"}]


def test_the_same_seed_gives_the_same_file(tmp_path: Path, texts: Path, names: Path) -> None:
    """Or nobody could make a model again."""
    outputs = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for output in outputs:
        run("--some", texts, 0.5, "--rename", "person=PER", "--names", names, "--passes", 9, "-o", output)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert outputs[0].stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--rename", "person"], "person is not FROM=TO"), (["--names", "TEXTS"], "a name before the first")],
)
def test_faults_are_one_line(tmp_path: Path, texts: Path, arguments: list[str], complaint: str) -> None:
    """With the option or the line to look at."""
    given = [str(texts) if argument == "TEXTS" else argument for argument in arguments]
    result = run("--texts", texts, *given, "-o", tmp_path / "out.jsonl")
    assert result.exit_code != 0
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_there_is_replaced_only_if_asked(tmp_path: Path, texts: Path) -> None:
    """It may be the labels that somebody made by hand."""
    output = tmp_path / "out.jsonl"
    output.write_text("by hand", encoding="utf-8")
    refused = run("--texts", texts, "-o", output)
    assert refused.exit_code != 0
    assert "exists; choose another file or add --overwrite" in refused.output
    assert output.read_text(encoding="utf-8") == "by hand"
    assert run("--texts", texts, "-o", output, "--overwrite").exit_code == 0
    assert output.read_text(encoding="utf-8").startswith('{"text": "Ann left."')


def test_it_needs_no_torch() -> None:
    """Data is often prepared where nothing is trained."""
    code = "import sys, service.cli.augment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

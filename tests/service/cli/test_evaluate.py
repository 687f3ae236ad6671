"""`conche eval ner`: what it prints and writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from tests.bundles import write_tiny_ner_bundle


def run(*arguments: str | Path) -> Result:
    """`conche eval ner ARGUMENTS`."""
    return CliRunner().invoke(main, ["eval", "ner", *(str(argument) for argument in arguments)])


@pytest.fixture
def tagger(tmp_path: Path) -> Path:
    """It knows Tim Cook, 张三, Paris and 北京."""
    return write_tiny_ner_bundle(tmp_path / "tiny-ner")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Two right, one of another type, one missed of an unknown label, one spurious."""
    path = tmp_path / "test.jsonl"
    records = [
        {"text": "Tim Cook works in Paris.", "spans": [[0, 8, "PER"], [18, 23, "LOC"]]},
        {"text": "张三在北京工作 <script>", "spans": [[0, 2, "PER"], [3, 5, "ORG"], [5, 7, "WORK"]]},
        {"text": "broken"},
        *[{"text": f"we visited the dog {number}", "spans": []} for number in range(12)],
        {"text": "John", "spans": []},
    ]
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def test_the_table_has_scores_mistakes_and_time(tagger: Path, file: Path) -> None:
    """What is odd about the file is said beside it."""
    result = run(tagger, file)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "LOC          precision  50.0  recall 100.0  F1  66.7  (1 spans)",
        "ORG          precision   0.0  recall   0.0  F1   0.0  (1 spans)",
        "PER          precision  66.7  recall 100.0  F1  80.0  (2 spans)",
        "WORK         precision   0.0  recall   0.0  F1   0.0  (1 spans)",
        "all          precision  60.0  recall  60.0  F1  60.0  (5 spans)",
    ]
    assert lines[-3:-1] == [
        "mistakes: 0 border, 1 type, 0 border and type, 1 missed, 1 spurious",
        "confused: ORG as LOC 1",
    ]
    assert lines[-1].endswith(" ms per 1,000 characters")
    assert "warning: tiny-ner has no WORK (it has PER, LOC, ORG); 1 spans count as missed" in result.stderr
    assert "test.jsonl:3: has none of" in result.stderr


def test_json_has_all_figures(tagger: Path, file: Path) -> None:
    """On standard output, alone."""
    record = json.loads(run(tagger, file, "--json", "--examples", "1").stdout)
    assert record["f1"] == 60.0
    assert record["texts_left_out"] == 1
    assert (record["bundle"], record["file"], record["format"]) == ("tiny-ner", "test.jsonl", "jsonl")
    assert len(record["examples"]) == 1
    assert record["confusion"]["ORG"]["LOC"] == 1


def test_the_page_is_written(tagger: Path, file: Path, tmp_path: Path) -> None:
    """With the examples' entities marked, the remarks, and nothing that runs."""
    page = tmp_path / "report.html"
    result = run(tagger, file, "--html", page)
    assert result.exit_code == 0, result.output
    assert f"{page}: 2 examples" in result.stderr
    content = page.read_text(encoding="utf-8")
    assert "<h1>tiny-ner on test.jsonl</h1>" in content
    assert "tiny-ner has no WORK" in content
    assert "1 texts left out, the first: " in content
    assert "北京<bdi>✗ ORG</bdi>" in content
    assert "<script" not in content


def test_a_column_file_is_scored_like_its_text(tagger: Path, tmp_path: Path) -> None:
    """Spaces between tokens change nothing here."""
    path = tmp_path / "test.conll"
    path.write_text("Tim B-PER\nCook I-PER\nworks O\nin O\nParis B-LOC\n. O\n", encoding="utf-8")
    result = run(tagger, path)
    assert "all          precision 100.0  recall 100.0  F1 100.0  (2 spans)" in result.stdout

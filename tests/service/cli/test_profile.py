"""``conche profile`` prints stages and operators of texts, operators of shapes."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from service.cli import main
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both tiny bundles."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_embedding_bundle(folder / "tiny-embedding")
    write_tiny_ner_bundle(folder / "tiny-ner")
    return folder


def lines(models_dir: Path, *arguments: str, texts: str = "") -> list[str]:
    """What the command prints, the figures cut off."""
    command = ["profile", "--models-dir", str(models_dir), "--threads", "1", "--repeats", "1", *arguments]
    result = CliRunner().invoke(main, command, input=texts)
    assert result.exit_code == 0, result.output
    return [re.sub(r"\s+[\d.]+(\s+[\d.]+%)?$", "", line).strip() for line in result.output.splitlines()]


@pytest.mark.parametrize(("name", "last"), [("tiny-embedding", "write JSON"), ("tiny-ner", "find entities")])
def test_texts_are_profiled_by_stage_and_operator(models_dir: Path, name: str, last: str) -> None:
    """Of both kinds of model; blank lines are no texts."""
    shown = lines(models_dir, name, "-", texts="hello world\n\nTim Cook works in Paris.\nhello\n")
    assert re.match(r"3 texts, \d+ tokens, 1 batches, padding x1\.\d+, 1 threads, ms", shown[0])
    assert shown[1:6] == ["tokenise", "pad", "run", last, "together"]
    assert any(line.startswith("MatMul (1)") for line in shown[6:])


def test_batches_hold_texts_of_like_length(models_dir: Path) -> None:
    """As the service packs them: two texts of three tokens and one of more, eight tokens a batch."""
    shown = lines(
        models_dir, "tiny-ner", "-", "--batch-tokens", "8", texts="hello\nhello world and the cat\na\n"
    )
    assert "2 batches, padding x1.000" in shown[0]


def test_shapes_are_profiled_without_texts(models_dir: Path) -> None:
    """Random tokens of that shape: what an operator costs depends on nothing else."""
    shown = lines(models_dir, "tiny-embedding", "--shape", "2x5", "--shape", "1x3")
    assert [line for line in shown if "rows of" in line] == [
        "2 rows of 5 tokens, 1 threads, ms",
        "1 rows of 3 tokens, 1 threads, ms",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tiny-ner"], "--shape 32x16"),
        (["tiny-ner", "--shape", "32"], "'32' is not like 32x16"),
        (["tiny-ner", "--shape", "1x3", "--shape", "1x9999"], "9999 tokens in a row"),
        (["absent", "--shape", "1x3"], "no bundle absent"),
        (["tiny-ner", "-"], "no texts"),
    ],
)
def test_what_cannot_be_profiled_is_said(models_dir: Path, arguments: list[str], told: str) -> None:
    """In a line, with an exit code, and before anything is printed that looks like an answer."""
    result = CliRunner().invoke(main, ["profile", "--models-dir", str(models_dir), *arguments], input="")
    assert result.exit_code != 0
    assert told in result.output
    assert result.stdout == ""
    assert "Traceback" not in result.output

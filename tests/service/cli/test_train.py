"""Faults of a training command are one line, found before the training; measuring needs no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.cli import main
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle


def run(*arguments: str | Path) -> Result:
    """`conche ARGUMENTS`."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One labelled text."""
    path = tmp_path / "set" / "train.jsonl"
    path.parent.mkdir()
    record = {"text": "Tim Cook works in Paris.", "spans": [{"start": 0, "end": 8, "label": "PER"}]}
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A bundle to start from."""
    return write_tiny_embedding_bundle(tmp_path / "tiny-embedding")


def train(base: Path, data: Path, *more: str | Path) -> Result:
    """`conche train ner` with the same file for training and development."""
    output = data.parent / "out"
    return run("train", "ner", "--base", base, "--train", data, "--dev", data, "-o", output, *more)


def assert_one_line(result: Result, *words: str) -> None:
    """Refused with a message, not with a traceback."""
    assert isinstance(result.exception, SystemExit), result.exc_info
    assert result.exit_code != 0
    for word in words:
        assert word in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [("--epochs", "0"), ("--batch-size", "0"), ("--learning-rate", "0"), ("--max-tokens", "2")],
)
def test_impossible_numbers_are_refused_by_option(base: Path, data: Path, option: str, value: str) -> None:
    """The usual message of the command line."""
    result = train(base, data, option, value)
    assert_one_line(result, option, "range")
    assert result.exit_code == 2


def test_a_file_that_is_not_utf8_is_named(base: Path, data: Path) -> None:
    """With the line, for training and for measuring; a notice counts as well."""
    gbk = data.parent / "gbk.jsonl"
    gbk.write_bytes('{"text":"北京"}'.encode("gbk"))
    assert_one_line(train(base, gbk), "gbk.jsonl:1", "UTF-8")
    assert_one_line(train(base, data, "--notice", gbk), "gbk.jsonl is not UTF-8")
    tagger = write_tiny_ner_bundle(data.parent / "tiny-ner")
    assert_one_line(run("eval", "ner", tagger, gbk), "gbk.jsonl:1", "UTF-8")


def test_bundles_of_the_other_task_are_refused(base: Path, data: Path) -> None:
    """A tagger of other labels is no base, and an embedding model has nothing to score."""
    tagger = write_tiny_ner_bundle(data.parent / "tiny-ner")
    assert_one_line(train(tagger, data), "tiny-ner has the labels", "not O, B-PER, I-PER")
    assert_one_line(run("eval", "ner", base, data), "tiny-embedding is for embedding")


def test_options_that_contradict_each_other_are_refused(base: Path, data: Path) -> None:
    """Frozen layers would be ignored in silence beside changes of low rank."""
    assert_one_line(train(base, data, "--frozen-layers", 1, "--lora-rank", 4), "without --lora-rank")
    assert_one_line(train(base, data, "--frozen-layers", 99), "frozen_layers is 99")


def test_a_name_that_no_bundle_can_have_is_refused_before_training(base: Path, data: Path) -> None:
    """Not after hours of it."""
    assert_one_line(train(base, data, "-o", data.parent / "my tagger"), "cannot be called 'my tagger'")


def test_a_link_to_tables_elsewhere_is_refused_before_training(base: Path, data: Path) -> None:
    """Only bundles of one folder can stay together."""
    assert_one_line(train(base, data, "--link-embeddings"), "must lie beside")


def test_labels_must_be_those_of_the_training_files(base: Path, data: Path) -> None:
    """They only set the order."""
    for more in ([], ["--check"]):
        result = train(base, data, "--labels", "PER,LOC", *more)
        assert_one_line(result, "--labels PER,LOC: no training file has LOC; the training files have PER")
        assert_one_line(
            train(base, data, "--labels", "LOC", *more), "no training file has LOC; PER is missing"
        )
        assert_one_line(train(base, data, "--labels", "PER,PER", *more), "a label is there twice")
    assert train(base, data, "--labels", "PER", "--check").exit_code == 0


def test_a_check_refuses_labels_that_only_judge(base: Path, data: Path) -> None:
    """As training would."""
    other = data.parent / "other.jsonl"
    other.write_text('{"text": "in Oslo", "spans": [[3, 7, "LOC"]]}', encoding="utf-8")
    result = run("train", "ner", "--base", base, "--train", data, "--dev", other, "--check")
    assert_one_line(result, "set/other has labels that no training file has: LOC")


def test_spans_that_cut_words_are_named(base: Path, data: Path) -> None:
    """By the words of the base's tokenizer, with their places."""
    data.write_text('{"text": "Londoners left", "spans": [[0, 6, "LOC"]]}', encoding="utf-8")
    result = train(base, data, "--check")
    assert result.exit_code == 0, result.output
    assert f"  {data}:1: 0..6 LOC 'London' cuts 'Londoners'" in result.output


def test_two_files_of_one_name_are_refused(base: Path, data: Path) -> None:
    """The manifest has one figure a name; the other would be lost."""
    twin = data.parent / "deeper" / "set" / "train.jsonl"
    twin.parent.mkdir(parents=True)
    twin.write_bytes(data.read_bytes())
    assert_one_line(train(base, data, "--dev", twin), "set/train", str(twin))


def test_help_and_measuring_need_no_torch(data: Path) -> None:
    """The environment that `make serve` makes; training says what it lacks and how to get it."""
    tagger = write_tiny_ner_bundle(data.parent / "tiny-ner")
    program = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'onnxscript', 'safetensors', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"
        "from click.testing import CliRunner\n"
        "from service.cli import main\n"
        "run = lambda *arguments: CliRunner().invoke(main, arguments)\n"
        "for command in (['train', 'ner'], ['train'], ['eval', 'ner'], ['eval'], ['export'], ['import']):\n"
        "    result = run(*command, '--help')\n"
        "    assert result.exit_code == 0, result.output\n"
        f"data, tagger = {str(data)!r}, {str(tagger)!r}\n"
        "result = run('eval', 'ner', tagger, data)\n"
        "assert result.exit_code == 0, result.output\n"
        "assert 'PER          precision 100.0' in result.output, result.output\n"
        "result = run('train', 'ner', '--base', tagger, '--train', data, '--dev', data, '-o', 'x')\n"
        "assert result.exit_code == 1, result.output\n"
        "assert 'torch' in result.output and '.venv-dev' in result.output, result.output\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

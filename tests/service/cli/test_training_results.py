"""What a training leaves beside the weights."""

import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from model.export.writer import Measured
from model.runtime.bundle import Bundle
from model.training.spans import LabelledText, Span
from service.cli import main
from service.cli.progress import ProgressLine
from service.cli.training_results import Results
from tests.bundles import write_tiny_ner_bundle
from tests.model.training.test_card import facts, history
from tests.service.cli.test_reliability import labelled

RIGHT = LabelledText("Tim Cook works in Paris.", (Span(0, 8, "PER"), Span(18, 23, "LOC")))
HALF = LabelledText("Tim Cook works in Paris.", (Span(0, 8, "PER"),))


def measured(tmp_path: Path, count: int) -> tuple[Results, Measured]:
    """A tagger that is right three times of four, measured on so many texts."""
    known = facts()
    own = {name: getattr(known, name) for name in asdict(known)}
    for name in ("history", "misfits", "split", "reports", "scores"):
        own.pop(name)
    data = SimpleNamespace(misfits=0, split=0)
    results = Results(
        output=tmp_path / "drugs",
        trained=cast("Any", SimpleNamespace(history=history(), data=data)),
        sets={"set/dev": [RIGHT, HALF] * (count // 2), "set/test": [RIGHT, HALF]},
        facts=own | {"roles": {"set/train": "train", "set/dev": "dev", "set/test": "test"}},
        examples=0,
        progress=ProgressLine(),
    )
    return results, results.of_bundle(write_tiny_ner_bundle(tmp_path / "tiny-ner"))


def test_scores_are_calibrated_on_the_development_sets(tmp_path: Path) -> None:
    """People take a score for a probability; the card says on what it was made one."""
    results, found = measured(tmp_path, 60)
    assert found.calibration is not None
    (figures,) = found.quality["calibration"].values()  # a test set's would be of texts that were fitted on
    assert figures["spans"] == 120
    assert figures["ece_after"] < figures["ece_before"]
    assert "calibrated on set/dev (120 spans found" in results.scores
    assert results.scores in found.documents["MODEL_CARD.md"]


def test_of_too_few_spans_the_card_says_that_scores_are_not_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how they will be, by a command that can be pasted wherever the bundle has been put."""
    results, found = measured(tmp_path, 10)
    assert found.calibration is None
    assert "calibration" not in found.quality
    assert "20 spans were found" in results.scores
    (command,) = re.findall("`conche (.*?)`", results.scores)
    file = labelled(tmp_path / "more.jsonl", 60)
    monkeypatch.chdir(tmp_path / "tiny-ner")
    fitted = CliRunner().invoke(main, command.replace("FILE", str(file)).split())
    assert fitted.exit_code == 0, fitted.output
    assert Bundle.load(tmp_path / "tiny-ner").manifest.calibration is not None

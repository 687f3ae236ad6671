"""``conche eval ner-scores`` on a tiny bundle: measures, and fits in place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from model.runtime.bundle import Bundle
from service.cli import main
from tests.bundles import write_tiny_ner_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The tiny tagger, which finds the names in its table wherever they stand."""
    return write_tiny_ner_bundle(tmp_path / "ner")


def labelled(path: Path, texts: int) -> Path:
    """Texts of four names each; the tagger finds all, and every third Berlin is said to be wrong."""
    lines = []
    for number in range(texts):
        text = "Tim, Paris, London and Berlin"
        names = [(0, 3, "PER"), (5, 10, "LOC"), (12, 18, "LOC")] + ([(23, 29, "LOC")] if number % 3 else [])
        spans = [{"start": start, "end": end, "label": label} for start, end, label in names]
        lines.append(json.dumps({"text": text, "spans": spans}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_scores_are_fitted_into_the_bundle_and_then_mean_more(bundle: Path, tmp_path: Path) -> None:
    """One command; the digests stay right, and so does the error that it reports."""
    file = labelled(tmp_path / "dev.jsonl", 60)
    fitted = CliRunner().invoke(main, ["eval", "ner-scores", str(bundle), str(file), "--fit"])
    assert fitted.exit_code == 0, fitted.output
    loaded = Bundle.load(bundle)
    assert loaded.manifest.calibration is not None
    (figures,) = loaded.manifest.quality["calibration"].values()  # type: ignore[union-attr]
    assert figures["spans"] == 240  # type: ignore[index,call-overload]
    assert figures["ece_after"] < figures["ece_before"]  # type: ignore[index,call-overload,operator]

    measured = CliRunner().invoke(main, ["eval", "ner-scores", str(bundle), str(file)])
    assert measured.exit_code == 0, measured.output
    assert f"240 spans, ECE {figures['ece_after']:.3f}" in measured.output  # type: ignore[index,call-overload]
    assert "right" in measured.output


def test_too_few_spans_leave_the_bundle_as_it_was(bundle: Path, tmp_path: Path) -> None:
    """And say what is needed."""
    before = (bundle / "manifest.json").read_bytes()
    file = labelled(tmp_path / "dev.jsonl", 5)
    refused = CliRunner().invoke(main, ["eval", "ner-scores", str(bundle), str(file), "--fit"])
    assert refused.exit_code == 1
    assert "at least 100" in refused.output
    assert (bundle / "manifest.json").read_bytes() == before

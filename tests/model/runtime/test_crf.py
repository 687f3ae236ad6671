"""The file that training writes is what serving reads, or it is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.runtime.bundle import Bundle, BundleError
from model.runtime.crf import CRF_NAME, LinearChainCrf
from tests.bundles import LABELS, refresh_manifest, write_tiny_ner_bundle

COUNT = len(LABELS)


def crf() -> LinearChainCrf:
    """Seeded scores."""
    rng = np.random.default_rng(3)
    return LinearChainCrf(rng.normal(size=COUNT), rng.normal(size=COUNT), rng.normal(size=(COUNT, COUNT)))


def test_scores_come_back_as_they_were_written(tmp_path: Path) -> None:
    """To the last bit: JSON keeps float64."""
    path = write_tiny_ner_bundle(tmp_path / "ner")
    (path / CRF_NAME).write_text(crf().to_json(LABELS), encoding="utf-8")
    refresh_manifest(path)
    read = LinearChainCrf.from_bundle(Bundle.load(path))
    assert read is not None
    for name in ("start", "end", "transitions"):
        np.testing.assert_array_equal(getattr(read, name), getattr(crf(), name))


def test_a_bundle_without_the_file_has_no_layer(tmp_path: Path) -> None:
    """Most have none."""
    assert LinearChainCrf.from_bundle(Bundle.load(write_tiny_ner_bundle(tmp_path / "ner"))) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": ["O", *reversed(LABELS[1:])]}, "labels are"),
        ({"start": [0.0] * (COUNT - 1)}, "shapes"),
        ({"transitions": [[0.0] * COUNT]}, "shapes"),
        ({"end": [float("nan")] * COUNT}, "not finite"),
        ({"end": ["a"] * COUNT}, "convert"),
        ({"end": None}, "shapes"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """Scores on the wrong labels would give wrong entities without a word."""
    path = write_tiny_ner_bundle(tmp_path / "ner")
    content = {**json.loads(crf().to_json(LABELS)), **changes}
    (path / CRF_NAME).write_text(json.dumps(content), encoding="utf-8")
    refresh_manifest(path)
    with pytest.raises(BundleError, match=reason) as refused:
        LinearChainCrf.from_bundle(Bundle.load(path))
    assert refused.value.check == "crf"
    assert CRF_NAME in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "{}", "not JSON", "\udcff"])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    """Damage that has the right digest all the same."""
    path = write_tiny_ner_bundle(tmp_path / "ner")
    (path / CRF_NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    refresh_manifest(path)
    with pytest.raises(BundleError) as refused:
        LinearChainCrf.from_bundle(Bundle.load(path))
    assert refused.value.check == "crf"

"""The warm-up by masked tokens: it runs, and leaves a tagger to train on from."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from model.export.writer import read_bundle_weights

ROOT = Path(__file__).parents[2]
BASE = ROOT / "models" / "ner-zh-en"


def test_the_encoder_learns_and_head_and_tables_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What guesses the tokens is thrown away; writing is the exporter's, and tested there."""
    spec = importlib.util.spec_from_file_location("ner_warm_up", ROOT / "bench" / "ner_warm_up.py")
    assert spec
    assert spec.loader
    script = importlib.util.module_from_spec(spec)
    sys.modules["ner_warm_up"] = script  # where dataclasses look for their annotations
    spec.loader.exec_module(script)
    written: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(script, "write_tagger", lambda warmed, *_, **facts: written.append((warmed, facts)))
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": f"some words {i} of a text"}) + "\n" for i in range(6)))
    arguments = [
        BASE,
        texts,
        "--steps",
        "2",
        "--batch-size",
        "3",
        "--max-tokens",
        "12",
        "-o",
        tmp_path / "warm",
    ]
    done = CliRunner().invoke(script.main, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    assert "2 of 2: loss" in done.output
    ((warmed, facts),) = written
    assert facts["quality"]["warm_up"]["steps"] == 2
    after = {name.removeprefix("encoder."): p.numpy() for name, p in warmed.network.state_dict().items()}
    before = read_bundle_weights(BASE)
    for name in ("embeddings.word.weight", "classifier.weight"):
        np.testing.assert_array_equal(before[name], after[name])
    moved = [name for name in before if name.startswith("layers.") and (before[name] != after[name]).any()]
    assert len(moved) > 100

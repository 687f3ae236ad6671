"""A tagging bundle is scored as the service reads it."""

from pathlib import Path

import pytest

from model.training.evaluation import NotATaggerError, evaluate_tagger
from model.training.scoring import Score
from model.training.spans import LabelledText, Span
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle


def test_found_missed_and_wrong_spans_are_counted(tmp_path: Path) -> None:
    """Border and label must both be right, in code points."""
    bundle = write_tiny_ner_bundle(tmp_path / "tiny-ner")
    texts = [
        LabelledText("🙂 Tim Cook works in Paris.", (Span(2, 10, "PER"), Span(20, 25, "LOC"))),
        LabelledText("张三在北京工作。", (Span(0, 1, "PER"), Span(3, 5, "LOC"), Span(5, 7, "ORG"))),
    ]
    seen: list[None] = []
    overall, per_label = evaluate_tagger(bundle, texts, threads=1, on_text=lambda: seen.append(None))
    assert overall == Score(correct=3, predicted=4, gold=5)
    assert per_label["PER"] == Score(correct=1, predicted=2, gold=2)
    assert per_label["ORG"] == Score(correct=0, predicted=0, gold=1)
    assert len(seen) == 2


def test_an_embedding_bundle_is_refused(tmp_path: Path) -> None:
    """It has no labels to score."""
    bundle = write_tiny_embedding_bundle(tmp_path / "tiny-embedding")
    with pytest.raises(NotATaggerError, match="tiny-embedding is for embedding"):
        evaluate_tagger(bundle, [], threads=1)

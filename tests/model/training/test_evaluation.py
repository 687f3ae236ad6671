"""A tagging bundle is scored as the service reads it."""

from pathlib import Path

import pytest

from model.training.evaluation import NotATaggerError, Tagged, evaluate_tagger, read_tagger, tag_texts
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


def test_what_is_found_comes_with_scores_and_time(tmp_path: Path) -> None:
    """The report shows both."""
    tagged = tag_texts(
        read_tagger(write_tiny_ner_bundle(tmp_path / "tiny-ner")), ["Tim Cook", "hello"], threads=1
    )
    assert [[(entity.start, entity.end, entity.label) for entity in found] for found in tagged.found] == [
        [(0, 8, "PER")],
        [],
    ]
    assert tagged.found[0][0].score > 0.5
    assert tagged.characters == 13
    assert tagged.seconds > 0


def test_time_is_told_for_a_thousand_characters() -> None:
    """In milliseconds; of nothing there is none."""
    assert Tagged([], characters=4000, seconds=0.5).milliseconds_per_1000_characters == 125
    assert Tagged([], characters=0, seconds=0.5).milliseconds_per_1000_characters == 0

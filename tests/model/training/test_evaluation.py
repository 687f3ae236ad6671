"""A tagging bundle is scored as the service reads it."""

from pathlib import Path

import pytest

from model.training.evaluation import NotATaggerError, Tagged, read_tagger, tag_texts
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle


def test_an_embedding_bundle_is_refused(tmp_path: Path) -> None:
    """It has no labels to score."""
    with pytest.raises(NotATaggerError, match="tiny-embedding is for embedding"):
        read_tagger(write_tiny_embedding_bundle(tmp_path / "tiny-embedding"))


def test_what_is_found_comes_with_scores_and_time(tmp_path: Path) -> None:
    """In code points, text by text; progress hears of each."""
    texts = ["🙂 Tim Cook works in Paris.", "hello"]
    seen: list[None] = []
    tagged = tag_texts(
        read_tagger(write_tiny_ner_bundle(tmp_path / "tiny-ner")),
        texts,
        threads=1,
        on_text=lambda: seen.append(None),
    )
    assert [[(entity.start, entity.end, entity.label) for entity in found] for found in tagged.found] == [
        [(2, 10, "PER"), (20, 25, "LOC")],
        [],
    ]
    assert tagged.found[0][0].score > 0.5
    assert tagged.characters == sum(map(len, texts))
    assert tagged.seconds > 0
    assert len(seen) == len(texts)


def test_time_is_told_for_a_thousand_characters() -> None:
    """In milliseconds; of nothing there is none."""
    assert Tagged([], characters=4000, seconds=0.5).milliseconds_per_1000_characters == 125
    assert Tagged([], characters=0, seconds=0.5).milliseconds_per_1000_characters == 0

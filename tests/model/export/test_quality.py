"""Figures that manifests quote are computed as their names say."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.export.quality import BundleEmbedder, faq_accuracy, measure, sentence_similarity, spearman
from model.runtime.bundle import Bundle
from tests.bundles import write_tiny_embedding_bundle, write_tiny_ner_bundle


def slow_ranks(values: list[float]) -> list[float]:
    """A value's rank: one more than the number below it, equals sharing the mean of theirs."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2))
def test_spearman_is_pearson_of_ranks(pairs: list[tuple[int, int]]) -> None:
    """Ties are common in judgements from 0 to 5, and must share a rank."""
    first, second = (np.array(column, float) for column in zip(*pairs, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        return  # not defined
    expected = np.corrcoef(slow_ranks(list(first)), slow_ranks(list(second)))[0, 1]
    assert spearman(first, second) == pytest.approx(expected)


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    """JSON lines."""
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def embedder(tmp_path: Path) -> BundleEmbedder:
    """The small bundle of the runtime's tests."""
    return BundleEmbedder(Bundle.load(write_tiny_embedding_bundle(tmp_path / "bundle")))


def test_vectors_come_in_the_order_of_the_texts(embedder: BundleEmbedder) -> None:
    """They are sorted by length inside; a vector in another's place would spoil every figure."""
    texts = ["a cat sat on the mat", "hello", "how do I return my order", "a", "hello world"] * 3
    together = embedder.embed(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(vector, embedder.embed([text])[0], atol=1e-6)


def test_text_longer_than_the_model_reads_is_cut(embedder: BundleEmbedder) -> None:
    """A set may hold such a text; it must not stop the measurement."""
    assert np.isfinite(embedder.embed(["cat " * 500])).all()


def test_sentence_similarity_of_obvious_pairs(embedder: BundleEmbedder, tmp_path: Path) -> None:
    """Same text, half the same, nothing in common: in that order."""
    rows: list[dict[str, object]] = [
        {"a": "cat mat", "b": "cat mat", "score": 5},
        {"a": "cat mat", "b": "cat order", "score": 3},
        {"a": "cat mat", "b": "refund password", "score": 0},
    ]
    assert sentence_similarity(embedder, write_lines(tmp_path / "sts.jsonl", rows)) == pytest.approx(100)


def test_faq_accuracy_counts_the_first_and_the_first_five(embedder: BundleEmbedder, tmp_path: Path) -> None:
    """Of two queries one names its own entry and one another's."""
    topics = ["cat", "order", "refund", "password", "shipping", "world"]
    write_lines(
        tmp_path / "faqs.jsonl", [{"id": topic, "question": topic, "answer": topic} for topic in topics]
    )
    queries: list[dict[str, object]] = [
        {"query": "cat", "faq_id": "cat"},
        {"query": "order", "faq_id": "password"},
    ]
    write_lines(tmp_path / "queries.jsonl", queries)
    result = faq_accuracy(embedder, tmp_path)
    assert (result.accuracy_at_1, result.queries) == (0.5, 2)
    assert 0.5 <= result.hit_at_5 <= 1


def test_a_tagger_has_no_vectors_to_measure(tmp_path: Path) -> None:
    """Said so, rather than failing inside."""
    with pytest.raises(ValueError, match="not for embedding"):
        measure(write_tiny_ner_bundle(tmp_path / "ner"))

"""How the FAQ embeds: alike on both sides, in batches that leave room, and with a name for the model."""

import asyncio
from pathlib import Path

import pytest

from model.runtime.bundle import Bundle, Manifest
from service.errors import InputTooLongError, OverloadedError
from service.faq.embedding import (
    UnreadableTextError,
    embed_queries,
    embed_texts,
    model_fingerprint,
)
from tests.bundles import refresh_manifest, write_tiny_embedding_bundle
from tests.service.faq.hashed_vectors import hashed_vectors
from tests.service.faq.hashing_embedder import LONGEST, HashingEmbedder


async def test_texts_are_embedded_in_batches_that_report_progress(embedder: HashingEmbedder) -> None:
    """Live requests get their turn between two of them; work of minutes must show that it goes on."""
    texts = [f"text {number}" for number in range(70)]
    told: list[tuple[int, int]] = []
    embedded = await embed_texts(embedder, texts, progress=lambda *numbers: told.append(numbers))
    assert [len(batch) for batch, _ in embedder.calls] == [32, 32, 6]
    assert told == [(32, 70), (64, 70), (70, 70)]
    assert set(embedded.vectors) == set(texts)
    for text, vector in zip(texts, hashed_vectors(texts), strict=True):
        assert embedded.vectors[text] == pytest.approx(vector)


async def test_a_full_queue_is_waited_out(embedder: HashingEmbedder) -> None:
    """The work of an import may wait, the requests that fill the queue may not."""
    embedder.refusals = 5
    texts = [f"text {number}" for number in range(40)]
    assert set((await embed_texts(embedder, texts)).vectors) == set(texts)


async def test_a_queue_that_never_holds_a_batch_gets_less(embedder: HashingEmbedder) -> None:
    """An operator may set it to a few texts; waiting would not help."""
    embedder.room = 3
    texts = [f"text {number}" for number in range(40)]
    assert set((await embed_texts(embedder, texts)).vectors) == set(texts)


async def test_a_queue_that_stays_full_is_given_up(
    embedder: HashingEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a minute; the caller is told rather than left waiting."""
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", nap)
    embedder.room = 0
    with pytest.raises(OverloadedError):
        await embed_texts(embedder, ["text"])
    assert sum(naps) == pytest.approx(60, abs=1)


async def test_both_sides_take_the_same_prompt(embedder: HashingEmbedder) -> None:
    """Questions are compared with questions, so both are queries to the model."""
    await embed_texts(embedder, ["退款"])
    await embed_queries(embedder, ["退款"])
    assert [options.prompt for _, options in embedder.calls] == ["query: ", "query: "]
    assert all(options.normalize for _, options in embedder.calls)


async def test_a_model_without_prompts_gets_none(manifest: Manifest) -> None:
    """Any embedding model will do."""
    embedder = HashingEmbedder(manifest.model_copy(update={"prompts": {}}))
    await embed_queries(embedder, ["退款"])
    assert embedder.calls[0][1].prompt == ""


async def test_long_entries_are_cut_and_long_queries_refused(embedder: HashingEmbedder) -> None:
    """An entry's owner can be told once; a caller whose query was cut would never know."""
    text = "long " * LONGEST
    assert (await embed_texts(embedder, ["short", text])).cut == {text}
    with pytest.raises(InputTooLongError) as refused:
        await embed_queries(embedder, [text])
    assert (refused.value.param, refused.value.index, refused.value.limit) == ("query", 0, LONGEST)
    assert "truncate" not in refused.value.message


async def test_a_text_that_holds_nothing_to_read_is_told(embedder: HashingEmbedder) -> None:
    """A zero-width space is a text to us and nothing to the model."""
    with pytest.raises(UnreadableTextError) as refused:
        await embed_texts(embedder, ["ok", "\u200b"])
    assert refused.value.text == "\u200b"


def test_the_fingerprint_follows_what_the_vectors_depend_on(tmp_path: Path) -> None:
    """Another model, or another prompt, gives vectors that do not compare; a new notice changes nothing."""
    path = write_tiny_embedding_bundle(tmp_path / "tiny")
    before = Bundle.load(path).manifest
    assert model_fingerprint(before) == model_fingerprint(before.model_copy(update={"name": "renamed"}))
    (path / "NOTICE").write_text("thanks\n", encoding="utf-8")
    refresh_manifest(path)
    with_notice = Bundle.load(path).manifest
    assert "NOTICE" in with_notice.files
    assert model_fingerprint(with_notice) == model_fingerprint(before)
    other_weights = {**before.files, "encoder.safetensors": before.files["tokenizer.json"]}
    other_network = before.architecture.model_copy(update={"num_attention_heads": 2})
    changed = [
        {"files": other_weights},
        {"architecture": other_network},
        {"prompts": {"query": "q: "}},
        {"pooling": "cls"},
        {"max_tokens": 8},
    ]
    prints = {model_fingerprint(before.model_copy(update=change)) for change in changed}
    assert len(prints) == len(changed)
    assert model_fingerprint(before) not in prints


def test_the_fingerprint_outlives_a_faster_graph(tmp_path: Path) -> None:
    """The same weights in another graph: no index need be made again."""
    before = Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny")).manifest
    other_graph = {**before.files, "graph.onnx": before.files["tokenizer.json"]}
    assert model_fingerprint(before.model_copy(update={"files": other_graph})) == model_fingerprint(before)

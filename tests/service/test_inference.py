"""service.inference: vectors and entities that do not depend on company, order or size."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.documents import read_documents
from model.runtime.engine import TokenBatch
from model.runtime.entities import EntityOptions
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.sequences import TextOrPair
from model.runtime.tokenization import TextIds, Tokenizer
from service import inference
from service.batching import BatchingLimits, BatchStats
from service.errors import (
    EmptyInputError,
    InferenceError,
    InputTooLongError,
    InvalidInputError,
    InvalidTextError,
    OverloadedError,
    UnavailableError,
)
from service.inference import (
    Classifier,
    ComputeBudget,
    CrossEncoder,
    Embedder,
    EmbeddingOptions,
    EmbeddingResult,
    EntityTagger,
    InferenceObserver,
    _pieces,
    finish_vectors,
)
from tests.bundles import (
    tiny_tokenizer,
    write_tiny_classifier_bundle,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
    write_tiny_reranker_bundle,
)
from tests.fakes import HANG_LIMIT_S, FakeEngine, settle, until

# float32 sums over a different number of padded rows may be ordered differently; nothing else may differ.
TOLERANCE = 1e-5
PLAIN = EmbeddingOptions()
ENOUGH_FOR_A_THREAD = ["hello"] * 5  # fewer are tokenised in place
WORDS = ["hello", "world", "cat", "return", "order", "退货", "你好世界", "北京", "Paris", "a"]


@pytest.fixture(scope="module")
def embedding_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny real bundle whose vectors would show padding that leaked."""
    return Bundle.load(write_tiny_embedding_bundle(tmp_path_factory.mktemp("bundles") / "tiny-embedding"))


@pytest.fixture(scope="module")
def ner_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A tiny real bundle that labels a few names."""
    return Bundle.load(write_tiny_ner_bundle(tmp_path_factory.mktemp("bundles") / "tiny-ner"))


@pytest.fixture
def budget() -> Iterator[ComputeBudget]:
    """The shared threads, ended after the test."""
    threads = ComputeBudget()
    yield threads
    threads.close()


@pytest.fixture
async def embedder(embedding_bundle: Bundle, budget: ComputeBudget) -> AsyncIterator[Embedder]:
    """An embedder on the real engine, with batches small enough to be split."""
    engine = OnnxRuntimeEngine(embedding_bundle, threads=1)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    limits = BatchingLimits(max_batch_tokens=256)
    async with Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget, limits=limits) as ready:
        yield ready
    engine.close()


@pytest.fixture
async def tagger(ner_bundle: Bundle, budget: ComputeBudget) -> AsyncIterator[EntityTagger]:
    """A tagger on the real engine."""
    engine = OnnxRuntimeEngine(ner_bundle, threads=1)
    tokenizer = Tokenizer.from_bundle(ner_bundle)
    limits = BatchingLimits(max_batch_tokens=256)
    async with EntityTagger(ner_bundle.manifest, tokenizer, engine, budget=budget, limits=limits) as ready:
        yield ready
    engine.close()


def _with_engine(
    bundle: Bundle,
    engine: FakeEngine,
    budget: ComputeBudget,
    *,
    limits: BatchingLimits | None = None,
    observer: InferenceObserver | None = None,
) -> Embedder:
    return Embedder(
        bundle.manifest,
        Tokenizer.from_bundle(bundle),
        engine,
        budget=budget,
        limits=limits,
        observer=observer,
    )


async def _together(
    embedder: Embedder, engine: FakeEngine, texts: int, *calls: Awaitable[EmbeddingResult]
) -> list[Any]:
    """Await ``calls``, of so many ``texts``, such that they share a batch: they queue while a run is held."""
    engine.gate.clear()
    holding = asyncio.create_task(embedder.embed(["hello"], PLAIN))
    await until(lambda: engine.entered == 1)
    tasks = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: embedder.batcher.queued_items == texts)
    engine.gate.set()
    await holding
    return await asyncio.gather(*tasks, return_exceptions=True)


# -- vectors ---------------------------------------------------------------------------------------------


def _texts(count: int) -> list[str]:
    """Texts of 1 to 40 words, Chinese and English mixed, every tenth a repetition."""
    rng = np.random.default_rng(3)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(1, 41))) for _ in range(count)]
    for position in range(10, count, 10):
        texts[position] = texts[position - 7]
    return texts


async def test_a_text_has_the_same_vector_alone_and_among_two_hundred(embedder: Embedder) -> None:
    """Sorting by length, padding and splitting must leave no trace, and every owner gets their own."""
    texts = [text for text in _texts(240) if len(text) < 150][:200]
    options = EmbeddingOptions(truncate=True)
    together = await embedder.embed(texts, options)
    assert together.vectors.shape == (len(texts), 32)
    for position in range(0, len(texts), 13):
        alone = await embedder.embed([texts[position]], options)
        np.testing.assert_allclose(together.vectors[position], alone.vectors[0], rtol=0, atol=TOLERANCE)
        assert (together.tokens[position], together.truncated[position]) == (
            alone.tokens[0],
            alone.truncated[0],
        )


async def test_repeated_texts_each_get_their_answer(embedder: Embedder) -> None:
    """Deduplicating is a tempting speed-up that hands out the right number of vectors to the wrong owners."""
    result = await embedder.embed(["hello", "cat", "hello", "退货", "hello"], PLAIN)
    np.testing.assert_allclose(result.vectors[0], result.vectors[2], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(result.vectors[0], result.vectors[4], rtol=0, atol=TOLERANCE)
    assert np.abs(result.vectors[0] - result.vectors[1]).max() > 0.1
    assert np.abs(result.vectors[3] - result.vectors[1]).max() > 0.1


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
def test_company_never_changes_a_vector(
    embedding_bundle: Bundle, budget: ComputeBudget, pooling: str, *, normalize: bool
) -> None:
    """Whatever the batch-mates and whatever they ask for: alone = among others, as a property."""
    engine = OnnxRuntimeEngine(embedding_bundle, threads=1)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    options = EmbeddingOptions(pooling=pooling, normalize=normalize)  # type: ignore[arg-type]
    text = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join)

    @given(own=text, others=st.lists(st.tuples(text, st.booleans(), st.booleans()), min_size=1, max_size=8))
    @settings(max_examples=25, deadline=None)
    def check(own: str, others: list[tuple[str, bool, bool]]) -> None:
        async def play() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            # max_wait_s makes sure that they do run together.
            limits = BatchingLimits(max_wait_s=0.002, free_padding_tokens=10_000)
            async with Embedder(
                embedding_bundle.manifest, tokenizer, engine, budget=budget, limits=limits
            ) as embedder:
                alone = await embedder.embed([own], options)
                calls = [
                    embedder.embed(
                        [other], EmbeddingOptions(pooling="cls" if cls else "mean", normalize=unit)
                    )
                    for other, cls, unit in others
                ]
                among, *_ = await asyncio.gather(embedder.embed([own], options), *calls)
            return alone.vectors[0], among.vectors[0]

        alone, among = asyncio.run(play())
        np.testing.assert_allclose(among, alone, rtol=0, atol=TOLERANCE)

    check()
    engine.close()


async def test_the_graph_is_asked_once_for_the_union_of_outputs(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Requests that differ in pooling still share a run; what no one wants is not computed."""
    engine = FakeEngine(size=32)
    async with _with_engine(embedding_bundle, engine, budget) as embedder:
        cls, mean, default = await _together(
            embedder,
            engine,
            3,
            embedder.embed(["hello cat"], EmbeddingOptions(pooling="cls")),
            embedder.embed(["hello cat"], EmbeddingOptions(pooling="mean")),
            embedder.embed(["hello cat"], PLAIN),
        )
    assert engine.asked[1:] == [("embeddings_cls_normalized", "embeddings_mean_normalized")]
    assert np.abs(cls.vectors - mean.vectors).max() > 1e-3
    np.testing.assert_array_equal(mean.vectors, default.vectors)


async def test_a_prompt_is_put_before_each_text(embedder: Embedder) -> None:
    """The same as if the caller had written it, and counted in the tokens."""
    by_option = await embedder.embed(["hello world"], EmbeddingOptions(prompt="query: "))
    by_hand = await embedder.embed(["query: hello world"], PLAIN)
    bare = await embedder.embed(["hello world"], PLAIN)
    np.testing.assert_allclose(by_option.vectors, by_hand.vectors, rtol=0, atol=TOLERANCE)
    assert by_option.tokens == by_hand.tokens
    assert bare.tokens[0] < by_option.tokens[0]


async def test_fewer_dimensions_are_a_slice_of_unit_length(embedder: Embedder) -> None:
    """Cutting without normalising again is what others get wrong: dot products shrink with no word said."""
    whole = await embedder.embed(["hello world", "退货"], PLAIN)
    cut = await embedder.embed(["hello world", "退货"], EmbeddingOptions(dimensions=8))
    expected = whole.vectors[:, :8] / np.linalg.norm(whole.vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(cut.vectors, expected, rtol=0, atol=TOLERANCE)
    raw = await embedder.embed(["hello world", "退货"], EmbeddingOptions(normalize=False))
    raw_cut = await embedder.embed(["hello world", "退货"], EmbeddingOptions(normalize=False, dimensions=8))
    np.testing.assert_allclose(raw_cut.vectors, raw.vectors[:, :8], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dimensions", [0, -1, 33, 10**9])
async def test_dimensions_that_the_model_lacks_are_refused_before_it_runs(
    embedding_bundle: Bundle, budget: ComputeBudget, dimensions: int
) -> None:
    """The message says how many there are."""
    engine = FakeEngine(size=32)
    async with _with_engine(embedding_bundle, engine, budget) as embedder:
        with pytest.raises(InvalidInputError, match="1 to 32") as refused:
            await embedder.embed(["hello"], EmbeddingOptions(dimensions=dimensions))
    assert refused.value.param == "dimensions"
    assert engine.asked == []


@given(
    vectors=st.lists(
        st.lists(
            st.floats(-(2.0**99), 2.0**99, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-99),
            min_size=5,
            max_size=5,
        ).filter(any),
        min_size=1,
        max_size=4,
    ),
    dimensions=st.one_of(st.none(), st.just(5)),
)
@settings(max_examples=200, deadline=None)
def test_unit_vectors_are_never_longer_than_one(vectors: list[list[float]], dimensions: int | None) -> None:
    """Clients that keep cosines in 0..1 lose their best hit to 1.0000001."""
    pooled = [np.array(row, dtype=np.float32) for row in vectors]
    finished = finish_vectors(pooled, EmbeddingOptions(dimensions=dimensions))
    assert finished.dtype == np.float32
    exact = (finished.astype(np.float64) ** 2).sum(axis=1)
    assert (exact <= 1.0).all()
    assert (exact > 1.0 - 1e-6).all()


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_no_vector_never_leaves(spoilt: float, *, normalize: bool) -> None:
    """NaN becomes null in JSON at status 200: the caller's index is poisoned and nobody is told."""
    rows = [np.ones(4, dtype=np.float32) for _ in range(3)]
    rows[2] = np.full(4, spoilt, dtype=np.float32)
    options = EmbeddingOptions(normalize=normalize)
    if spoilt == 0.0 and not normalize:
        np.testing.assert_array_equal(finish_vectors(rows, options)[2], 0.0)  # a raw zero is a number
        return
    with pytest.raises(InferenceError) as failed:
        finish_vectors(rows, options, first=64)
    assert failed.value.index == 66


async def test_a_spoilt_row_fails_its_own_request_only(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Batch-mates of a text that overflows the model are none the worse for it."""
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    (cat,) = tokenizer.tokenize(["cat"])
    engine = FakeEngine(size=32, spoil=int(cat.input_ids[1]))
    async with _with_engine(embedding_bundle, engine, budget) as embedder:
        bad, good = await _together(
            embedder, engine, 3, embedder.embed(["hello", "the cat"], PLAIN), embedder.embed(["hello"], PLAIN)
        )
        assert embedder.healthy
    assert isinstance(bad, InferenceError)
    assert bad.index == 1
    assert not isinstance(good, BaseException)
    assert len(engine.asked) == 3  # the last to see whether the model still knows what it knew


# -- long, empty and broken texts ------------------------------------------------------------------------


async def test_a_long_text_is_refused_with_the_numbers_and_the_way_out(embedder: Embedder) -> None:
    """Never cut silently: the answer would be of a text that the caller did not send."""
    with pytest.raises(
        InputTooLongError, match=r'texts\[40\] has 102 tokens.*reads 64.*"truncate"'
    ) as refused:
        await embedder.embed(["hello"] * 40 + ["cat " * 100] + ["dog " * 100], PLAIN, param="texts")
    error = refused.value
    assert (error.index, error.param, error.tokens, error.limit) == (40, "texts", 102, 64)
    assert error.setting == "truncate"


async def test_a_text_that_just_fits_is_taken(embedder: Embedder) -> None:
    """62 words and two special tokens fill the 64; one more does not fit."""
    result = await embedder.embed(["cat " * 62], PLAIN)
    assert (result.tokens, result.truncated) == ([64], [0])
    with pytest.raises(InputTooLongError, match="65 tokens"):
        await embedder.embed(["cat " * 63], PLAIN)


async def test_cutting_is_said_for_each_text(embedder: Embedder) -> None:
    """The vector is that of the beginning, and the caller learns how much is missing."""
    result = await embedder.embed(["cat " * 100, "hello"], EmbeddingOptions(truncate=True))
    assert (result.tokens, result.truncated) == ([64, 3], [38, 0])
    beginning = await embedder.embed(["cat " * 62], PLAIN)
    np.testing.assert_allclose(result.vectors[0], beginning.vectors[0], rtol=0, atol=TOLERANCE)


async def test_each_token_has_its_vector_whatever_the_company(embedder: Embedder) -> None:
    """Their mean is the text's vector, padding is nowhere, and prompts and cuts work as for one vector."""
    texts = ["hello world", "怎么退货", "a", "hello " * 100]
    options = EmbeddingOptions(normalize=False, prompt="query: ", truncate=True)
    every, pooled = await asyncio.gather(
        embedder.embed_tokens(texts, options), embedder.embed(texts, options)
    )
    assert (every.tokens, every.truncated) == (pooled.tokens, pooled.truncated)
    assert [len(state) for state in every.states] == every.tokens
    for state, vector in zip(every.states, pooled.vectors, strict=True):
        np.testing.assert_allclose(state.mean(axis=0), vector, atol=TOLERANCE)
    alone = await embedder.embed_tokens(texts[:1], options)
    np.testing.assert_allclose(alone.states[0], every.states[0], atol=TOLERANCE)


@pytest.mark.parametrize("empty", ["", " ", "\n\t", "\u0007"])
async def test_a_text_without_tokens_is_refused_by_position(embedder: Embedder, empty: str) -> None:
    """Its vector would be that of two special tokens, which means nothing."""
    with pytest.raises(EmptyInputError) as refused:
        await embedder.embed(["hello", empty], EmbeddingOptions(prompt="query: "))
    assert (refused.value.index, refused.value.param) == (1, "inputs")


async def test_a_text_without_tokens_can_be_read_and_is_named(embedder: Embedder) -> None:
    """It gets the vector of prompt and special tokens, the same as alone, and others get theirs."""
    options = EmbeddingOptions(prompt="query: ", read_empty=True)
    texts = ["hello", "", "world", " \u0007"]
    found = await embedder.embed(texts, options)
    assert (list(found.empty), found.truncated) == ([1, 3], [0, 0, 0, 0])
    for place, text in enumerate(texts):
        alone = await embedder.embed([text], options)
        np.testing.assert_allclose(found.vectors[place], alone.vectors[0], atol=TOLERANCE)
    assert np.linalg.norm(found.vectors, axis=1) == pytest.approx(1.0)
    every = await embedder.embed_tokens(texts, options)
    assert (list(every.empty), every.tokens) == ([1, 3], found.tokens)


async def test_a_model_without_special_tokens_cannot_read_nothing(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """No tokens at all are no row to run."""
    bare = tiny_tokenizer()
    bare.post_processor = tokenizers.processors.TemplateProcessing(single="$A", special_tokens=[])
    model = Embedder(embedding_bundle.manifest, Tokenizer(bare), FakeEngine(size=7), budget=budget)
    async with model as embedder:
        with pytest.raises(EmptyInputError, match=r"inputs\[1\]"):
            await embedder.embed(["hello", ""], EmbeddingOptions(read_empty=True))


@pytest.mark.parametrize("task", ["embed", "tag"])
async def test_half_a_surrogate_pair_is_refused_by_position(
    embedder: Embedder, tagger: EntityTagger, task: str
) -> None:
    """It has no UTF-8 form, so the tokenizer would fail on it, and the answer could not be sent."""
    texts = ["hello"] * 33 + ["\ud83d parcel"]
    with pytest.raises(InvalidTextError) as refused:
        await (embedder.embed(texts, PLAIN) if task == "embed" else tagger.tag(texts))
    assert refused.value.index == 33


async def test_no_texts_give_no_vectors(embedder: Embedder, tagger: EntityTagger) -> None:
    """The width stays that of the model."""
    result = await embedder.embed([], PLAIN)
    assert (result.vectors.shape, result.tokens, result.truncated) == ((0, 32), [], [])
    assert await tagger.tag([]) == []


# -- entities --------------------------------------------------------------------------------------------


async def test_entities_are_slices_of_the_text(tagger: EntityTagger) -> None:
    """Offsets count code points, whatever stands before: emoji, Han, or nothing."""
    texts = ["🙂 Tim Cook works in Paris.", "张三在北京工作。", "hello world"]
    tagged = await tagger.tag(texts)
    assert [[(found.text, found.label) for found in text.entities] for text in tagged] == [
        [("Tim Cook", "PER"), ("Paris", "LOC")],
        [("张三", "PER"), ("北京", "LOC")],
        [],
    ]
    for text, result in zip(texts, tagged, strict=True):
        for found in result.entities:
            assert text[found.start : found.end] == found.text
            assert 0 <= found.score <= 1
    assert tagger.labels == ("PER", "LOC", "ORG")


async def test_classifying_does_not_depend_on_company(tmp_path: Path, budget: ComputeBudget) -> None:
    """Texts and pairs of all lengths, in one call and in many at once: the same logits as alone."""
    items: list[TextOrPair] = [
        "refund",
        ("how do I return my order", "怎么退货"),
        ("hello " * 20, "delivery " * 20),
        "物流配送",
        ("a", "shipping, shipping"),
    ]
    for write in (write_tiny_classifier_bundle, write_tiny_reranker_bundle):
        bundle = Bundle.load(write(tmp_path / write.__name__))
        engine = OnnxRuntimeEngine(bundle, threads=1)
        limits = BatchingLimits(max_batch_tokens=256)
        async with Classifier(
            bundle.manifest, Tokenizer.from_bundle(bundle), engine, budget=budget, limits=limits
        ) as classifier:
            alone = [await classifier.classify([item], truncate=False) for item in items]
            calls = [classifier.classify(items[place:] + items[:place], truncate=False) for place in range(5)]
            for place, together in enumerate(await asyncio.gather(*calls)):
                order = [(place + offset) % len(items) for offset in range(len(items))]
                np.testing.assert_allclose(
                    together.logits,
                    np.concatenate([alone[index].logits for index in order]),
                    rtol=0,
                    atol=TOLERANCE,
                )
                assert together.tokens == [alone[index].tokens[0] for index in order]
        engine.close()


async def test_a_bundle_of_several_labels_is_no_cross_encoder(
    tmp_path: Path, ner_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Which of its labels would be the relevance?"""
    bundle = Bundle.load(write_tiny_classifier_bundle(tmp_path / "tiny"))
    tokenizer = Tokenizer.from_bundle(bundle)
    with pytest.raises(ValueError, match="3 labels instead of one"):
        CrossEncoder(bundle.manifest, tokenizer, FakeEngine(), budget=budget)
    with pytest.raises(ValueError, match="no sequence-classification bundle"):
        Classifier(ner_bundle.manifest, tokenizer, FakeEngine(), budget=budget)


async def test_a_long_text_is_read_to_its_end(tagger: EntityTagger) -> None:
    """Entities behind the model's limit are what silent truncation loses."""
    text = "hello world. " * 100 + "Tim Cook works in Paris."
    (tagged,) = await tagger.tag([text])
    assert [found.text for found in tagged.entities] == ["Tim Cook", "Paris"]
    assert tagged.windows > 1
    assert tagged.tokens > 64


async def test_tagging_does_not_depend_on_company(tagger: EntityTagger) -> None:
    """Long and short, Chinese and English together: the same entities and scores as alone."""
    texts = [
        "Tim Cook works in Paris.",
        "张三在北京工作。" * 30,
        "hello",
        "Apple and Google, London. " * 20,
        "a",
    ]
    together = await tagger.tag(texts * 5)
    for position, text in enumerate(texts):
        (alone,) = await tagger.tag([text])
        for copy in range(5):
            among = together[position + copy * len(texts)]
            assert (among.windows, among.tokens) == (alone.windows, alone.tokens)
            assert [(e.start, e.end, e.text, e.label) for e in among.entities] == [
                (e.start, e.end, e.text, e.label) for e in alone.entities
            ]
            np.testing.assert_allclose(
                [e.score for e in among.entities], [e.score for e in alone.entities], rtol=0, atol=TOLERANCE
            )


@pytest.mark.parametrize(
    ("text", "most_rows"),
    [
        ("a" * 900, 3),  # one word: its beginning, what is alike, its end
        ("a1b2" * 225, 6),
        ("a" + "\u0301" * 900, 3),
        ("哈" * 900, 3),  # a word each; the same window again and again
        ("." * 900, 3),
        ("hello cat " * 200, 4),
    ],
)
async def test_a_text_of_one_thing_takes_few_runs(
    ner_bundle: Bundle, budget: ComputeBudget, text: str, most_rows: int
) -> None:
    """However long: a megabyte of one letter was hundreds of windows, and a minute of everybody's time."""
    tokenizer = tiny_tokenizer()
    tokenizer.model = tokenizers.models.WordPiece(
        tokenizer.get_vocab(), unk_token="[UNK]", max_input_chars_per_word=10_000
    )
    engine = FakeEngine(size=7)
    async with EntityTagger(ner_bundle.manifest, Tokenizer(tokenizer), engine, budget=budget) as tagger:
        (once,) = await tagger.tag([text])
        rows = sum(shape[0] for shape in engine.shapes)
        assert rows <= most_rows
        several = await tagger.tag([text] * 4)
    assert several == [once] * 4
    assert sum(shape[0] for shape in engine.shapes) == 2 * rows
    assert once.windows >= rows


async def test_equal_windows_give_each_text_its_own_entities(tagger: EntityTagger) -> None:
    """What is run once is told at every place where it stands."""
    text = "Tim Cook works in Paris. " * 60
    (tagged,) = await tagger.tag([text])
    assert [found.text for found in tagged.entities] == ["Tim Cook", "Paris"] * 60
    assert [found.start for found in tagged.entities[::2]] == list(range(0, 25 * 60, 25))


async def test_windows_of_many_requests_share_batches(ner_bundle: Bundle, budget: ComputeBudget) -> None:
    """One caller's document runs together with those of others."""
    tokenizer = Tokenizer.from_bundle(ner_bundle)
    engine = FakeEngine(size=7)
    # Numbered, since equal windows of one request are run once.
    texts = ["".join(f"{words} {n}. " for n in range(80)) for words in ("hello world", "hello cat", "Tim")]
    wanted = [len(document.windows) for document in read_documents(texts, tokenizer, max_tokens=64)]
    assert min(wanted) > 2
    async with EntityTagger(ner_bundle.manifest, tokenizer, engine, budget=budget) as tagger:
        engine.gate.clear()
        holding = asyncio.create_task(tagger.tag(["hello"]))
        await until(lambda: engine.entered == 1)
        calls = [asyncio.create_task(tagger.tag([text])) for text in texts]
        await until(lambda: tagger.batcher.queued_items == sum(wanted))
        engine.gate.set()
        await holding
        tagged = await asyncio.gather(*calls)
    assert [text.windows for (text,) in tagged] == wanted
    rows = [shape[0] for shape in engine.shapes]
    assert rows[0] == 1
    assert sum(rows[1:]) == sum(wanted)
    assert max(rows) > max(wanted)  # grouped by length, and not by whose they are


async def test_a_threshold_drops_entities_and_changes_none(tagger: EntityTagger) -> None:
    """answer(t) is answer(0) with score >= t."""
    text = "Tim Cook and Alice Smith in Paris, London, New York with Google and Apple Inc"
    (everything,) = await tagger.tag([text])
    scores = sorted(found.score for found in everything.entities)
    assert scores[0] < scores[-1]
    for threshold in (scores[0], scores[len(scores) // 2], scores[-1], 1.0):
        (some,) = await tagger.tag([text], EntityOptions(threshold=threshold))
        assert some.entities == [found for found in everything.entities if found.score >= threshold]


@pytest.mark.parametrize("empty", ["", "  ", "\n\u0007"])
async def test_a_text_without_words_has_no_entities(tagger: EntityTagger, empty: str) -> None:
    """And costs no run."""
    first, second = await tagger.tag([empty, "Tim Cook"])
    assert (first.entities, first.windows) == ([], 0)
    assert [found.text for found in second.entities] == ["Tim Cook"]


async def test_logits_that_are_not_finite_fail_the_text(ner_bundle: Bundle, budget: ComputeBudget) -> None:
    """Softmax of NaN is NaN for every label: 'no entities' would be a lie."""
    tokenizer = Tokenizer.from_bundle(ner_bundle)
    (cat,) = tokenizer.tokenize(["cat"])
    engine = FakeEngine(size=7, spoil=int(cat.input_ids[1]))
    async with EntityTagger(ner_bundle.manifest, tokenizer, engine, budget=budget) as tagger:
        with pytest.raises(InferenceError) as failed:
            await tagger.tag(["hello", "cat"])
    assert failed.value.index == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"error": RuntimeError("out of order")}, "tiny-embedding fails on every text: RuntimeError"),
        ({"broken": True}, "tiny-embedding gives numbers that are not finite for every text"),
    ],
)
async def test_a_model_that_fails_on_everything_takes_no_more_work(
    embedding_bundle: Bundle, budget: ComputeBudget, fault: dict[str, Any], said: str
) -> None:
    """Ready, and an error for each request, is the worst of both; requests in work fail alike."""
    engine = FakeEngine(size=32)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    async with Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget) as embedder:
        await embedder.embed(["hello"], PLAIN)
        for name, value in fault.items():
            setattr(engine, name, value)
        engine.gate.clear()
        calls = [asyncio.create_task(embedder.embed(["cat", "hello"], PLAIN)) for _ in range(3)]
        await until(lambda: len(embedder.batcher._requests) == len(calls))
        engine.gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [(type(answer), str(answer)) for answer in answers] == [(UnavailableError, said)] * 3
        assert (embedder.healthy, embedder.failure) == (False, said)
        runs = engine.entered
        with pytest.raises(UnavailableError, match=said):
            await embedder.embed(["hello"], PLAIN)
        assert engine.entered == runs


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("... Failed to allocate memory for requested ...")]
)
async def test_a_model_that_has_no_memory_for_a_while_is_not_given_up(
    embedding_bundle: Bundle, budget: ComputeBudget, error: Exception
) -> None:
    """Although the known text failed as well, and with each part of the batch: that is one moment."""
    engine = FakeEngine(size=32)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    async with Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget) as embedder:
        engine.error = error
        with pytest.raises(InferenceError):
            await embedder.embed(["hello"] * 32, PLAIN)
        assert engine.entered > 2 * inference._MOST_STARVED
        engine.error = None
        assert (embedder.healthy, embedder.failure) == (True, None)
        await embedder.embed(["hello"], PLAIN)


@pytest.mark.parametrize("wants", ["the engine", "the batch"])
async def test_a_model_that_never_has_memory_again_takes_no_more_work(
    embedding_bundle: Bundle, budget: ComputeBudget, monkeypatch: pytest.MonkeyPatch, wants: str
) -> None:
    """Ready, and an error for each request, until somebody looks; a new process has what this one lost."""
    monkeypatch.setattr(inference, "_STARVED_APART_S", 0.0)
    engine = FakeEngine(size=32)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)

    def lack(*_: object, **__: object) -> TokenBatch:
        raise MemoryError

    async with Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget) as embedder:
        await embedder.embed(["hello"], PLAIN)
        with monkeypatch.context() as patched:
            if wants == "the engine":
                engine.error = MemoryError()
            else:
                patched.setattr(inference, "pad_batch", lack)
            for _ in range(inference._MOST_STARVED - 1):
                with pytest.raises(InferenceError):
                    await embedder.embed(["hello"], PLAIN)
            assert embedder.healthy
            said = "tiny-embedding had no memory for any text 5 times in a row"
            for _ in range(2):
                with pytest.raises(UnavailableError, match=said):
                    await embedder.embed(["hello"], PLAIN)
        assert (embedder.healthy, embedder.failure) == (False, said)


async def test_only_failures_in_a_row_count_as_a_want_of_memory(
    embedding_bundle: Bundle, budget: ComputeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where some runs find room, those too large for it fail alone, however many come."""
    monkeypatch.setattr(inference, "_STARVED_APART_S", 0.0)
    engine = FakeEngine(size=32)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    async with Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget) as embedder:
        for _ in range(3):
            engine.error = MemoryError()
            for _ in range(inference._MOST_STARVED - 1):
                with pytest.raises(InferenceError):
                    await embedder.embed(["hello"], PLAIN)
            engine.error = None
            await embedder.embed(["hello"], PLAIN)
        assert embedder.healthy


async def test_texts_too_large_for_the_memory_cost_only_their_own_requests(
    embedding_bundle: Bundle, budget: ComputeBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is memory for the known text: the model is as good as ever."""
    monkeypatch.setattr(inference, "_STARVED_APART_S", 0.0)

    class Narrow(FakeEngine):
        def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
            if batch.input_ids.shape[1] > 4:
                raise MemoryError
            return super().run(batch, outputs)

    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    async with Embedder(embedding_bundle.manifest, tokenizer, Narrow(size=32), budget=budget) as embedder:
        for _ in range(2 * inference._MOST_STARVED):
            with pytest.raises(InferenceError):
                await embedder.embed(["hello world cat return order"], PLAIN)
        assert (await embedder.embed(["hello"], PLAIN)).tokens == [3]
        assert embedder.healthy


# -- threads, load, life ---------------------------------------------------------------------------------


class _GatedTokenizer(Tokenizer):
    """Waits inside ``tokenize_ids`` while its gate is shut, for texts longer than ``waits_above`` characters.

    Attributes:
        jobs: what was asked of it, in order.
    """

    waits_above = 0

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        super().__init__(tokenizer)
        self.jobs: list[list[str]] = []
        self.gate = threading.Event()

    def tokenize_ids(self, texts: Sequence[str], **options: Any) -> list[TextIds]:
        self.jobs.append(list(texts))
        if max(map(len, texts)) > self.waits_above:
            self.gate.wait(HANG_LIMIT_S)
        return super().tokenize_ids(texts, **options)


def _gated(
    bundle: Bundle, budget: ComputeBudget, limits: BatchingLimits | None = None
) -> tuple[_GatedTokenizer, Embedder]:
    tokenizer = _GatedTokenizer.from_bundle(bundle)
    return tokenizer, Embedder(bundle.manifest, tokenizer, FakeEngine(size=32), budget=budget, limits=limits)


async def test_the_event_loop_turns_while_texts_are_tokenised(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Probes must be answered whatever is being tokenised."""
    tokenizer, embedder = _gated(embedding_bundle, budget)
    async with embedder:
        call = asyncio.create_task(embedder.embed(ENOUGH_FOR_A_THREAD, PLAIN))
        await settle()
        assert not call.done()
        tokenizer.gate.set()
        assert (await call).tokens == [3] * len(ENOUGH_FOR_A_THREAD)


async def test_a_few_short_texts_are_tokenised_without_a_thread(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """The way to a thread and back takes longer than they do."""
    tokenizer, embedder = _gated(embedding_bundle, budget)
    tokenizer.gate.set()
    busy = threading.Event()
    budget.lane(1).submit(lambda: busy.wait(HANG_LIMIT_S))
    async with embedder:
        waiting = [
            asyncio.create_task(embedder.embed(texts, EmbeddingOptions(truncate=True)))
            for texts in (ENOUGH_FOR_A_THREAD, ["cat " * 129])
        ]
        assert (await embedder.embed(["hello"] * 4, PLAIN)).tokens == [3] * 4
        assert not any(task.done() for task in waiting)
        busy.set()
        await asyncio.gather(*waiting)


async def test_a_tokeniser_that_hangs_turns_health_red_and_fails_its_callers(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """As a model run that hangs does; before, every route waited behind a green probe."""
    tokenizer, embedder = _gated(embedding_bundle, budget, BatchingLimits(stall_timeout_s=0.02))
    async with embedder:
        async with asyncio.timeout(HANG_LIMIT_S):
            answers = await asyncio.gather(
                *(embedder.embed(ENOUGH_FOR_A_THREAD, PLAIN) for _ in range(3)), return_exceptions=True
            )
        assert [type(answer) for answer in answers] == [UnavailableError] * 3
        assert not embedder.healthy
        assert "tokenising for tiny-embedding made no progress" in str(embedder.failure)
        with pytest.raises(UnavailableError, match="no progress"):
            await embedder.embed(ENOUGH_FOR_A_THREAD, PLAIN)
        tokenizer.gate.set()


async def test_the_tokenising_threads_never_keep_the_process_alive(
    embedder: Embedder, budget: ComputeBudget
) -> None:
    """A thread that the interpreter joins at exit would turn SIGTERM into a wait for SIGKILL."""
    await embedder.embed(["hello"], PLAIN)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("conche-tokenize")]
    assert len(ours) >= 2
    assert all(thread.daemon for thread in ours)


async def test_a_huge_text_holds_up_other_huge_texts_only(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """A million characters take seconds, which must not be seconds of everyone."""
    tokenizer, embedder = _gated(embedding_bundle, budget)
    tokenizer.waits_above = 20_000
    truncating = EmbeddingOptions(truncate=True)
    async with embedder:
        huge = [asyncio.create_task(embedder.embed(["cat " * 10_000], truncating)) for _ in range(4)]
        await until(lambda: len(tokenizer.jobs) == 1)
        async with asyncio.timeout(HANG_LIMIT_S):
            assert (await embedder.embed(["hello"] * 100, PLAIN)).tokens == [3] * 100
        assert not any(task.done() for task in huge)
        tokenizer.gate.set()
        assert [(await task).tokens for task in huge] == [[64]] * 4


@pytest.mark.parametrize(("words", "returned"), [(33_000, 1), (10_000, 0)])
async def test_what_a_huge_text_took_is_given_back_whatever_came_of_it(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, words: int, returned: int
) -> None:
    """A million characters left 80 MB with the process for good. A page of text is no reason to look."""
    calls: list[str] = []
    monkeypatch.setattr(
        inference, "return_freed_memory", lambda: calls.append(threading.current_thread().name)
    )
    await embedder.embed(["cat " * words], EmbeddingOptions(truncate=True))
    assert calls == ["conche-tokenize-long"] * returned
    with pytest.raises(InputTooLongError):
        await embedder.embed(["cat " * words], PLAIN)
    assert calls == ["conche-tokenize-long"] * returned * 2


async def test_a_small_request_waits_for_one_job_of_a_large_one(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Thousands of short texts are a long time, too."""
    tokenizer, embedder = _gated(embedding_bundle, budget)
    async with embedder:
        large = asyncio.create_task(embedder.embed(["cat"] * 1000, PLAIN))
        await until(lambda: len(tokenizer.jobs) == 1)
        small = asyncio.create_task(embedder.embed(ENOUGH_FOR_A_THREAD, PLAIN))
        await settle()
        tokenizer.gate.set()
        await asyncio.gather(large, small)
    assert tokenizer.jobs.index(ENOUGH_FOR_A_THREAD) == 1


async def test_what_is_being_tokenised_is_bounded_by_itself(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """The queue behind it is empty all the while, and would never refuse."""
    tokenizer, embedder = _gated(embedding_bundle, budget)
    async with embedder:
        bulk = [asyncio.create_task(embedder.embed(["cat"] * 2048, PLAIN)) for _ in range(24)]
        await until(lambda: len(tokenizer.jobs) == 1)
        await settle()
        refused = [task for task in bulk if task.done()]
        assert len(bulk) - len(refused) == 4
        for task in refused:
            with pytest.raises(OverloadedError, match=r"of 8192 texts .* are being tokenised"):
                await task
        small = asyncio.create_task(embedder.embed(["hello"] * 32, PLAIN))
        await settle()
        assert not small.done()
        tokenizer.gate.set()
        assert (await small).tokens == [3] * 32
        admitted = [task for task in bulk if task not in refused]
        assert {len((await task).tokens) for task in admitted} == {2048}
        assert (await embedder.embed(["cat"] * 2048, PLAIN)).tokens == [3] * 2048


async def test_characters_in_tokenisation_are_bounded_too(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Few texts may be long ones. A caller that goes gives its part back."""
    limits = BatchingLimits(max_queue_tokens=10_000)  # 40,000 characters
    tokenizer, embedder = _gated(embedding_bundle, budget, limits)
    truncating = EmbeddingOptions(truncate=True)
    async with embedder:
        calls = [asyncio.create_task(embedder.embed(["cat " * 25_000], truncating)) for _ in range(3)]
        await settle()
        with pytest.raises(OverloadedError, match="35000 of 40000 characters are being tokenised"):
            await embedder.embed(["cat " * 25_000], truncating)
        for task in calls[1:]:
            task.cancel()
        await settle()
        calls.append(asyncio.create_task(embedder.embed(["cat " * 25_000], truncating)))
        await settle()
        assert not calls[-1].done()
        tokenizer.gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [False, True, True, False]


@given(sizes=st.lists(st.integers(0, 40_000), max_size=120))
@settings(max_examples=200, deadline=None)
def test_jobs_cover_all_texts_in_order_and_are_small(sizes: list[int]) -> None:
    """None left out, none twice; only a single text may be larger than a job should be."""
    pieces = list(_pieces(sizes))
    assert [index for first, last in pieces for index in range(first, last)] == list(range(len(sizes)))
    for first, last in pieces:
        assert last - first <= 32
        assert sum(sizes[first:last]) <= 16_384 or last - first == 1


async def test_overload_is_told_before_anything_is_tokenised(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Under overload the refusals must be cheap, or they are what overloads."""

    class Counting(Tokenizer):
        calls = 0

        def tokenize_ids(self, texts: Sequence[str], **options: Any) -> list[TextIds]:
            type(self).calls += 1
            return super().tokenize_ids(texts, **options)

    engine = FakeEngine(size=32)
    engine.gate.clear()
    limits = BatchingLimits(max_queue_items=2)
    tokenizer = Counting.from_bundle(embedding_bundle)
    async with Embedder(
        embedding_bundle.manifest, tokenizer, engine, budget=budget, limits=limits
    ) as embedder:
        running = asyncio.create_task(embedder.embed(["hello"], PLAIN))
        await until(lambda: engine.entered == 1)
        waiting = [asyncio.create_task(embedder.embed(["cat"], PLAIN)) for _ in range(2)]
        await until(lambda: embedder.batcher.queued_items == 2)
        before = Counting.calls
        with pytest.raises(OverloadedError):
            await embedder.embed(["dog"], PLAIN)
        assert Counting.calls == before
        engine.gate.set()
        await asyncio.gather(running, *waiting)


async def test_texts_that_will_have_no_room_are_not_tokenised(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """How many tokens they come to is told from those before; with room for them they are read as ever."""
    engine = FakeEngine(size=32)
    limits = BatchingLimits(max_queue_tokens=200)
    tokenizer, _ = _gated(embedding_bundle, budget)
    embedder = Embedder(embedding_bundle.manifest, tokenizer, engine, budget=budget, limits=limits)
    tokenizer.gate.set()
    async with embedder:
        many = ["cat cat cat"] * 5  # more than are tokenised in place; 25 tokens
        await embedder.embed(many, PLAIN)
        engine.gate.clear()
        running = asyncio.create_task(embedder.embed(["hello"], PLAIN))
        await until(lambda: engine.entered == 2)
        waiting = [asyncio.create_task(embedder.embed(many[:2], PLAIN)) for _ in range(18)]
        await until(lambda: embedder.batcher.queued_tokens == 180)
        before = len(tokenizer.jobs)
        with pytest.raises(OverloadedError, match="180 of 200 tokens"):
            await embedder.embed(many, PLAIN)
        assert len(tokenizer.jobs) == before
        engine.gate.set()
        await asyncio.gather(running, *waiting)
        assert (await embedder.embed(many, PLAIN)).tokens == [5] * 5


async def test_an_estimate_that_is_too_high_is_put_right_while_much_waits(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Of what it refuses some is tokenised; else its fault would last as long as the queue."""
    engine = FakeEngine(size=32)
    tokenizer = Tokenizer.from_bundle(embedding_bundle)
    limits = BatchingLimits(max_queue_tokens=400)
    async with Embedder(
        embedding_bundle.manifest, tokenizer, engine, budget=budget, limits=limits
    ) as embedder:
        engine.gate.clear()
        waiting = [asyncio.create_task(embedder.embed(["hello"], PLAIN))]
        await until(lambda: engine.entered == 1)
        waiting += [asyncio.create_task(embedder.embed(["cat"] * 4, PLAIN)) for _ in range(30)]
        await until(lambda: embedder.batcher.queued_tokens == 360)
        longer = ["return order world"] * 5  # 25 tokens of 40; by what short texts came to, 45
        for _ in range(15):
            with pytest.raises(OverloadedError):
                await embedder.embed(longer, PLAIN)
        waiting.append(asyncio.create_task(embedder.embed(longer, PLAIN)))
        await until(lambda: embedder.batcher.queued_tokens == 385)
        engine.gate.set()
        await asyncio.gather(*waiting)


async def test_two_models_share_one_thread_and_its_fate(
    embedding_bundle: Bundle, ner_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Never two runs at once; and a run that hangs takes both out of service: nothing behind it can run."""
    busy = threading.Lock()
    gate = threading.Event()
    gate.set()

    class Exclusive(FakeEngine):
        def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
            assert busy.acquire(blocking=False)
            try:
                gate.wait(20)
                return super().run(batch, outputs)
            finally:
                busy.release()

    embedder = Embedder(
        embedding_bundle.manifest,
        Tokenizer.from_bundle(embedding_bundle),
        Exclusive(size=32),
        budget=budget,
        limits=BatchingLimits(stall_timeout_s=0.02),
    )
    tagger = EntityTagger(
        ner_bundle.manifest, Tokenizer.from_bundle(ner_bundle), Exclusive(size=7), budget=budget
    )
    async with embedder, tagger:
        for _ in range(5):
            await asyncio.gather(
                *(embedder.embed(["hello"], PLAIN) for _ in range(4)),
                *(tagger.tag(["hello"]) for _ in range(4)),
            )
        gate.clear()
        with pytest.raises(UnavailableError, match="no progress"):
            await embedder.embed(["hello"], PLAIN)
        assert not embedder.healthy
        assert not tagger.healthy
        with pytest.raises(UnavailableError, match="no progress"):
            await tagger.tag(["hello"])
        gate.set()


class _Notes:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.tokenized: list[float] = []
        self.batches: list[BatchStats] = []
        self.answered: list[tuple[int, int]] = []
        self.entities: list[dict[str, int]] = []
        self.watched: list[tuple[object, int]] = []

    def watch(self, model: object, *, threads: int) -> None:
        self.watched.append((model, threads))

    def on_tokenize(self, seconds: float) -> None:
        self.tokenized.append(seconds)

    def on_batch(self, stats: BatchStats) -> None:
        self.batches.append(stats)

    def on_texts(self, *, texts: int, truncated: int) -> None:
        self.answered.append((texts, truncated))

    def on_entities(self, found: Mapping[str, int]) -> None:
        self.entities.append(dict(found))


async def test_the_observer_is_told_of_every_stage(embedding_bundle: Bundle, budget: ComputeBudget) -> None:
    """What the metrics are made of."""
    notes = _Notes()
    async with _with_engine(embedding_bundle, FakeEngine(size=32), budget, observer=notes) as embedder:
        await embedder.embed(["hello", "cat " * 100], EmbeddingOptions(truncate=True))
    assert len(notes.tokenized) == 1
    assert sum(stats.size for stats in notes.batches) == 2
    assert sum(stats.tokens for stats in notes.batches) == 67
    assert notes.answered == [(2, 1)]
    assert notes.watched == [(embedder._model, 1)]


async def test_padding_is_told_as_the_engine_computes_it(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """Which knows what it does with it; the account of the text has none of it."""
    notes = _Notes()
    engine = FakeEngine(size=32)  # says that it computes a token more than there are
    async with _with_engine(embedding_bundle, engine, budget, observer=notes) as embedder:
        alone = await embedder.embed(["hello"], EmbeddingOptions())
        await embedder.embed(["hello", "hello"], EmbeddingOptions())
    assert alone.tokens == [3]
    assert engine.shapes == [(1, 3), (2, 3)]
    assert [(stats.tokens, stats.padded_tokens) for stats in notes.batches] == [(3, 4), (6, 7)]


async def test_texts_of_unlike_length_share_a_batch_where_padding_costs_little(
    embedding_bundle: Bundle, budget: ComputeBudget
) -> None:
    """The engine says what it costs."""
    texts = ["hello " * words for words in (1, 20, 1, 1, 40)]
    runs = {}
    for cost in (1.0, 0.05):
        engine = FakeEngine(size=32, padding_cost=cost)
        async with _with_engine(embedding_bundle, engine, budget) as embedder:
            await embedder.embed(texts, EmbeddingOptions())
        runs[cost] = len(engine.shapes)
    assert runs[0.05] == 1 < runs[1.0]


async def test_the_observer_is_told_of_the_entities(ner_bundle: Bundle, budget: ComputeBudget) -> None:
    """Those of the answer, by label; those that the caller did not want are not in it."""
    notes = _Notes()
    engine = OnnxRuntimeEngine(ner_bundle, threads=1)
    tokenizer = Tokenizer.from_bundle(ner_bundle)
    async with EntityTagger(ner_bundle.manifest, tokenizer, engine, budget=budget, observer=notes) as tagger:
        await tagger.tag(["Tim Cook works in Paris.", "张三在北京工作。"])
        await tagger.tag(["Tim Cook works in Paris."], EntityOptions(labels=frozenset({"LOC"})))
    engine.close()
    assert notes.entities == [{"PER": 2, "LOC": 2}, {"LOC": 1}]


async def test_a_closed_model_refuses_work(embedding_bundle: Bundle, budget: ComputeBudget) -> None:
    """At once, rather than when the caller's patience ends."""
    embedder = _with_engine(embedding_bundle, FakeEngine(size=32), budget)
    with pytest.raises(UnavailableError):
        await embedder.embed(["hello"], PLAIN)
    async with embedder:
        assert embedder.healthy
        assert embedder.model_id == "tiny-embedding"
    assert not embedder.healthy
    assert embedder.failure is None
    with pytest.raises(UnavailableError):
        await embedder.embed(["hello"], PLAIN)


def test_a_bundle_of_the_other_task_is_refused(
    embedding_bundle: Bundle, ner_bundle: Bundle, budget: ComputeBudget
) -> None:
    """A mix-up in the settings must stop the start, not the first request."""
    with pytest.raises(ValueError, match="tiny-ner"):
        _with_engine(ner_bundle, FakeEngine(), budget)
    with pytest.raises(ValueError, match="tiny-embedding"):
        EntityTagger(
            embedding_bundle.manifest, Tokenizer.from_bundle(embedding_bundle), FakeEngine(), budget=budget
        )


async def test_the_thread_that_runs_models_gives_way_to_the_others() -> None:
    """Else a search of milliseconds waits for the runs of everybody who embeds."""
    own = niceness()
    budget = ComputeBudget()
    running = await budget.execution.run(niceness, name="asking", stall_timeout_s=HANG_LIMIT_S)
    tokenizing = await budget.lane(1).run(niceness, name="asking", stall_timeout_s=HANG_LIMIT_S)
    budget.close()
    assert (running, tokenizing, niceness()) == (min(19, own + 10), own, own)


def test_threads_that_an_engine_starts_give_way_too(embedding_bundle: Bundle) -> None:
    """They do most of the work. Asked in a process where no other test's threads come and go."""
    program = f"""
import os
from pathlib import Path
from model.runtime.bundle import Bundle
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine

def threads():
    return {{int(task.name) for task in Path("/proc/self/task").iterdir()}}

before = threads()
engine = OnnxRuntimeEngine(Bundle.load(Path({str(embedding_bundle.path)!r})), threads=2)
print(sorted({{os.getpriority(os.PRIO_PROCESS, thread) for thread in threads() - before}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{min(19, niceness() + 10)}]"


def niceness() -> int:
    """Of the thread that asks."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

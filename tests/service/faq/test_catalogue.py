"""The searcher around the index: what it asks of the embedder, what it refuses, and what it remembers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from model.runtime.bundle import Bundle, Manifest
from service.errors import EmptyInputError, InputTooLongError, InvalidInputError, OverloadedError
from service.faq.calibration import UNRELATED_QUESTIONS, unrelated_cosine
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.search import FaqSearcher, model_fingerprint
from service.inference import EmbeddingOptions, EmbeddingResult
from tests.bundles import refresh_manifest, write_tiny_embedding_bundle
from tests.service.faq.hashed_vectors import hashed_vectors

LONGEST = 40


@dataclass
class HashingEmbedder:
    """Embeds by `hashed_vectors`; a text has as many tokens as characters, and 40 at most are read."""

    manifest: Manifest
    model_id: str = "hashing"
    calls: list[tuple[tuple[str, ...], EmbeddingOptions]] = field(default_factory=list)
    overloaded: bool = False

    async def embed(
        self, texts: Sequence[str], options: EmbeddingOptions, *, param: str = "inputs"
    ) -> EmbeddingResult:
        """Embed, and note what was asked."""
        if self.overloaded:
            raise OverloadedError("full")
        self.calls.append((tuple(texts), options))
        for index, text in enumerate(texts):
            if not text.strip("\u200b"):
                raise EmptyInputError("nothing", index=index, param=param)
        excess = [max(0, len(text) - LONGEST) for text in texts]
        if any(excess) and not options.truncate:
            raise InputTooLongError(
                "long", tokens=max(excess) + LONGEST, limit=LONGEST, setting="truncate", index=0, param=param
            )
        vectors = hashed_vectors([text[:LONGEST] for text in texts])
        return EmbeddingResult(vectors, [len(text) for text in texts], excess)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Describe some embedding model."""
    return Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny")).manifest


@pytest.fixture
def embedder(manifest: Manifest) -> HashingEmbedder:
    """Embed with a prompt for each side."""
    prompts = {"query": "query: ", "passage": "passage: "}
    return HashingEmbedder(manifest.model_copy(update={"prompts": prompts}))


SHOP = [
    FaqEntry(id="refund", question="退款多久到账", answer="三天。", alternates=("钱什么时候退",)),
    FaqEntry(id="password", question="How do I reset my password?", answer="By e-mail."),
    FaqEntry(id="hidden", question="secret", answer="x", enabled=False),
]


async def test_the_index_is_built_in_batches_that_report_progress(embedder: HashingEmbedder) -> None:
    """Live requests get their turn between two batches; a start-up that takes minutes must show it."""
    told: list[tuple[int, int]] = []
    searcher = await FaqSearcher.build(
        embedder, SHOP, batch_size=2, progress=lambda done, total: told.append((done, total))
    )
    asked = [text for texts, _ in embedder.calls for text in texts]
    assert asked[: len(UNRELATED_QUESTIONS)] == list(UNRELATED_QUESTIONS)
    assert len(set(asked)) == len(asked) == len(UNRELATED_QUESTIONS) + 5
    assert {len(texts) for texts, _ in embedder.calls} == {1, 2}
    assert told == [(2, 5), (4, 5), (5, 5)]
    assert (searcher.report.entries, searcher.report.texts, searcher.report.truncated) == (2, 5, ())
    anchor = hashed_vectors([text[:LONGEST] for text in UNRELATED_QUESTIONS])
    assert searcher.unrelated == pytest.approx(unrelated_cosine(anchor))


async def test_entries_and_queries_take_the_same_prompt(embedder: HashingEmbedder) -> None:
    """Questions are compared with questions, so both sides are queries to the model."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    await searcher.search(["退款"])
    assert {options.prompt for _, options in embedder.calls} == {"query: "}
    assert all(options.normalize for _, options in embedder.calls)


async def test_a_model_without_prompts_gets_none(manifest: Manifest) -> None:
    """Any embedding model will do."""
    embedder = HashingEmbedder(manifest.model_copy(update={"prompts": {}}))
    searcher = await FaqSearcher.build(embedder, SHOP)
    assert (await searcher.search(["reset password"]))[0][0].id == "password"
    assert {options.prompt for _, options in embedder.calls} == {""}


async def test_the_first_hit_is_the_entry_asked_for(embedder: HashingEmbedder) -> None:
    """By its question and by an alternate; the disabled entry never shows."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    by_question, by_alternate = await searcher.search(["退款多久到账", "钱什么时候退"])
    assert (by_question[0].id, by_question[0].answer) == ("refund", "三天。")
    assert (by_alternate[0].id, by_alternate[0].matched_phrasing) == ("refund", "钱什么时候退")
    assert {hit.id for hit in by_question} == {"refund", "password"}


async def test_queries_together_find_what_they_find_alone(embedder: HashingEmbedder) -> None:
    """A caller who batches for speed gets the same answers."""
    searcher = await FaqSearcher.build(embedder, demo_entries()[:20], batch_size=100)
    queries = ["包裹", "cancel my order", "退款", "Ｅ１０２４", "?"]
    for query, hits in zip(queries, await searcher.search(queries, top_k=3), strict=True):
        [alone] = await searcher.search([query], top_k=3)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=1e-5)


async def test_min_score_leaves_out_what_scores_less(embedder: HashingEmbedder) -> None:
    """It is the reported score that counts, so a client can read the threshold off its hits."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    [every] = await searcher.search(["退款多久到账"], min_score=0.0)
    assert every == (await searcher.search(["退款多久到账"]))[0]
    assert len(every) == 2
    assert every[0].score > every[1].score
    assert await searcher.search(["退款多久到账"], min_score=every[0].score) == [every[:1]]
    assert await searcher.search(["qqqq"], min_score=1.0) == [[]]


@pytest.mark.parametrize("top_k", [0, -1])
async def test_top_k_below_one_is_refused(embedder: HashingEmbedder, top_k: int) -> None:
    """A negative count must never reach a slice, where it means something else."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    with pytest.raises(InvalidInputError) as refused:
        await searcher.search(["退款"], top_k=top_k)
    assert refused.value.param == "top_k"


@pytest.mark.parametrize("min_score", [-0.1, 1.1, float("nan"), float("inf")])
async def test_a_min_score_outside_the_scale_is_refused(embedder: HashingEmbedder, min_score: float) -> None:
    """A raw cosine or a percentage would otherwise filter all or nothing."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    with pytest.raises(InvalidInputError) as refused:
        await searcher.search(["退款"], min_score=min_score)
    assert refused.value.param == "min_score"


async def test_no_queries_and_no_entries_give_no_hits(embedder: HashingEmbedder) -> None:
    """Neither is an error here; whether an empty request is one is the route's to say."""
    searcher = await FaqSearcher.build(embedder, [])
    assert len(searcher.index) == 0
    assert await searcher.search([]) == []
    assert await searcher.search(["a", "b"]) == [[], []]


async def test_long_entries_are_reported_and_long_queries_refused(embedder: HashingEmbedder) -> None:
    """An entry's owner can be told once; a caller whose query was cut would never know."""
    long_answer = FaqEntry(id="long", question="q", answer="answer " * LONGEST)
    searcher = await FaqSearcher.build(embedder, [*SHOP, long_answer])
    assert searcher.report.truncated == ("long",)
    with pytest.raises(InputTooLongError) as refused:
        await searcher.search(["long " * LONGEST])
    assert (refused.value.param, refused.value.index, refused.value.limit) == ("query", 0, LONGEST)
    assert "truncate" not in refused.value.message


async def test_an_entry_that_holds_nothing_to_read_is_named(embedder: HashingEmbedder) -> None:
    """A zero-width space is a text to us and nothing to the model; among thousands its owner must find it."""
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    with pytest.raises(InvalidInputError, match="entry 'blank'"):
        await FaqSearcher.build(embedder, [*SHOP, blank])


async def test_an_empty_query_is_refused_by_its_place(embedder: HashingEmbedder) -> None:
    """In the name of the field that the caller filled."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    with pytest.raises(EmptyInputError) as refused:
        await searcher.search(["退款", ""])
    assert (refused.value.param, refused.value.index) == ("query", 1)


async def test_an_error_of_the_embedder_reaches_the_caller(embedder: HashingEmbedder) -> None:
    """A full queue is a 429, in search as elsewhere."""
    searcher = await FaqSearcher.build(embedder, SHOP)
    embedder.overloaded = True
    with pytest.raises(OverloadedError):
        await searcher.search(["退款"])


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
    other_weights = {**before.files, "graph.onnx": before.files["tokenizer.json"]}
    changed = [{"files": other_weights}, {"prompts": {"query": "q: "}}, {"pooling": "cls"}, {"max_tokens": 8}]
    prints = {model_fingerprint(before.model_copy(update=change)) for change in changed}
    assert len(prints) == len(changed)
    assert model_fingerprint(before) not in prints

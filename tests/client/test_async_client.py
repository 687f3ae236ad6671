"""``AsyncClient`` against the app itself, over tiny bundles: every call, and what it returns."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import httpx
import numpy as np
import pytest

from conche_client import (
    AsyncClient,
    AuthenticationError,
    ConflictError,
    Entry,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
)
from service.api_keys import KeyFile, new_key, write_keys
from service.app import create_app
from tests.service.fakes_http import running, tiny_settings, write_bundles

LONG = "hello " * 200  # the tiny model reads 64 tokens


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles and a FAQ file, for reading only."""
    return write_bundles(tmp_path_factory.mktemp("models"))


def client_of(http: httpx.AsyncClient, **options: object) -> AsyncClient:
    """A client of the app behind ``http``."""
    return AsyncClient("http://conche.test", transport=http._transport, **options)  # type: ignore[arg-type]


@pytest.fixture
async def conche(models_folder: Path) -> AsyncIterator[AsyncClient]:
    """A client of a running app."""
    settings = tiny_settings(models_folder, embedding_bundle="tiny-embedding,tiny-spare")
    async with running(settings) as http:
        yield client_of(http)


async def test_embed(conche: AsyncClient) -> None:
    """Vectors, and what the headers tell."""
    found = await conche.embed(["hello", LONG], truncate=True, dimensions=8)
    assert found.numpy().shape == (2, 8)
    assert found.numpy().dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.numpy(), axis=1), 1, atol=1e-5)
    assert found.usage.model == "tiny-embedding"
    assert found.usage.tokens == sum(found.usage.tokens_by_input or [])
    assert list(found.usage.truncated) == [1]
    assert found.usage.truncated_complete
    assert set(found.usage.times_ms[0]) == {"tokenize", "queue", "run", "total"}
    assert len(found.usage.request_ids) == 1
    spare = await conche.embed("hello", model="tiny-spare", input_type="passage", pooling="cls")
    assert spare.usage.model == "tiny-spare"


async def test_parts_give_the_same_vectors_as_the_whole(conche: AsyncClient, models_folder: Path) -> None:
    """Which request a text came in does not matter."""
    texts = ["hello", "world", "reset my password", "hello world", "how do I"]
    async with running(tiny_settings(models_folder)) as http:
        parted = await client_of(http, batch_size=2).embed(texts)
    whole = await conche.embed(texts)
    assert len(parted.usage.request_ids) == 3
    assert parted.usage.tokens_by_input == whole.usage.tokens_by_input
    np.testing.assert_allclose(parted.numpy(), whole.numpy(), atol=1e-5)


async def test_search(conche: AsyncClient) -> None:
    """Hits with their explanation, one list a query."""
    found = await conche.search(["reset my password", "怎么退货"], top_k=1, mode="lexical")
    assert [one.hits[0].id for one in found] == ["password", "delivery"]
    hit = found[0].hits[0]
    assert hit.answer == "On the account page."
    assert 0 <= hit.score <= 1
    assert hit.explain.matched == "reset my password"
    assert hit.highlights.question[0] == (0, 5)
    assert found[0].default_answer is None


async def test_ner(conche: AsyncClient) -> None:
    """A tiny model finds anything or nothing; places must fit all the same."""
    texts = ["Ada Lovelace met Charles Babbage in London.", "hello " * 100]
    found = await conche.ner(texts, aggregation_strategy="first")
    assert len(found) == 2
    for text, entities in zip(texts, found, strict=True):
        assert all(text[one.start : one.end] == one.text for one in entities)
    assert any(found)
    assert found.usage.windows[1] > 1
    with pytest.raises(InvalidRequestError):
        await conche.ner("hello", labels=["NO-SUCH-LABEL"])


async def test_rerank_and_similarity(conche: AsyncClient) -> None:
    """The text itself is closest to the query; scores are those of the cosine."""
    ranking = await conche.rerank("hello world", ["reset my password", "hello world"], raw_scores=True)
    assert sorted(one.index for one in ranking) == [0, 1]
    assert ranking[0].score >= ranking[1].score
    cosines = await conche.similarity("hello", ["world", "hello"], prompt_name="none")
    assert cosines[1] == pytest.approx(1, abs=1e-5)
    assert len(cosines.usage.tokens_by_input or []) == 2
    assert cosines.usage.tokens == sum(cosines.usage.tokens_by_input or []) + (
        cosines.usage.tokens_query or 0
    )


async def test_rerank_by_a_cross_encoder_in_parts(models_folder: Path) -> None:
    """Logits put the parts in order, and become the scores that the server would give."""
    texts = ["cat", "how do I return my order", "reset my password", "order"]
    settings = tiny_settings(models_folder, faq_store="none", reranker_bundle="tiny-reranker")
    async with running(settings) as http:
        whole = (await http.post("/rerank", json={"query": "return my order", "texts": texts})).json()
        client = client_of(http, batch_size=1)
        ranking = await client.rerank("return my order", texts)
        raw = await client.rerank("return my order", texts, raw_scores=True)
        by_vectors = await client.rerank("return my order", texts, model="tiny-embedding")
    assert ranking.ranked_by == "cross-encoder"
    assert [one.index for one in ranking] == [one["index"] for one in whole]
    assert [one.score for one in ranking] == pytest.approx([one["score"] for one in whole], abs=1e-6)
    assert [one.score for one in raw] != [one.score for one in ranking]
    assert len(ranking.usage.tokens_by_input or []) == len(texts)
    assert ranking.usage.tokens_query is None
    assert by_vectors.ranked_by == "bi-encoder"
    assert len(by_vectors.usage.tokens_by_input or []) == len(texts)
    assert by_vectors.usage.tokens_query


async def test_predict_and_classify(conche: AsyncClient) -> None:
    """Texts and pairs to labels, best first; two texts in a list are two texts."""
    found = await conche.predict(["refund", ("hello", "refund"), "shipping"])
    assert [labels[0].label for labels in found] == ["refund", "other", "delivery"]
    assert sum(one.score for one in found[1]) == pytest.approx(1)
    assert len(found.usage.tokens_by_input or []) == 3
    assert found.usage.model == "tiny-classifier"
    (best,) = (await conche.predict("refund", top_k=1, function_to_apply="none"))[0]
    (logits,) = await conche.predict("refund", raw_scores=True)
    assert best == logits[0]
    classified = await conche.classify(["refund", LONG], truncate=True, raw_scores=True)
    assert classified[0] == logits
    assert list(classified.usage.truncated) == [1]
    with pytest.raises(InvalidRequestError, match=r"the second text of inputs\[0\] is empty"):
        await conche.predict([("a", "")])


async def test_predictions_in_parts_are_those_of_the_whole(conche: AsyncClient, models_folder: Path) -> None:
    """And what is wrong with one names its place in the caller's list."""
    items = ["refund", ("hello", "refund"), "shipping"]
    async with running(tiny_settings(models_folder)) as http:
        client = client_of(http, batch_size=1)
        parted = await client.predict(items)
        classified = await client.classify(["refund", "shipping"])
        with pytest.raises(InvalidRequestError, match=r"inputs\[1\] is empty") as raised:
            await client.predict(["a", " "])
        assert raised.value.index == 1
        with pytest.raises(InvalidRequestError, match=r"input\[1\] is empty"):
            await client.classify(["a", " "])
    whole = await conche.predict(items)
    for one, other in zip(parted, whole, strict=True):
        assert [each.label for each in one] == [each.label for each in other]
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-6)
    assert [labels[0].label for labels in classified] == ["refund", "delivery"]


async def test_the_server_describes_itself(conche: AsyncClient) -> None:
    """Info, health, models."""
    info = await conche.info()
    assert set(info.models) == {"tiny-embedding", "tiny-spare", "tiny-ner", "tiny-classifier"}
    assert info.limits["max_inputs"] == 2048
    assert info.document["version"] == info.version
    assert (await conche.health()).ready
    assert {model.id: model.task for model in await conche.models()} == {
        "tiny-embedding": "embedding",
        "tiny-spare": "embedding",
        "tiny-ner": "token-classification",
        "tiny-classifier": "sequence-classification",
    }


async def test_a_server_that_is_not_ready_is_an_answer(models_folder: Path) -> None:
    """Whoever asks wants the reasons, not an exception after four tries."""
    settings = tiny_settings(models_folder, embedding_bundle="no-such-bundle", on_bundle_error="serve")
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        conche = AsyncClient("http://conche.test", transport=httpx.ASGITransport(app))
        health = await conche.health()
    assert not health.ready
    assert health.reasons


async def test_entries_are_written_read_changed_and_deleted(conche: AsyncClient) -> None:
    """The life of a collection."""
    shop = conche.faq("shop")
    report = await shop.upsert(
        [
            Entry("Do you wrap gifts?", "Yes.", id="gift/1", tags=["extras"], metadata={"price": 2.5}),
            {"id": "..", "question": "Where are you?", "answer": "In the north."},
        ]
    )
    assert (report.added, report.replaced, report.skipped) == (2, 0, [])
    gift = await shop.get("gift/1")
    assert gift == Entry("Do you wrap gifts?", "Yes.", id="gift/1", tags=["extras"], metadata={"price": 2.5})
    assert (await shop.get("..")).answer == "In the north."
    changed = await shop.patch("gift/1", answer="No.", metadata={"price": None}, language="en")
    assert (changed.answer, changed.metadata, changed.language) == ("No.", {}, "en")
    assert (await shop.upsert([changed], on_duplicate="skip")).skipped == ["gift/1"]
    with pytest.raises(ConflictError) as taken:
        await shop.upsert([changed], on_duplicate="error")
    assert taken.value.code == "duplicate_entry"
    assert await shop.count(filter={"field": "language", "equals": "en"}) == 1
    await shop.delete("gift/1")
    with pytest.raises(NotFoundError) as gone:
        await shop.get("gift/1")
    assert gone.value.code == "unknown_entry"
    assert await shop.delete_many(ids=["..", "never-there"]) == 1
    assert await shop.drop() == 0
    with pytest.raises(NotFoundError):
        await shop.info()


async def test_entries_are_gone_through_page_by_page(models_folder: Path) -> None:
    """In the order in which they were added, whatever the size of pages and requests."""
    entries = [Entry(f"question {n}", "a", id=f"e{n}", tags=["odd"] if n % 2 else []) for n in range(25)]
    async with running(tiny_settings(models_folder)) as http:
        shop = client_of(http, batch_size=10).faq("shop")
        report = await shop.upsert(entries)
        assert report.added == 25
        assert [entry.id async for entry in shop.entries(page_size=7)] == [f"e{n}" for n in range(25)]
        odd = {"field": "tags", "equals": "odd"}
        assert [entry.id async for entry in shop.entries(filter=odd, page_size=5)] == [
            f"e{n}" for n in range(1, 25, 2)
        ]
        first = await shop.page(limit=2)
        assert [entry.id for entry in first] == ["e0", "e1"]
        assert [entry.id for entry in await shop.page(limit=1, after=first.next)] == ["e2"]
        assert await shop.delete_many(filter=odd) == 12


async def test_collections_are_configured_and_listed(conche: AsyncClient) -> None:
    """Settings that are not said are taken away, as the route has it."""
    shop = conche.faq("shop")
    made = await shop.configure(default_answer="Ask us.", min_score=1.0)
    assert (made.default_answer, made.min_score, made.entries) == ("Ask us.", 1.0, 0)
    assert [one.name for one in await conche.collections()] == ["default", "shop"]
    await shop.upsert([Entry("hello", "world")])
    assert (await conche.search("reset", collection="shop"))[0].default_answer == "Ask us."
    assert (await shop.configure()).default_answer is None
    state = await shop.start_reindex()
    assert state.total >= 0
    assert (await shop.reindexing()).error is None


async def test_files_go_in_and_come_out(conche: AsyncClient) -> None:
    """What was left out is told with its line."""
    shop = conche.faq("shop")
    report = await shop.import_file(b"id,question,answer,price\n1,Q one,A,3\n2,,A,\n", format="csv")
    assert (report.added, report.metadata_columns) == (1, ["price"])
    assert [bad.line for bad in report.bad_lines] == [3]
    with pytest.raises(InvalidRequestError) as strict:
        await shop.import_file(b'{"question": "q"}\n', format="jsonl", strict=True)
    assert strict.value.code == "bad_lines"
    kinds: tuple[Literal["csv", "jsonl", "xlsx"], ...] = ("csv", "jsonl", "xlsx")
    for kind in kinds:
        exported = await shop.export_file(format=kind)
        again = await shop.import_file(exported, format=kind)
        assert (again.added, again.unchanged) == (0, 1)


async def test_evaluate(conche: AsyncClient) -> None:
    """The figures that decide, and the whole document beside them."""
    judged = await conche.faq().evaluate(
        [
            {"query": "reset my password", "faq_id": "password"},
            {"query": "怎么退货", "faq_id": ["delivery", "no-such-entry"]},
            {"query": "aeroplanes", "faq_id": None},
        ],
        wanted_precision=0.5,
    )
    assert (judged.queries, judged.answerable) == (3, 2)
    assert set(judged.modes) == {"hybrid", "dense", "lexical"}
    assert judged.unknown_ids == ["no-such-entry"]
    assert judged.document["wanted_precision"] == 0.5
    assert 0 <= judged.threshold <= 1


async def test_an_error_tells_code_place_and_request(conche: AsyncClient) -> None:
    """Whatever the answer's body holds, as attributes."""
    with pytest.raises(InvalidRequestError) as raised:
        await conche.embed(["ok", ""])
    error = raised.value
    assert (error.status, error.code, error.index, error.param) == (422, "empty_input", 1, "inputs")
    assert error.request_id
    assert error.retry_after is None
    with pytest.raises(NotFoundError) as unknown:
        await conche.embed("hello", model="no-such-model")
    assert unknown.value.code == "unknown_model"


async def test_the_api_key_goes_with_every_call(models_folder: Path, tmp_path: Path) -> None:
    """None: 401. One for reading: it reads, and does not write."""
    key, record = new_key("reader", scopes=["read"])
    write_keys(tmp_path / "keys.json", KeyFile(keys=(record,)))
    settings = tiny_settings(models_folder, api_keys_file=str(tmp_path / "keys.json"))
    async with running(settings) as http:
        with pytest.raises(AuthenticationError):
            await client_of(http).embed("hello")
        reader = client_of(http, api_key=key)
        assert len(await reader.embed("hello")) == 1
        with pytest.raises(PermissionDeniedError) as refused:
            await reader.faq("shop").upsert([Entry("q", "a")])
        assert refused.value.code == "forbidden"


async def test_a_keys_limit_is_told_with_the_time_to_wait(models_folder: Path, tmp_path: Path) -> None:
    """A minute is more than the client waits by itself."""
    key, record = new_key("hurried", scopes=["read"], requests_per_minute=1)
    write_keys(tmp_path / "keys.json", KeyFile(keys=(record,)))
    async with running(tiny_settings(models_folder, api_keys_file=str(tmp_path / "keys.json"))) as http:
        conche = client_of(http, api_key=key)
        await conche.embed("hello")
        with pytest.raises(RateLimitedError) as refused:
            await conche.embed("hello")
    assert refused.value.code == "rate_limited"
    assert refused.value.retry_after is not None
    assert 20 < refused.value.retry_after <= 60

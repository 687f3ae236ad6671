"""The whole catalogue over Milvus: two of them, as two replicas of the service, beside an embedded one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from model.runtime.bundle import Manifest
from service.errors import ModelMismatchError, UnknownCollectionError, UnknownEntryError
from service.faq.catalogue import FaqCatalogue, Found
from service.faq.entries import FaqEntry
from service.faq.filters import parse_filter
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_store import MilvusFaqStore
from service.faq.open_store import searcher_of
from service.faq.queries import LabelledQuery
from service.faq.sqlite_store import SqliteFaqStore
from service.faq.store import FaqStore
from tests.service.faq.hashing_embedder import HashingEmbedder
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess

SHOP = [
    FaqEntry(
        id="refund", question="退款多久到账", answer="三天。", alternates=("钱什么时候退",), language="zh"
    ),
    FaqEntry(id="password", question="How do I reset my password?", answer="By e-mail.", language="en"),
    FaqEntry(id="hours", question="When are you open?", answer="", language="en", tags=("shop",)),
    FaqEntry(id="hidden", question="secret", answer="x", enabled=False),
]
QUERIES = ["退款到账", "reset password", "open on Sundays", "secret", "zzz"]


@pytest.fixture(params=["milvus_lite", "milvus"])
def server(request: pytest.FixtureRequest) -> MilvusProcess:
    """Each of the servers."""
    found: MilvusProcess = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture
async def catalogues(
    server: MilvusProcess, tmp_path: Path, embedder: HashingEmbedder, calibrations: Path
) -> AsyncIterator[list[FaqCatalogue]]:
    """Two on the server, and an embedded one."""
    stores: list[FaqStore] = [
        MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX),
        MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX),
        SqliteFaqStore(tmp_path / "faq.sqlite"),
    ]
    opened = [
        FaqCatalogue(store, embedder, calibrations=calibrations, searcher=searcher_of(store))
        for store in stores
    ]
    yield opened
    for info in stores[0].collections():
        stores[0].drop(info.name)
    for catalogue in opened:
        await catalogue.close()


def _shown(found: list[Found]) -> list[list[tuple[str, str, float]]]:
    return [[(one.hit.id, one.hit.question, round(one.confidence, 4)) for one in each.hits] for each in found]


async def test_a_collection_is_used_from_its_first_entry_to_its_last(
    catalogues: list[FaqCatalogue], manifest: Manifest, calibrations: Path
) -> None:
    """Written here and found there, with the embedded store's answers and confidences at each step."""
    one, other, embedded = catalogues

    async def compare() -> None:
        for mode in ("hybrid", "dense", "lexical"):
            wanted = _shown(await embedded.search("shop", QUERIES, mode=mode))
            assert _shown(await one.search("shop", QUERIES, mode=mode)) == wanted
            assert _shown(await other.search("shop", QUERIES, mode=mode)) == wanted

    for catalogue in (one, embedded):
        report = await catalogue.upsert("shop", SHOP)
        assert (report.added, report.replaced) == (4, 0)
    assert await one.load("shop") == 3
    await compare()
    english = parse_filter({"field": "language", "equals": "en"})
    assert _shown(await other.search("shop", QUERIES, filter_=english)) == _shown(
        await embedded.search("shop", QUERIES, filter_=english)
    )

    for catalogue in (other, embedded):
        await catalogue.patch("shop", "hours", {"question": "Are you open on Sundays?", "tags": None})
        await catalogue.patch("shop", "hidden", {"enabled": True})
    await compare()
    for catalogue in (one, embedded):
        assert await catalogue.delete("shop", filter_=parse_filter({"field": "id", "in": ["hidden"]})) == 1
        await catalogue.configure("shop", default_answer="Ask us.", min_score=0.0)
    await compare()
    [nothing] = await other.search("shop", ["zzz"], mode="lexical")
    assert (nothing.hits, nothing.default_answer) == ([], "Ask us.")

    judged = [
        LabelledQuery("退款到账", ("refund",)),
        LabelledQuery("reset password", ("password",)),
        LabelledQuery("zebra", ()),
    ]
    evaluations = [await catalogue.evaluate("shop", judged) for catalogue in (other, embedded)]
    assert evaluations[0].modes == evaluations[1].modes
    assert evaluations[0].answerable_scores == pytest.approx(evaluations[1].answerable_scores, abs=1e-4)

    changed = HashingEmbedder(manifest.model_copy(update={"prompts": {}}), "other", turned=True)
    newer = FaqCatalogue(other.store, changed, calibrations=calibrations, searcher=searcher_of(other.store))
    with pytest.raises(ModelMismatchError):
        await newer.search("shop", ["a"])
    await newer.reindex("shop")
    with pytest.raises(ModelMismatchError):
        await one.search("shop", ["a"])
    [found] = await newer.search("shop", ["退款多久到账"])
    assert found.hits[0].hit.id == "refund"

    await one.drop("shop")
    with pytest.raises(UnknownCollectionError):
        await newer.search("shop", ["a"])
    with pytest.raises(UnknownCollectionError):
        await other.get("shop", "refund")


async def test_what_is_not_there_is_said_so(catalogues: list[FaqCatalogue]) -> None:
    """Also of ids that no expression should be made of by pasting."""
    one, *_ = catalogues
    await one.upsert("shop", SHOP)
    for name in ('" or true or "', "\\", "a'b", "退\n款"):
        with pytest.raises(UnknownEntryError):
            await one.get("shop", name)
        assert await one.delete("shop", ids=[name]) == 0
    assert await one.count("shop") == len(SHOP)

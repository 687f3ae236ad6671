"""Searching in Milvus: the answers of the index in memory, on milvus-lite's server and on a real one."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from service.errors import ModelMismatchError, UnavailableError, UnknownCollectionError
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.filters import Filter, parse_filter
from service.faq.index import FaqIndex, Hit, Mode
from service.faq.milvus_candidates import MilvusCandidates, Moment
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_search import MilvusSearcher
from service.faq.milvus_store import MilvusFaqStore
from service.faq.store import FaqStore, Vector, Write
from tests.service.faq.hashed_vectors import hashed_vectors
from tests.service.faq.milvus_servers import PREFIX, MilvusProcess

UNRELATED = 0.2
MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")
QUERIES = [
    *("退款多久到账", "怎么修改发票地址", "忘记密码怎么办", "运", "积分会员"),
    *("reset my password", "when is my order refund", "how", "cancel the delivery", "invoice 发票"),
    *("zzz qqq", "!!!"),
]
FILTERS: list[dict[str, Any] | None] = [
    None,
    {"field": "language", "equals": "zh"},
    {"and": [{"field": "tags", "in": ["a"]}, {"not": {"field": "metadata.price", "lt": 10}}]},
    {"or": [{"field": "id", "in": ["e1", "e2", "e33"]}, {"field": "metadata.price", "gte": 19}]},
    {"field": "language", "equals": "fr"},
]
ZH = [
    "退款",
    "多久",
    "到账",
    "怎么",
    "修改",
    "地址",
    "发票",
    "税号",
    "密码",
    "忘记",
    "套餐",
    "办理",
    "运费",
    "会员",
]
EN = [
    "refund",
    "password",
    "reset",
    "order",
    "address",
    "invoice",
    "delivery",
    "cancel",
    "how",
    "do",
    "I",
    "my",
]

OpenStore = Callable[[], MilvusFaqStore]


@pytest.fixture(params=["milvus_lite", "milvus"])
def server(request: pytest.FixtureRequest) -> MilvusProcess:
    """Each of the servers."""
    found: MilvusProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def open_store(server: MilvusProcess) -> Iterator[OpenStore]:
    """Opens stores on the server, as several processes would; it is empty afterwards."""
    opened: list[MilvusFaqStore] = []

    def open_one() -> MilvusFaqStore:
        opened.append(MilvusFaqStore(MilvusConnection(server.uri), prefix=PREFIX))
        return opened[-1]

    yield open_one
    for info in opened[0].collections():
        opened[0].drop(info.name)
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> MilvusFaqStore:
    """A store on the server."""
    return open_store()


def bank(size: int, seed: int = 1) -> list[FaqEntry]:
    """Entries of few words, so that many are alike; half of them in either language."""
    chance = random.Random(seed)

    def phrase(words: Sequence[str], between: str, least: int, most: int) -> str:
        return between.join(chance.choices(words, k=chance.randint(least, most)))

    found = []
    for number in range(size):
        words, between = (ZH, "") if number % 2 else (EN, " ")
        found.append(
            FaqEntry(
                id=f"e{number}",
                question=phrase(words, between, 2, 5),
                answer="" if chance.random() < 0.1 else phrase(words, between, 4, 12),
                alternates=tuple(phrase(words, between, 2, 4) for _ in range(chance.choice([0, 0, 1, 3]))),
                language="zh" if number % 2 else "en",
                tags=tuple(chance.sample("abc", chance.randint(0, 2))),
                metadata={"price": chance.randint(0, 20)} if chance.random() < 0.7 else {},
                enabled=chance.random() < 0.95,
            )
        )
    return found


def vectors_of(entries: Sequence[FaqEntry]) -> dict[str, Vector]:
    """Embed what an index of ``entries`` needs."""
    texts = texts_to_embed(entries)
    return dict(zip(texts, hashed_vectors(texts), strict=True))


def put(store: FaqStore, *entries: FaqEntry, deletes: Sequence[str] = ()) -> None:
    """Write to the collection ``shop``."""
    write = Write(upserts=entries, deletes=tuple(deletes), vectors=vectors_of(entries))
    store.apply("shop", write, fingerprint="f", model_id="m", create=True)


def searcher_of(store: MilvusFaqStore, on_unproven: Callable[[int], None] | None = None) -> MilvusSearcher:
    """Search with hashed vectors."""
    return MilvusSearcher(store, fingerprint="f", model_id="m", on_unproven=on_unproven)


def search(
    searcher: MilvusSearcher,
    queries: Sequence[str] = QUERIES,
    *,
    mode: Mode = "hybrid",
    top_k: int = 10,
    where: Filter | None = None,
) -> list[list[Hit]]:
    """Search ``shop`` as the catalogue does."""
    live = asyncio.run(searcher.current("shop"))
    return live.search(
        queries, hashed_vectors(queries), unrelated=UNRELATED, top_k=top_k, mode=mode, filter=where
    )


def expected(
    index: FaqIndex,
    queries: Sequence[str] = QUERIES,
    *,
    mode: Mode = "hybrid",
    top_k: int = 10,
    where: Filter | None = None,
) -> list[list[Hit]]:
    """What the index in memory finds."""
    return index.search(
        queries, hashed_vectors(queries), unrelated=UNRELATED, top_k=top_k, mode=mode, filter=where
    )


def index_of(entries: Sequence[FaqEntry]) -> FaqIndex:
    """Index entries in memory."""
    return FaqIndex.empty().with_changes(entries, vectors=vectors_of(entries))


def assert_same(found: list[list[Hit]], wanted: list[list[Hit]]) -> None:
    """Compare hits; 1e-5: scores come from float32, and statistics are the same numbers."""
    for hits, others in zip(found, wanted, strict=True):
        assert [hit.id for hit in hits] == [other.id for other in others]
        for hit, other in zip(hits, others, strict=True):
            assert (hit.entry, hit.matched_phrasing, hit.terms) == (
                other.entry,
                other.matched_phrasing,
                other.terms,
            )
            for name in ("score", "dense", "lexical", "share"):
                assert getattr(hit, name) == pytest.approx(getattr(other, name), abs=1e-5)
            assert hit.dense_rank <= other.dense_rank
            assert (hit.lexical_rank or 0) <= (other.lexical_rank or 0)
            assert (hit.lexical_rank is None) == (other.lexical_rank is None)
        if hits:
            # Who is closest of all is certainly among what was looked at.
            assert min(hit.dense_rank for hit in hits) == min(other.dense_rank for other in others)


def check(
    searcher: MilvusSearcher, index: FaqIndex, filters: Sequence[dict[str, Any] | None] = FILTERS
) -> None:
    """Compare all modes, with and without filters; every other query with those."""
    for tree in filters:
        where, queries = (None, QUERIES) if tree is None else (parse_filter(tree), QUERIES[::2])
        for mode in MODES:
            found = search(searcher, queries, mode=mode, where=where)
            assert_same(found, expected(index, queries, mode=mode, where=where))


def test_answers_are_those_of_the_index_in_memory(store: MilvusFaqStore) -> None:
    """In all modes, with and without filters; also after entries were changed, disabled and deleted."""
    unproven: list[int] = []
    searcher = searcher_of(store, unproven.append)
    entries = {each.id: each for each in bank(300)}
    put(store, *entries.values())
    index = index_of(list(entries.values()))
    check(searcher, index, [None, FILTERS[2]])  # the rest further down, where more can go wrong
    assert_same(search(searcher, QUERIES * 2, top_k=40), expected(index, QUERIES * 2, top_k=40))

    changed = [
        each.model_copy(update={"id": f"e{number}"}) for number, each in enumerate(bank(40, seed=2), start=30)
    ]
    changed += [entries[f"e{number}"].model_copy(update={"enabled": False}) for number in range(80, 95)]
    changed += [entries[f"e{number}"].model_copy(update={"tags": ("a",)}) for number in range(100, 110)]
    gone = [f"e{number}" for number in range(200, 230)]
    put(store, *changed, deletes=gone)
    entries |= {each.id: each for each in changed}
    for identifier in gone:
        del entries[identifier]
    check(searcher, index_of(list(entries.values())))
    assert unproven == []


def test_answers_do_not_depend_on_how_little_is_looked_at_first(
    store: MilvusFaqStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first candidates prove nothing, more are read, step by step."""
    for name, value in {"_FIRST_ROWS": 1, "_FIRST_HOLDERS": 0, "_STEP": 3}.items():
        monkeypatch.setattr(f"service.faq.milvus_lookup.{name}", value)
    monkeypatch.setattr("service.faq.milvus_lookup._Depth.deeper", _one_more_than_nothing)
    entries = bank(120)
    put(store, *entries)
    unproven: list[int] = []
    searcher = searcher_of(store, unproven.append)
    index = index_of(entries)
    for mode in MODES:
        assert_same(search(searcher, mode=mode, top_k=3), expected(index, mode=mode, top_k=3))
    assert unproven == []


def _one_more_than_nothing(depth: Any) -> Any:
    # Three times nothing is nothing.
    return type(depth)(min(3 * depth.rows, 1_024), min(3 * depth.holders + 1, 2_048))


def test_more_hits_can_be_asked_for_than_milvus_gives_rows(store: MilvusFaqStore) -> None:
    """An operator may allow any ``top_k``; Milvus refuses more than 16,384 rows at a time."""
    entries = bank(30)
    put(store, *entries)
    [hits] = search(searcher_of(store), ["refund"], top_k=10_000)
    assert len(hits) == sum(each.enabled for each in entries)


def test_a_search_that_the_bound_ends_is_counted(
    store: MilvusFaqStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hits are the best of what was looked at, and an operator can see how often that is so."""
    for name, value in {"_FIRST_ROWS": 2, "_MOST_ROWS": 2, "_FIRST_HOLDERS": 0, "_MOST_HOLDERS": 0}.items():
        monkeypatch.setattr(f"service.faq.milvus_lookup.{name}", value)
    entries = bank(100)
    put(store, *entries)
    unproven: list[int] = []
    [hits] = search(searcher_of(store, unproven.append), ["how do I reset"], top_k=1)
    assert len(hits) == 1
    assert unproven == [1]


def test_a_write_of_one_process_is_found_by_the_next_search_of_another(
    open_store: OpenStore, store: MilvusFaqStore
) -> None:
    """Replicas hold nothing that could be out of date."""
    other = searcher_of(open_store())
    for text in ("zebra", "giraffe", "okapi"):
        put(store, FaqEntry(id="a", question=text, answer="x"))
        for mode in MODES:
            [hits] = search(other, [text], mode=mode)
            assert [hit.question for hit in hits] == [text]
    put(store, deletes=["a"])
    assert search(other, ["okapi"]) == [[]]


def test_searches_beside_a_writer_see_one_moment(open_store: OpenStore, store: MilvusFaqStore) -> None:
    """All of a write or nothing of it, whatever rows come and go meanwhile."""
    states = [
        [FaqEntry(id=str(n), question=f"{word} {n}", answer=f"{word} answer") for n in range(6)]
        for word in ("refund", "delivery")
    ]
    put(store, *states[0])
    searcher = searcher_of(open_store())
    done = threading.Event()

    def write() -> None:
        for number in range(1, 9):
            put(store, *states[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    searches = 0
    while not done.is_set() or searches < 3:
        [hits] = search(searcher, ["refund delivery"])
        assert sorted(hit.id for hit in hits) == list("012345")
        assert len({hit.question.split()[0] for hit in hits}) == 1
        searches += 1
    writer.join()


def test_another_models_vectors_and_unknown_collections_are_refused(store: MilvusFaqStore) -> None:
    """As by every searcher; and a collection with nothing to find gives no hits."""
    searcher = searcher_of(store)
    with pytest.raises(UnknownCollectionError):
        search(searcher)
    store.create("shop")
    assert search(searcher, ["a", "b"]) == [[], []]
    put(store, FaqEntry(id="hidden", question="a", answer="", enabled=False))
    assert search(searcher, ["a"]) == [[]]
    put(store, FaqEntry(id="shown", question="a", answer=""))
    assert len(asyncio.run(searcher.current("shop"))) == 1
    assert asyncio.run(searcher.current("shop")).info == store.info("shop")
    with pytest.raises(ModelMismatchError, match="faq reindex shop"):
        search(MilvusSearcher(store, fingerprint="g", model_id="n"))


def test_a_reindex_is_followed(store: MilvusFaqStore) -> None:
    """Beside it searches go on; once it is finished the old model's queries are refused."""
    entries = bank(20)
    put(store, *entries)
    old, new = searcher_of(store), MilvusSearcher(store, fingerprint="g", model_id="n")
    generation = store.begin_reindex("shop", fingerprint="g", model_id="n")
    vectors = {text: np.ascontiguousarray(vector[::-1]) for text, vector in vectors_of(entries).items()}
    store.add_vectors("shop", generation, vectors)
    assert_same(search(old), expected(index_of(entries)))
    store.finish_reindex("shop", generation)
    with pytest.raises(ModelMismatchError):
        search(old)
    live = asyncio.run(new.current("shop"))
    turned = np.ascontiguousarray(hashed_vectors(QUERIES)[:, ::-1])
    found = live.search(QUERIES, turned, unrelated=UNRELATED, top_k=10, mode="hybrid", filter=None)
    for hits, others in zip(found, expected(index_of(entries)), strict=True):
        assert [hit.score for hit in hits] == pytest.approx([other.score for other in others], abs=1e-5)


def test_the_bm25_of_milvus_lite_names_candidates(milvus_lite: MilvusProcess) -> None:
    """Where it has one: for words that too many entries hold, the rarer and the more of them the better."""
    with MilvusFaqStore(MilvusConnection(milvus_lite.uri), prefix=PREFIX) as store:
        entries = [
            FaqEntry(id=f"e{n}", question=f"how do I order {n}", answer="我们会退款。") for n in range(30)
        ]
        entries.append(FaqEntry(id="both", question="how do I refund 发票", answer="yes"))
        put(store, *entries)
        parts = store.parts
        assert parts.bm25
        candidates = MilvusCandidates(parts.milvus, parts.names, parts.entries)
        head = parts.heads.head("shop")
        assert head is not None
        moment = Moment(head)
        assert candidates.by_bm25(moment, ["refund", "发票"], 1) == {"both"}
        assert candidates.by_bm25(moment, ["退款"], 50) == {each.id for each in entries[:30]}
        assert candidates.by_bm25(moment, ["zebra"], 5) == candidates.by_bm25(moment, [], 5) == frozenset()
        some = Moment(head, '(entry_id in ["e3"])')
        assert candidates.by_bm25(some, ["order"], 5) == {"e3"}
        store.drop("shop")


def test_a_closed_store_is_not_searched(open_store: OpenStore, store: MilvusFaqStore) -> None:
    """With the error of every other call on it, as when the service stops amid a search."""
    put(store, FaqEntry(id="a", question="a", answer=""))
    other = open_store()
    searcher = searcher_of(other)
    assert search(searcher, ["a"])
    other.close()
    with pytest.raises(UnavailableError):
        search(searcher, ["a"])

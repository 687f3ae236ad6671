"""The catalogue over a real store: what is written is found, by everybody, and nothing else is."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from model.runtime.bundle import Manifest
from service.errors import (
    DuplicateEntryError,
    EmptyInputError,
    InvalidInputError,
    ModelMismatchError,
    OverloadedError,
    StorageFullError,
    TooManyInputsError,
    UnknownCollectionError,
    UnknownEntryError,
)
from service.faq.calibration import texts_to_measure
from service.faq.catalogue import FaqCatalogue, Found, FoundHit
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.filters import parse_filter
from service.faq.index import Mode
from service.faq.queries import LabelledQuery
from tests.service.faq.conftest import OpenCatalogue
from tests.service.faq.hashing_embedder import LONGEST, HashingEmbedder

SHOP = [
    FaqEntry(
        id="refund", question="退款多久到账", answer="三天。", alternates=("钱什么时候退",), language="zh"
    ),
    FaqEntry(id="password", question="How do I reset my password?", answer="By e-mail.", language="en"),
    FaqEntry(id="hidden", question="secret", answer="x", enabled=False),
]
MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")


def _shown(found: Found) -> tuple[list[FoundHit], str | None]:
    return found.hits, found.default_answer


def _ids(found: Found) -> list[str]:
    return [one.hit.id for one in found.hits]


async def _first(catalogue: FaqCatalogue, query: str, **options: object) -> Found:
    [found] = await catalogue.search("shop", [query], **options)  # type: ignore[arg-type]
    return found


@pytest.fixture
def other_model(manifest: Manifest) -> HashingEmbedder:
    """A model whose vectors do not compare with those of `embedder`."""
    return HashingEmbedder(manifest.model_copy(update={"prompts": {}}), "other", turned=True)


# -- searching ---------------------------------------------------------------------------------------------


async def test_an_entry_is_found_by_its_question_and_by_an_alternate(open_catalogue: OpenCatalogue) -> None:
    """The disabled entry never shows, however it is asked for."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    by_question, by_alternate, by_secret = await catalogue.search(
        "shop", ["退款多久到账", "钱什么时候退", "secret"]
    )
    assert (_ids(by_question)[0], by_question.hits[0].hit.answer) == ("refund", "三天。")
    assert by_alternate.hits[0].hit.matched_phrasing == "钱什么时候退"
    assert set(_ids(by_question)) == set(_ids(by_secret)) == {"refund", "password"}
    for mode in MODES:
        assert "hidden" not in _ids(await _first(catalogue, "secret", mode=mode))


async def test_confidences_fall_and_do_not_depend_on_how_many_hits_are_wanted(
    open_catalogue: OpenCatalogue,
) -> None:
    """Else a threshold that holds for five hits would not for one."""
    catalogue = open_catalogue()
    await catalogue.upsert(
        "shop", [FaqEntry(id=str(n), question=f"how to return item {n}", answer="") for n in range(40)]
    )
    for mode in MODES:
        many = (await _first(catalogue, "return item 7", mode=mode, top_k=30)).hits
        few = (await _first(catalogue, "return item 7", mode=mode, top_k=2)).hits
        confidences = [one.confidence for one in many]
        assert confidences == sorted(confidences, reverse=True)
        assert all(0 <= value <= 1 for value in confidences)
        assert [(one.hit.id, one.confidence) for one in few] == [
            (one.hit.id, one.confidence) for one in many[:2]
        ]


async def test_min_score_is_the_requests_then_the_collections(open_catalogue: OpenCatalogue) -> None:
    """And what is shown when nothing is sure enough is the collection's default answer."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    every = await _first(catalogue, "退款多久到账")
    assert (len(every.hits), every.default_answer) == (2, None)
    assert _ids(await _first(catalogue, "退款多久到账", min_score=every.hits[0].confidence)) == ["refund"]
    assert _shown(await _first(catalogue, "qqqq", min_score=1.0)) == ([], None)
    await catalogue.configure("shop", default_answer="Ask us.", min_score=1.0)
    assert _shown(await _first(catalogue, "qqqq")) == ([], "Ask us.")
    assert len((await _first(catalogue, "qqqq", min_score=0.0)).hits) == 2
    await catalogue.configure("shop", default_answer=None, min_score=None)
    assert len((await _first(catalogue, "qqqq")).hits) == 2


async def test_a_filter_decides_what_is_searched(open_catalogue: OpenCatalogue) -> None:
    """With nothing left the default answer is given."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    await catalogue.configure("shop", default_answer="Ask us.", min_score=None)
    english = parse_filter({"field": "language", "equals": "en"})
    assert _ids(await _first(catalogue, "退款多久到账", filter_=english)) == ["password"]
    nothing = parse_filter({"field": "language", "equals": "fr"})
    assert _shown(await _first(catalogue, "退款多久到账", filter_=nothing)) == ([], "Ask us.")


@pytest.mark.parametrize("top_k", [0, -1])
async def test_top_k_below_one_is_refused(open_catalogue: OpenCatalogue, top_k: int) -> None:
    """A negative count must never reach a slice, where it means something else."""
    catalogue = open_catalogue()
    catalogue.store.create("shop")
    with pytest.raises(InvalidInputError) as refused:
        await _first(catalogue, "退款", top_k=top_k)
    assert refused.value.param == "top_k"


@pytest.mark.parametrize("min_score", [-0.1, 1.1, float("nan"), float("inf")])
async def test_a_min_score_outside_the_scale_is_refused(
    open_catalogue: OpenCatalogue, min_score: float
) -> None:
    """A raw cosine or a percentage would otherwise filter all or nothing."""
    catalogue = open_catalogue()
    catalogue.store.create("shop")
    with pytest.raises(InvalidInputError) as refused:
        await _first(catalogue, "退款", min_score=min_score)
    assert refused.value.param == "min_score"


async def test_no_queries_and_no_entries_give_no_hits(open_catalogue: OpenCatalogue) -> None:
    """Neither is an error here; whether an empty request is one is the route's to say."""
    catalogue = open_catalogue()
    catalogue.store.create("shop")
    assert await catalogue.search("shop", []) == []
    for mode in MODES:
        found = await catalogue.search("shop", ["a", "b"], mode=mode)
        assert [_shown(each) for each in found] == [([], None)] * 2
    with pytest.raises(UnknownCollectionError):
        await catalogue.search("none", ["a"])


async def test_an_empty_query_is_refused_by_its_place(open_catalogue: OpenCatalogue) -> None:
    """In the name of the field that the caller filled."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    with pytest.raises(EmptyInputError) as refused:
        await catalogue.search("shop", ["退款", ""])
    assert (refused.value.param, refused.value.index) == ("query", 1)


async def test_a_full_queue_is_told_to_whoever_searches(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """A 429 at once, in search as elsewhere; only writes wait."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    await catalogue.calibrate()
    embedder.refusals = 1
    with pytest.raises(OverloadedError):
        await _first(catalogue, "退款")


async def test_searches_and_writes_are_told_to_the_observer(
    open_catalogue: OpenCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How sure each query's best entry is, shown or not, what went without one, and what took long."""
    searches: list[tuple[list[bool], int]] = []
    writes: list[tuple[int, int]] = []
    updates: list[float] = []
    failures: list[str] = []

    class Observer:
        def on_search(
            self, *, unanswered: int, best: Sequence[float], embed_seconds: float, seconds: float
        ) -> None:
            assert seconds > 0
            assert embed_seconds > 0
            searches.append(([score > 0 for score in best], unanswered))

        def on_write(self, *, written: int, deleted: int) -> None:
            writes.append((written, deleted))

        def on_write_failure(self, code: str) -> None:
            failures.append(code)

        def on_index(self, seconds: float) -> None:
            updates.append(seconds)

    catalogue = open_catalogue(observer=Observer())
    await catalogue.upsert("shop", SHOP)
    await catalogue.search("shop", ["退款", "qqqq", "zzz"], mode="lexical")
    await catalogue.search("shop", ["退款"], min_score=1.0)
    await catalogue.delete("shop", ids=["refund", "never"])
    assert searches == [([True, False, False], 2), ([True], 1)]
    assert writes == [(3, 0), (0, 1)]
    assert len(updates) == 2
    with pytest.raises(UnknownCollectionError):
        await catalogue.delete("none", ids=["refund"])
    assert failures == []  # the caller's fault

    def full(*arguments: object, **options: object) -> int:
        raise StorageFullError("no room")

    monkeypatch.setattr(catalogue.store, "apply", full)
    monkeypatch.setattr(catalogue.store, "drop", full)
    monkeypatch.setattr(catalogue.store, "configure", full)
    with pytest.raises(StorageFullError):
        await catalogue.upsert("shop", SHOP)
    with pytest.raises(StorageFullError):
        await catalogue.drop("shop")
    with pytest.raises(StorageFullError):
        await catalogue.configure("shop", default_answer=None, min_score=None)
    assert failures == ["storage_full"] * 3
    assert len(writes) == 2


# -- writing -----------------------------------------------------------------------------------------------


async def test_a_rewritten_entry_answers_by_its_new_wording_only(open_catalogue: OpenCatalogue) -> None:
    """From the acknowledgement on, in every mode, once; after its deletion not at all."""
    catalogue = open_catalogue()
    old = FaqEntry(id="a", question="my pet zebra", answer="stripes", alternates=("zebra food",))
    new = FaqEntry(id="a", question="Sunday delivery", answer="yes")
    await catalogue.upsert("shop", [old, *SHOP])
    assert _ids(await _first(catalogue, "zebra food"))[0] == "a"
    await catalogue.upsert("shop", [new])
    for mode in MODES:
        hits = (await _first(catalogue, "zebra food stripes delivery", mode=mode)).hits
        assert [one.hit.question for one in hits if one.hit.id == "a"] == ["Sunday delivery"]
        assert all("zebra" not in one.hit.matched_phrasing for one in hits)
    assert await catalogue.delete("shop", ids=["a", "never"]) == 1
    for mode in MODES:
        assert "a" not in _ids(await _first(catalogue, "Sunday delivery", mode=mode))
    await catalogue.upsert("shop", [old])
    assert _ids(await _first(catalogue, "zebra food", mode="lexical")) == ["a"]


async def test_a_write_tells_what_it_came_to(open_catalogue: OpenCatalogue) -> None:
    """Added, replaced, the same as before, or left alone; only new texts are embedded."""
    catalogue = open_catalogue()
    first = await catalogue.upsert("shop", SHOP)
    assert (first.added, first.replaced, first.unchanged, first.skipped) == (3, 0, 0, ())
    changed = SHOP[0].model_copy(update={"answer": "五天。"})
    added = FaqEntry(id="new", question="new", answer="")
    second = await catalogue.upsert("shop", [changed, SHOP[1], added])
    assert (second.added, second.replaced, second.unchanged) == (1, 1, 1)
    assert second.revision > first.revision
    third = await catalogue.upsert(
        "shop", [SHOP[0], FaqEntry(id="x", question="x", answer="")], on_duplicate="skip"
    )
    assert (third.added, third.replaced, third.skipped) == (1, 0, ("refund",))
    assert (await catalogue.get("shop", "refund")).answer == "五天。"


async def test_what_is_there_already_is_not_embedded_again(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """An import that is repeated every night costs what has changed."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    assert sorted(embedder.texts) == sorted(texts_to_embed(SHOP))
    embedder.calls.clear()
    await catalogue.upsert("shop", [entry.model_copy(update={"tags": ("t",)}) for entry in SHOP])
    assert embedder.texts == []


async def test_an_id_that_is_taken_stops_a_write_that_must_not_replace(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """All of it, before anything is embedded."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP[:1])
    embedder.calls.clear()
    with pytest.raises(DuplicateEntryError) as refused:
        await catalogue.upsert("shop", [SHOP[1], SHOP[0]], on_duplicate="error")
    assert refused.value.index == 1
    assert await catalogue.count("shop") == 1
    assert embedder.calls == []


async def test_an_id_that_is_taken_meanwhile_is_skipped_all_the_same(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Another process may write it while this one embeds."""
    catalogue, other = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))
    theirs = SHOP[0].model_copy(update={"answer": "theirs"})

    async def write_theirs(_: Sequence[str]) -> None:
        embedder.before = None
        await other.upsert("shop", [theirs])

    embedder.before = write_theirs
    report = await catalogue.upsert("shop", SHOP, on_duplicate="skip")
    assert (report.added, report.skipped) == (2, ("refund",))
    assert (await catalogue.get("shop", "refund")).answer == "theirs"


async def test_a_text_that_another_writer_takes_away_is_embedded_after_all(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Texts are shared by entries, and so are their vectors; the last to go takes the vector along."""
    catalogue, other = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))
    await catalogue.upsert("shop", SHOP[:1])
    twin = SHOP[0].model_copy(update={"id": "twin", "alternates": ("another",)})

    async def delete_theirs(_: Sequence[str]) -> None:
        embedder.before = None
        await other.delete("shop", ids=["refund"])

    embedder.before = delete_theirs
    await catalogue.upsert("shop", [twin])
    assert _ids(await _first(catalogue, "退款多久到账")) == ["twin"]


async def test_bad_writes_change_nothing(open_catalogue: OpenCatalogue) -> None:
    """Two entries of one id, one that the model cannot read, too many, a name that is none."""
    catalogue = open_catalogue(max_entries_per_write=3)
    catalogue.store.create("shop")
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    with pytest.raises(InvalidInputError, match=r"entries\[1\].*'blank'") as refused:
        await catalogue.upsert("shop", [SHOP[0], blank])
    assert (refused.value.index, refused.value.param) == (1, "entries")
    with pytest.raises(InvalidInputError, match="same id"):
        await catalogue.upsert("shop", [SHOP[0], SHOP[0]], on_duplicate="skip")
    with pytest.raises(TooManyInputsError):
        await catalogue.upsert("shop", [*SHOP, blank])
    with pytest.raises(InvalidInputError, match="name"):
        await catalogue.upsert("No Name", SHOP)
    with pytest.raises(UnknownCollectionError):
        await catalogue.upsert("other", SHOP, create=False)
    assert await catalogue.count("shop") == 0
    assert [info.name for info in await catalogue.collections()] == ["shop"]


async def test_an_entry_at_fault_keeps_its_place_beside_skipped_ones(open_catalogue: OpenCatalogue) -> None:
    """The place in what was sent, whatever of it is written."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    with pytest.raises(InvalidInputError, match=r"^entries\[3\], id 'blank'") as refused:
        await catalogue.upsert("shop", [*SHOP, blank], on_duplicate="skip")
    assert refused.value.index == 3


async def test_a_collection_comes_with_its_first_entries(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """An import that ends amid embedding, by a fault or a kill, leaves no empty collection behind."""
    catalogue = open_catalogue()
    await catalogue.calibrate()
    seen: list[list[str]] = []

    async def look(_: Sequence[str]) -> None:
        seen.append([info.name for info in await catalogue.collections()])

    embedder.before = look
    blank = FaqEntry(id="blank", question="ok", answer="ok", alternates=("\u200b",))
    with pytest.raises(InvalidInputError, match="blank"):
        await catalogue.upsert("shop", [blank])
    assert await catalogue.collections() == []
    await catalogue.upsert("shop", SHOP)
    assert seen == [[]] * len(seen) != []
    assert (await catalogue.info("shop")).entries == len(SHOP)


async def test_a_write_outlives_the_removal_of_its_collection(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Who may make the collection is never told that there is none; who may not, is."""
    catalogue = open_catalogue()
    await catalogue.calibrate()

    async def drop(_: Sequence[str]) -> None:
        embedder.before = None
        await catalogue.drop("shop")

    await catalogue.upsert("shop", SHOP[:1])
    embedder.before = drop
    await catalogue.upsert("shop", SHOP[1:2])
    entries, _ = await catalogue.page("shop", limit=10)
    assert entries == SHOP[1:2]
    embedder.before = drop
    with pytest.raises(UnknownCollectionError):
        await catalogue.patch("shop", "password", {"question": "other"})
    assert await catalogue.collections() == []


async def test_long_entries_are_told_of(
    open_catalogue: OpenCatalogue, caplog: pytest.LogCaptureFixture
) -> None:
    """Their owner should know that not all of them is read."""
    catalogue = open_catalogue()
    with caplog.at_level(logging.WARNING):
        await catalogue.upsert("shop", [FaqEntry(id="long", question="q", answer="answer " * LONGEST)])
    assert "1 FAQ texts are longer" in caplog.text


async def test_a_patch_changes_what_it_names(open_catalogue: OpenCatalogue) -> None:
    """As JSON merge patches do; the index follows."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", [SHOP[0].model_copy(update={"metadata": {"a": 1, "b": 2}})])
    changes = {"question": "新的问法", "metadata": {"a": None, "c": True}, "alternates": None}
    entry = await catalogue.patch("shop", "refund", changes)
    assert (entry.question, entry.answer, entry.alternates) == ("新的问法", "三天。", ())
    assert entry.metadata == {"b": 2, "c": True}
    assert await catalogue.get("shop", "refund") == entry
    assert (await _first(catalogue, "新的问法")).hits[0].hit.matched_phrasing == "新的问法"
    await catalogue.patch("shop", "refund", {"enabled": False})
    assert (await _first(catalogue, "新的问法")).hits == []


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"id": "b"}, "id"),
        ({"question": ""}, "question"),
        ({"answer": None}, "answer"),
        ({"prize": 1}, "prize"),
    ],
)
async def test_a_patch_that_makes_no_entry_is_refused(
    open_catalogue: OpenCatalogue, changes: dict[str, object], param: str
) -> None:
    """By the field at fault."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    with pytest.raises(InvalidInputError) as refused:
        await catalogue.patch("shop", "refund", changes)
    assert refused.value.param == param
    assert await catalogue.get("shop", "refund") == SHOP[0]


async def test_patches_at_the_same_time_are_both_kept(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Each reads, changes and writes; who comes second reads again."""
    one, other = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))
    await one.upsert("shop", SHOP)

    async def patch_theirs(_: Sequence[str]) -> None:
        embedder.before = None
        await other.patch("shop", "refund", {"tags": ["theirs"]})

    embedder.before = patch_theirs
    entry = await one.patch("shop", "refund", {"answer": "ours"})
    assert (entry.answer, entry.tags) == ("ours", ("theirs",))


async def test_entries_are_read_and_deleted_by_filter(open_catalogue: OpenCatalogue) -> None:
    """More of them than fit a page."""
    catalogue = open_catalogue()
    many = [FaqEntry(id=str(n), question="q", answer="", tags=("odd",) if n % 2 else ()) for n in range(1300)]
    await catalogue.upsert("shop", many)
    odd = parse_filter({"field": "tags", "equals": "odd"})
    assert await catalogue.count("shop", odd) == 650
    page, after = await catalogue.page("shop", after=None, limit=2, filter_=odd)
    assert [entry.id for entry in page] == ["1", "3"]
    assert after is not None
    assert await catalogue.delete("shop", ids=["1", "2", "3"], filter_=odd) == 2
    assert await catalogue.delete("shop", filter_=odd) == 648
    assert await catalogue.delete("shop", filter_=odd) == 0
    assert await catalogue.delete("shop") == 0
    assert await catalogue.count("shop") == 650
    with pytest.raises(UnknownEntryError):
        await catalogue.get("shop", "1")


# -- several processes -------------------------------------------------------------------------------------


async def test_what_one_process_writes_the_other_finds(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """With its next search, without a restart: added, changed, deleted, settings, all of the collection."""
    one, other = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))
    await one.upsert("shop", SHOP)
    assert _ids(await _first(other, "退款多久到账"))[0] == "refund"
    await other.upsert("shop", [FaqEntry(id="zebra", question="zebra", answer="")])
    assert _ids(await _first(one, "zebra"))[0] == "zebra"
    await one.delete("shop", ids=["zebra"])
    assert "zebra" not in _ids(await _first(other, "zebra"))
    await one.configure("shop", default_answer="none", min_score=1.0)
    assert _shown(await _first(other, "qqqq")) == ([], "none")
    await one.drop("shop")
    with pytest.raises(UnknownCollectionError):
        await _first(other, "退款")
    await other.upsert("shop", SHOP[1:])
    assert _ids(await _first(one, "退款")) == ["password"]


async def test_many_searches_and_writes_at_once_never_see_half_a_write(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Two entries are always written together; whoever finds one of them finds both, in one state."""
    writer, reader = open_catalogue(), open_catalogue(HashingEmbedder(embedder.manifest))

    def pair(round_: int) -> list[FaqEntry]:
        return [FaqEntry(id=side, question=f"pair {side}", answer=str(round_)) for side in ("left", "right")]

    await writer.upsert("shop", pair(0))
    seen: list[int] = []
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            hits = (await _first(reader, "pair")).hits
            answers = {int(one.hit.answer) for one in hits}
            assert (len(hits), len(answers)) == (2, 1)
            seen.extend(answers)

    readers = [asyncio.create_task(read()) for _ in range(4)]
    for round_ in range(1, 40):
        await writer.upsert("shop", pair(round_))
        [found] = await reader.search("shop", ["pair"])
        assert {one.hit.answer for one in found.hits} == {str(round_)}
    done.set()
    await asyncio.gather(*readers)
    assert len(set(seen)) > 1


# -- models ------------------------------------------------------------------------------------------------


async def test_changes_that_need_no_vector_do_not_need_the_model(
    open_catalogue: OpenCatalogue, other_model: HashingEmbedder
) -> None:
    """Somebody changed the bundle: what is wrong can be switched off, labelled and taken away meanwhile."""
    writer = open_catalogue()
    await writer.upsert("shop", SHOP)
    catalogue = open_catalogue(other_model)
    await catalogue.patch("shop", "refund", {"tags": ["t"], "metadata": {"a": 1}, "language": None})
    await catalogue.upsert("shop", [SHOP[1].model_copy(update={"tags": ("u",)})])
    await catalogue.patch("shop", "refund", {"enabled": False})
    assert other_model.calls == []
    with pytest.raises(ModelMismatchError, match="changed in all but their texts"):
        await catalogue.patch("shop", "password", {"answer": "By post."})
    with pytest.raises(ModelMismatchError):  # its vectors went with it
        await catalogue.patch("shop", "refund", {"enabled": True})
    assert (await _first(writer, "reset my password")).hits[0].hit.id == "password"
    assert await catalogue.delete("shop", ids=["password"]) == 1


async def test_a_write_counts_although_its_collection_cannot_be_searched_any_more(
    open_catalogue: OpenCatalogue, other_model: HashingEmbedder
) -> None:
    """The model was exchanged by another process, after this one had brought the collection into memory."""
    catalogue, other = open_catalogue(), open_catalogue(other_model)
    await catalogue.upsert("shop", SHOP)
    await catalogue.load("shop")
    await other.reindex("shop")
    assert (await catalogue.patch("shop", "refund", {"tags": ["t"]})).tags == ("t",)
    assert await catalogue.delete("shop", ids=["hidden"]) == 1
    with pytest.raises(ModelMismatchError):
        await _first(catalogue, "退款")


async def test_vectors_of_another_model_are_never_compared(
    open_catalogue: OpenCatalogue, other_model: HashingEmbedder
) -> None:
    """Neither searched nor added to; the message says what to do."""
    await open_catalogue().upsert("shop", SHOP)
    catalogue = open_catalogue(other_model)
    with pytest.raises(ModelMismatchError, match="conche faq reindex shop"):
        await _first(catalogue, "退款")
    with pytest.raises(ModelMismatchError, match="conche faq reindex shop"):
        await catalogue.upsert("shop", [FaqEntry(id="new", question="new", answer="")])
    assert await catalogue.delete("shop", ids=["hidden"]) == 1


async def test_a_model_is_measured_once(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder, tmp_path: Path
) -> None:
    """The next process reads what the first one measured; progress is told."""
    told: list[tuple[int, int]] = []
    texts = len(texts_to_measure())
    first = open_catalogue(calibrations=tmp_path / "calibrations")
    calibration = await first.calibrate(lambda *numbers: told.append(numbers))
    assert told[-1] == (texts, texts)
    assert len(embedder.texts) == texts
    embedder.calls.clear()
    second = open_catalogue(calibrations=tmp_path / "calibrations")
    assert await second.calibrate() == calibration
    assert embedder.calls == []


async def test_searches_at_once_measure_the_model_once(
    open_catalogue: OpenCatalogue, embedder: HashingEmbedder
) -> None:
    """Without a folder to keep it, too."""
    catalogue = open_catalogue(calibrations=None)
    catalogue.store.create("shop")
    await asyncio.gather(*[catalogue.search("shop", []) for _ in range(5)])
    assert len(embedder.texts) == len(texts_to_measure())


async def test_an_evaluation_judges_all_modes(open_catalogue: OpenCatalogue) -> None:
    """By the confidence, and whatever the collection's own threshold is."""
    catalogue = open_catalogue()
    await catalogue.upsert("shop", SHOP)
    await catalogue.configure("shop", default_answer=None, min_score=1.0)
    queries = [
        LabelledQuery("退款多久到账", ("refund",)),
        LabelledQuery("reset my password", ("password",)),
        LabelledQuery("qqqq"),
        LabelledQuery("qqqq"),
    ]
    evaluation = await catalogue.evaluate("shop", queries)
    assert list(evaluation.modes) == ["hybrid", "dense", "lexical"]
    assert evaluation.modes["hybrid"].accuracy_at_1 == 1.0
    assert (evaluation.queries, evaluation.answerable, evaluation.auc) == (4, 2, 1.0)
    [found] = await catalogue.search("shop", ["退款多久到账"], min_score=0)
    assert evaluation.answerable_scores[0] == pytest.approx(found.hits[0].confidence)


async def test_an_evaluation_of_nothing_is_refused(open_catalogue: OpenCatalogue) -> None:
    """And of what the model cannot read, by its place."""
    catalogue = open_catalogue()
    catalogue.store.create("shop")
    with pytest.raises(EmptyInputError):
        await catalogue.evaluate("shop", [])
    with pytest.raises(InvalidInputError) as refused:
        await catalogue.evaluate("shop", [LabelledQuery("ok"), LabelledQuery("\u200b")])
    assert (refused.value.param, refused.value.index) == ("queries", 1)
    with pytest.raises(InvalidInputError):
        await catalogue.evaluate("shop", [LabelledQuery("ok")], wanted_precision=0)

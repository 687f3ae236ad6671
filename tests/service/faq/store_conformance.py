"""What every FAQ store must do, whatever it keeps entries in; written against the protocol alone.

A store's own test module subclasses `StoreConformance` and says, in the fixture ``open_store``, how to open
it.
"""

import random
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest

from service.errors import (
    CollectionExistsError,
    ConflictError,
    DuplicateEntryError,
    EntryChangedError,
    InvalidInputError,
    ModelMismatchError,
    UnavailableError,
    UnknownCollectionError,
)
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.store import Changes, FaqStore, MissingVectorsError, Vector, Write
from tests.service.faq.hashed_vectors import DIMENSIONS, hashed_vectors

OpenStore = Callable[[], FaqStore]


def entry(name: str, question: str = "", answer: str = "", *alternates: str, **more: object) -> FaqEntry:
    """Shorten what every test writes; without a question the id is one."""
    return FaqEntry(id=name, question=question or name, answer=answer, alternates=alternates, **more)


def vectors_of(entries: Iterable[FaqEntry], *, model: str = "a") -> dict[str, Vector]:
    """Vectors for all texts of ``entries``, as ``model`` would make them."""
    texts = texts_to_embed(entries)
    return dict(zip(texts, hashed_vectors([f"{model}{text}" for text in texts]), strict=True))


def put(
    store: FaqStore, name: str, *entries: FaqEntry, model: str = "a", create: bool = False, **more: object
) -> int:
    """Write entries with their vectors."""
    write = Write(upserts=entries, vectors=vectors_of(entries, model=model), **more)
    return store.apply(
        name, write, fingerprint=f"fingerprint-{model}", model_id=f"model-{model}", create=create
    )


def delete(store: FaqStore, name: str, *ids: str) -> int:
    """Delete entries."""
    return store.apply(name, Write(deletes=ids))


def ids(store: FaqStore, name: str) -> list[str]:
    """All ids, in the store's order."""
    return [found.id for found in store.changes(name, 0).entries]


def check_vectors(changes: Changes, *, model: str = "a") -> None:
    """Every text of every changed entry has the vector that belongs to it, and no other text has one."""
    expected = vectors_of(changes.entries, model=model)
    assert changes.vectors.keys() == expected.keys()
    for text, vector in expected.items():
        np.testing.assert_array_equal(changes.vectors[text], vector)


class Odd:
    """A filter: entries whose question ends in an odd digit."""

    def matches(self, entry: FaqEntry, /) -> bool:
        """Whether it does."""
        return entry.question[-1] in "13579"


class Follower:
    """Keeps a copy of a collection by asking for changes only, as an index does."""

    def __init__(self, store: FaqStore, name: str) -> None:
        self.store, self.name = store, name
        self.revision = 0
        self.entries: dict[str, FaqEntry] = {}
        self.vectors: dict[str, Vector] = {}

    def catch_up(self) -> Changes:
        """Take in what happened since the last time."""
        changes = self.store.changes(self.name, self.revision)
        assert changes.revision >= self.revision or changes.complete
        if changes.complete:
            self.entries.clear()
            self.vectors.clear()
        for identifier in changes.deleted:
            self.entries.pop(identifier, None)
        self.entries.update({found.id: found for found in changes.entries})
        self.vectors.update(changes.vectors)
        self.revision = changes.revision
        return changes


class StoreConformance:
    """The tests; every one gets a store of its own.

    Attributes:
        SEEDS: of the sequences of sixty random writes each.
        ROUNDS: of races between drops and writes; where each takes long, few find as much.
    """

    SEEDS: ClassVar[tuple[int, ...]] = (0, 1, 2, 3)
    ROUNDS: ClassVar[int] = 60

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Draw a sequence from each seed of the store."""
        if "seed" in metafunc.fixturenames:
            metafunc.parametrize("seed", self.SEEDS)

    @pytest.fixture
    def store(self, open_store: OpenStore) -> FaqStore:
        """A store with one empty collection, ``faq``."""
        opened = open_store()
        opened.create("faq")
        return opened

    # Collections

    def test_a_new_collection_is_empty_and_of_no_model(self, store: FaqStore) -> None:
        """The model is that of the first vectors, not one that happened to run when the name was made."""
        info = store.info("faq")
        assert (info.name, info.entries, info.fingerprint, info.model_id, info.dimensions) == (
            "faq",
            0,
            None,
            None,
            None,
        )
        assert info.revision > 0
        assert (info.default_answer, info.min_score, info.pending_generation) == (None, None, None)
        assert info.created_at.endswith("+00:00")
        changes = store.changes("faq", 0)
        assert (changes.complete, changes.entries, dict(changes.vectors)) == (True, (), {})

    def test_making_a_collection_twice_is_an_error_unless_that_is_fine(self, store: FaqStore) -> None:
        """`exist_ok` keeps what is there."""
        put(store, "faq", entry("a"))
        with pytest.raises(CollectionExistsError, match="faq"):
            store.create("faq")
        assert store.create("faq", exist_ok=True).entries == 1

    @pytest.mark.parametrize("name", ["", "A", "-a", "_a", "a b", "a/b", "a" * 65, "ａ", "a\n", "..", "税"])
    def test_names_that_need_quoting_somewhere_are_refused(self, store: FaqStore, name: str) -> None:
        """A name stands in URLs, file names, metrics and other engines' schemas."""
        with pytest.raises(InvalidInputError, match="1 to 64"):
            store.create(name)

    @pytest.mark.parametrize("name", ["a", "0", "a" * 64, "shop-zh_2"])
    def test_plain_names_are_taken(self, store: FaqStore, name: str) -> None:
        """The bounds themselves are inside."""
        assert store.create(name).name == name

    def test_an_unknown_collection_is_named_with_those_that_are_there(self, store: FaqStore) -> None:
        """Every method that takes a name says so in the same way."""
        store.create("other")
        calls = [
            lambda: store.info("nope"),
            lambda: store.drop("nope"),
            lambda: store.configure("nope", default_answer=None, min_score=None),
            lambda: store.missing_texts("nope", ["x"]),
            lambda: store.vectors("nope", ["x"]),
            lambda: put(store, "nope", entry("a")),
            lambda: store.get("nope", ["a"]),
            lambda: store.page("nope", limit=1),
            lambda: store.count("nope"),
            lambda: store.count("nope", Odd()),
            lambda: store.revision("nope"),
            lambda: store.changes("nope", 0),
            lambda: store.begin_reindex("nope", fingerprint="f", model_id="m"),
            lambda: store.add_vectors("nope", 1, {}),
            lambda: store.finish_reindex("nope", 1),
            lambda: store.abandon_reindex("nope", 1),
        ]
        for call in calls:
            with pytest.raises(UnknownCollectionError, match="no collection nope; there are: faq, other"):
                call()

    def test_collections_are_listed_by_name_and_kept_apart(self, store: FaqStore) -> None:
        """The same id may stand in two collections, with different content."""
        store.create("b")
        put(store, "faq", entry("1", "in faq"))
        put(store, "b", entry("1", "in b"), entry("2"), model="b")
        assert [(info.name, info.entries, info.model_id) for info in store.collections()] == [
            ("b", 2, "model-b"),
            ("faq", 1, "model-a"),
        ]
        delete(store, "b", "1")
        assert store.get("faq", ["1"])["1"].question == "in faq"

    def test_settings_are_kept_and_taken_away(self, store: FaqStore) -> None:
        """Followers notice by the revision."""
        before = store.revision("faq")
        info = store.configure("faq", default_answer="请联系客服。", min_score=0.25)
        assert (info.default_answer, info.min_score) == ("请联系客服。", 0.25)
        assert store.info("faq") == info
        assert info.revision == store.revision("faq") > before
        info = store.configure("faq", default_answer=None, min_score=None)
        assert (info.default_answer, info.min_score) == (None, None)

    @pytest.mark.parametrize("min_score", [-0.1, 1.1, float("nan"), float("inf")])
    def test_a_min_score_that_is_no_probability_is_refused(self, store: FaqStore, min_score: float) -> None:
        """NaN would make every comparison false."""
        with pytest.raises(InvalidInputError, match="min_score"):
            store.configure("faq", default_answer=None, min_score=min_score)

    def test_an_endless_default_answer_is_refused(self, store: FaqStore) -> None:
        """It is sent with every query that nothing answers."""
        with pytest.raises(InvalidInputError, match="32769 characters, at most 32768"):
            store.configure("faq", default_answer="x" * 32_769, min_score=None)

    def test_a_dropped_collection_is_gone_and_its_name_free(self, store: FaqStore) -> None:
        """The new one starts empty, of no model, with higher revisions: followers must not mix the two."""
        put(store, "faq", *(entry(str(number)) for number in range(30)))
        old = store.revision("faq")
        store.drop("faq")
        assert store.collections() == []
        with pytest.raises(UnknownCollectionError, match="none yet"):
            store.info("faq")
        assert store.create("faq").revision > old
        assert (store.count("faq"), store.info("faq").model_id) == (0, None)
        put(store, "faq", entry("new"), model="b")
        changes = store.changes("faq", old)
        assert (changes.complete, [found.id for found in changes.entries]) == (True, ["new"])

    def test_the_first_write_makes_the_collection(self, store: FaqStore) -> None:
        """In one step: nobody ever meets it empty, and it is as one that was made beforehand."""
        new = entry("a", "q", "answer")
        revision = put(store, "new", new, create=True)
        assert (store.revision("new"), store.info("new").entries) == (revision, 1)
        assert store.info("new").model_id == "model-a"
        changes = store.changes("new", 0)
        assert (changes.complete, changes.entries) == (True, (new,))
        check_vectors(changes)
        assert put(store, "new", new, create=True) == revision
        assert put(store, "new", entry("b"), create=True) > revision
        assert ids(store, "new") == ["a", "b"]

    def test_a_refused_first_write_makes_no_collection(self, store: FaqStore) -> None:
        """An import that cannot be embedded leaves no empty collection behind."""
        new = entry("a", "q", "answer")
        model = {"fingerprint": "fingerprint-a", "model_id": "model-a"}
        for write, error in (
            (Write(upserts=(new,)), MissingVectorsError),
            (Write(upserts=(new, new), vectors=vectors_of([new])), InvalidInputError),
            (Write(upserts=(new,), vectors=vectors_of([new]), unchanged=(entry("b"),)), EntryChangedError),
            (Write(upserts=(new,), vectors={"q": np.ones(DIMENSIONS, np.float32)}), ValueError),
        ):
            with pytest.raises(error):
                store.apply("new", write, **model, create=True)
            assert [info.name for info in store.collections()] == ["faq"]
        with pytest.raises(InvalidInputError, match="1 to 64"):
            put(store, "No Name", new, create=True)
        with pytest.raises(InvalidInputError, match="1 to 64"):
            store.configure("No Name", default_answer=None, min_score=None, create=True)
        with pytest.raises(InvalidInputError, match="min_score"):
            store.configure("new", default_answer=None, min_score=2.0, create=True)
        assert [info.name for info in store.collections()] == ["faq"]

    def test_settings_make_the_collection_if_asked(self, store: FaqStore) -> None:
        """And change nothing but themselves in one that is there."""
        made = store.configure("new", default_answer="none", min_score=0.5, create=True)
        assert (made.name, made.entries, made.default_answer, made.min_score) == ("new", 0, "none", 0.5)
        assert store.info("new") == made
        put(store, "faq", entry("a"))
        assert store.configure("faq", default_answer="none", min_score=None, create=True).entries == 1

    def test_a_write_that_may_make_its_collection_never_misses_it(
        self, store: FaqStore, open_store: OpenStore
    ) -> None:
        """Somebody else drops it again and again: each write is there as a whole, or went with a drop."""
        rounds, other = self.ROUNDS, open_store()

        def drop() -> None:
            for _ in range(rounds):
                with suppress(UnknownCollectionError):
                    other.drop("new")

        with ThreadPoolExecutor(1) as pool:
            dropping = pool.submit(drop)
            for number in range(rounds):
                put(store, "new", entry(f"e{number}"), entry(f"f{number}"), create=True)
                store.configure("new", default_answer=str(number), min_score=None, create=True)
            dropping.result(timeout=60)
        put(store, "new", entry("last"), create=True)
        found = ids(store, "new")
        assert found == [f"{letter}{name[1:]}" for name in found[:-1:2] for letter in "ef"] + ["last"]
        check_vectors(store.changes("new", 0))

    # Entries

    def test_an_entry_comes_back_as_it_was(self, store: FaqStore) -> None:
        """Every field, with its type: True is not 1, and 1.0 is not 1."""
        full = entry(
            "编号 '1\"",
            "怎样填写税号?",
            "在发票页面\n填写。🙂",
            "E1024",
            "other",
            language="zh-Hans",
            tags=("b", "a"),
            metadata={
                "n": 2**70,
                "one": 1,
                "yes": True,
                "float": 1.0,
                "small": 5e-324,
                "text": "1",
                "zero": -0.0,
            },
            enabled=False,
        )
        put(store, "faq", full)
        found = store.get("faq", [full.id])[full.id]
        assert found == full
        assert type(found) is FaqEntry
        assert found.model_dump_json() == full.model_dump_json()
        assert {key: type(value) for key, value in found.metadata.items()} == {
            key: type(value) for key, value in full.metadata.items()
        }
        assert store.page("faq", limit=1)[0] == [full]

    def test_get_gives_what_is_there_in_the_order_asked(self, store: FaqStore) -> None:
        """Unknown ids are left out; who asked decides whether that is an error."""
        put(store, "faq", entry("a"), entry("b"), entry("c"))
        assert list(store.get("faq", ["c", "nope", "a"])) == ["c", "a"]
        assert store.get("faq", []) == {}

    def test_ids_are_compared_exactly(self, store: FaqStore) -> None:
        """Case, width and composition are the caller's business."""
        names = ["a", "A", "ａ", "é", "e\u0301", "1", "01", "%", "_"]
        put(store, "faq", *(entry(name) for name in names))
        assert ids(store, "faq") == names
        delete(store, "faq", "_", "%")
        assert ids(store, "faq") == names[:-2]

    def test_entries_stay_in_the_order_of_their_first_writing(self, store: FaqStore) -> None:
        """A changed entry keeps its place; one that was deleted and comes back goes to the end."""
        put(store, "faq", entry("c"), entry("a"))
        put(store, "faq", entry("b"))
        put(store, "faq", entry("c", "changed"))
        assert ids(store, "faq") == ["c", "a", "b"]
        delete(store, "faq", "a")
        put(store, "faq", entry("a"))
        assert ids(store, "faq") == ["c", "b", "a"]

    def test_pages_go_through_everything_once(self, store: FaqStore) -> None:
        """Whatever the size of a page; the last one says that it is the last."""
        put(store, "faq", *(entry(f"e{number}") for number in range(7)))
        for limit in (1, 2, 3, 7, 100):
            seen, after = [], None
            for _ in range(10):
                found, after = store.page("faq", after=after, limit=limit)
                seen += [item.id for item in found]
                assert len(found) <= limit
                if after is None:
                    break
            assert seen == [f"e{number}" for number in range(7)]

    def test_paging_survives_changes_on_the_way(self, store: FaqStore) -> None:
        """No entry that was there all the time is skipped or comes twice."""
        put(store, "faq", *(entry(f"e{number}") for number in range(6)))
        first, after = store.page("faq", limit=3)
        delete(store, "faq", "e0", "e2")  # e2 is where the page ended
        put(store, "faq", entry("e1", "changed"), entry("new"))
        second, after = store.page("faq", after=after, limit=10)
        assert [item.id for item in first] == ["e0", "e1", "e2"]
        assert [item.id for item in second] == ["e3", "e4", "e5", "new"]
        assert after is None

    def test_pages_and_counts_take_a_filter(self, store: FaqStore) -> None:
        """Pages are full as long as enough entries match."""
        put(store, "faq", *(entry(f"e{number}") for number in range(9)))
        found, after = store.page("faq", limit=3, filter=Odd())
        assert [item.id for item in found] == ["e1", "e3", "e5"]
        found, after = store.page("faq", after=after, limit=3, filter=Odd())
        assert ([item.id for item in found], after) == (["e7"], None)
        assert (store.count("faq", Odd()), store.count("faq")) == (4, 9)

    @pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "9" * 30, "１", " 1"])
    def test_a_cursor_of_ones_own_making_is_refused(self, store: FaqStore, after: str) -> None:
        """It comes from a URL."""
        with pytest.raises(InvalidInputError, match="after"):
            store.page("faq", after=after, limit=1)

    def test_a_page_of_nothing_is_refused(self, store: FaqStore) -> None:
        """It would never end."""
        with pytest.raises(InvalidInputError, match="limit"):
            store.page("faq", limit=0)

    # Writing

    def test_writes_raise_the_revision_and_move_the_clock(self, store: FaqStore) -> None:
        """What `apply` returns is what `revision` then says."""
        seen = [store.revision("faq")]
        for write in (
            lambda: put(store, "faq", entry("a")),
            lambda: put(store, "faq", entry("a", "changed")),
            lambda: delete(store, "faq", "a"),
        ):
            seen.append(write())
            assert store.revision("faq") == store.info("faq").revision == seen[-1]
        assert seen == sorted(set(seen))
        info = store.info("faq")
        assert info.updated_at >= info.created_at

    def test_a_write_that_changes_nothing_moves_nothing(self, store: FaqStore) -> None:
        """Importing a file again makes no index anywhere rebuild."""
        revision = put(store, "faq", entry("a"), entry("b"))
        assert put(store, "faq", entry("b"), entry("a")) == revision
        assert delete(store, "faq", "nope") == revision
        assert store.apply("faq", Write()) == revision
        assert store.changes("faq", revision).entries == ()

    def test_an_unknown_id_among_deletions_is_no_error(self, store: FaqStore) -> None:
        """Deleting twice gives the same state."""
        put(store, "faq", entry("a"), entry("b"))
        delete(store, "faq", "a", "nope", "a")
        assert (ids(store, "faq"), store.count("faq")) == (["b"], 1)

    def test_a_refused_write_leaves_nothing_behind(self, store: FaqStore) -> None:
        """Not its first entries, not its deletions, not its vectors, not a number."""
        put(store, "faq", entry("a"), entry("b"))
        before, info = store.changes("faq", 0), store.info("faq")
        new = entry("new"), entry("a", "changed")
        some = vectors_of(new[:1])
        for write, error in (
            (Write(upserts=new, deletes=("b",), vectors=some), MissingVectorsError),
            (Write(upserts=new, deletes=("b",), vectors=vectors_of(new), replace=False), DuplicateEntryError),
            (Write(upserts=(*new, entry("new")), vectors=vectors_of(new)), InvalidInputError),
            (Write(upserts=new, deletes=("a",), vectors=vectors_of(new)), InvalidInputError),
            (
                Write(upserts=new, deletes=("b",), vectors=vectors_of(new), unchanged=(entry("b", "else"),)),
                EntryChangedError,
            ),
        ):
            with pytest.raises(error):
                store.apply("faq", write, fingerprint="fingerprint-a", model_id="model-a")
            after = store.changes("faq", 0)
            assert (after.revision, after.entries, set(after.vectors)) == (
                before.revision,
                before.entries,
                set(before.vectors),
            )
            assert store.info("faq") == info
            assert store.missing_texts("faq", ["new"]) == ["new"]

    def test_the_offending_entry_of_a_write_is_pointed_at(self, store: FaqStore) -> None:
        """An import of thousands is only mended if the answer says which."""
        put(store, "faq", entry("a"))
        with pytest.raises(DuplicateEntryError) as taken:
            put(store, "faq", entry("x"), entry("a", "other"), replace=False)
        with pytest.raises(InvalidInputError, match=r"entries\[2\] has the same id as entries\[0\]") as twice:
            put(store, "faq", entry("x"), entry("y"), entry("x"))
        assert (taken.value.index, twice.value.index) == (1, 2)

    def test_writing_without_replacing_refuses_an_equal_entry_too(self, store: FaqStore) -> None:
        """Whether an id is taken does not depend on what else the entry holds."""
        put(store, "faq", entry("a"))
        with pytest.raises(DuplicateEntryError):
            put(store, "faq", entry("a"), replace=False)
        put(store, "faq", entry("b"), replace=False)
        assert ids(store, "faq") == ["a", "b"]

    def test_a_read_change_write_loses_nobodys_change(self, store: FaqStore, open_store: OpenStore) -> None:
        """Two clerks patch one entry; the second one is told to read again."""
        put(store, "faq", entry("a", "q", "old"))
        read = store.get("faq", ["a"])["a"]
        put(open_store(), "faq", entry("a", "q", "by another"))
        with pytest.raises(EntryChangedError):
            put(store, "faq", entry("a", "mine", "old"), unchanged=(read,))
        read = store.get("faq", ["a"])["a"]
        put(store, "faq", entry("a", "mine", read.answer), unchanged=(read,))
        assert store.get("faq", ["a"])["a"].answer == "by another"
        delete(store, "faq", "a")
        with pytest.raises(EntryChangedError):
            put(store, "faq", entry("a", "again"), unchanged=(read,))

    # Vectors

    def test_only_texts_without_a_vector_are_asked_for(self, store: FaqStore) -> None:
        """Equal texts of different entries are embedded once; a text is named once."""
        put(store, "faq", entry("a", "shared", "answer a"))
        texts = texts_to_embed([entry("b", "shared", "answer b", "alternate")])
        assert store.missing_texts("faq", [*texts, *texts]) == ["alternate", "shared\nanswer b"]
        assert store.missing_texts("faq", []) == []

    def test_live_vectors_are_handed_out_by_text(self, store: FaqStore) -> None:
        """As they were written, for texts that have one; those of a reindex under way are not live."""
        entries = [
            entry("a", "shared", "answer", "alternate"),
            entry("b", "shared"),
            entry("c", enabled=False),
        ]
        put(store, "faq", *entries)
        written = vectors_of(entries)
        store.add_vectors(
            "faq",
            store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b"),
            vectors_of(entries, model="b"),
        )
        asked = ["alternate", "c", "nowhere", "shared", "alternate", "shared\nanswer"]
        found = store.vectors("faq", asked)
        assert list(found) == ["alternate", "shared", "shared\nanswer"]
        for text, vector in found.items():
            np.testing.assert_array_equal(vector, written[text])
            with pytest.raises(ValueError, match="read-only"):
                vector[0] = 0.0
        assert store.vectors("faq", []) == {}

    def test_a_write_needs_only_the_vectors_that_are_missing(self, store: FaqStore) -> None:
        """And is told which, if it brings too few; superfluous ones are not kept."""
        put(store, "faq", entry("a", "shared"))
        new = entry("b", "shared", "answer")
        model = {"fingerprint": "fingerprint-a", "model_id": "model-a"}
        with pytest.raises(MissingVectorsError) as missing:
            store.apply("faq", Write(upserts=(new,)), **model)
        assert missing.value.texts == ("shared\nanswer",)
        every = vectors_of([new, entry("unrelated")])
        every.pop("shared")
        store.apply("faq", Write(upserts=(new,), vectors=every), **model)
        assert store.missing_texts("faq", ["unrelated"]) == ["unrelated"]
        check_vectors(store.changes("faq", 0))

    def test_a_vector_goes_with_the_last_entry_that_needs_it(self, store: FaqStore) -> None:
        """By deletion, by a new wording, and by disabling; not before."""
        put(store, "faq", entry("a", "shared"), entry("b", "shared"), entry("c", "shared", "", "alternate"))
        delete(store, "faq", "a")
        put(store, "faq", entry("b", "new wording"))
        assert store.missing_texts("faq", ["shared"]) == []
        put(store, "faq", entry("c", "shared", "", "alternate", enabled=False))
        assert store.missing_texts("faq", ["shared", "alternate", "new wording"]) == ["shared", "alternate"]

    def test_a_disabled_entry_needs_no_vector_and_no_model(self, store: FaqStore) -> None:
        """It is kept and never found; enabling it takes vectors."""
        hidden = entry("a", "q", "answer", enabled=False)
        store.apply("faq", Write(upserts=(hidden,)))
        changes = store.changes("faq", 0)
        assert (changes.entries, dict(changes.vectors), changes.fingerprint) == ((hidden,), {}, None)
        shown = hidden.model_copy(update={"enabled": True})
        with pytest.raises(MissingVectorsError):
            store.apply("faq", Write(upserts=(shown,)), fingerprint="f", model_id="m")
        put(store, "faq", shown)
        check_vectors(store.changes("faq", 0))

    def test_the_first_vectors_settle_the_model(self, store: FaqStore) -> None:
        """Fingerprint, name and dimensions are kept with the collection."""
        put(store, "faq", entry("a"))
        info = store.info("faq")
        assert (info.fingerprint, info.model_id, info.dimensions) == ("fingerprint-a", "model-a", DIMENSIONS)
        assert store.changes("faq", 0).fingerprint == "fingerprint-a"

    def test_vectors_of_another_model_are_refused_with_the_way_out(self, store: FaqStore) -> None:
        """Mixed vectors answer nonsense without any error; deleting needs no model."""
        put(store, "faq", entry("a"), entry("b"))
        with pytest.raises(ModelMismatchError, match=r"model-a.*model-b.*conche faq reindex faq"):
            put(store, "faq", entry("c"), model="b")
        with pytest.raises(ModelMismatchError):  # although no vector is missing
            put(store, "faq", entry("c", "a"), model="b")
        assert ids(store, "faq") == ["a", "b"]
        delete(store, "faq", "a")

    def test_an_emptied_collection_takes_another_model(self, store: FaqStore) -> None:
        """Nothing is left to mix with; followers read anew."""
        put(store, "faq", entry("a"))
        revision = delete(store, "faq", "a")
        put(store, "faq", entry("b"), model="b")
        assert store.info("faq").model_id == "model-b"
        changes = store.changes("faq", revision)
        assert changes.complete
        check_vectors(changes, model="b")

    def test_an_enabled_entry_needs_a_model(self, store: FaqStore) -> None:
        """A forgotten argument must not make vectors of no known origin."""
        with pytest.raises(ValueError, match="fingerprint"):
            store.apply("faq", Write(upserts=(entry("a"),), vectors=vectors_of([entry("a")])))

    @pytest.mark.parametrize(
        ("vector", "message"),
        [
            (np.ones(DIMENSIONS, np.float32), "length"),
            (np.zeros(DIMENSIONS, np.float32), "length"),
            (np.full(DIMENSIONS, np.nan, np.float32), "length"),
            (np.full(DIMENSIONS, np.inf, np.float32), "length"),
            (np.eye(1, DIMENSIONS + 1, dtype=np.float32)[0], "dimensions"),
            (np.eye(1, DIMENSIONS, dtype=np.float64)[0], "float32"),
            (np.eye(1, DIMENSIONS, dtype=np.float32), "float32 of one axis"),
        ],
    )
    def test_what_is_no_unit_vector_is_refused(self, store: FaqStore, vector: Vector, message: str) -> None:
        """Scores would leave -1..1, or be NaN, long after the fault."""
        put(store, "faq", entry("a"))
        write = Write(upserts=(entry("b"),), vectors={"b": vector})
        with pytest.raises(ValueError, match=message):
            store.apply("faq", write, fingerprint="fingerprint-a", model_id="model-a")
        generation = store.begin_reindex("faq", fingerprint="f", model_id="m")
        store.add_vectors("faq", generation, vectors_of([entry("a")]))
        with pytest.raises(ValueError, match=message):
            store.add_vectors("faq", generation, {"a": vector})

    # Following

    def test_changes_are_what_happened_since(self, store: FaqStore) -> None:
        """Added, changed and deleted entries, with the vectors of all their texts."""
        revision = put(store, "faq", *(entry(name) for name in "abcd"))
        put(store, "faq", entry("b", "b", "answer"), entry("e"))
        delete(store, "faq", "a", "d")
        put(store, "faq", entry("d", "back"))
        changes = store.changes("faq", revision)
        assert (changes.complete, changes.revision) == (False, store.revision("faq"))
        assert [found.id for found in changes.entries] == ["b", "e", "d"]
        assert changes.deleted == ("a",)
        check_vectors(changes)
        assert store.changes("faq", changes.revision).entries == ()

    def test_a_follower_of_something_else_reads_everything(self, store: FaqStore) -> None:
        """A revision from the future, or from before the collection was made."""
        put(store, "faq", entry("a"))
        for since in (0, -5, store.revision("faq") + 1):
            changes = store.changes("faq", since)
            assert changes.complete
            assert changes.deleted == ()
            assert [found.id for found in changes.entries] == ["a"]

    def test_vectors_handed_out_cannot_be_written_to(self, store: FaqStore) -> None:
        """Several indexes may share them."""
        put(store, "faq", entry("a"))
        vector = store.changes("faq", 0).vectors["a"]
        assert (vector.dtype, vector.flags.writeable) == (np.float32, False)

    def test_another_handle_sees_a_write_at_once(self, store: FaqStore, open_store: OpenStore) -> None:
        """Two replicas of the service share the store; what is acknowledged by one is there for the other."""
        other = open_store()
        follower = Follower(other, "faq")
        for number in range(5):
            revision = put(store, "faq", entry(f"e{number}"))
            assert other.revision("faq") == revision
            follower.catch_up()
            assert list(follower.entries) == ids(store, "faq")
        assert put(other, "faq", entry("e0", "changed")) == store.revision("faq")
        assert store.get("faq", ["e0"])["e0"].question == "changed"

    def test_everything_is_there_after_closing_and_opening(self, open_store: OpenStore) -> None:
        """Entries, vectors, settings, model and numbers."""
        store = open_store()
        store.create("faq")
        put(store, "faq", entry("a", "q", "answer", "alternate"), entry("b"))
        delete(store, "faq", "b")
        info = store.configure("faq", default_answer="none", min_score=0.5)
        store.close()
        store.close()
        with pytest.raises(UnavailableError):
            store.info("faq")
        again = open_store()
        assert again.info("faq") == info
        check_vectors(again.changes("faq", 0))
        assert again.missing_texts("faq", ["b"]) == ["b"]
        assert put(again, "faq", entry("c")) > info.revision

    def test_any_sequence_of_writes_equals_a_plain_dictionary(self, open_store: OpenStore, seed: int) -> None:
        """The store, a follower that looks now and then, and a dictionary agree; unused vectors are gone."""
        rng = random.Random(seed)
        store = open_store()
        store.create("faq")
        plain: dict[str, FaqEntry] = {}
        follower, words, revision, model = Follower(store, "faq"), list("退货退款运费"), 0, "a"
        for step in range(60):
            changed = {
                name: entry(
                    name,
                    "".join(rng.choices(words, k=2)),
                    rng.choice([*words, ""]),
                    *rng.choices(words, k=rng.randint(0, 2)),
                    enabled=rng.random() < 0.8,
                )
                for name in rng.sample("abcdefghij", rng.randint(0, 4))
            }
            deletes = [name for name in rng.sample("abcdefghij", rng.randint(0, 3)) if name not in changed]
            write = Write(
                upserts=tuple(changed.values()),
                deletes=tuple(deletes),
                vectors=vectors_of(changed.values(), model=model),
            )
            after = store.apply("faq", write, fingerprint=f"fingerprint-{model}", model_id="m")
            assert after >= revision
            revision = after
            for name in deletes:
                plain.pop(name, None)
            plain |= changed
            if step % 20 == 19:
                model += "x"
                generation = store.begin_reindex("faq", fingerprint=f"fingerprint-{model}", model_id="m")
                store.add_vectors("faq", generation, vectors_of(plain.values(), model=model))
                revision = store.finish_reindex("faq", generation)
            complete = store.changes("faq", 0)
            assert complete.entries == tuple(plain.values())
            check_vectors(complete, model=model)
            assert store.info("faq").entries == len(plain)
            needed = set(texts_to_embed(plain.values()))
            every = {a + b for a in words for b in words} | {
                a + b + "\n" + c for a in words for b in words for c in words
            }
            every |= set(words)
            assert set(store.missing_texts("faq", sorted(every))) == every - needed
            if rng.random() < 0.3:
                follower.catch_up()
                assert follower.entries == plain
                for text, vector in complete.vectors.items():
                    np.testing.assert_array_equal(follower.vectors[text], vector)

    # Reindexing

    def test_a_reindex_takes_over_in_one_step(self, store: FaqStore) -> None:
        """Until then everything is answered from the old vectors."""
        put(store, "faq", entry("a", "q", "answer"), entry("b"))
        old = store.info("faq")
        generation = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        assert store.info("faq").pending_generation == generation
        vectors = vectors_of(store.changes("faq", 0).entries, model="b")
        assert store.missing_texts("faq", vectors, generation=generation) == list(vectors)
        store.add_vectors("faq", generation, dict(list(vectors.items())[:1]))
        assert store.missing_texts("faq", vectors, generation=generation) == list(vectors)[1:]
        check_vectors(store.changes("faq", 0))
        assert store.info("faq").model_id == "model-a"
        store.add_vectors("faq", generation, vectors)
        revision = store.finish_reindex("faq", generation)
        info = store.info("faq")
        assert (info.revision, info.generation, info.fingerprint, info.model_id, info.pending_generation) == (
            revision,
            generation,
            "fingerprint-b",
            "model-b",
            None,
        )
        changes = store.changes("faq", old.revision)
        assert (changes.complete, changes.generation, changes.fingerprint) == (
            True,
            generation,
            "fingerprint-b",
        )
        check_vectors(changes, model="b")
        with pytest.raises(ModelMismatchError, match="model-b"):
            put(store, "faq", entry("c"))
        put(store, "faq", entry("c"), model="b")

    def test_a_reindex_may_change_the_dimensions(self, store: FaqStore) -> None:
        """Another model, another width."""
        put(store, "faq", entry("a"))
        generation = store.begin_reindex("faq", fingerprint="f", model_id="m")
        store.add_vectors("faq", generation, {"a": np.eye(1, 3, dtype=np.float32)[0]})
        store.finish_reindex("faq", generation)
        assert store.info("faq").dimensions == 3
        assert store.changes("faq", 0).vectors["a"].tolist() == [1, 0, 0]

    def test_a_reindex_does_not_finish_before_entries_written_meanwhile(self, store: FaqStore) -> None:
        """It says which texts it lacks; deleted ones need no vector any more."""
        put(store, "faq", entry("a"), entry("b"))
        generation = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        store.add_vectors("faq", generation, vectors_of([entry("a")], model="b"))
        put(store, "faq", entry("c", "c", "new"))
        delete(store, "faq", "b")
        with pytest.raises(MissingVectorsError) as missing:
            store.finish_reindex("faq", generation)
        assert set(missing.value.texts) == {"c", "c\nnew"}
        check_vectors(store.changes("faq", 0))
        store.add_vectors("faq", generation, vectors_of([entry("c", "c", "new"), entry("b")], model="b"))
        store.finish_reindex("faq", generation)
        check_vectors(store.changes("faq", 0), model="b")
        assert store.missing_texts("faq", ["b"]) == ["b"]

    def test_an_interrupted_reindex_goes_on_where_it_was(
        self, store: FaqStore, open_store: OpenStore
    ) -> None:
        """Hours of embedding are not lost with the process that did it."""
        put(store, "faq", entry("a"), entry("b"))
        generation = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        store.add_vectors("faq", generation, vectors_of([entry("a")], model="b"))
        store.close()
        other = open_store()
        assert other.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b") == generation
        assert other.missing_texts("faq", ["a", "b"], generation=generation) == ["b"]

    def test_a_reindex_of_another_model_takes_the_place_of_one_under_way(self, store: FaqStore) -> None:
        """The one that was given up can neither add nor finish, even after its number is long gone."""
        put(store, "faq", entry("a"))
        first = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        store.add_vectors("faq", first, vectors_of([entry("a")], model="b"))
        second = store.begin_reindex("faq", fingerprint="fingerprint-c", model_id="model-c")
        assert second != first
        for call in (
            lambda: store.add_vectors("faq", first, vectors_of([entry("a")], model="b")),
            lambda: store.finish_reindex("faq", first),
            lambda: store.missing_texts("faq", ["a"], generation=first),
        ):
            with pytest.raises(ConflictError, match="not under way"):
                call()
        store.add_vectors("faq", second, vectors_of([entry("a")], model="c"))
        store.finish_reindex("faq", second)
        check_vectors(store.changes("faq", 0), model="c")

    def test_a_reindex_can_be_given_up(self, store: FaqStore) -> None:
        """Giving up twice, or what is live, does nothing."""
        put(store, "faq", entry("a"))
        generation = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        store.abandon_reindex("faq", generation)
        store.abandon_reindex("faq", generation)
        store.abandon_reindex("faq", store.info("faq").generation)
        assert store.info("faq").pending_generation is None
        check_vectors(store.changes("faq", 0))
        with pytest.raises(ConflictError):
            store.finish_reindex("faq", generation)
        again = store.begin_reindex("faq", fingerprint="fingerprint-c", model_id="model-c")
        assert again != generation

    def test_the_same_model_may_embed_anew(self, store: FaqStore) -> None:
        """The remedy for vectors that are damaged or in doubt."""
        put(store, "faq", entry("a"))
        generation = store.begin_reindex("faq", fingerprint="fingerprint-a", model_id="model-a")
        store.add_vectors("faq", generation, vectors_of([entry("a")]))
        store.finish_reindex("faq", generation)
        check_vectors(store.changes("faq", 0))

    def test_a_collection_without_texts_can_be_reindexed(self, store: FaqStore) -> None:
        """And takes entries afterwards, of that model."""
        store.apply("faq", Write(upserts=(entry("a", enabled=False),)))
        generation = store.begin_reindex("faq", fingerprint="fingerprint-b", model_id="model-b")
        store.finish_reindex("faq", generation)
        put(store, "faq", entry("b"), model="b")
        check_vectors(store.changes("faq", 0), model="b")

    # Concurrency

    def test_threads_share_one_store(self, store: FaqStore) -> None:
        """Writers on ids of their own, readers meanwhile: nothing is lost, nobody sees half a write."""

        def write(worker: int) -> None:
            for round_ in range(8):
                put(store, "faq", *(entry(f"w{worker}-{part}", f"round {round_}") for part in range(3)))

        def read() -> int:
            seen = 0
            while seen < self.ROUNDS:
                seen += 1
                rounds: dict[str, set[str]] = {}
                for found in store.changes("faq", 0).entries:
                    rounds.setdefault(found.id.split("-")[0], set()).add(found.question)
                assert all(len(questions) == 1 for questions in rounds.values())
            return seen

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(write, worker) for worker in range(4)] + [pool.submit(read) for _ in range(2)]
            for job in jobs:
                job.result(timeout=60)
        assert store.count("faq") == 12
        assert {found.question for found in store.changes("faq", 0).entries} == {"round 7"}
        check_vectors(store.changes("faq", 0))

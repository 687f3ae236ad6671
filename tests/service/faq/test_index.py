"""The index against a slow, plain search and against fresh builds; the edges of top_k; texts as typed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.filters import Filter, parse_filter
from service.faq.index import FaqIndex, Hit, Mode, WordStatistics
from service.faq.lexical import lexical_terms
from tests.service.faq.hashed_vectors import hashed_vectors
from tests.service.faq.plain_search import assert_hits_are, plain_search

UNRELATED = 0.2
MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")


def vectors_of(entries: list[FaqEntry]) -> dict[str, np.ndarray]:
    """Embed what an index of ``entries`` needs."""
    texts = texts_to_embed(entries)
    return dict(zip(texts, hashed_vectors(texts), strict=True))


def build(entries: list[FaqEntry]) -> FaqIndex:
    """Index ``entries`` with hashed vectors."""
    return FaqIndex.empty().with_changes(entries, vectors=vectors_of(entries))


def change(index: FaqIndex, entries: list[FaqEntry], *deleted: str) -> FaqIndex:
    """Write and delete."""
    return index.with_changes(entries, deleted, vectors_of(entries))


def search(
    index: FaqIndex, *queries: str, top_k: int = 5, mode: Mode = "hybrid", where: Filter | None = None
) -> list[list[Hit]]:
    """Search with hashed vectors."""
    vectors = hashed_vectors(queries)
    return index.search(queries, vectors, unrelated=UNRELATED, top_k=top_k, mode=mode, filter=where)


def entry(name: str, question: str, answer: str = "", *alternates: str, enabled: bool = True) -> FaqEntry:
    """Shorten what every test writes."""
    return FaqEntry(id=name, question=question, answer=answer, alternates=alternates, enabled=enabled)


SHOP = [
    entry("tax", "怎样填写税号", "在发票页面填写。"),
    entry("err", "出现 E1024 是什么意思", "登录已过期。"),
    entry("pw", "How do I reset my password?", "Use the link on the sign-in page.", "forgot login"),
    entry("5g", "5G套餐怎么办理", "在营业厅办理。"),
    entry("ship", "什么时候发货", "当天发货。", "几天能到"),
    entry("refund", "退款多久到账", "三天。"),
    entry("addr", "怎么改地址", "在订单里改。"),
    entry("hours", "What are your opening hours?", "9 to 5."),
]

PHRASES = st.text(alphabet="abc 退货税", min_size=1, max_size=8).map(str.strip).filter(bool)


@st.composite
def entries_of(draw: st.DrawFn, name: str) -> FaqEntry:
    """An entry, perhaps with alternates, tags, without an answer, or disabled."""
    return FaqEntry(
        id=name,
        question=draw(PHRASES),
        answer=draw(st.just("") | PHRASES),
        alternates=tuple(draw(st.lists(PHRASES, max_size=2))),
        tags=tuple(draw(st.sets(st.sampled_from("xy"), max_size=2))),
        enabled=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def banks(draw: st.DrawFn, size: int = 6) -> list[FaqEntry]:
    """Up to ``size`` entries."""
    names = draw(st.lists(st.sampled_from("hgfedcba"), max_size=size, unique=True))
    return [draw(entries_of(name)) for name in names]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[FaqEntry], list[str]]]:
    """Writes and deletions, one after the other, of few ids so that they meet."""
    return draw(
        st.lists(
            st.tuples(banks(4), st.lists(st.sampled_from("abcdefgh"), max_size=3)), min_size=1, max_size=6
        )
    )


WHERE = st.sampled_from(
    [
        None,
        parse_filter({"field": "tags", "equals": "x"}),
        parse_filter({"not": {"field": "id", "in": ["a", "b", "c"]}}),
    ]
)


@settings(deadline=None)
@given(banks(), PHRASES, st.integers(1, 8), st.sampled_from(MODES))
def test_hits_equal_a_plain_search(entries: list[FaqEntry], query: str, top_k: int, mode: Mode) -> None:
    """Scores, ranks and order follow from the definitions, in every mode."""
    [hits] = search(build(entries), query, top_k=top_k, mode=mode)
    assert_hits_are(hits, plain_search(entries, query, UNRELATED, mode), top_k, mode)
    for hit in hits:
        assert hit.matched_phrasing in hit.entry.phrasings
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@settings(deadline=None)
@given(histories(), PHRASES, st.sampled_from(MODES), WHERE, st.data())
def test_after_any_changes_the_answers_are_those_of_a_fresh_build(
    history: list[tuple[list[FaqEntry], list[str]]],
    query: str,
    mode: Mode,
    where: Filter | None,
    data: st.DataObject,
) -> None:
    """Hits are equal to the last bit, whatever was merged, replaced, deleted and written again meanwhile."""
    index, alive, earlier = FaqIndex.empty(), dict[str, FaqEntry](), []
    with pytest.MonkeyPatch.context() as patch:
        # Small enough that a handful of entries takes all the ways that thousands would.
        patch.setattr("service.faq.index._SMALL", data.draw(st.integers(0, 3)))
        patch.setattr("service.faq.index._RATIO", data.draw(st.sampled_from([0, 1, 4])))
        patch.setattr("service.faq.index._MOST_DEAD", data.draw(st.sampled_from([0.25, 1.0])))
        patch.setattr("service.faq.segments._QUANTISED_FROM", data.draw(st.sampled_from([1, 1_000])))
        for entries, deleted in history:
            earlier.append((index, search(index, query, top_k=10, mode=mode, where=where)))
            index = change(index, entries, *deleted)
            for name in deleted:
                alive.pop(name, None)
            alive.update({one.id: one for one in entries})
    expected = [one for one in alive.values() if one.enabled]
    assert {one.id: one for one in index.entries} == {one.id: one for one in expected}
    assert len(index) == len(expected)
    fresh = build(data.draw(st.permutations(expected)))
    top_k = data.draw(st.integers(1, 10))
    assert search(index, query, top_k=top_k, mode=mode, where=where) == search(
        fresh, query, top_k=top_k, mode=mode, where=where
    )
    for old, hits in earlier:
        # Whoever searches an older index meanwhile sees nothing of the changes.
        assert search(old, query, top_k=10, mode=mode, where=where) == hits


@pytest.fixture(scope="module")
def crowd() -> list[FaqEntry]:
    """Entries much alike: many are as near to a query as eight bits can tell."""
    words = ["退货", "税", "abc", "cab", "a b", "货税"]
    return [
        entry(str(number), f"{words[number % 6]} {number % 97}", words[number % 5], *words[: number % 3])
        for number in range(1_500)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", [1, 2, 50])
def test_eight_bits_change_nothing(
    crowd: list[FaqEntry], mode: Mode, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hits, scores to the last bit, ranks and order are those of a search that looks at all in full."""
    names = [str(number) for number in range(0, len(crowd), part)]
    where = None if part == 1 else parse_filter({"field": "id", "in": names})
    queries = ["退货 12", "abc", "税", "b 货", "no such thing"]

    def written(entries: list[FaqEntry]) -> FaqIndex:
        # What is dead is no hit, and takes nobody's place.
        return change(build(entries), crowd[:50], *[one.id for one in crowd[100:300]])

    expected = search(written(crowd), *queries, top_k=12, mode=mode, where=where)
    monkeypatch.setattr("service.faq.segments._QUANTISED_FROM", 1)
    for few in (0.0, 1.0):
        monkeypatch.setattr("service.faq.index._FEW", few)
        assert search(written(crowd[::-1]), *queries, top_k=12, mode=mode, where=where) == expected
    assert all(len(hits) == 12 for hits in expected) or mode == "lexical"


@settings(deadline=None)
@given(banks(8), PHRASES, st.sampled_from(MODES), WHERE)
def test_a_filter_leaves_out_and_changes_nothing_else(
    entries: list[FaqEntry], query: str, mode: Mode, where: Filter | None
) -> None:
    """The hits that pass keep their scores and their order; only ranks count the entries searched."""
    index = build(entries)
    [every] = search(index, query, top_k=10, mode=mode)
    [some] = search(index, query, top_k=10, mode=mode, where=where)
    left = [hit for hit in every if where is None or where.matches(hit.entry)]
    ranked = [replace(hit, dense_rank=0, lexical_rank=None) for hit in some]
    assert ranked == [replace(hit, dense_rank=0, lexical_rank=None) for hit in left]
    if some and mode == "dense":
        assert some[0].dense_rank == 1


@settings(deadline=None)
@given(banks(), st.lists(PHRASES, min_size=1, max_size=4))
def test_a_batch_of_queries_finds_what_each_finds_alone(entries: list[FaqEntry], queries: list[str]) -> None:
    """To the last bit, though a matrix product rounds otherwise than a vector's."""
    index = build(entries)
    for query, hits in zip(queries, search(index, *queries, top_k=10), strict=True):
        assert [hits] == search(index, query, top_k=10)


@pytest.mark.parametrize("mode", MODES)
def test_a_replaced_or_deleted_wording_is_never_found_again(mode: Mode) -> None:
    """From the change on, neither by meaning nor by words; once written again, it is found once."""
    zebra = entry("a", "Can I keep a pet zebra?", "No zebra.", "zebra at home")
    sunday = entry("a", "Do you deliver on Sundays?", "Yes, until noon.")
    index = build([*SHOP, zebra])
    index = change(index, [sunday])
    [hits] = search(index, "zebra", "zebra at home", top_k=20, mode=mode)[:1]
    assert all("zebra" not in hit.matched_phrasing + hit.question + hit.answer for hit in hits)
    assert [hit.id for hit in search(index, "deliver Sundays", top_k=20, mode=mode)[0]].count("a") == 1
    index = change(index, [], "a")
    assert all(hit.id != "a" for hit in search(index, "deliver Sundays", top_k=20, mode=mode)[0])
    index = change(index, [sunday], "a")
    assert search(index, "deliver Sundays", mode=mode)[0][0].id == "a"
    assert len(index) == len(SHOP) + 1


def test_segments_stay_few() -> None:
    """A search visits every one of them."""
    index = FaqIndex.empty()
    for number in range(600):
        index = change(index, [entry(str(number), f"question {number % 7}")])
        assert len(index.parts) <= 3
    assert len(index) == 600
    index = change(index, [], *[str(number) for number in range(0, 600, 2)])
    assert len(index) == 300
    assert sum(len(part.segment) for part in index.parts) <= 400
    index = change(index, [], *[str(number) for number in range(600)])
    assert (len(index), len(index.parts)) == (0, 0)


@pytest.mark.parametrize("top_k", [1, 2, 3, 50, 10**30])
@pytest.mark.parametrize("mode", ["hybrid", "dense"])
def test_top_k_past_the_bank_gives_each_entry_once(top_k: int, mode: Mode) -> None:
    """Asking for more hits than there are entries is no error."""
    [hits] = search(build(SHOP[:3]), "password", top_k=top_k, mode=mode)
    assert len(hits) == min(top_k, 3)
    assert len({hit.id for hit in hits}) == len(hits)


@pytest.mark.parametrize("mode", MODES)
def test_more_hits_begin_with_the_fewer(mode: Mode) -> None:
    """A longer list never reshuffles its beginning."""
    index = build(SHOP)
    [all_hits] = search(index, "怎么退款", top_k=8, mode=mode)
    for top_k in range(1, 9):
        assert search(index, "怎么退款", top_k=top_k, mode=mode) == [all_hits[:top_k]]


def test_equal_entries_come_in_the_order_of_their_ids() -> None:
    """An order that every replica and store agrees on, however the entries came in."""
    same = [entry(name, "退款", "三天") for name in ("b", "c", "a")]
    for mode in MODES:
        [hits] = search(build(same), "退款", top_k=2, mode=mode)
        assert [hit.id for hit in hits] == ["a", "b"]
        assert [(hit.dense_rank, hit.lexical_rank) for hit in hits] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("query", "first"),
    [("税", "tax"), ("Ｅ１０２４", "err"), ("e1024", "err"), ("PASSWORD", "pw"), ("５Ｇ套餐", "5g")],
)
def test_one_character_and_full_width_queries_match_words(query: str, first: str) -> None:
    """Pairs alone cannot match one character, and a Chinese keyboard types full-width letters and digits."""
    assert search(build(SHOP), query, mode="lexical")[0][0].id == first


def test_lexical_mode_finds_only_what_shares_a_word() -> None:
    """An entry without a word of the query is no match, however near its vector."""
    index = build(SHOP)
    assert {hit.id for hit in search(index, "E1024 password", mode="lexical")[0]} == {"err", "pw"}
    assert search(index, "qqq", "?!", mode="lexical") == [[], []]


@pytest.mark.parametrize("text", [question for each in SHOP for question in each.phrasings])
def test_a_text_with_itself_never_scores_above_one(text: str) -> None:
    """float32 rounding makes such a cosine 1.0000001; clients filter on 0..1."""
    twice = build([entry("same", text), entry("other", "zzz")])
    for mode in ("hybrid", "dense"):
        hit = search(twice, text, mode=mode)[0][0]
        assert hit.id == "same"
        assert 0.999 < hit.score <= 1.0
        assert 0.999 < hit.dense <= 1.0


def test_a_hit_says_why_it_was_found() -> None:
    """The phrasing nearest to the query, and the words shared with it."""
    [hits] = search(build(SHOP), "forgot login: password")
    assert hits[0].id == "pw"
    assert search(build(SHOP), "forgot login")[0][0].matched_phrasing == "forgot login"
    spans = hits[0].question_highlights
    assert [hits[0].question[start:end] for start, end in spans] == ["password"]
    assert hits[0].answer_highlights == ()
    assert hits[0].lexical_rank == 1


def test_disabled_entries_are_never_found() -> None:
    """They are kept for later, not for answering; an enabled entry that becomes disabled goes."""
    index = build([entry("on", "退款"), entry("off", "退款", enabled=False)])
    assert len(index) == 1
    assert [hit.id for hit in search(index, "退款")[0]] == ["on"]
    assert search(change(index, [entry("on", "退款", enabled=False)]), "退款") == [[]]


def test_an_empty_index_answers_with_no_hits() -> None:
    """A new collection is searched before it is filled, and one may be emptied."""
    for mode in MODES:
        assert search(FaqIndex.empty(), "a", "b", mode=mode) == [[], []]
        assert search(change(build(SHOP[:1]), [], "tax"), "税", mode=mode) == [[]]
        nothing = parse_filter({"field": "id", "equals": "none"})
        assert search(build(SHOP), "税", mode=mode, where=nothing) == [[]]
        assert search(FaqIndex.empty(), "a", mode=mode, where=nothing) == [[]]


def test_blocks_of_queries_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block bounds memory only."""
    index = build(SHOP)
    queries = [text for each in SHOP for text in each.phrasings]
    whole = search(index, *queries)
    monkeypatch.setattr("service.faq.index._BLOCK", 1)
    assert search(index, *queries) == whole


def test_bad_building_material_is_refused() -> None:
    """Each would otherwise answer wrongly, for good; the index itself stays as it was."""
    vectors = vectors_of(SHOP)
    index = build(SHOP)
    with pytest.raises(ValueError, match="same id"):
        index.with_changes([SHOP[0], SHOP[0]], (), vectors)
    with pytest.raises(ValueError, match="no vector"):
        index.with_changes(SHOP, (), dict(list(vectors.items())[1:]))
    with pytest.raises(ValueError, match="no vector"):
        index.with_changes(SHOP)
    with pytest.raises(ValueError, match="not finite"):
        index.with_changes(SHOP, (), vectors | {SHOP[3].question: np.full(24, np.nan, dtype=np.float32)})
    with pytest.raises(ValueError, match="8 numbers in an index of 24"):
        index.with_changes(SHOP, (), {text: vector[:8] for text, vector in vectors.items()})
    with pytest.raises(ValueError, match="24 numbers in an index of 8"):
        FaqIndex.empty(8).with_changes(SHOP, (), vectors)
    assert len(index) == len(SHOP)


@given(banks(8), PHRASES, st.data())
@settings(max_examples=60, deadline=None)
def test_a_part_with_the_statistics_of_all_scores_as_all_does(
    bank: list[FaqEntry], query: str, data: st.DataObject
) -> None:
    """So that candidates which a database found can be put in order without the rest of the collection."""
    enabled = [each for each in bank if each.enabled]
    terms = {each.id: lexical_terms("\n".join((*each.phrasings, each.answer))) for each in enabled}
    statistics = WordStatistics(
        entries=len(enabled),
        mean_length=sum(map(len, terms.values())) / len(enabled) if enabled else 0.0,
        holding={term: sum(term in held for held in terms.values()) for term in lexical_terms(query)},
    )
    chosen = data.draw(st.lists(st.sampled_from(bank), unique_by=lambda each: each.id)) if bank else []
    part = change(FaqIndex.empty(statistics=statistics), chosen)
    for mode in MODES:
        whole = {hit.id: hit for hit in search(build(bank), query, mode=mode, top_k=8)[0]}
        for hit in search(part, query, mode=mode, top_k=8)[0]:
            other = whole[hit.id]
            assert replace(hit, dense_rank=other.dense_rank, lexical_rank=other.lexical_rank) == other

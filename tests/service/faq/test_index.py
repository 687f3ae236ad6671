"""The index against a slow, plain search; the edges of top_k; texts as keyboards type them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.entries import FaqEntry
from service.faq.index import FaqIndex, Hit, texts_to_embed
from service.faq.lexical import lexical_terms
from service.faq.ranking import LEXICAL_WEIGHT
from tests.service.faq.hashed_vectors import hashed_vectors
from tests.service.faq.test_lexical import plain_bm25

UNRELATED = 0.2


def build(entries: list[FaqEntry]) -> FaqIndex:
    """Index ``entries`` with hashed vectors."""
    texts = texts_to_embed(entries)
    return FaqIndex(entries, texts, hashed_vectors(texts))


def search(index: FaqIndex, *queries: str, top_k: int = 5) -> list[list[Hit]]:
    """Search with hashed vectors."""
    return index.search(queries, hashed_vectors(queries), unrelated=UNRELATED, top_k=top_k)


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
def banks(draw: st.DrawFn) -> list[FaqEntry]:
    """Up to six entries, some with alternates, without an answer, or disabled."""
    return [
        entry(str(number), draw(PHRASES), draw(st.just("") | PHRASES), *draw(st.lists(PHRASES, max_size=2)),
              enabled=draw(st.sampled_from([True, True, True, False])))
        for number in range(draw(st.integers(0, 6)))
    ]  # fmt: skip


def plain_scores(entries: list[FaqEntry], query: str) -> dict[str, tuple[float, float, float]]:
    """Mix, dense and lexical score of every enabled entry, from the definitions and one vector at a time."""

    def cosine(left: str, right: str) -> float:
        one, other = hashed_vectors([left, right]).astype(np.float64)
        return float(one @ other)

    enabled = [candidate for candidate in entries if candidate.enabled]
    dense = []
    for candidate in enabled:
        whole = f"{candidate.question}\n{candidate.answer}" if candidate.answer else candidate.question
        dense.append((max(cosine(query, text) for text in candidate.phrasings) + cosine(query, whole)) / 2)
    documents = [lexical_terms(" \n".join((*each.phrasings, each.answer))) for each in enabled]
    lexical = (
        plain_bm25(documents, lexical_terms(query)) if sum(map(len, documents)) else [0.0] * len(enabled)
    )
    low, high, most = min(dense, default=0), max(dense, default=0), max(lexical, default=0)
    result = {}
    for candidate, close, words in zip(enabled, dense, lexical, strict=True):
        # Below float32's resolution a spread is rounding, and what it ranks is noise.
        scaled = (close - low) / (high - low) if high > low else 0.0
        key = (1 - LEXICAL_WEIGHT) * scaled + LEXICAL_WEIGHT * (words / most) if most else scaled
        result[candidate.id] = (low + (high - low) * key, close, words)
    return result


@given(banks(), PHRASES)
def test_hits_equal_a_plain_search(entries: list[FaqEntry], query: str) -> None:
    """One matrix of half sums gives the two cosines of the definition; both signals and the score follow.

    1e-5: the index works in float32. Places are compared through the scores, as ties may fall either way.
    """
    expected = plain_scores(entries, query)
    [hits] = search(build(entries), query, top_k=10)
    assert {hit.id for hit in hits} == set(expected)
    for hit in hits:
        blended, dense, lexical = expected[hit.id]
        assert hit.dense == pytest.approx(dense, abs=1e-5)
        assert hit.lexical == pytest.approx(lexical, abs=1e-5)
        assert hit.score == pytest.approx(min(1, max(0, (blended - UNRELATED) / (1 - UNRELATED))), abs=1e-5)
        assert hit.matched_question in hit.entry.phrasings
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


@given(banks(), st.lists(PHRASES, min_size=1, max_size=4))
def test_a_batch_of_queries_finds_what_each_finds_alone(entries: list[FaqEntry], queries: list[str]) -> None:
    """Queries must not see each other; 1e-5 as a matrix product rounds otherwise than a vector's."""
    index = build(entries)
    for query, hits in zip(queries, search(index, *queries, top_k=10), strict=True):
        [alone] = search(index, query, top_k=10)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(
            {hit.id: hit.score for hit in alone}, abs=1e-5
        )


@pytest.mark.parametrize("top_k", [1, 2, 3, 50, 10**30])
def test_top_k_past_the_bank_gives_each_entry_once(top_k: int) -> None:
    """Asking for more hits than there are entries is no error."""
    [hits] = search(build(SHOP[:3]), "password", top_k=top_k)
    assert len(hits) == min(top_k, 3)
    assert len({hit.id for hit in hits}) == len(hits)


def test_more_hits_begin_with_the_fewer() -> None:
    """A longer list never reshuffles its beginning."""
    index = build(SHOP)
    [all_hits] = search(index, "怎么退款", top_k=8)
    for top_k in range(1, 9):
        assert search(index, "怎么退款", top_k=top_k) == [all_hits[:top_k]]


@pytest.mark.parametrize(
    ("query", "first"),
    [("税", "tax"), ("Ｅ１０２４", "err"), ("e1024", "err"), ("PASSWORD", "pw"), ("５Ｇ套餐", "5g")],
)
def test_one_character_and_full_width_queries_match_words(query: str, first: str) -> None:
    """Pairs alone cannot match one character, and a Chinese keyboard types full-width letters and digits."""
    index = build(SHOP)
    assert index.entries[int(index.lexical_scores(query).argmax())].id == first


@pytest.mark.parametrize("text", [question for each in SHOP for question in each.phrasings])
def test_a_text_with_itself_never_scores_above_one(text: str) -> None:
    """float32 rounding makes such a cosine 1.0000001; clients filter on 0..1."""
    twice = build([entry("same", text), entry("other", "zzz")])
    hit = search(twice, text)[0][0]
    assert hit.id == "same"
    assert 0.999 < hit.score <= 1.0
    assert 0.999 < hit.dense <= 1.0


def test_the_matched_question_is_the_closest_phrasing() -> None:
    """So that a client can show why an entry was found."""
    [hits] = search(build(SHOP), "forgot login")
    assert (hits[0].id, hits[0].matched_question) == ("pw", "forgot login")


def test_disabled_entries_are_never_found() -> None:
    """They are kept for later, not for answering."""
    index = build([entry("on", "退款"), entry("off", "退款", enabled=False)])
    assert len(index) == 1
    assert [hit.id for hit in search(index, "退款")[0]] == ["on"]


def test_an_empty_index_answers_with_no_hits() -> None:
    """A new collection is searched before it is filled."""
    assert search(build([]), "a", "b") == [[], []]


def test_blocks_of_queries_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block bounds memory only."""
    index = build(SHOP)
    queries = [text for each in SHOP for text in each.phrasings]
    whole = search(index, *queries)
    monkeypatch.setattr("service.faq.index._BLOCK", 1)
    for before, after in zip(whole, search(index, *queries), strict=True):
        assert [hit.id for hit in before] == [hit.id for hit in after]


def test_bad_building_material_is_refused() -> None:
    """Each would otherwise answer wrongly, for good."""
    texts = texts_to_embed(SHOP)
    vectors = hashed_vectors(texts)
    with pytest.raises(ValueError, match="same id"):
        FaqIndex([*SHOP, SHOP[0]], texts, vectors)
    with pytest.raises(ValueError, match="no vector"):
        FaqIndex(SHOP, texts[1:], vectors[1:])
    with pytest.raises(ValueError, match="vectors"):
        FaqIndex(SHOP, texts, vectors[1:])
    with pytest.raises(ValueError, match="not finite"):
        FaqIndex(
            SHOP, texts, np.where(np.arange(len(texts))[:, None] == 2, np.nan, vectors).astype(np.float32)
        )

"""What was not looked at never belongs among hits that are called proven."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.faq.certificates import NO_PLAN, NearestList, WordPlan, most_dense, plan_words, proven
from service.faq.embedded_texts import question_and_answer, texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.index import FaqIndex, Hit, Mode, WordStatistics
from service.faq.lexical import idf, lexical_terms
from tests.service.faq.hashed_vectors import hashed_vectors

UNRELATED = 0.2
MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")
PHRASES = st.text(alphabet="abc 退货税", min_size=1, max_size=8).map(str.strip).filter(bool)


@st.composite
def banks(draw: st.DrawFn) -> list[FaqEntry]:
    """One to twelve entries, some without an answer, some with alternates."""
    return [
        FaqEntry(
            id=str(number),
            question=draw(PHRASES),
            answer=draw(st.just("") | PHRASES),
            alternates=tuple(draw(st.lists(PHRASES, max_size=2))),
        )
        for number in range(draw(st.integers(1, 12)))
    ]


def nearest(rows: list[tuple[float, str]], count: int) -> tuple[set[str], NearestList]:
    """Search rows of cosine and id, as an exact server would."""
    found = sorted(rows, reverse=True)[:count]
    lowest = min((cosine for cosine, _ in found), default=0.0)
    return {identifier for _, identifier in found}, NearestList(lowest, complete=len(found) < count)


@given(banks(), PHRASES, st.integers(1, 8), st.integers(0, 12), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_proven_hits_are_those_of_the_whole(
    bank: list[FaqEntry], query: str, count: int, budget: int, top_k: int
) -> None:
    """Whatever the lists' lengths: the candidates' hits are the best there are, or not called so."""
    texts = texts_to_embed(bank)
    vectors = dict(zip(texts, hashed_vectors(texts), strict=True))
    [vector] = hashed_vectors([query])
    phrasings = [(float(vectors[text] @ vector), each.id) for each in bank for text in each.phrasings]
    # As in Milvus: without an answer the question stands for the whole, and has one row.
    wholes = [(float(vectors[question_and_answer(each)] @ vector), each.id) for each in bank if each.answer]
    near, phrasing_list = nearest(phrasings, count)
    near_whole, whole_list = nearest(wholes, count)
    held = {
        each.id: set(lexical_terms("\n".join(each.phrasings)) + lexical_terms(each.answer)) for each in bank
    }
    lengths = [
        len(lexical_terms("\n".join(each.phrasings))) + len(lexical_terms(each.answer)) for each in bank
    ]
    holding = {word: sum(word in words for words in held.values()) for word in set(lexical_terms(query))}
    statistics = WordStatistics(len(bank), sum(lengths) / len(bank), holding)
    plan = plan_words(holding, statistics.entries, statistics.mean_length, budget)
    holders = {each.id for each in bank if held[each.id] & set(plan.chosen)}
    dense_left = most_dense(phrasing_list, whole_list, whole_of_each=len(wholes) == len(bank))

    candidates = [each for each in bank if each.id in near | near_whole | holders]
    part = FaqIndex.empty(statistics=statistics).with_changes(candidates, vectors=vectors)
    whole = FaqIndex.empty().with_changes(bank, vectors=vectors)
    for mode in MODES:
        [hits], [best] = (
            index.search([query], vector[np.newaxis], unrelated=UNRELATED, top_k=top_k, mode=mode)
            for index in (part, whole)
        )
        if proven(hits, top_k, mode, UNRELATED, dense_left=dense_left, words=plan):
            assert [hit.score for hit in hits] == [hit.score for hit in best]
            # Of equals beside the last place any may be shown.
            last = best[-1].score if best else 0.0
            assert [hit.id for hit in hits if hit.score > last] == [
                hit.id for hit in best if hit.score > last
            ]


def test_the_rarest_words_are_chosen_within_the_budget() -> None:
    """And what is left is what the others weigh; a word that nobody holds is no one's share."""
    plan = plan_words({"rare": 2, "often": 50, "never": 0, "some": 7}, 100, 10.0, budget=9)
    assert plan.chosen == ("rare", "some")
    squares = sum(idf(100, count) ** 2 for count in (2, 50, 0, 7))
    assert plan.share_left == pytest.approx(idf(100, 50) ** 2 / squares)
    assert 0 < plan.bm25_left < idf(100, 50)
    assert plan_words({}, 100, 10.0, budget=0) == WordPlan((), 0.0, 0.0)


def test_a_complete_list_leaves_nothing_unless_some_have_no_row_in_it() -> None:
    """Every entry has a phrasing; not every one has an answer."""
    short, full = NearestList(0.3, complete=True), NearestList(0.5, complete=False)
    assert most_dense(short, full, whole_of_each=True) == -math.inf
    assert most_dense(full, short, whole_of_each=True) == -math.inf
    assert most_dense(full, short, whole_of_each=False) == pytest.approx(0.5, abs=1e-4)
    assert most_dense(full, NearestList(0.9, complete=False), whole_of_each=False) == pytest.approx(
        0.7, abs=1e-4
    )


def test_without_knowing_who_holds_the_words_hits_are_proven_by_closeness_alone() -> None:
    """As where a word's holders are too many to be read."""
    assert not proven([], 1, "hybrid", UNRELATED, dense_left=0.5, words=NO_PLAN)
    assert not proven([], 1, "lexical", UNRELATED, dense_left=0.5, words=NO_PLAN)
    assert proven([], 1, "lexical", UNRELATED, dense_left=-math.inf, words=NO_PLAN)


def test_words_that_an_entry_might_have_count_for_it() -> None:
    """A hit that is closer than all that is left, but not by as much as words can lift the rest."""
    entry = FaqEntry(id="a", question="a", answer="")
    hit = Hit(entry, 0.0, 0.6, 0.0, 0.0, 1, None, "a", frozenset())
    for share, enough in ((0.0, True), (1.0, False)):
        words = WordPlan((), share, 1.0)
        assert proven([hit], 1, "hybrid", UNRELATED, dense_left=0.59, words=words) is enough
    assert proven([hit], 1, "dense", UNRELATED, dense_left=0.59, words=NO_PLAN)
    assert not proven([hit], 1, "dense", UNRELATED, dense_left=0.61, words=NO_PLAN)

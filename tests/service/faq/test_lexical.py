"""Terms and BM25, against a plain reading of the formula."""

import math
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.lexical import K1, B, LexicalIndex, lexical_terms

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "税", "税率"]), max_size=12)


def plain_bm25(documents: list[list[str]], query: list[str]) -> list[float]:
    """BM25 as the textbook writes it, one document and one term at a time."""
    mean_length = sum(len(document) for document in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for term in set(query):
            frequency = document.count(term)
            if frequency == 0:
                continue
            holding = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            score += idf * frequency / (frequency + K1 * (1 - B + B * len(document) / mean_length))
        scores.append(score)
    return scores


@given(st.lists(WORDS, min_size=1, max_size=8), WORDS)
def test_scores_equal_the_plain_formula(documents: list[list[str]], query: list[str]) -> None:
    """Postings and arrays are only a faster way to the same numbers."""
    expected = plain_bm25(documents, query)
    np.testing.assert_allclose(LexicalIndex(documents).scores(query), expected, rtol=1e-6, atol=1e-9)


@given(st.lists(WORDS, min_size=1, max_size=8), WORDS, WORDS)
def test_a_further_matching_term_never_lowers_a_score(
    documents: list[list[str]], query: list[str], more: list[str]
) -> None:
    """The idf used is never negative, so even a word that every entry holds does not count against one."""
    index = LexicalIndex(documents)
    assert (index.scores(query + more) >= index.scores(query) - 1e-12).all()


def test_no_documents_and_no_terms_score_nothing() -> None:
    """Both happen: a new collection, and a query of punctuation only."""
    assert LexicalIndex([]).scores(["a"]).shape == (0,)
    assert LexicalIndex([["a"], []]).scores([]).tolist() == [0.0, 0.0]
    assert LexicalIndex([[], []]).scores(["a"]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("税", ["税"]),
        ("退货", ["退", "货", "退货"]),
        ("５Ｇ套餐", ["5g", "套", "餐", "套餐"]),
        ("Ｅ１０２４", ["e1024"]),
        ("PASSWORD reset", ["password", "reset"]),
        ("Straße", ["strasse"]),
        ("cafe\u0301", ["café"]),
        ("ｶﾞ", ["ガ"]),
        ("退 货", ["退", "货"]),
        ("snake_case, 3.5", ["snake", "case", "3", "5"]),
        ("?!… 🙂", []),
        ("", []),
    ],
)
def test_terms(text: str, terms: list[str]) -> None:
    """One Han character is a term of its own; width, case and composition make no difference."""
    assert lexical_terms(text) == terms


@given(st.text())
def test_terms_do_not_depend_on_width_or_composition(text: str) -> None:
    """A Chinese keyboard types full-width forms, a Mac decomposed ones; both must match."""
    assert lexical_terms(unicodedata.normalize("NFD", text)) == lexical_terms(
        unicodedata.normalize("NFC", text)
    )
    assert lexical_terms(unicodedata.normalize("NFKC", text)) == lexical_terms(text)

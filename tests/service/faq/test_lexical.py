"""Terms, highlights and postings, against plain readings of what they should be."""

import unicodedata
from collections import Counter
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.lexical import (
    K1,
    B,
    LexicalDocument,
    Postings,
    fold,
    highlights,
    idf,
    length_norms,
    lexical_terms,
    saturated,
)

# What keyboards, spreadsheets and careless copying bring in, and what changes length when folded.
TRICKY = (
    st.text(
        alphabet=st.sampled_from(
            list("ab E税率退ＡｂﬁßİΣς½①㍿ｶﾞ가각\u1100\u1161\u11a8\u0301\u3099\u0345e\u200b😀,，。")
        )
    )
    | st.text()
)

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "税", "税率"]), max_size=8).map(" ".join)
DOCUMENTS = st.lists(st.builds(LexicalDocument, WORDS | TRICKY, WORDS | TRICKY), max_size=6)


def contents(postings: Postings, terms: set[str]) -> dict[str, list[tuple[int, int, bool]]]:
    """Read everything out again."""
    result = {}
    for term in terms:
        holders = postings.holders(term)
        if holders is not None:
            columns = (holders.documents.tolist(), holders.counts.tolist(), holders.in_question.tolist())
            result[term] = list(zip(*columns, strict=True))
    return result


def plain_contents(documents: list[LexicalDocument]) -> dict[str, list[tuple[int, int, bool]]]:
    """Count term by term and document by document."""
    result: dict[str, list[tuple[int, int, bool]]] = {}
    for number, document in enumerate(documents):
        asked = lexical_terms(document.question)
        for term, count in Counter([*asked, *lexical_terms(document.answer)]).items():
            result.setdefault(term, []).append((number, count, term in asked))
    return result


def all_terms(documents: list[LexicalDocument]) -> set[str]:
    """Every term of ``documents``, and one that none has."""
    texts = [text for each in documents for text in (each.question, each.answer)]
    return {term for text in texts for term in lexical_terms(text)} | {"zz"}


@given(DOCUMENTS)
def test_postings_hold_what_the_documents_hold(documents: list[LexicalDocument]) -> None:
    """Arrays are only a faster way to the same counts."""
    postings = Postings.of(documents)
    assert contents(postings, all_terms(documents)) == plain_contents(documents)
    assert postings.lengths.tolist() == [
        len(lexical_terms(each.question)) + len(lexical_terms(each.answer)) for each in documents
    ]


@given(st.lists(DOCUMENTS, min_size=1, max_size=4), st.data())
def test_merged_postings_are_those_of_the_documents_kept(
    groups: list[list[LexicalDocument]], data: st.DataObject
) -> None:
    """A merge leaves nothing of the dead, and renumbers the rest in order."""
    kept = [
        np.array(data.draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group))), dtype=bool)
        for group in groups
    ]
    merged = Postings.merged([(Postings.of(group), mask) for group, mask in zip(groups, kept, strict=True)])
    left = [
        document
        for group, mask in zip(groups, kept, strict=True)
        for document, keep in zip(group, mask, strict=True)
        if keep
    ]
    every = all_terms([document for group in groups for document in group])
    assert contents(merged, every) == plain_contents(left)
    assert merged.lengths.tolist() == Postings.of(left).lengths.tolist()
    again = Postings.merged([(merged, np.ones(len(left), dtype=bool))])
    assert contents(again, every) == plain_contents(left)


def test_counts_past_sixteen_bits_are_held_at_their_end() -> None:
    """They must not start from 0 again."""
    holders = Postings.of([LexicalDocument("a " * 70_000, "")]).holders("a")
    assert holders is not None
    assert holders.counts.tolist() == [65_535]


@given(st.integers(1, 10**6), st.data())
def test_idf_is_positive_and_falls_with_the_holders(documents: int, data: st.DataObject) -> None:
    """A word that every entry holds does not count against one."""
    holding = data.draw(st.integers(0, documents - 1))
    assert idf(documents, holding) > idf(documents, holding + 1) > 0


def test_saturation_is_the_textbook_one() -> None:
    """The part is tf / (tf + k1 (1 - b + b dl / avgdl)), by hand for one short and one long document."""
    norms = length_norms(np.array([5, 20], dtype=np.int32), 10.0)
    parts = saturated(np.array([1, 3], dtype=np.uint16), norms)
    assert parts.tolist() == pytest.approx([1 / (1 + K1 * (1 - B + B / 2)), 3 / (3 + K1 * (1 - B + B * 2))])
    assert np.isfinite(length_norms(np.zeros(2, dtype=np.int32), 0.0)).all()


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


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("怎样填写税号", "税号在哪", ["税号"]),
        ("请填写ＶＡＴ Number。", "vat number", ["ＶＡＴ", "Number"]),
        ("Straße 5", "STRASSE", ["Straße"]),
        ("un cafe\u0301 noir", "CAFÉ", ["cafe\u0301"]),
        ("ｶﾞス料金", "ガス", ["ｶﾞス"]),
        ("ﬁne 😀 fine", "fine", ["ﬁne", "fine"]),
        ("退货和退款", "退款", ["退", "退款"]),
        ("a cat", "concatenate", []),
        ("", "x", []),
    ],
)
def test_highlights_are_the_words_as_written(text: str, query: str, expected: list[str]) -> None:
    """Offsets are of the caller's text, whatever folding does to its length."""
    spans = highlights(text, frozenset(lexical_terms(query)))
    assert [text[start:end] for start, end in spans] == expected


@given(TRICKY, TRICKY)
def test_highlights_lie_apart_in_order_and_hold_shared_terms(text: str, query: str) -> None:
    """Every span holds a term of the query, and no span at all means that none is shared."""
    wanted = frozenset(lexical_terms(query))
    spans = highlights(text, wanted)
    flat = [border for span in spans for border in span]
    assert flat == sorted(set(flat))
    assert not flat or (flat[0] >= 0 and flat[-1] <= len(text))
    assert bool(spans) == (not wanted.isdisjoint(lexical_terms(text)))
    for start, end in spans:
        assert fold(text[start:end])


def test_a_text_is_highlighted_whole_against_itself() -> None:
    """But for what parts its words."""
    text = "如何开具ＶＡＴ发票, Straße?"
    spans = highlights(text, frozenset(lexical_terms(text)))
    assert [text[start:end] for start, end in spans] == ["如何开具ＶＡＴ发票", "Straße"]


@pytest.mark.parametrize("marks", ["\u030e", "\u0316", "\uff9e", "\u030e\uff9e", "\u030e\u0316"])
def test_marks_on_one_letter_are_few_when_they_are_put_in_order(
    marks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normalising takes time by the square of a run of marks; a query of them stopped the whole process."""
    longest = 0
    normalize = unicodedata.normalize

    def watched(form: Literal["NFKC"], text: str) -> str:
        nonlocal longest
        longest = max(longest, len(text))
        return normalize(form, text)

    monkeypatch.setattr("service.faq.lexical.unicodedata.normalize", watched)
    assert fold("a" + marks * 5000 + "b").endswith("b")
    assert longest <= 32


def test_real_marks_are_kept() -> None:
    """Vietnamese letters carry two, Hebrew words a few; none of them is dropped."""
    assert fold("Việt Nam") == fold(unicodedata.normalize("NFD", "Việt Nam")) == "việt nam"
    assert fold("ﾊﾟ") == "パ"

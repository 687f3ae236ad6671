"""Labelled queries: every line taken or reported, and a demo that is worth measuring on."""

import pytest

from service.faq.entry_files import demo_entries
from service.faq.queries import LabelledQuery, demo_queries, labelled_query, read_queries, unknown_ids


def test_one_several_and_no_right_entry() -> None:
    """The three ways to say that nothing answers a query are the same."""
    data = (
        b'\xef\xbb\xbf{"query": "a", "faq_id": "1"}\r\n\n{"query": " b ", "faq_id": [1, "2", "2"]}\n'
        b'{"query": "c", "faq_id": null}\n{"query": "d", "faq_id": ""}\n{"query": "e", "faq_id": []}'
    )
    result = read_queries(data)
    assert result.bad_lines == []
    assert result.queries == [
        LabelledQuery("a", ("1",)),
        LabelledQuery("b", ("1", "2")),
        LabelledQuery("c"),
        LabelledQuery("d"),
        LabelledQuery("e"),
    ]
    assert [query.answerable for query in result.queries] == [True, True, False, False, False]


def test_every_bad_line_is_reported_with_its_number() -> None:
    """A query without a label may be a slip, and would count as unanswerable."""
    lines = [
        b'{"query": "a"}',
        b'{"query": "", "faq_id": "1"}',
        b'{"query": 7, "faq_id": "1"}',
        b'{"query": "a", "faq_id": {"id": 1}}',
        b'{"query": "a", "faq_id": [true]}',
        b'{"query": "a", "faq_id": "1", "weight": 2}',
        b'["a", "1"]',
        b"{",
        b'{"query": "' + b"a" * 2001 + b'", "faq_id": null}',
    ]
    result = read_queries(b"\n".join(lines))
    assert result.queries == []
    assert [bad.number for bad in result.bad_lines] == list(range(1, 10))
    assert "faq_id: missing" in result.bad_lines[0].reason


def test_labels_that_name_no_entry_are_found() -> None:
    """The queries of one collection, run against another, look like a bad search."""
    assert unknown_ids([LabelledQuery("a", ("1", "2")), LabelledQuery("b")], {"2", "3"}) == ["1"]


def test_the_demo_has_queries_of_both_kinds_and_languages_that_are_no_phrasing() -> None:
    """A query that is an entry's own wording would measure nothing."""
    queries = demo_queries()
    entries = demo_entries()
    chinese = [query for query in queries if not query.query.isascii()]
    assert len(queries) >= 200
    for some in (chinese, [query for query in queries if query.query.isascii()]):
        assert len(some) >= 100
        assert 0.4 <= sum(query.answerable for query in some) / len(some) <= 0.6
    assert unknown_ids(queries, [entry.id for entry in entries]) == []
    asked = {query.query.casefold().rstrip("?？!！。.") for query in queries}
    assert len(asked) == len(queries)
    wordings = {text.casefold().rstrip("?？!！。.") for entry in entries for text in entry.phrasings}
    assert asked.isdisjoint(wordings)
    answered = {faq_id for query in queries for faq_id in query.faq_ids}
    assert answered == {entry.id for entry in entries}


def test_half_a_character_is_no_id() -> None:
    """It would break the look-up of the entry, far from the line at fault."""
    with pytest.raises(ValueError, match="surrogate"):
        labelled_query({"query": "a", "faq_id": ["1", "\ud83d"]})

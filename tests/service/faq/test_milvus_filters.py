"""Filters printed for Milvus, held against `matches` on a server: nothing that matches may be left out."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.faq.entries import FaqEntry
from service.faq.filters import MAX_DEPTH, MAX_VALUES, Filter, parse_filter
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_filters import _print, milvus_expression
from service.faq.milvus_schema import create_entries, entry_rows, entry_terms
from tests.service.faq.milvus_servers import MilvusProcess

# What takes a text out of its quotation marks, or makes it mean something else, on one server or another.
NASTY = [
    *(
        '"',
        "'",
        "\\",
        '\\"',
        "\\\\",
        '" or true or "',
        "' or 1 == 1 or '",
        "a\"] or metadata['b",
        "{x}",
        "%",
        "_",
    ),
    *(
        "tab\tline\nreturn\rend",
        "\u2028",
        "\x85",
        "\x7f",
        "\\u0041",
        "\\x41",
        "\\n",
        "退货",
        "😀",
        "é",
        "e\u0301",
        "",
        " ",
    ),
]
TEXTS = ["a", "b", "aa", "zh", "en", "1", "true", "null", *NASTY]
NUMBERS: list[int | float] = [
    *(0, -0.0, 1, 1.0, -1, 2, 2.5, 10, 0.1, 1e-7, -1e-7, 5e-324, 1e22, 1.7e308, -1.7e308),
    *(2**53 - 1, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), -(2**53) - 1, 123456789.125),
]
KEYS = ["k", "k.v", "a b", "k-1", "键", "0", "k:1", "_", *(text for text in NASTY if text.strip())]
SIZE = 150
NAME = "filters"

Ask = Callable[[str], set[str]]


def bank() -> list[FaqEntry]:
    """Entries with every kind of value; the same each time."""
    chance = random.Random(5)
    stored = [text.strip() for text in TEXTS if text.strip()]
    entries = []
    for number in range(SIZE):
        values = [*NUMBERS, *stored, True, False, ""]
        entries.append(
            FaqEntry(
                id=stored[number] if number < len(stored) else f"id {number}",
                question="q",
                answer="",
                language=chance.choice([None, "zh", "en", "en-GB"]),
                tags=tuple(chance.sample(stored, chance.choice([0, 0, 1, 2, 5]))),
                metadata={
                    key.strip(): chance.choice(values) for key in chance.sample(KEYS, chance.randrange(8))
                }
                | ({"k": chance.choice(values)} if chance.random() < 0.8 else {}),
                enabled=True,  # no other is searched
            )
        )
    return list({entry.id: entry for entry in entries}.values())


BANK = bank()


@pytest.fixture(scope="module", params=["milvus_lite", "milvus"])
def ask(request: pytest.FixtureRequest) -> Iterator[Ask]:
    """Gives the ids of the entries of the bank that an expression selects, by each of the servers."""
    server: MilvusProcess = request.getfixturevalue(request.param)
    milvus = MilvusConnection(server.uri)
    milvus.make(lambda client: create_entries(client, NAME, bm25=False), NAME)
    milvus.insert(
        NAME,
        [
            row
            for number, entry in enumerate(BANK)
            for row in entry_rows(
                entry, "{}", entry_terms(entry), incarnation=1, version=1, sequence=number, bm25=False
            )
        ],
    )
    at = milvus.now()  # nothing is written any more, so that no answer need wait for the next tick
    yield lambda expression: {row["entry_id"] for row in milvus.query(NAME, expression, ["entry_id"], at=at)}
    milvus.drop(NAME)
    milvus.close()


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    """A condition with one to three tests, on values that entries have and on others."""
    field = draw(st.sampled_from(["id", "language", "tags", "enabled", "metadata.k"]))
    if field == "metadata.k":
        field = "metadata." + draw(st.just("k") | st.sampled_from(KEYS))
        value: st.SearchStrategy[Any] = st.sampled_from([*NUMBERS, *TEXTS]) | st.integers(-(2**63), 2**63 - 1)
        value |= st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
        bound = value
        value |= st.booleans()
    elif field == "enabled":
        value = bound = st.booleans()
    else:
        value = bound = st.sampled_from([*TEXTS, *(entry.id for entry in BANK), "en-GB"]) | st.text(
            max_size=3
        )
    tests: dict[str, Any] = {}
    names = ["equals", "in", "exists"] + ([] if field == "enabled" else ["gt", "gte", "lt", "lte"])
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        if name == "in":
            tests[name] = draw(st.lists(value, min_size=1, max_size=3))
        elif name == "exists":
            tests[name] = True if tests else draw(st.booleans())
        else:
            tests[name] = draw(value if name == "equals" else bound)
    return {"field": field} | ({"exists": False} if tests.get("exists") is False else tests)


def combined(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """All ways to combine filters."""
    parts = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        parts.map(lambda each: {"and": each}),
        parts.map(lambda each: {"or": each}),
        inner.map(lambda each: {"not": each}),
    )


def depth(tree: dict[str, Any]) -> int:
    """How deep a filter nests."""
    parts = tree.get("and") or tree.get("or") or ([tree["not"]] if "not" in tree else [])
    return 1 + max(map(depth, parts), default=0)


FILTERS = st.recursive(conditions(), combined, max_leaves=5).filter(lambda tree: depth(tree) <= MAX_DEPTH)


def check(filter_: Filter, ask: Ask) -> None:
    """Hold one filter's expression against the law."""
    meant = {entry.id for entry in BANK if filter_.matches(entry)}
    expression = milvus_expression(filter_)
    if expression is None:
        return
    found = ask(expression)
    assert meant <= found, expression
    if _print(filter_).exact:
        assert meant == found, expression


@given(FILTERS)
@settings(max_examples=100, deadline=None)
def test_what_matches_passes_the_expression(ask: Ask, tree: dict[str, Any]) -> None:
    """And if an expression is said to be exact, nothing else passes: else its opposite would leave out."""
    check(parse_filter(tree), ask)


@pytest.mark.parametrize("text", [text for text in NASTY if text])
def test_a_text_cannot_leave_its_quotation_marks(ask: Ask, text: str) -> None:
    """As an id or a tag it finds just what has it; as a key or a value of metadata nothing goes wrong."""
    for field in ("id", "language", "tags"):
        filter_ = parse_filter({"field": field, "equals": text})
        assert ask(milvus_expression(filter_) or "") == {each.id for each in BANK if filter_.matches(each)}
    for tree in (
        {"field": "metadata.k", "equals": text},
        {"field": f"metadata.{text}", "exists": True},
        {"field": f"metadata.{text}", "in": [text, 1, True]},
        {"not": {"field": f"metadata.{text}", "equals": text}},
    ):
        check(parse_filter(tree), ask)


def test_every_condition_on_one_value_is_held_against_the_law(ask: Ask) -> None:
    """Each number and text as each bound of metadata: where servers compare otherwise, nothing is lost."""
    values = [*NUMBERS, *TEXTS]
    for test in ("equals", "gt", "gte", "lt", "lte"):
        for value in values:
            check(parse_filter({"field": "metadata.k", test: value}), ask)


def test_long_lists_of_choices_are_taken(ask: Ask) -> None:
    """As many as a filter may have; for metadata, that the field is there has to do."""
    for field in ("id", "tags", "metadata.k"):
        check(parse_filter({"field": field, "in": [str(number) for number in range(MAX_VALUES)]}), ask)


def test_what_no_server_need_be_asked_is_not_printed() -> None:
    """A key that would have to be quoted otherwise on each server, and a character without a literal."""
    assert milvus_expression(parse_filter({"field": 'metadata.a"]', "equals": 1})) is None
    assert milvus_expression(parse_filter({"field": "tags", "equals": "\x00"})) is None

"""Filters: what they mean, by a plain reading of their JSON, and what is refused."""

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidFilterError
from service.faq.entries import FaqEntry
from service.faq.filters import MAX_CONDITIONS, MAX_DEPTH, MAX_VALUES, Column, parse_filter

VALUES = st.sampled_from([True, False, 0, 1, 1.0, -0.0, 2, 2.5, "", "1", "a", "b", "true", "税"])
NUMBERS_AND_TEXTS = st.sampled_from([0, 1, 1.0, 2, 2.5, -1, "1", "a", "b", "税", ""])
TEXTS = st.sampled_from(["a", "b", "1", "税"])


@st.composite
def entries(draw: st.DrawFn) -> FaqEntry:
    """An entry with some of the fields set."""
    return FaqEntry(
        id=draw(TEXTS),
        question="q",
        answer="",
        language=draw(st.sampled_from([None, "zh", "en"])),
        tags=tuple(draw(st.lists(TEXTS, max_size=2))),
        metadata=draw(st.dictionaries(st.sampled_from(["k", "other"]), VALUES, max_size=2)),
        enabled=draw(st.booleans()),
    )


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    """A condition with one to three tests."""
    field = draw(st.sampled_from(["id", "language", "tags", "enabled", "metadata.k"]))
    if field == "enabled":
        value = bound = st.booleans()
    elif field == "metadata.k":
        value, bound = VALUES, NUMBERS_AND_TEXTS
    else:
        value = bound = TEXTS | st.sampled_from(["zh", "en"])
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


FILTERS = st.recursive(
    conditions(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"and": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"or": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=6,
).filter(lambda tree: depth(tree) <= MAX_DEPTH)


def depth(tree: dict[str, Any]) -> int:
    """How deep a filter nests."""
    parts = tree.get("and") or tree.get("or") or ([tree["not"]] if "not" in tree else [])
    return 1 + max(map(depth, parts), default=0)


OPERATORS = {
    "equals": operator.eq, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le,
}  # fmt: skip


def same_kind(one: object, other: object) -> bool:
    """Tell whether both are booleans, both numbers or both texts."""
    kinds = [bool if isinstance(v, bool) else str if isinstance(v, str) else float for v in (one, other)]
    return kinds[0] is kinds[1]


def plain(tree: dict[str, Any], entry: FaqEntry) -> bool:
    """Read a filter's JSON word by word."""
    if "and" in tree:
        return all(plain(part, entry) for part in tree["and"])
    if "or" in tree:
        return any(plain(part, entry) for part in tree["or"])
    if "not" in tree:
        return not plain(tree["not"], entry)
    name = tree["field"]
    values: list[Any] = {
        "id": [entry.id],
        "language": [] if entry.language is None else [entry.language],
        "tags": list(entry.tags),
        "enabled": [entry.enabled],
        "metadata.k": [entry.metadata["k"]] if "k" in entry.metadata else [],
    }[name]
    if tree.get("exists") is False:
        return not values
    return any(all(holds(test, value, wanted) for test, wanted in tree.items()) for value in values)


def holds(test: str, value: Any, wanted: Any) -> bool:
    """Apply one test of a condition to one value."""
    if test in {"field", "exists"}:
        return True
    if test == "in":
        return any(holds("equals", value, choice) for choice in wanted)
    if not same_kind(value, wanted):
        return False
    return bool(OPERATORS[test](value, wanted))


@given(FILTERS, st.lists(entries(), max_size=6))
def test_a_filter_says_what_its_json_says(tree: dict[str, Any], bank: list[FaqEntry]) -> None:
    """One entry at a time and by columns alike."""
    parsed = parse_filter(tree)
    expected = [plain(tree, entry) for entry in bank]
    assert [parsed.matches(entry) for entry in bank] == expected
    assert parsed.select(lambda field: Column(bank, field)).tolist() == expected


@given(FILTERS, FILTERS, st.lists(entries(), max_size=6))
def test_filters_of_one_key_have_one_answer(
    one: dict[str, Any], other: dict[str, Any], bank: list[FaqEntry]
) -> None:
    """The key names a cached answer, so two filters that differ must never share it."""
    first, second = parse_filter(one), parse_filter(other)
    if first.key == second.key:
        assert [first.matches(entry) for entry in bank] == [second.matches(entry) for entry in bank]
    assert parse_filter(one).key == first.key


def test_the_order_of_writing_does_not_change_the_key() -> None:
    """Clients build filters from dictionaries and sets."""
    one = {"and": [{"field": "tags", "in": ["a", "b"]}, {"field": "metadata.n", "gte": 1, "lt": 3}]}
    other = {"and": [{"lt": 3, "gte": 1, "field": "metadata.n"}, {"field": "tags", "in": ["b", "a", "b"]}]}
    assert parse_filter(one).key == parse_filter(other).key
    keys = {parse_filter({"field": "metadata.n", "equals": value}).key for value in (True, "true", "1", 1)}
    assert len(keys) == 4


@pytest.mark.parametrize("value", [1, "1", True, 1.0])
def test_values_compare_strictly_by_type(value: object) -> None:
    """1 is 1.0, and neither "1" nor true: a comparison must not depend on how a file spelt a value."""
    bank = [
        FaqEntry(id=str(n), question="q", answer="", metadata={"k": v})
        for n, v in enumerate([1, "1", True, 1.0])
    ]
    found = [entry.metadata["k"] for entry in bank if parse_filter(
        {"field": "metadata.k", "equals": value}).matches(entry)]  # fmt: skip
    assert [type(one) for one in found] == ([int, float] if type(value) in {int, float} else [type(value)])


def test_a_metadata_key_may_hold_any_characters() -> None:
    """Column names of a spreadsheet become keys; "and" and dots are among them."""
    entry = FaqEntry(id="1", question="q", answer="", metadata={"and": 1, "a.b c": "x"})
    assert parse_filter({"field": "metadata.and", "equals": 1}).matches(entry)
    assert parse_filter({"field": "metadata.a.b c", "exists": True}).matches(entry)


def nested(levels: int) -> dict[str, Any]:
    """Nest "not" so many levels deep, the condition included."""
    tree: dict[str, Any] = {"field": "id", "equals": "a"}
    for _ in range(levels - 1):
        tree = {"not": tree}
    return tree


EQUALS = {"field": "id", "equals": "a"}


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (None, "filter must be an object"),
        ([], "filter must be an object"),
        ("language=zh", "filter must be an object"),
        ({}, "filter.field must be one of"),
        ({"field": "answer", "equals": "x"}, "filter.field must be one of id, language, tags, enabled or"),
        ({"field": "metadata.", "equals": "x"}, "filter.field"),
        ({"field": ["id"], "equals": "x"}, "filter.field"),
        ({"field": "id"}, "one or more of equals, in, gt"),
        ({"field": "id", "like": "x"}, "one or more of equals, in, gt"),
        ({"field": "id", "equals": "x", "like": "x"}, "nothing else"),
        ({"field": "id", "equals": 7}, "filter.equals must be a string: id is text"),
        ({"field": "tags", "in": ["a", True]}, r"filter.in\[1\] must be a string"),
        ({"field": "enabled", "equals": "yes"}, "must be true or false"),
        ({"field": "metadata.k", "equals": None}, "must be a string, a number"),
        ({"field": "metadata.k", "equals": {}}, "must be a string, a number"),
        ({"field": "metadata.k", "gt": True}, "must be a number or a string"),
        ({"field": "metadata.k", "gt": float("nan")}, "finite"),
        ({"field": "metadata.k", "lt": float("inf")}, "finite"),
        ({"field": "metadata.k", "lt": 10**30}, "64 bits"),
        ({"field": "metadata.k", "equals": "\ud83d"}, "surrogate"),
        ({"field": "metadata.\ud83d", "equals": "a"}, "surrogate"),
        ({"field": "metadata.k", "equals": "a" * 2_001}, "2001 characters"),
        ({"field": "metadata.k", "in": []}, "1 to 1000"),
        ({"field": "metadata.k", "in": "ab"}, "1 to 1000"),
        ({"field": "metadata.k", "in": list(range(MAX_VALUES + 1))}, "1 to 1000"),
        ({"field": "metadata.k", "in": [str(n) * 500 for n in range(MAX_VALUES)]}, "characters of JSON"),
        ({"field": "id", "exists": 1}, "true or false"),
        ({"field": "id", "exists": False, "equals": "a"}, "must not exist"),
        ({"and": []}, "filter.and must be a list"),
        ({"or": EQUALS}, "filter.or must be a list"),
        ({"and": [EQUALS], "or": [EQUALS]}, "stands alone"),
        ({"not": EQUALS, "field": "id"}, "stands alone"),
        ({"and": [EQUALS, {"not": 3}]}, r"filter.and\[1\].not must be an object"),
        ({"and": [EQUALS] * (MAX_CONDITIONS + 1)}, "65 parts"),
        ({"and": [{"or": [EQUALS] * 40}] * 2}, "more than 64 conditions"),
        (nested(MAX_DEPTH + 1), "deeper than 8"),
        (nested(900), "deeper than 8"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_by_place_and_reason(tree: object, reason: str) -> None:
    """Whatever a client sends, the answer is what to change, never a failure of ours or an empty result."""
    with pytest.raises(InvalidFilterError, match=reason) as refused:
        parse_filter(tree)
    assert refused.value.param == "filter"


def test_filters_at_the_limits_are_taken() -> None:
    """A limit is the last that passes."""
    parse_filter(nested(MAX_DEPTH))
    parse_filter({"and": [EQUALS] * (MAX_CONDITIONS - 1)})
    parse_filter({"field": "metadata.k", "in": list(range(MAX_VALUES))})

"""Filters as boolean expressions of Milvus, so that the server leaves out what cannot match.

`service.faq.filters.Filter.matches` is the law. An expression lets through at least what matches; what it
lets through besides is dropped by the law afterwards. So a test that servers see differently is left out of
the expression, or widened, and "not" is printed only over what every server sees just as the law does.

No text of a caller stands in an expression but between quotation marks that are written here.
"""

import re
from dataclasses import dataclass
from typing import Final

from service.faq.filters import AllOf, AnyOf, Condition, Filter, Not, Typed, Value
from service.faq.milvus_schema import quoted

# Servers take a key apart at brackets, quotes and backslashes, each in its own way.
_PLAIN_KEY: Final = re.compile(r"[\w .:-]+")
_METADATA_PREFIX: Final = "metadata."
# Metadata have no "in" on all servers, so each choice is a comparison of its own.
_MOST_COMPARISONS: Final = 64
# Whole numbers up to here are the same as floats.
_EXACT: Final = 2**53
_OPERATORS: Final = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
_ALWAYS: Final = "(version >= 0)"
_NEVER: Final = "(version < 0)"
_TEXT_COLUMNS: Final = {"id": "entry_id", "language": "language"}


@dataclass(frozen=True, slots=True)
class _Printed:
    """An expression.

    Attributes:
        text: None = it lets everything through.
        exact: it lets through what matches and nothing else, so that its opposite can be printed.
    """

    text: str | None
    exact: bool


_ANYTHING: Final = _Printed(None, exact=False)


def milvus_expression(filter_: Filter) -> str | None:
    """Return an expression that holds of all rows of enabled entries that ``filter_`` matches.

    Rows of entries or of vectors: both have `service.faq.milvus_schema.FILTER_FIELDS`.

    Returns:
        None if no test helps.
    """
    text = _print(filter_).text
    return None if text is None else f"(filterable == false or {text})"


def _print(filter_: Filter) -> _Printed:
    if isinstance(filter_, AllOf):
        parts = [_print(part) for part in filter_.parts]
        texts = [part.text for part in parts if part.text is not None]
        return _Printed(_joined(" and ", texts), all(part.exact for part in parts))
    if isinstance(filter_, AnyOf):
        parts = [_print(part) for part in filter_.parts]
        texts = [part.text for part in parts if part.text is not None]
        if len(texts) < len(parts):
            return _ANYTHING
        return _Printed(_joined(" or ", texts), all(part.exact for part in parts))
    if isinstance(filter_, Not):
        part = _print(filter_.part)
        return _Printed(f"(not {part.text})", exact=True) if part.exact else _ANYTHING
    if isinstance(filter_, Condition):
        return _condition(filter_)
    return _ANYTHING


def _condition(condition: Condition) -> _Printed:
    if condition.choices is not None and not any(map(condition.accepts, condition.choices)):
        return _Printed(_NEVER, exact=True)
    if condition.field == "enabled":  # as all entries are that can be found
        meant = condition.exists is not False and condition.accepts(("bool", True))
        return _Printed(_ALWAYS if meant else _NEVER, exact=True)
    if condition.field == "tags":
        return _tags(condition)
    if condition.field in _TEXT_COLUMNS:
        return _text(condition, _TEXT_COLUMNS[condition.field])
    return _metadata(condition)


def _tags(condition: Condition) -> _Printed:
    empty = "(array_length(tags) == 0)"
    if condition.exists is False:
        return _Printed(empty, exact=True)
    texts = _accepted_texts(condition)
    if texts is None:
        # Bounds hold of one tag or another, which only the law can tell.
        return _Printed(f"(not {empty})", exact=not condition.bounds)
    if not all(map(_has_literal, texts)):
        return _ANYTHING
    return _Printed(f"array_contains_any(tags, {_list(texts)})", exact=True)


def _text(condition: Condition, column: str) -> _Printed:
    """A column of text, in which "" says that there is none."""
    if condition.exists is False:
        return _Printed(f'({column} == "")', exact=True)
    texts = _accepted_texts(condition)
    if texts is not None:
        # The empty text is never an entry's, and here it would find those that have none.
        texts = [text for text in texts if text]
        if not texts:
            return _Printed(_NEVER, exact=True)
        if not all(map(_has_literal, texts)):
            return _ANYTHING
        return _Printed(f"({column} in {_list(texts)})", exact=True)
    bounds = [(test, str(value)) for test, (_, value) in condition.bounds]
    printable = [(test, text) for test, text in bounds if _has_literal(text)]
    tests = [f'{column} != ""', *(f"{column} {_OPERATORS[test]} {quoted(text)}" for test, text in printable)]
    return _Printed(_joined(" and ", tests), exact=len(printable) == len(bounds))


def _metadata(condition: Condition) -> _Printed:
    key = condition.field.removeprefix(_METADATA_PREFIX)
    if not _PLAIN_KEY.fullmatch(key):
        return _ANYTHING
    column = f"metadata[{quoted(key)}]"
    there = f"(exists {column})"
    if condition.exists is False:
        return _Printed(f"(not {there})", exact=True)
    if condition.choices is not None:
        accepted = sorted(filter(condition.accepts, condition.choices), key=repr)
        if len(accepted) > _MOST_COMPARISONS or not all(map(_comparable, accepted)):
            return _Printed(there, exact=False)
        tests = [f"{column} == {_literal(value)}" for _, value in accepted]
        return _Printed(_joined(" or ", tests), exact=False)
    tests = [
        f"{column} {_OPERATORS[test]} {_literal(bound[1])}"
        for test, bound in condition.bounds
        if _comparable(bound)
    ]
    return _Printed(_joined(" and ", tests) or there, exact=not condition.bounds)


def _accepted_texts(condition: Condition) -> list[str] | None:
    """Return the choices that the bounds leave; None if there are no choices."""
    if condition.choices is None:
        return None
    return sorted(str(value) for kind, value in condition.choices if condition.accepts((kind, value)))


def _comparable(value: Typed) -> bool:
    """Tell whether all servers compare with the value as Python does, or let more through."""
    kind, plain = value
    if kind == "text":
        return _has_literal(str(plain))
    # Beyond, one server compares as floats do and another exactly.
    return kind == "bool" or abs(plain) < _EXACT  # type: ignore[arg-type]


def _literal(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else repr(value)


def _has_literal(text: str) -> bool:
    """Tell whether all servers read a literal of ``text``; no entry has any other text."""
    return not any(char < " " and char not in "\t\n\r" for char in text)


def _list(texts: list[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"


def _joined(word: str, texts: list[str]) -> str | None:
    return f"({word.join(texts)})" if texts else None

"""Filters: which entries a search, a listing or a deletion is about.

A filter is JSON. A condition names a field and what must hold of it, several tests at once if need be; "and",
"or" and "not" combine filters:

    {"field": "language", "equals": "zh"}
    {"field": "metadata.price", "gte": 10, "lt": 20}
    {"and": [{"field": "tags", "in": ["refund"]}, {"not": {"field": "metadata.shop", "exists": true}}]}

Values compare by type: 1 equals 1.0, but neither true nor "1". A range holds of numbers against a number and
of texts against a text (by code points); of anything else, and of a field that is not there, no test holds
but ``"exists": false``.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from service.errors import InvalidFilterError
from service.faq.entries import FaqEntry

MAX_DEPTH: Final = 8
MAX_CONDITIONS: Final = 64
MAX_VALUES: Final = 1_000
MAX_VALUE_CHARS: Final = 2_000
MAX_FILTER_CHARS: Final = 100_000

Value = bool | int | float | str

_METADATA: Final = "metadata."
_TEXT_FIELDS: Final = ("id", "language", "tags")
_FIELDS: Final = (*_TEXT_FIELDS, "enabled")
_RANGES: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": lambda value, bound: bool(value > bound),
    "gte": lambda value, bound: bool(value >= bound),
    "lt": lambda value, bound: bool(value < bound),
    "lte": lambda value, bound: bool(value <= bound),
}
_TESTS: Final = ("equals", "in", *_RANGES, "exists")

Typed = tuple[str, Value]


class Column:
    """One field of N entries, each distinct value kept once, so that a condition is checked once a value.

    Shapes: N entries, V distinct values, M pairs of an entry and a value of it.
    """

    def __init__(self, entries: Sequence[FaqEntry], field: str) -> None:
        codes: list[int] = []
        holders: list[int] = []
        self._code_of: dict[Typed, int] = {}  # V
        for position, entry in enumerate(entries):
            for value in field_values(entry, field):
                codes.append(self._code_of.setdefault(_typed(value), len(self._code_of)))
                holders.append(position)
        self._size = len(entries)
        self._codes = np.asarray(codes, dtype=np.int32)  # [M]
        self._holders = np.asarray(holders, dtype=np.int32)  # [M]

    def select(self, condition: "Condition") -> NDArray[np.bool_]:
        """Return [N], True where the condition holds."""
        values = self._code_of.keys()
        candidates = values if condition.choices is None else condition.choices & values
        accepted = np.zeros(len(values), dtype=np.bool_)  # [V]
        accepted[[self._code_of[value] for value in candidates if condition.accepts(value)]] = True
        mask = np.zeros(self._size, dtype=np.bool_)
        mask[self._holders[accepted[self._codes]]] = True
        return ~mask if condition.exists is False else mask


class Filter(ABC):
    """Says of every entry whether it is meant. Immutable."""

    @abstractmethod
    def matches(self, entry: FaqEntry) -> bool:
        """Tell whether ``entry`` is meant."""

    @abstractmethod
    def select(self, column: Callable[[str], Column]) -> NDArray[np.bool_]:
        """Return [N]: what `matches` says of each of the entries that ``column(field)`` tells of."""

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return what the filter says in JSON, the same whatever the order in which it was written."""

    @cached_property
    def key(self) -> str:
        """A name to cache by: filters of one key have the same answers."""
        return _canonical(self.as_json())


@dataclass(frozen=True)
class Condition(Filter):
    """What must hold of one field; with several values, such as tags, of one and the same value.

    Attributes:
        field: "id", "language", "tags", "enabled" or "metadata.<key>".
        choices: typed values of which it must be one; None if any will do.
        bounds: test and bound, all of which must hold.
        exists: whether the field must be there; None if that was not asked.
    """

    field: str
    choices: frozenset[Typed] | None = None
    bounds: tuple[tuple[str, Typed], ...] = ()
    exists: bool | None = None

    def accepts(self, value: Typed) -> bool:
        """Tell whether one typed value passes."""
        if self.choices is not None and value not in self.choices:
            return False
        return all(value[0] == bound[0] and _RANGES[test](value[1], bound[1]) for test, bound in self.bounds)

    def matches(self, entry: FaqEntry) -> bool:
        """Tell whether ``entry`` has a value that passes, or none if none was asked for."""
        values = [_typed(value) for value in field_values(entry, self.field)]
        if self.exists is False:
            return not values
        return any(self.accepts(value) for value in values)

    def select(self, column: Callable[[str], Column]) -> NDArray[np.bool_]:
        """Return [N], True where the condition holds."""
        return column(self.field).select(self)

    def as_json(self) -> dict[str, Any]:
        """Return the condition with its tests in one order and its choices sorted."""
        result: dict[str, Any] = {"field": self.field}
        if self.choices is not None:
            result["in"] = [value for _, value in sorted(self.choices, key=_canonical)]
        result.update({test: bound for test, (_, bound) in self.bounds})
        if self.exists is not None:
            result["exists"] = self.exists
        return result


@dataclass(frozen=True)
class AllOf(Filter):
    """Every part must hold; there is at least one."""

    parts: tuple[Filter, ...]

    def matches(self, entry: FaqEntry) -> bool:
        """Tell whether every part holds."""
        return all(part.matches(entry) for part in self.parts)

    def select(self, column: Callable[[str], Column]) -> NDArray[np.bool_]:
        """Return [N], True where every part holds."""
        mask: NDArray[np.bool_] = np.logical_and.reduce([part.select(column) for part in self.parts])
        return mask

    def as_json(self) -> dict[str, Any]:
        """Return the parts, each once, in one order."""
        return {"and": _parts(self.parts)}


@dataclass(frozen=True)
class AnyOf(Filter):
    """One part at least must hold; there is one."""

    parts: tuple[Filter, ...]

    def matches(self, entry: FaqEntry) -> bool:
        """Tell whether a part holds."""
        return any(part.matches(entry) for part in self.parts)

    def select(self, column: Callable[[str], Column]) -> NDArray[np.bool_]:
        """Return [N], True where a part holds."""
        mask: NDArray[np.bool_] = np.logical_or.reduce([part.select(column) for part in self.parts])
        return mask

    def as_json(self) -> dict[str, Any]:
        """Return the parts, each once, in one order."""
        return {"or": _parts(self.parts)}


@dataclass(frozen=True)
class Not(Filter):
    """The part must not hold."""

    part: Filter

    def matches(self, entry: FaqEntry) -> bool:
        """Tell whether the part does not hold."""
        return not self.part.matches(entry)

    def select(self, column: Callable[[str], Column]) -> NDArray[np.bool_]:
        """Return [N], True where the part does not hold."""
        return ~self.part.select(column)

    def as_json(self) -> dict[str, Any]:
        """Return the part under "not"."""
        return {"not": self.part.as_json()}


def parse_filter(json_value: object) -> Filter:
    """Read a filter from decoded JSON.

    Raises:
        InvalidFilterError: it is no filter, or it is past a limit; ``param`` is "filter" and the message says
            where.
    """
    filter_ = _Parser().parse(json_value, "filter", 1)
    if len(filter_.key) > MAX_FILTER_CHARS:
        raise _invalid(
            f"the filter comes to {len(filter_.key)} characters of JSON; {MAX_FILTER_CHARS} are taken"
        )
    return filter_


def field_values(entry: FaqEntry, field: str) -> tuple[Value, ...]:
    """Return the values a condition on ``field`` looks at: none if it is not there, one a tag for "tags"."""
    if field.startswith(_METADATA):
        value = entry.metadata.get(field.removeprefix(_METADATA))
        return () if value is None else (value,)
    if field == "tags":
        return entry.tags
    if field == "enabled":
        return (entry.enabled,)
    if field == "id":
        return (entry.id,)
    return () if entry.language is None else (entry.language,)


class _Parser:
    def __init__(self) -> None:
        self._conditions = 0

    def parse(self, node: object, where: str, depth: int) -> Filter:
        if depth > MAX_DEPTH:
            raise _invalid(f"the filter nests deeper than {MAX_DEPTH} levels")
        if not isinstance(node, dict):
            raise _invalid(f'{where} must be an object, such as {{"field": "language", "equals": "zh"}}')
        combined = [name for name in ("and", "or", "not") if name in node]
        if not combined:
            return self._condition(node, where)
        if len(node) > 1:
            raise _invalid(
                f"{where} holds {combined[0]!r} and {len(node) - 1} more; {combined[0]!r} stands alone"
            )
        name = combined[0]
        below = f"{where}.{name}"
        if name == "not":
            return Not(self.parse(node[name], below, depth + 1))
        parts = node[name]
        if not isinstance(parts, list) or not parts:
            raise _invalid(f"{below} must be a list of filters, not an empty one")
        # Checked before the walk, so that a list of a million filters is not read first.
        if len(parts) > MAX_CONDITIONS:
            raise _invalid(f"{below} has {len(parts)} parts; {MAX_CONDITIONS} are taken")
        parsed = tuple(self.parse(part, f"{below}[{number}]", depth + 1) for number, part in enumerate(parts))
        return AllOf(parsed) if name == "and" else AnyOf(parsed)

    def _condition(self, node: dict[Any, Any], where: str) -> Condition:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise _invalid(f"the filter has more than {MAX_CONDITIONS} conditions")
        field = node.get("field")
        if not isinstance(field, str) or not (
            field in _FIELDS or (field.startswith(_METADATA) and field != _METADATA)
        ):
            raise _invalid(f"{where}.field must be one of {', '.join(_FIELDS)} or {_METADATA}<key>")
        _check_text(field, f"{where}.field")
        tests = [name for name in node if name != "field"]
        unknown = [name for name in tests if name not in _TESTS]
        if unknown or not tests:
            raise _invalid(
                f"{where} must test its field with one or more of {', '.join(_TESTS)}, nothing else"
            )
        exists = node.get("exists")
        if "exists" in node and not isinstance(exists, bool):
            raise _invalid(f"{where}.exists must be true or false")
        if exists is False and len(tests) > 1:
            raise _invalid(f"{where} tests a field that must not exist")
        bounds = []
        for test in _RANGES:
            if test in node:
                bound = self._value(node[test], field, f"{where}.{test}")
                if isinstance(bound, bool):
                    raise _invalid(f"{where}.{test} must be a number or a string")
                bounds.append((test, _typed(bound)))
        return Condition(field, self._choices(node, field, where), tuple(bounds), exists)

    def _choices(self, node: dict[Any, Any], field: str, where: str) -> frozenset[Typed] | None:
        choices: frozenset[Typed] | None = None
        if "in" in node:
            values = node["in"]
            if not isinstance(values, list) or not 0 < len(values) <= MAX_VALUES:
                raise _invalid(f"{where}.in must be a list of 1 to {MAX_VALUES} values")
            choices = frozenset(
                _typed(self._value(value, field, f"{where}.in[{number}]"))
                for number, value in enumerate(values)
            )
        if "equals" in node:
            one = frozenset({_typed(self._value(node["equals"], field, f"{where}.equals"))})
            choices = one if choices is None else choices & one
        return choices

    @staticmethod
    def _value(value: object, field: str, where: str) -> Value:
        if not isinstance(value, bool | int | float | str):
            raise _invalid(f"{where} must be a string, a number, true or false")
        if isinstance(value, float) and not math.isfinite(value):
            raise _invalid(f"{where} must be a finite number")
        if isinstance(value, str):
            _check_text(value, where)
        elif isinstance(value, int) and value.bit_length() > 64:
            raise _invalid(f"{where} must fit into 64 bits")
        # Such a test would hold of nothing, for a reason that nobody sees.
        if field in _TEXT_FIELDS and not isinstance(value, str):
            raise _invalid(f"{where} must be a string: {field} is text")
        if field == "enabled" and not isinstance(value, bool):
            raise _invalid(f"{where} must be true or false: enabled is one of them")
        return value


def _check_text(text: str, where: str) -> None:
    if len(text) > MAX_VALUE_CHARS:
        raise _invalid(f"{where} has {len(text)} characters; {MAX_VALUE_CHARS} are taken")
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise _invalid(f"{where} is not text: it holds half of a surrogate pair")


def _typed(value: Value) -> Typed:
    """Pair a value with its kind, as Python itself takes True for 1."""
    if isinstance(value, bool):
        return ("bool", value)
    return ("text", value) if isinstance(value, str) else ("number", value)


def _parts(parts: Iterable[Filter]) -> list[dict[str, Any]]:
    return [part for _, part in sorted({part.key: part.as_json() for part in parts}.items())]


def _canonical(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _invalid(message: str) -> InvalidFilterError:
    return InvalidFilterError(message, param="filter")

"""Labelled queries: what people ask, and which entries answer it, if any."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

import orjson

from service.faq.entries import MAX_QUESTION_CHARS
from service.faq.entry_files import BadLine, utf8

_KEYS: Final = frozenset({"query", "faq_id"})


@dataclass(frozen=True, slots=True)
class LabelledQuery:
    """A query and its right answers.

    Attributes:
        query: as a person would type it.
        faq_ids: the entries that answer it, each as good as the other; () = none should be given.
    """

    query: str
    faq_ids: tuple[str, ...] = ()

    @property
    def answerable(self) -> bool:
        """True if an entry answers it."""
        return bool(self.faq_ids)


@dataclass(slots=True)
class QueryFile:
    """What a file of labelled queries held.

    Attributes:
        queries: in the order of the file.
        bad_lines: everything else, in the order of the file.
        lines: where each of the queries stands, counted from 1.
    """

    queries: list[LabelledQuery] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def read_queries(data: bytes) -> QueryFile:
    """Read one JSON object a line: ``{"query": text, "faq_id": id, list of ids, or null}``, in UTF-8.

    ``null``, ``""`` and ``[]`` say that no entry answers the query; a missing ``faq_id`` is reported, since
    it may as well be a slip. Whole numbers are taken for ids as in entry files; blank lines are skipped.

    Raises:
        FaqFileError: the data is not UTF-8.
    """
    result = QueryFile()
    for number, line in enumerate(utf8(data).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            result.queries.append(_query(orjson.loads(line)))
            result.lines.append(number)
        except orjson.JSONDecodeError as error:
            result.bad_lines.append(BadLine(number, f"not JSON: {error}"))
        except ValueError as error:
            result.bad_lines.append(BadLine(number, str(error)))
    return result


def demo_queries() -> list[LabelledQuery]:
    """Return the labelled queries of the demo FAQ, half of them without an answer in it."""
    return read_queries(resources.files("service.faq").joinpath("demo_queries.jsonl").read_bytes()).queries


def labelled_query(record: Any) -> LabelledQuery:
    """Check one parsed record.

    Raises:
        ValueError: what is wrong with it.
    """
    return _query(record)


def unknown_ids(queries: Iterable[LabelledQuery], known: Iterable[str]) -> list[str]:
    """Return the labels that name no entry, sorted: mostly a sign of the wrong collection."""
    return sorted({faq_id for query in queries for faq_id in query.faq_ids}.difference(known))


def _query(record: object) -> LabelledQuery:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if set(record) - _KEYS:
        raise ValueError("it has another key than query and faq_id")
    text = record.get("query")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("query: not a text, or empty")
    if len(text) > MAX_QUESTION_CHARS:
        raise ValueError(f"query: {len(text)} characters; at most {MAX_QUESTION_CHARS}")
    if "faq_id" not in record:
        raise ValueError("faq_id: missing; null says that no entry answers the query")
    label = record["faq_id"]
    ids = label if isinstance(label, list) else [label]
    return LabelledQuery(text.strip(), tuple(dict.fromkeys(_id(one) for one in ids if one not in (None, ""))))


def _id(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError("faq_id: neither an id nor a list of ids nor null")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("faq_id: holds half of a surrogate pair") from None
    return value.strip()

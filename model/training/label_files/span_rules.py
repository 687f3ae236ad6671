"""What every labelled text must keep to, whatever file it came from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from model.runtime.text_borders import grapheme_borders
from model.training.spans import LabelledText, Span


def checked_span(start: Any, end: Any, label: Any) -> Span:
    """A span of what a file says, as far as it can be judged without the text.

    Raises:
        ValueError: One of the three is missing or of no use; says which.
    """
    if isinstance(label, int):
        raise ValueError(f"span {start}..{end} has the number {label} for a label; export labels by name")
    if not isinstance(label, str) or not label.strip():
        raise ValueError(f"span {start}..{end} has no label")
    if label != label.strip() or not label.isprintable():
        raise ValueError(f"label {label!r} has white space around it or holds what cannot be printed")
    if not _is_whole(start) or not _is_whole(end):
        raise ValueError(f"span {start}..{end} {label}: start and end must be whole numbers")
    return Span(start, end, label)


def labelled_text(text: Any, spans: Iterable[Span]) -> LabelledText:
    """The text with its spans in order.

    Raises:
        ValueError: It is no text, or a span is empty, out of bounds, blank at a border, cuts a visible
            character, or overlaps another; says which.
    """
    checked_text(text)
    ordered = sorted(spans)
    borders = grapheme_borders(text) if ordered else None
    for span in ordered:
        _check_bounds(span, text)
        if text[span.start].isspace() or text[span.end - 1].isspace():
            raise ValueError(f"span {_named(span)} begins or ends with white space")
        if borders is not None and not (borders[span.start] and borders[span.end]):
            raise ValueError(f"span {_named(span)} cuts a visible character in two")
    for before, after in itertools.pairwise(ordered):
        if before == after:
            raise ValueError(f"span {_named(before)} is there twice")
        if after.start < before.end:
            raise ValueError(f"spans {_named(before)} and {_named(after)} overlap")
    return LabelledText(text, tuple(ordered))


def checked_text(text: Any) -> str:
    """``text``, if a model can read it.

    Raises:
        ValueError: It is no string, is blank, or holds what no encoding has.
    """
    if not isinstance(text, str):
        raise ValueError("the text is not a string")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text holds half a surrogate pair, which is no character")
    if not text.strip():
        raise ValueError("the text is blank")
    return text


def _check_bounds(span: Span, text: str) -> None:
    if not 0 <= span.start < span.end:
        raise ValueError(f"span {_named(span)} is empty or negative")
    if span.end > len(text):
        utf16 = len(text.encode("utf-16-le")) // 2
        hint = "; offsets look like UTF-16 units, code points are wanted" if span.end <= utf16 else ""
        raise ValueError(f"span {_named(span)} ends behind the text ({len(text)} code points){hint}")


def _named(span: Span) -> str:
    return f"{span.start}..{span.end} {span.label}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

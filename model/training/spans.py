"""Labelled text: reading it, checking it, and laying its spans over tokens."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

IGNORED_LABEL: Final = -100
"""Label id of tokens that the loss leaves out: special tokens and padding."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Span:
    """A labelled stretch of text; ``[start, end)`` in code points."""

    start: int
    end: int
    label: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledText:
    """A text and its spans, in order and without overlaps."""

    text: str
    spans: tuple[Span, ...]


class EncodingError(ValueError):
    """A data file that is not UTF-8; the message names file and line."""


@dataclasses.dataclass(frozen=True, slots=True)
class BadLine:
    """A line of a data file that cannot be used, and why."""

    path: Path
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def read_spans(path: Path) -> tuple[list[LabelledText], list[BadLine]]:
    """Read one JSON object a line: ``{"text": str, "spans": [{"start", "end", "label"}]}``.

    ``entities`` is taken as another name of ``spans``. Offsets are code points, ``end`` exclusive.
    Nothing is repaired in silence: a line that does not fit is left out whole and reported.

    Returns:
        The usable texts in file order, and the lines that are not.

    Raises:
        OSError: The file cannot be read.
        EncodingError: It is not UTF-8.
    """
    texts: list[LabelledText] = []
    bad: list[BadLine] = []
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise EncodingError(
                    f"{path}:{number}: byte {raw[error.start]:#04x} is not UTF-8; save the file in UTF-8"
                ) from error
            if not line:
                continue
            try:
                texts.append(_parse(line))
            except ValueError as error:
                bad.append(BadLine(path, number, str(error)))
    return texts, bad


def _parse(line: str) -> LabelledText:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise ValueError('not an object with a string under "text"')
    text: str = record["text"]
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("the text holds half a surrogate pair, which is no character")
    listed = record.get("spans", record.get("entities", []))
    if not isinstance(listed, list):
        raise ValueError('"spans" is not a list')
    spans = sorted(_check_span(item, text) for item in listed)
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise ValueError(
                f"spans {before.start}..{before.end} {before.label} and "
                f"{after.start}..{after.end} {after.label} overlap"
            )
    return LabelledText(text, tuple(spans))


def _check_span(item: Any, text: str) -> Span:
    if not isinstance(item, dict):
        raise ValueError(f"span {item!r} is not an object")
    start, end, label = item.get("start"), item.get("end"), item.get("label")
    if not isinstance(label, str) or not label:
        raise ValueError(f"span {start}..{end} has no label")
    if not isinstance(start, int) or not isinstance(end, int):
        raise ValueError(f"span {start}..{end} {label}: start and end must be whole numbers")
    if not 0 <= start < end:
        raise ValueError(f"span {start}..{end} {label} is empty or negative")
    if end > len(text):
        utf16 = len(text.encode("utf-16-le", "surrogatepass")) // 2
        hint = "; offsets look like UTF-16 units, code points are wanted" if end <= utf16 else ""
        raise ValueError(f"span {start}..{end} {label} ends behind the text ({len(text)} code points){hint}")
    if text[start].isspace() or text[end - 1].isspace():
        raise ValueError(f"span {start}..{end} {label} begins or ends with white space")
    return Span(start, end, label)


def bio_labels(types: Iterable[str]) -> list[str]:
    """``O``, then ``B-X`` and ``I-X`` for each type, in the order given."""
    return ["O", *(f"{prefix}-{name}" for name in types for prefix in "BI")]


def count_spans(texts: Iterable[LabelledText]) -> dict[str, int]:
    """Spans by label, most frequent first."""
    counts: dict[str, int] = {}
    for text in texts:
        for span in text.spans:
            counts[span.label] = counts.get(span.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def align(
    spans: Sequence[Span], offsets: NDArray[np.int64], label_ids: dict[str, int]
) -> tuple[list[int], list[Span]]:
    """Give each token its BIO label.

    Args:
        spans: Ordered, without overlaps; labels without ``B-`` and ``I-``.
        offsets: [S, 2], code points of the same text; (x, x) = a token of no text.
        label_ids: ``B-X`` and ``I-X`` for every label, and ``O``.

    Returns:
        One label id a token (``IGNORED_LABEL`` for tokens of no text), and the spans whose borders
        are not token borders: no labelling of these tokens can give them back.
    """
    label_of = [label_ids["O"] if start < end else IGNORED_LABEL for start, end in offsets.tolist()]
    misfits: list[Span] = []
    for span in spans:
        covered = [
            index
            for index, (start, end) in enumerate(offsets.tolist())
            if start < span.end and end > span.start and start < end
        ]
        if not covered or offsets[covered[0], 0] != span.start or offsets[covered[-1], 1] != span.end:
            misfits.append(span)
        for rank, index in enumerate(covered):
            label_of[index] = label_ids[("B-" if rank == 0 else "I-") + span.label]
    return label_of, misfits


def spans_of(label_names: Sequence[str], offsets: NDArray[np.int64]) -> list[Span]:
    """Read BIO labels back as spans, the way seqeval does: an ``I-X`` after anything else begins one.

    Args:
        label_names: One label a token.
        offsets: [S, 2], code points; tokens of no text are passed over.
    """
    return list(_read_back(label_names, offsets))


def _read_back(label_names: Sequence[str], offsets: NDArray[np.int64]) -> Iterator[Span]:
    open_span: Span | None = None
    for name, (start, end) in zip(label_names, offsets.tolist(), strict=True):
        if start >= end:
            continue
        prefix, _, label = name.partition("-")
        if open_span is not None and prefix == "I" and label == open_span.label:
            open_span = dataclasses.replace(open_span, end=end)
            continue
        if open_span is not None:
            yield open_span
        open_span = Span(start, end, label) if prefix in {"B", "I"} else None
    if open_span is not None:
        yield open_span

"""Files of FAQ entries: JSONL, CSV and XLSX, read and written.

A reader takes what is good and reports every record that is not, with its line and the reason; nothing is
dropped or renamed without a word. Reading the same file twice gives the same ids, and reading what a writer
wrote gives the same entries.
"""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from pydantic import ValidationError

from service.errors import InvalidInputError
from service.faq.entries import (
    MAX_ALTERNATES,
    MAX_QUESTION_CHARS,
    FaqEntry,
    MetadataValue,
    id_from_question,
)
from service.faq.workbook import Cell, WorkbookError, read_rows, write_rows


class FaqFileError(InvalidInputError):
    """Nothing of a file can be read: its encoding, header or type. The message says what to change."""

    code = "unreadable_file"


@dataclass(frozen=True, slots=True)
class BadLine:
    """One record that was left out.

    Attributes:
        number: the line it starts on, or its row in a workbook, counted from 1, the header included.
        reason: what is wrong with it.
    """

    number: int
    reason: str


@dataclass(slots=True)
class EntryFile:
    """What a file held.

    Attributes:
        entries: in the order of the file, ids unique.
        bad_lines: everything else, in the order of the file.
        metadata_columns: columns of a table that are no field of an entry, kept as metadata under their own
            names.
        lines: where each of the entries stands, as `BadLine.number`.
        unit: what the numbers count: lines of a text, rows of a workbook.
    """

    entries: list[FaqEntry] = field(default_factory=list)
    bad_lines: list[BadLine] = field(default_factory=list)
    metadata_columns: tuple[str, ...] = ()
    lines: list[int] = field(default_factory=list)
    unit: Literal["line", "row"] = "line"


def read_entries(path: Path) -> EntryFile:
    """Read a ``.jsonl`` (or ``.ndjson``), ``.csv`` or ``.xlsx`` file.

    Raises:
        FaqFileError: the file's type, encoding or header is not one we read.
        OSError: the file cannot be opened.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise FaqFileError(f"{path.name}: not one of {', '.join(_READERS)}")
    return reader(path.read_bytes())


def read_jsonl(data: bytes) -> EntryFile:
    """Read one JSON object a line, in UTF-8 with or without a byte-order mark; blank lines are skipped.

    The keys are the attributes of `FaqEntry`; without "id" the entry gets one made from its question.

    Raises:
        FaqFileError: the data is not UTF-8.
    """
    result = EntryFile()
    collector = _Collector(result)
    for number, line in enumerate(utf8(data).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            collector.refuse(number, f"not JSON: {error}")
            continue
        if not isinstance(record, dict):
            collector.refuse(number, "not a JSON object")
            continue
        collector.take(number, record)
    return result


def read_csv(data: bytes) -> EntryFile:
    """Read a table with a header, in UTF-8 with or without a byte-order mark.

    Columns, in any order and case: ``question`` and ``answer``; optionally ``id`` (else made from the
    question), ``alternates`` and ``tags`` (several in one cell parted by ``|`` or line ends, or a JSON list),
    ``language``, ``enabled`` (true/false, yes/no, 1/0), ``metadata`` (a JSON object). Every other column
    becomes metadata: text, unless the end of its name says ``price:number`` or ``in_stock:boolean``
    (filters compare by type, and digits alone may as well be a telephone number). Comma, semicolon or tab
    parts the cells. An apostrophe before ``=``, ``+``, ``-`` or ``@`` is taken off, as spreadsheets do:
    `write_csv` puts it there.

    Raises:
        FaqFileError: the encoding is not UTF-8, or a needed column is missing or there twice.
    """
    text = utf8(data).decode()
    return _read_table(_csv_rows(text, _delimiter(text)))


def read_xlsx(data: bytes) -> EntryFile:
    """Read the first sheet of an Excel workbook, laid out as `read_csv` says; formulas count by their value.

    Metadata keeps the types of its cells where the column's name says none.

    Raises:
        FaqFileError: not a workbook, one past the limits of `service.faq.workbook`, or a needed column is
            missing or there twice.
    """
    try:
        # The rows are read while the table is, so a fault deep in the file shows here too.
        return _read_table(read_rows(data), unit="row", blanks_cut=True)
    except WorkbookError as error:
        raise FaqFileError(str(error)) from error


def write_jsonl(entries: Iterable[FaqEntry]) -> bytes:
    """Write one JSON object a line, in UTF-8, fields at their default left out."""
    lines = []
    for entry in entries:
        record = entry.model_dump(mode="json", exclude_defaults=True)
        # Not orjson: it refuses whole numbers of more than 64 bits.
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    return "".join(lines).encode()


def write_csv(entries: Sequence[FaqEntry]) -> bytes:
    """Write a table for spreadsheets: UTF-8 with a byte-order mark, a header, lines ended by CR LF.

    A cell that a spreadsheet would take for a formula gets an apostrophe before it.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    for row in _table(entries):
        writer.writerow([_FORMULA.sub(r"'\g<0>", cell) for cell in row])
    return b"\xef\xbb\xbf" + out.getvalue().encode()


def write_xlsx(entries: Sequence[FaqEntry]) -> bytes:
    """Write an Excel workbook of one sheet; every cell is text, so nothing is taken for a formula.

    Raises:
        FaqFileError: an entry has more text in one field than a cell of a workbook holds; it is named.
    """
    try:
        return write_rows(_table(entries))
    except WorkbookError as error:
        culprit = "" if error.row is None else f"entry {entries[error.row - 2].id!r}: "
        raise FaqFileError(f"{culprit}{error}; write CSV or JSONL instead") from error


def demo_entries() -> list[FaqEntry]:
    """Return the demo FAQ: an invented online shop, in Chinese and English."""
    return read_jsonl(resources.files("service.faq").joinpath("demo.jsonl").read_bytes()).entries


class _Collector:
    """Checks records one by one and files each under good or bad."""

    def __init__(self, result: EntryFile) -> None:
        self._result = result
        self._line_of_id: dict[str, int] = {}

    def refuse(self, number: int, reason: str) -> None:
        self._result.bad_lines.append(BadLine(number, reason))

    def take(self, number: int, record: Mapping[str, Any]) -> None:
        if record.get("id") is None and isinstance(record.get("question"), str):
            record = {**record, "id": id_from_question(record["question"])}
        try:
            entry = FaqEntry.model_validate(record)
        except ValidationError as error:
            self.refuse(number, _reasons(error))
            return
        first = self._line_of_id.setdefault(entry.id, number)
        if first != number:
            self.refuse(number, f"id {entry.id!r} is taken by {self._result.unit} {first}")
            return
        self._result.entries.append(entry)
        self._result.lines.append(number)


def _reasons(error: ValidationError) -> str:
    """Put pydantic's findings on one line, without the input they quote."""
    reasons = []
    for found in error.errors(include_url=False, include_input=False, include_context=False):
        where = ".".join(str(part) for part in found["loc"]) or "entry"
        reasons.append(f"{where}: {found['msg'].removeprefix('Value error, ')}")
    return "; ".join(reasons)


_BYTE_ORDER_MARKS: Final = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def utf8(data: bytes) -> bytes:
    """Return text without a byte-order mark, after a look at all of it.

    One line in another encoding stands for a whole file in it: lines of mere ASCII look the same in both, and
    taking those alone would leave most of the file out.

    Raises:
        FaqFileError: it is not UTF-8; the first line that shows it is named.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            raise FaqFileError(f"the file is {encoding}; save it as UTF-8")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FaqFileError(
            f"line {line} is not UTF-8, so nothing of the file is taken; save it as UTF-8 "
            '(in a spreadsheet: "CSV UTF-8")'
        ) from error
    return data.removeprefix(b"\xef\xbb\xbf")


# Of a column that becomes metadata: its name there, and what its cells are.
# A colon may be one of a Chinese keyboard.
_TYPED: Final = re.compile(r"(.*\S)\s*[:：]\s*(number|boolean)", re.DOTALL | re.IGNORECASE)
_WHOLE: Final = re.compile(r"-?[0-9]{1,300}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,300}(\.[0-9]{1,300})?([eE][+-]?[0-9]{1,3})?")
_FIELDS: Final = ("id", "question", "answer", "alternates", "language", "tags", "enabled", "metadata")
_NEEDED: Final = ("question", "answer")
_TRUE: Final = frozenset({"true", "yes", "y", "1"})
_FALSE: Final = frozenset({"false", "no", "n", "0"})


def _delimiter(text: str) -> str:
    """Choose the mark that parts the first line into the needed columns; a comma if none does."""
    first_line = text.partition("\n")[0]
    for delimiter in ",;\t":
        names = {cell.strip().strip('"').strip().casefold() for cell in first_line.split(delimiter)}
        if names.issuperset(_NEEDED):
            return delimiter
    return ","


def _csv_rows(text: str, delimiter: str) -> Iterator[tuple[int, Sequence[Cell] | str]]:
    """Yield each record's first line and its cells, or the reason why it cannot be read."""
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CSV_CELL))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # All lines from here to the end are one cell then.
            is_open = "end of data" in str(error)
            yield (
                number,
                "not CSV: " + ("a quote is not closed from here to the end" if is_open else str(error)),
            )
            continue
        yield number, [_ESCAPED_FORMULA.sub(r"\g<1>", cell) for cell in row]


# More different names than this make a table nobody can read; the rarer ones go into the column `metadata`.
_METADATA_COLUMNS: Final = 100
# All alternates that an entry may have, twice over, in one cell; the csv module has a lower limit.
_MAX_CSV_CELL: Final = 2 * MAX_ALTERNATES * MAX_QUESTION_CHARS
# What begins a formula, full-width forms included, however many apostrophes stand before it.
_FORMULA: Final = re.compile(r"\A'*[=+\-@＝＋－＠\t\r]")
_ESCAPED_FORMULA: Final = re.compile(r"\A'('*[=+\-@＝＋－＠\t\r])")


def _read_table(
    rows: Iterator[tuple[int, Sequence[Cell] | str]],
    *,
    unit: Literal["line", "row"] = "line",
    blanks_cut: bool = False,
) -> EntryFile:
    """Read records below a header; a row is its number and its cells, or the reason why it has none.

    Args:
        rows: the header first.
        unit: what their numbers count.
        blanks_cut: a row may end before the needed columns, and means blank cells by that.
    """
    header = next(rows, None)
    if header is None:
        raise FaqFileError("no header: the file is empty")
    if isinstance(header[1], str):
        raise FaqFileError(f"no header: {header[1]}")
    columns = _columns([_shown(cell) for cell in header[1]])
    metadata = tuple(_typed(name)[0] for name in columns if name and name not in _FIELDS)
    result = EntryFile(metadata_columns=metadata, unit=unit)
    collector = _Collector(result)
    needed_cells = 0 if blanks_cut else 1 + max(columns.index(name) for name in _NEEDED)
    for number, row in rows:
        if isinstance(row, str):
            collector.refuse(number, row)
        elif any(_shown(cell) for cell in row[len(columns) :]) or 0 < len(row) < needed_cells:
            collector.refuse(number, f"{len(row)} cells where the header has {len(columns)}")
        elif any(_shown(cell) for cell in row):
            try:
                collector.take(number, _record(columns, row))
            except ValueError as error:
                collector.refuse(number, str(error))
    return result


def _columns(header: Sequence[str]) -> list[str]:
    """Name the columns: known ones by field, others as written; blank for columns without a name."""
    columns = []
    for cell in header:
        name = cell.strip()
        columns.append(name.casefold() if name.casefold() in _FIELDS else name)
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise FaqFileError(
            f"the header has no column {' and no column '.join(missing)}; it has: {', '.join(columns)}"
        )
    names = [_typed(name)[0] for name in columns]
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        raise FaqFileError(f"the header names a column twice: {', '.join(repeated)}")
    return columns


def _record(columns: Sequence[str], row: Sequence[Cell]) -> dict[str, Any]:
    """Turn cells into an entry's fields; an empty cell of an optional column is as good as none.

    Raises:
        ValueError: a cell that cannot be read, or that stands under no name.
    """
    record: dict[str, Any] = {"answer": ""}
    metadata: dict[str, Any] = {}
    for position, (name, cell) in enumerate(zip(columns, row, strict=False), start=1):
        value = _shown(cell)
        if not value:
            continue
        if not name:
            raise ValueError(f"cell {position} stands in a column without a name")
        if name in {"alternates", "tags"}:
            record[name] = _several(value)
        elif name == "enabled":
            record[name] = _flag(name, value)
        elif name == "metadata":
            metadata.update(_json_object(value))
        elif name in _FIELDS:
            record[name] = value
        else:
            own, type_ = _typed(name)
            metadata[own] = _value(own, cell, value, type_)
    if metadata:
        record["metadata"] = metadata
    return record


def _typed(name: str) -> tuple[str, str | None]:
    """Part the name of a column into that of the metadata, and the type of its cells if it says one."""
    found = _TYPED.fullmatch(name)
    if found is None or not _can_head(found[1]):
        return name, None
    return found[1], found[2].casefold()


def _value(name: str, cell: Cell, shown: str, type_: str | None) -> MetadataValue:
    """Return metadata of the type that its column says.

    Raises:
        ValueError: the cell holds something else.
    """
    if type_ == "boolean":
        return _flag(name, shown)
    if type_ == "number" and (isinstance(cell, bool) or not isinstance(cell, int | float)):
        if _WHOLE.fullmatch(shown):
            return int(shown)
        if not _DECIMAL.fullmatch(shown) or not math.isfinite(float(shown)):
            raise ValueError(f"{name}: no number such as 7, -0.5 or 1e3")
        return float(shown)
    return shown if isinstance(cell, str) or cell is None else cell


def _shown(cell: Cell) -> str:
    """Return the cell as text, as a spreadsheet shows it: 7, not 7.0."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        return str(int(cell))
    return str(cell).strip()


def _several(value: str) -> list[str]:
    if value.startswith("["):
        try:
            parts = orjson.loads(value)
        except orjson.JSONDecodeError:
            parts = None  # a text that happens to begin with a bracket
        if isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            return parts
    cut = (part.strip() for line in value.splitlines() for part in line.split("|"))
    return [part for part in cut if part]


def _json_object(value: str) -> dict[str, Any]:
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("metadata: not a JSON object")
    return found


def _table(entries: Sequence[FaqEntry]) -> Iterator[list[str]]:
    """Lay entries out as `read_csv` reads them: the header, then a row for each.

    Metadata that a column of its own would change (other types than the rest of the column, empty text, names
    that a header cannot hold, that are fields or say a type) goes into the column ``metadata``.
    """
    used = Counter(
        name for entry in entries for name in entry.metadata if _can_head(name) and not _TYPED.fullmatch(name)
    )
    names = sorted(name for name, _ in used.most_common(_METADATA_COLUMNS))
    types = {
        name: {_type(entry.metadata[name]) for entry in entries if name in entry.metadata} for name in names
    }
    type_of = {name: next(iter(found)) if len(found) == 1 else "text" for name, found in types.items()}
    yield [*_FIELDS, *(name if type_of[name] == "text" else f"{name}:{type_of[name]}" for name in names)]
    for entry in entries:
        own = {
            name: value
            for name, value in entry.metadata.items()
            if name in names and _type(value) == type_of[name] and value != ""
        }
        rest = {name: value for name, value in entry.metadata.items() if name not in own}
        yield [
            entry.id,
            entry.question,
            entry.answer,
            _joined(entry.alternates),
            entry.language or "",
            _joined(entry.tags),
            "" if entry.enabled else "false",
            json.dumps(rest, ensure_ascii=False, allow_nan=False) if rest else "",
            *(_shown_as_written(own.get(name, "")) for name in names),
        ]


def _can_head(name: str) -> bool:
    return name.casefold() not in _FIELDS and name.isprintable()


def _type(value: MetadataValue) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def _shown_as_written(value: MetadataValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _joined(parts: Sequence[str]) -> str:
    """Join with bars; as a JSON list where a part would be cut by them or read otherwise."""
    joined = "|".join(parts)
    return joined if _several(joined) == list(parts) else json.dumps(list(parts), ensure_ascii=False)


def _flag(name: str, value: str) -> bool:
    folded = value.casefold()
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise ValueError(f"{name}: none of true, false, yes, no, 1, 0")


_READERS: Final[dict[str, Callable[[bytes], EntryFile]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": read_csv,
    ".xlsx": read_xlsx,
}

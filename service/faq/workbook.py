"""Excel workbooks as rows of cells, by openpyxl's streaming reader and writer.

A workbook is a zip of XML: a file of some kilobytes may unpack to gigabytes, and one cell far out claims a
million rows before it. Everything is therefore counted before and while it is read.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from xml.etree.ElementTree import ParseError

Cell = str | int | float | bool | None

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
"""Of all parts together: 100,000 entries of 2 kB come to less."""
MAX_PARTS: Final = 1_000
MAX_ROWS: Final = 1_048_576
"""As many as Excel has."""
MAX_COLUMNS: Final = 256
MAX_CELLS: Final = 50_000_000
"""Blank ones before a row's last one included, which the reader fills in."""
MAX_CELL_UNITS: Final = 32_767
"""UTF-16 units that a cell of Excel holds; openpyxl cuts what is longer without a word."""

# What XML cannot hold, or a parser would change, is written as _xHHHH_ (ECMA-376 part 1, ST_Xstring).
_CANNOT_STAND: Final = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_ESCAPE: Final = re.compile("_x([0-9A-Fa-f]{4})_")
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    ParseError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)


class WorkbookError(ValueError):
    """A workbook that cannot be read or written.

    Attributes:
        row: the row at fault, from 1; None if it is not about one.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def read_rows(data: bytes) -> Iterator[tuple[int, Sequence[Cell] | str]]:
    """Yield the number and the cells of each row of the first sheet that is not empty, trailing blanks cut.

    Dates and times become ISO 8601 text. A row with a cell past the last column allowed comes as the reason
    why it is not read.

    Raises:
        WorkbookError: not a workbook, or one that is past the limits above.
    """
    _check_parts(data)
    # Imported late: half of what `conche serve` imports would be for files it may never see.
    from openpyxl import load_workbook  # noqa: PLC0415 - slow to import, and few read workbooks

    try:
        book = load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
        try:
            sheet = book.worksheets[0]
            # The size a file states of itself is not to be trusted.
            sheet.reset_dimensions()
            left = MAX_CELLS
            for number, values in enumerate(sheet.iter_rows(max_row=MAX_ROWS, values_only=True), start=1):
                left -= len(values)
                if left < 0:
                    break
                if values.count(None) == len(values):
                    continue
                width = len(values)
                while values[width - 1] is None:
                    width -= 1
                if width > MAX_COLUMNS:
                    yield number, f"more than {MAX_COLUMNS} columns"
                else:
                    yield number, [_cell(value) for value in values[:width]]
        finally:
            book.close()
    except _BROKEN as error:
        raise WorkbookError(f"not an XLSX workbook that can be read: {error}") from error
    if left < 0:
        raise WorkbookError(f"the sheet spans more than {MAX_CELLS} cells")


def write_rows(rows: Iterable[Sequence[str]]) -> bytes:
    """Write one sheet, every cell as text.

    Raises:
        WorkbookError: a text is longer than a cell holds; it names the row.
    """
    from openpyxl import Workbook  # noqa: PLC0415 - slow to import, and few read workbooks

    book = Workbook(write_only=True)
    sheet = book.create_sheet("FAQ")
    try:
        for number, row in enumerate(rows, start=1):
            cells = [_text_cell(sheet, text, number) if text else None for text in row]
            sheet.append(cells)
    except WorkbookError:
        sheet.close()
        raise
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def _text_cell(sheet: Any, text: str, row: int) -> Any:
    from openpyxl.cell import WriteOnlyCell  # noqa: PLC0415 - slow to import, and few read workbooks

    escaped = _CANNOT_STAND.sub(lambda found: f"_x{ord(found[0]):04X}_", text)
    units = len(escaped.encode("utf-16-le")) // 2
    if units > MAX_CELL_UNITS:
        raise WorkbookError(f"{units} characters for one cell, and a workbook's holds {MAX_CELL_UNITS}", row)
    cell = WriteOnlyCell(sheet, escaped)
    cell.data_type = "s"  # else a leading = makes a formula, and #N/A an error
    return cell


def _check_parts(data: bytes) -> None:
    """Unpack every part once, keeping nothing: what a part claims to hold may be a lie."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            fault = _fault_of(archive)
    except _BROKEN as error:
        raise WorkbookError(
            f"not an XLSX workbook (is it an older .xls, or protected by a password?): {error}"
        ) from error
    if fault:
        raise WorkbookError(fault)


def _fault_of(archive: zipfile.ZipFile) -> str:
    """Return why the parts must not be read, "" if they may."""
    parts = archive.infolist()
    if len(parts) > MAX_PARTS:
        return f"{len(parts)} parts in the workbook; at most {MAX_PARTS}"
    left = MAX_UNPACKED_BYTES
    for part in parts:
        with archive.open(part) as stream:
            tail = b""
            while block := stream.read(1 << 16):
                left -= len(block)
                if left < 0:
                    return f"the workbook unpacks to more than {MAX_UNPACKED_BYTES} bytes"
                # Entities are how small XML grows large; no workbook needs them. Without zero bytes, so that
                # the word is found in UTF-16 too.
                seen = tail + block.replace(b"\0", b"")
                if b"<!DOCTYPE" in seen:
                    return "the workbook declares XML entities"
                tail = seen[-8:]
    return ""


def _cell(value: object) -> Cell:
    if isinstance(value, str):
        return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value) or None
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    raise WorkbookError(f"a cell of kind {type(value).__name__}")

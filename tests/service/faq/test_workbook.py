"""Workbooks made by spreadsheets, and workbooks made to hurt."""

import io
import zipfile
from datetime import date, datetime, time
from typing import Any

import pytest
from openpyxl import Workbook

from service.faq import workbook
from service.faq.entries import FaqEntry
from service.faq.entry_files import FaqFileError, read_xlsx, write_xlsx
from service.faq.workbook import MAX_COLUMNS, WorkbookError, read_rows, write_rows


def saved(*rows: list[Any]) -> bytes:
    """Save rows as a spreadsheet would."""
    book = Workbook()
    assert book.active is not None
    for row in rows:
        book.active.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def replaced(data: bytes, name: str, content: bytes) -> bytes:
    """Put another part into a workbook."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.namelist():
            new.writestr(part, content if part == name else old.read(part))
    return out.getvalue()


def sheet_of(body: str) -> bytes:
    """Make a workbook whose sheet holds this XML."""
    space = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    content = f'<worksheet xmlns="{space}"><sheetData>{body}</sheetData></worksheet>'
    return replaced(saved(["x"]), "xl/worksheets/sheet1.xml", content.encode())


def test_a_sheet_is_read_like_a_csv() -> None:
    """Numbers stand for their text in ids and questions, and stay numbers in metadata."""
    result = read_xlsx(
        saved(
            [],
            ["ID", "Question", "answer", "alternates", "enabled", "price", "hot", "from"],
            [7, "可以开发票吗？", "可以。", "发票|开票", True, 9.5, False, datetime(2026, 1, 2)],  # noqa: DTZ001
            [8.0, 404, "lost", None, "no", 3, None, None],
            [None, None, None, None, None, None, None, None],
            [7, "again", "a"],
            [9, None, "a"],
            [10, "q", "a", None, None, None, None, None, "more"],
        )
    )
    first, second = result.entries
    assert (first.id, first.question, first.alternates) == ("7", "可以开发票吗？", ("发票", "开票"))
    assert first.metadata == {"price": 9.5, "hot": False, "from": "2026-01-02"}
    assert (second.id, second.question, second.enabled, second.metadata) == ("8", "404", False, {"price": 3})
    assert [(bad.number, bad.reason) for bad in result.bad_lines] == [
        (6, "id '7' is taken by row 3"),
        (7, "question: Field required"),
        (8, "9 cells where the header has 8"),
    ]
    assert result.metadata_columns == ("price", "hot", "from")


def test_dates_and_times_become_text() -> None:
    """An entry holds no dates."""
    moment = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001
    rows = [row for _, row in read_rows(saved([date(2026, 1, 2), moment, time(3, 4)]))]
    assert rows == [["2026-01-02", "2026-01-02T03:04:05", "03:04:00"]]


def test_text_that_xml_changes_or_refuses_survives() -> None:
    """Carriage returns and underscored escapes most of all."""
    row = ["a\r\nb", "_x000D_", "_x005F_x0041_", "\ufffe", "=1+1", "#N/A", "=", " a"]
    assert [cells for _, cells in read_rows(write_rows([row]))] == [row]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"id,question,answer",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 512,
        saved(["a"])[:-40],
        replaced(saved(["a"]), "xl/workbook.xml", b"<broken"),
        replaced(saved(["a"]), "xl/worksheets/sheet1.xml", b"<worksheet><sheetData><row>"),
        replaced(saved(["a"]), "[Content_Types].xml", b"<Types/>"),
    ],
)
def test_what_is_no_workbook_is_refused_in_one_kind_of_error(data: bytes) -> None:
    """Whatever the libraries beneath call it."""
    with pytest.raises(WorkbookError, match="not an XLSX workbook"):
        list(read_rows(data))
    with pytest.raises(FaqFileError):
        read_xlsx(data)


def test_a_workbook_that_unpacks_too_large_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some kilobytes can unpack to gigabytes."""
    monkeypatch.setattr(workbook, "MAX_UNPACKED_BYTES", 1_000_000)
    bomb = sheet_of(" " * 2_000_000)
    assert len(bomb) < 20_000
    with pytest.raises(WorkbookError, match="unpacks to more than 1000000 bytes"):
        list(read_rows(bomb))


def test_a_workbook_of_too_many_parts_is_refused() -> None:
    """Each costs time to open."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(1_001):
            archive.writestr(str(number), b"")
    with pytest.raises(WorkbookError, match="1001 parts"):
        list(read_rows(out.getvalue()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_workbook_that_declares_entities_is_refused(encoding: str) -> None:
    """A few of them, nested, unfold to any size."""
    text = '<?xml version="1.0"?>' + " " * 65_500 + '<!DOCTYPE x [<!ENTITY a "aaaa">]><worksheet/>'
    data = replaced(saved(["a"]), "xl/worksheets/sheet1.xml", text.encode(encoding))
    with pytest.raises(WorkbookError, match="entities"):
        list(read_rows(data))


def test_a_row_with_a_cell_far_out_is_reported() -> None:
    """Not read as if the cell were not there; and the rows before a far one cost next to nothing."""
    far = sheet_of(
        '<row r="2"><c r="A2" t="inlineStr"><is><t>a</t></is></c></row>'
        '<row r="3"><c r="XFD3"><v>1</v></c></row><row r="1048576"><c r="A1048576"><v>1</v></c></row>'
    )
    assert list(read_rows(far)) == [
        (2, ["a"]),
        (3, f"more than {MAX_COLUMNS} columns"),
        (1_048_576, [1]),
    ]


def test_a_sheet_of_far_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty bytes a row claim 16,384 cells."""
    monkeypatch.setattr(workbook, "MAX_CELLS", 100_000)
    rows = "".join(f'<row r="{n}"><c r="XFD{n}"><v>1</v></c></row>' for n in range(1, 10))
    with pytest.raises(WorkbookError, match="spans more than 100000 cells"):
        list(read_rows(sheet_of(rows)))


def test_the_stated_size_of_a_sheet_is_not_trusted() -> None:
    """Some writers state A1 for any sheet, and a reader that believes it sees one cell."""
    data = saved(["a", "b"], ["c", "d"])
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sheet = archive.read("xl/worksheets/sheet1.xml")
    lying = replaced(data, "xl/worksheets/sheet1.xml", sheet.replace(b'ref="A1:B2"', b'ref="A1"'))
    assert sheet != lying
    assert [cells for _, cells in read_rows(lying)] == [["a", "b"], ["c", "d"]]


def test_an_entry_without_an_answer_comes_back_from_a_workbook() -> None:
    """A sheet's reader cuts blank cells at the end of a row; one of them may be the answer."""
    entry = FaqEntry(id="1", question="q", answer="")
    assert read_xlsx(write_xlsx([entry])).entries == [entry]

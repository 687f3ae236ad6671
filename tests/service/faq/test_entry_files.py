"""Reading entries: nothing dropped without a word, and the same file gives the same ids."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from service.faq.entries import FaqEntry, are_same, id_from_question
from service.faq.entry_files import (
    BadLine,
    FaqFileError,
    demo_entries,
    read_csv,
    read_entries,
    read_jsonl,
    read_xlsx,
    write_csv,
    write_jsonl,
    write_xlsx,
)

MARK = b"\xef\xbb\xbf"


def test_a_csv_with_a_byte_order_mark_keeps_its_id_each_time(tmp_path: Path) -> None:
    """Spreadsheets write the mark; read as part of the header it would hide the id column."""
    path = tmp_path / "bom.csv"
    path.write_bytes(MARK + "id,question,answer\r\n7,可以开发票吗？,可以。\r\n".encode())
    for _ in range(2):
        result = read_entries(path)
        assert result.entries == [FaqEntry(id="7", question="可以开发票吗？", answer="可以。")]
        assert result.bad_lines == []


def test_a_jsonl_file_may_begin_with_a_mark_and_hold_blank_lines() -> None:
    """Line numbers count what an editor shows."""
    data = (
        MARK + b'{"id": 7, "question": "a", "answer": "b"}\r\n\r\n{"id": "8", "question": "c", "answer": "d"}'
    )
    result = read_jsonl(data)
    assert [entry.id for entry in result.entries] == ["7", "8"]
    assert result.bad_lines == []


def test_every_bad_jsonl_line_is_reported_with_its_number() -> None:
    """Good lines around them are taken."""
    lines = [
        b'{"id": "1", "question": "q", "answer": "a"}',
        b'{"id": "2", "question": "q"',
        b'["3"]',
        b'{"id": "4", "question": "   ", "answer": "a"}',
        b'{"id": "5", "question": "q"}',
        b'{"id": "6", "question": "q", "answer": "a", "similar": []}',
        b'{"id": "1", "question": "again", "answer": "a"}',
        b'{"id": "8", "question": "q", "answer": ["a"]}',
        b'{"id": "9", "question": "q", "answer": NaN}',
        b'{"id": 1e30, "question": "q", "answer": "a"}',
        b'{"id": true, "question": "q", "answer": "a"}',
        b'{"id": "c", "question": "q\\u0000", "answer": "a"}',
        b'{"id": "d", "question": "\\ud800", "answer": "a"}',
        b'{"id": "e", "question": "q", "answer": "a", "language": "Chinese (simplified)"}',
        b'{"id": "last", "question": "q", "answer": "a"}',
    ]
    result = read_jsonl(b"\n".join(lines))
    assert [entry.id for entry in result.entries] == ["1", "last"]
    assert [bad.number for bad in result.bad_lines] == list(range(2, 15))
    reasons = {bad.number: bad.reason for bad in result.bad_lines}
    assert reasons[3] == "not a JSON object"
    assert reasons[4] == "question: empty"
    assert reasons[5].startswith("answer: ")
    assert reasons[6].startswith("similar: ")
    assert reasons[7] == "id '1' is taken by line 1"
    assert reasons[12] == "question: control character U+0000"


def test_every_bad_csv_record_is_reported_with_the_line_it_starts_on() -> None:
    """A quoted cell may hold line ends, so records and lines are not the same."""
    data = (
        b"id,question,answer,enabled\n"
        b'1,"two\nlines",a,\n'
        b",,,\n"
        b"2,,a,\n"
        b"3,q,a,perhaps\n"
        b"4,q,a,yes,more\n"
        b"5,q\n"
        b"1,q,a,\n"
        b"6,\x01,a,\n"
        b"7,q,a,0\n"
        b'8,"never closed,a,\n9,q,a,\n'
    )
    result = read_csv(data)
    assert [(entry.id, entry.enabled) for entry in result.entries] == [("1", True), ("7", False)]
    assert [bad.number for bad in result.bad_lines] == [5, 6, 7, 8, 9, 10, 12]
    assert result.bad_lines[2] == BadLine(7, "5 cells where the header has 4")
    assert result.bad_lines[5].reason == "question: control character U+0001"


def test_csv_columns_in_any_order_and_further_ones_become_metadata() -> None:
    """Nobody's extra column is thrown away, and the report names it."""
    data = "Answer;QUESTION;类别;alternates;tags;language\n可以。;能开发票吗;财务;发票|开票;a|b|a;zh\n"
    result = read_csv(data.encode())
    assert result.metadata_columns == ("类别",)
    assert result.entries == [
        FaqEntry(
            id=id_from_question("能开发票吗"),
            question="能开发票吗",
            answer="可以。",
            alternates=("发票", "开票"),
            tags=("a", "b"),
            language="zh",
            metadata={"类别": "财务"},
        )
    ]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_column_may_say_that_it_holds_numbers_or_flags(mark: str) -> None:
    """A filter compares by type, and ``lt 100`` holds of no text; digits alone may be a telephone number."""
    rows = [
        ["question", "answer", "price:number", "in_stock:boolean", "phone", "id:number"],
        ["a", "x", "7", "yes", "0049301", "9"],
        ["b", "x", "-0.5", "FALSE", "12", "9"],
        ["c", "x", "", "", "", ""],
        ["d", "x", "1e3", "1", "12", "9"],
    ]
    result = read_csv("".join(mark.join(row) + "\n" for row in rows).encode())
    assert result.bad_lines == []
    assert result.metadata_columns == ("price", "in_stock", "phone", "id:number")
    assert [repr(entry.metadata) for entry in result.entries] == [
        repr({"price": 7, "in_stock": True, "phone": "0049301", "id:number": "9"}),
        repr({"price": -0.5, "in_stock": False, "phone": "12", "id:number": "9"}),
        repr({}),
        repr({"price": 1000.0, "in_stock": True, "phone": "12", "id:number": "9"}),
    ]


@pytest.mark.parametrize("header", ["Price:Number", "Price : number", "Price：number"])
def test_a_type_is_read_as_people_write_it(header: str) -> None:
    """In any case, with spaces, and with the colon of a Chinese keyboard."""
    result = read_csv(f"question,answer,{header}\nq,a,5\n".encode())
    assert result.metadata_columns == ("Price",)
    assert result.entries[0].metadata == {"Price": 5}


@pytest.mark.parametrize("header", ["id:number", "id :number", "ID : Number"])
def test_a_field_with_a_type_is_no_metadata_of_the_fields_name(header: str) -> None:
    """It keeps its whole name, which shows in the report."""
    result = read_csv(f"{header},question,answer\n5,q,a\n".encode())
    assert result.metadata_columns == (header,)
    assert result.entries[0].metadata == {header: "5"}


@pytest.mark.parametrize("cell", ["7 EUR", "1.000,5", "0x10", "1_000", "nan", "1e999", "٣", "--1"])
def test_a_cell_that_is_no_number_makes_a_bad_line(cell: str) -> None:
    """It would be a text among numbers, which no range holds of."""
    result = read_csv(f'question,answer,price:number\nq,a,"{cell}"\nr,a,1\n'.encode())
    assert result.bad_lines == [BadLine(2, "price: no number such as 7, -0.5 or 1e3")]
    assert [entry.metadata for entry in result.entries] == [{"price": 1}]


def test_numbers_and_flags_are_written_into_columns_that_say_so() -> None:
    """People edit the export in a spreadsheet; a JSON object in a cell is no fun there."""
    entries = [
        FaqEntry(
            id="1", question="q", answer="a", metadata={"price": 7, "new": True, "mixed": 1, "x:number": "1"}
        ),
        FaqEntry(id="2", question="r", answer="a", metadata={"price": 0.5, "mixed": "one"}),
    ]
    header, first, _ = write_csv(entries).decode("utf-8-sig").splitlines()
    assert header.endswith(",metadata,mixed,new:boolean,price:number")
    assert first.endswith('"{""mixed"": 1, ""x:number"": ""1""}",,true,7')
    for write, read in ((write_csv, read_csv), (write_xlsx, read_xlsx)):
        assert read(write(entries)).entries == entries


def test_a_column_of_one_name_with_and_without_a_type_is_there_twice() -> None:
    """One would overwrite the other."""
    with pytest.raises(FaqFileError, match="names a column twice: price"):
        read_csv(b"question,answer,price,price:number\nq,a,1,2\n")


def test_a_quote_that_is_not_closed_says_how_far_it_reaches() -> None:
    """The line that is named is one of many that are gone."""
    result = read_csv(b'question,answer\nq,a\nr,"a\ns,a\nt,a\n')
    assert result.bad_lines == [BadLine(3, "not CSV: a quote is not closed from here to the end")]
    assert [entry.question for entry in result.entries] == ["q"]


def test_without_an_id_the_question_makes_the_same_one_each_time() -> None:
    """Else a second import would double every entry."""
    data = b'{"question": "How?", "answer": "So."}\n'
    assert read_jsonl(data).entries == read_jsonl(data).entries
    assert id_from_question("ＨＯＷ  is it?") == id_from_question("how is it?")
    again = read_jsonl(data + data)
    assert len(again.entries) == 1
    assert again.bad_lines[0].number == 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (MARK, "empty"),
        (b"id,question\n1,q\n", "no column answer"),
        (b"a,b\n1,2\n", "no column question and no column answer"),
        (b"question,answer,id,ID\nq,a,1,2\n", "twice"),
        (b"question,answer,\xb1\xea\nq,a,1\n", "UTF-8"),
        ("question,answer\nq,a\n".encode("utf-16"), "UTF-16"),
        ("question,answer\nq,a\n".encode("utf-32"), "UTF-32"),
    ],
)
def test_a_csv_that_cannot_be_read_at_all_says_what_to_change(data: bytes, said: str) -> None:
    """One clear message instead of one per line."""
    with pytest.raises(FaqFileError, match=said):
        read_csv(data)


@pytest.mark.parametrize("encoding", ["gb18030", "big5", "shift-jis"])
def test_a_file_in_another_encoding_is_refused_as_a_whole(encoding: str) -> None:
    """Its lines of mere ASCII could be read: a service would start with most of its FAQ gone."""
    table = "id,question,answer\n1,how,so\n2,可以,可以\n3,why,so\n".encode(encoding)
    with pytest.raises(FaqFileError, match=r"line 3 is not UTF-8.*save it as UTF-8"):
        read_csv(table)
    lines = '{"question":"how","answer":""}\n{"question":"可以","answer":""}\n'.encode(encoding)
    with pytest.raises(FaqFileError, match=r"line 2 is not UTF-8.*save it as UTF-8"):
        read_jsonl(lines)


def test_an_unknown_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    """With the kinds that are read."""
    with pytest.raises(FaqFileError, match=r"faq\.docx: not one of \.jsonl, \.ndjson, \.csv, \.xlsx"):
        read_entries(tmp_path / "faq.docx")


def test_alternates_that_say_nothing_new_are_left_out() -> None:
    """Each wording is embedded once."""
    entry = FaqEntry(id="1", question=" q ", answer="a", alternates=("q", "r ", "r"))
    assert entry.phrasings == ("q", "r")


@pytest.mark.parametrize(
    ("metadata", "same"),
    [({"b": 1, "a": 2}, True), ({"a": 2, "b": True}, False), ({"a": 2.0, "b": 1}, False), ({"a": 2}, False)],
)
def test_the_order_of_metadata_is_no_difference_and_their_types_are(
    metadata: dict[str, bool | int | float | str], *, same: bool
) -> None:
    """A table has its columns in an order of its own; Python takes 2 for 2.0 and 1 for True."""
    one = FaqEntry(id="1", question="q", answer="a", metadata={"a": 2, "b": 1})
    assert are_same(one, one.model_copy(update={"metadata": metadata})) is same


def test_an_entry_survives_a_round_trip_through_json() -> None:
    """Export and import must agree."""
    entry = FaqEntry(
        id="1", question="q", answer="a", tags=("t",), metadata={"n": 1, "b": True, "s": "x", "f": 0.5}
    )
    assert read_jsonl(entry.model_dump_json().encode()).entries == [entry]
    assert json.loads(entry.model_dump_json())["metadata"] == {"n": 1, "b": True, "s": "x", "f": 0.5}


def test_the_demo_is_whole_and_bilingual() -> None:
    """It is what a newcomer searches first."""
    entries = demo_entries()
    languages = [entry.language for entry in entries]
    assert len(entries) >= 60
    assert languages.count("zh") == languages.count("en") == len(entries) / 2
    assert len({entry.id for entry in entries}) == len(entries)
    assert all(entry.answer for entry in entries)
    assert sum(bool(entry.alternates) for entry in entries) > len(entries) / 2


# Everything that parts, quotes, escapes or starts something in one of the formats.
TEXTS = st.text(
    st.sampled_from("ab 7|,;\t\"'\\[]{}:=+-@＝#_x0041\r\n\x85\u2028\ufeff\ufffe中文🙂"), max_size=12
)
VALUES = TEXTS | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def some_entries(draw: st.DrawFn) -> list[FaqEntry]:
    """Draw entries as odd as the record allows."""
    entries: dict[str, FaqEntry] = {}
    for _ in range(draw(st.integers(0, 4))):
        try:
            entry = FaqEntry(
                id=draw(TEXTS),
                question=draw(TEXTS),
                answer=draw(TEXTS),
                alternates=tuple(draw(st.lists(TEXTS.filter(str.strip), max_size=3))),
                tags=tuple(draw(st.lists(TEXTS.filter(str.strip), max_size=3))),
                language=draw(st.sampled_from([None, "zh", "en-GB"])),
                metadata=draw(
                    st.dictionaries(TEXTS | st.sampled_from(["ID", "tags", "metadata"]), VALUES, max_size=3)
                ),
                enabled=draw(st.booleans()),
            )
        except ValidationError:
            continue
        entries[entry.id] = entry
    return list(entries.values())


@settings(deadline=None)  # the first workbook loads its library
@given(some_entries())
@example(
    [
        FaqEntry(
            id="-7",
            question='=HYPERLINK("x")',
            answer="'=1+1",
            alternates=("+1", "a|b", "@x"),
            tags=("[1]", '["a"]'),
            metadata={"=x": "@y", "n": 7, "f": 7.0, "b": True, "e": "", "s": "007", "id": "z", "m": "-1"},
        )
    ]
)
def test_what_is_written_reads_back_the_same(entries: list[FaqEntry]) -> None:
    """In every format: export, edit and import is how people work."""
    for write, read in ((write_jsonl, read_jsonl), (write_csv, read_csv), (write_xlsx, read_xlsx)):
        found = read(write(entries))
        assert found.bad_lines == []
        assert found.entries == entries
        # Equality takes 7 for 7.0 and True for 1.
        assert [repr(sorted(one.metadata.items())) for one in found.entries] == [
            repr(sorted(one.metadata.items())) for one in entries
        ]


def test_the_demo_reads_back_the_same() -> None:
    """Real entries, once."""
    for write, read in ((write_jsonl, read_jsonl), (write_csv, read_csv), (write_xlsx, read_xlsx)):
        assert read(write(demo_entries())).entries == demo_entries()


def test_no_cell_of_a_csv_begins_a_formula() -> None:
    """A customer's question must not run in the spreadsheet of whoever opens the export."""
    risky = ["=1+1", "+1", "-1", "@SUM(A1)", "＝1"]
    entries = [FaqEntry(id=text, question=text, answer=text, metadata={"m": text}) for text in risky]
    text = write_csv(entries).decode("utf-8-sig")
    assert text.count('"') == 0
    for line in text.splitlines()[1:]:
        assert all(cell[:1] in {"", "'"} for cell in line.split(","))


def test_a_csv_opens_in_a_spreadsheet_in_the_right_encoding() -> None:
    """Without the mark Excel takes UTF-8 for the local code page."""
    data = write_csv([FaqEntry(id="1", question="可以开发票吗", answer="可以")])
    assert data.startswith(MARK + b"id,question,answer,alternates,language,tags,enabled,metadata\r\n")


def test_a_csv_with_a_metadata_column_that_is_no_object_is_reported() -> None:
    """The column holds what other columns cannot."""
    result = read_csv(b'question,answer,metadata\nq,a,{"n": 1}\nr,a,7\ns,a,"{"\n')
    assert [entry.metadata for entry in result.entries] == [{"n": 1}]
    assert [bad.reason for bad in result.bad_lines] == ["metadata: not a JSON object"] * 2


def test_more_metadata_names_than_a_table_can_show_are_kept() -> None:
    """A workbook has a limited number of columns."""
    entries = [
        FaqEntry(id=str(number), question="q", answer="a", metadata={f"k{number}.{k}": "v" for k in range(9)})
        for number in range(60)
    ]
    for write, read in ((write_csv, read_csv), (write_xlsx, read_xlsx)):
        result = read(write(entries))
        assert result.entries == entries
        assert len(result.metadata_columns) == 100


def test_an_entry_too_long_for_a_workbook_is_named() -> None:
    """Openpyxl would cut it without a word."""
    entries = [
        FaqEntry(id="short", question="q", answer="a"),
        FaqEntry(id="long", question="q", answer="🙂" * 16_384),
    ]
    with pytest.raises(FaqFileError, match=r"entry 'long': 32768 characters.*write CSV or JSONL"):
        write_xlsx(entries)
    assert read_csv(write_csv(entries)).entries == entries


def test_the_largest_entry_goes_through_a_csv() -> None:
    """The csv module refuses cells of more than 128 KiB unless told."""
    entry = FaqEntry(
        id="1", question="q", answer="a", alternates=tuple(f"{n:03}" + '"' * 1_997 for n in range(200))
    )
    assert read_csv(write_csv([entry])).entries == [entry]

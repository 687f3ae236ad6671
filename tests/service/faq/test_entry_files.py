"""Reading entries: nothing dropped without a word, and the same file gives the same ids."""

import json
from pathlib import Path

import pytest

from service.faq.entries import FaqEntry, id_from_question
from service.faq.entry_files import (
    BadLine,
    FaqFileError,
    demo_entries,
    read_csv,
    read_entries,
    read_jsonl,
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
        b'{"id": "8", "question": "\xb1\xea", "answer": "a"}',
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
        b"6,\xb1\xea,a,\n"
        b"7,q,a,0\n"
        b'8,"never closed,a,\n9,q,a,\n'
    )
    result = read_csv(data)
    assert [(entry.id, entry.enabled) for entry in result.entries] == [("1", True), ("7", False)]
    assert [bad.number for bad in result.bad_lines] == [5, 6, 7, 8, 9, 10, 12]
    assert result.bad_lines[2] == BadLine(7, "5 cells where the header has 4")
    assert "UTF-8" in result.bad_lines[5].reason


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


def test_a_file_in_gb18030_loses_no_line_unsaid() -> None:
    """Chinese spreadsheets still save it; read as Latin-1 it would fill the index with nonsense."""
    result = read_csv("id,question,answer\n1,可以开发票吗,可以\n2,how,so\n".encode("gb18030"))
    assert [entry.id for entry in result.entries] == ["2"]
    assert [bad.number for bad in result.bad_lines] == [2]


def test_an_unknown_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    """With the kinds that are read."""
    with pytest.raises(FaqFileError, match=r"faq\.docx: not one of \.jsonl, \.ndjson, \.csv, \.xlsx"):
        read_entries(tmp_path / "faq.docx")


def test_alternates_that_say_nothing_new_are_left_out() -> None:
    """Each wording is embedded once."""
    entry = FaqEntry(id="1", question=" q ", answer="a", alternates=("q", "r ", "r"))
    assert entry.phrasings == ("q", "r")


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

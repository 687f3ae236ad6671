"""JSON lines: our own form and doccano's."""

import json
from pathlib import Path
from typing import Any

import pytest

from model.training.label_files.json_lines import DOCCANO, JSONL
from model.training.label_files.reader import read_labelled
from model.training.label_files.readings import EncodingError
from model.training.spans import Span


def write(path: Path, *lines: str) -> Path:
    """A data file with these lines."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_every_line_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Nothing vanishes unsaid: each bad line has its number and a reason that helps."""
    faults = {
        '{"text":"Meet Ann Lee today","spans":[{"start":5,"end":13,"label":"PER"}]}': "white space",
        '{"text":"Short","spans":[{"start":0,"end":99,"label":"ORG"}]}': "behind the text",
        '{"text":"Empty span","spans":[{"start":5,"end":5,"label":"ORG"}]}': "empty",
        '{"text":"Negative","spans":[{"start":-3,"end":2,"label":"ORG"}]}': "negative",
        '{"text":"Bank of Oslo opens","spans":[{"start":0,"end":12,"label":"ORG"},'
        '{"start":8,"end":18,"label":"LOC"}]}': "0..12 ORG and 8..18 LOC overlap",
        '{"text":"Oslo","spans":[[0,4,"LOC"],[0,4,"LOC"]]}': "is there twice",
        '{"text":"🙂 Oslo","spans":[{"start":3,"end":7,"label":"LOC"}]}': "UTF-16",
        '{"text":"Rene\\u0301 left","spans":[{"start":0,"end":4,"label":"PER"}]}': "visible character",
        '{"text":"👩‍🔬 Ann","spans":[{"start":1,"end":6,"label":"PER"}]}': "visible character",
        '{"text":"No label","spans":[{"start":0,"end":2}]}': "no label",
        '{"text":"No label","spans":[{"start":0,"end":2,"label":" "}]}': "no label",
        '{"text":"No label","spans":[{"start":0,"end":2,"label":"PER "}]}': "white space around",
        '{"text":"Number","spans":[[0,2,7]]}': "export labels by name",
        '{"text":"Broken",': "not JSON",
        "[" * 100_000: "nested too deeply",
        '{"text":7}': "string",
        '{"text":" \\t","spans":[]}': "blank",
        '{"text":"a"}': "a text without entities has an empty list",
        '{"text":"a","spans":{}}': "not a list",
        '{"text":"a","spans":[1]}': "neither an object nor",
        '{"text":"a","spans":[{"start":"0","end":1,"label":"X"}]}': "whole numbers",
        '{"text":"a","spans":[{"start":false,"end":true,"label":"X"}]}': "whole numbers",
        r'{"text":"a \ud83d","spans":[]}': "surrogate",
    }
    good = '{"text":"Oslo is cold","spans":[{"start":0,"end":4,"label":"LOC"}]}'
    path = write(tmp_path / "odd.jsonl", good, *faults)
    reading = read_labelled(path)
    assert reading.format == JSONL
    assert [text.text for text in reading.texts] == ["Oslo is cold"]
    assert [line.line for line in reading.bad] == list(range(2, len(faults) + 2))
    for bad, words in zip(reading.bad, faults.values(), strict=True):
        assert words in bad.reason
    assert str(reading.bad[0]).startswith(f"{path}:2: ")
    assert reading.bad_share == pytest.approx(len(faults) / (len(faults) + 1))


def test_a_file_in_another_encoding_is_refused_by_line(tmp_path: Path) -> None:
    """Chinese tools still write GBK; read as UTF-8 with gaps, every offset would be off."""
    path = tmp_path / "gbk.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text":"a"}\n' + '{"text":"北京"}'.encode("gbk"))
    with pytest.raises(EncodingError, match=r"gbk\.jsonl:2: byte 0xb1 is not UTF-8"):
        read_labelled(path)


def test_both_names_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    """``entities`` is another name of ``spans``; a mark and blank lines are not data."""
    path = tmp_path / "marked.jsonl"
    record = {"text": "张三去北京", "entities": [{"start": 0, "end": 2, "label": "PER"}]}
    path.write_text("\ufeff" + json.dumps(record, ensure_ascii=False) + "\r\n\r\n", encoding="utf-8")
    reading = read_labelled(path)
    assert not reading.bad
    assert reading.texts[0].spans == (Span(0, 2, "PER"),)


def test_unusual_line_separators_stay_in_their_text(tmp_path: Path) -> None:
    """Editors paste U+2028; only LF ends a line of the file."""
    path = write(tmp_path / "separators.jsonl", '{"text":"a\u2028Oslo\x85b","spans":[[2,6,"LOC"]]}')
    (text,) = read_labelled(path).texts
    assert text.text[2:6] == "Oslo"


@pytest.mark.parametrize(
    "record",
    [
        {"id": 7, "text": "服用阿莫西林胶囊", "label": [[2, 8, "DRUG"]], "Comments": []},
        {"id": 7, "text": "服用阿莫西林胶囊", "labels": [[2, 8, "DRUG"]], "meta": {}},
        {"id": 7, "data": "服用阿莫西林胶囊", "label": [[2, 8, "DRUG"]]},
        {
            "id": 7,
            "text": "服用阿莫西林胶囊",
            "entities": [{"id": 31, "label": "DRUG", "start_offset": 2, "end_offset": 8}],
            "relations": [],
            "Comments": [],
        },
        {
            "id": 7,
            "text": "服用阿莫西林胶囊",
            "annotations": [{"label": "DRUG", "start_offset": 2, "end_offset": 8, "user": 1}],
        },
    ],
)
def test_exports_of_doccano_are_read(tmp_path: Path, record: dict[str, Any]) -> None:
    """Its versions have called the same thing by these names."""
    reading = read_labelled(write(tmp_path / "all.jsonl", json.dumps(record)))
    assert reading.format == DOCCANO
    assert not reading.bad
    assert reading.texts[0].spans == (Span(2, 8, "DRUG"),)


def test_other_exports_of_doccano_are_told_apart(tmp_path: Path) -> None:
    """Labels of whole texts, and labels by number, are no spans."""
    lines = ['{"text":"good","label":["positive"]}', '{"text":"a","annotations":[{"label":3}]}']
    bad = read_labelled(write(tmp_path / "classes.jsonl", *lines)).bad
    assert "'positive' is neither an object nor [start, end, label]" in bad[0].reason
    assert "export labels by name" in bad[1].reason

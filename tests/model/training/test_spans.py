"""Reading labelled text and laying spans over tokens."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.spans import IGNORED_LABEL, EncodingError, Span, align, bio_labels, read_spans, spans_of

LABELS = bio_labels(["PER", "LOC"])
LABEL_IDS = {name: index for index, name in enumerate(LABELS)}


def write(path: Path, *lines: str) -> Path:
    """A data file with these lines."""
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_every_line_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Nothing vanishes unsaid: each bad line has its number and a reason that helps."""
    path = write(
        tmp_path / "odd.jsonl",
        '{"text":"Oslo is cold","spans":[{"start":0,"end":4,"label":"LOC"}]}',
        '{"text":"Meet Ann Lee today","spans":[{"start":5,"end":13,"label":"PER"}]}',
        '{"text":"Short","spans":[{"start":0,"end":99,"label":"ORG"}]}',
        '{"text":"Empty span","spans":[{"start":5,"end":5,"label":"ORG"}]}',
        '{"text":"Bank of Oslo opens","spans":[{"start":0,"end":12,"label":"ORG"},'
        '{"start":8,"end":18,"label":"LOC"}]}',
        '{"text":"🙂 Oslo","spans":[{"start":3,"end":7,"label":"LOC"}]}',
        '{"text":"No label","spans":[{"start":0,"end":2}]}',
        '{"text":"Broken",',
        '{"text":7}',
        '{"text":"a","spans":{}}',
        '{"text":"a","spans":[1]}',
        '{"text":"a","spans":[{"start":"0","end":1,"label":"X"}]}',
    )
    texts, bad = read_spans(path)
    assert [text.text for text in texts] == ["Oslo is cold"]
    assert [line.line for line in bad] == list(range(2, 13))
    reasons = [line.reason for line in bad]
    for reason, words in zip(
        reasons,
        ["white space", "behind the text", "empty", "overlap", "UTF-16", "no label", "not JSON"],
        strict=False,
    ):
        assert words in reason
    assert str(bad[0]).startswith(f"{path}:2: ")


def test_a_file_in_another_encoding_is_refused_by_line(tmp_path: Path) -> None:
    """Chinese tools still write GBK; read as UTF-8 with gaps, every offset would be off."""
    path = tmp_path / "gbk.jsonl"
    path.write_bytes(b'{"text":"a"}\n' + '{"text":"北京"}'.encode("gbk"))
    with pytest.raises(EncodingError, match=r"gbk\.jsonl:2: byte 0xb1 is not UTF-8"):
        read_spans(path)


def test_half_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    """JSON can spell it, no tokenizer takes it."""
    texts, bad = read_spans(write(tmp_path / "half.jsonl", r'{"text":"a \ud83d"}'))
    assert texts == []
    assert "surrogate" in bad[0].reason


def test_both_names_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    """``entities`` is another name of ``spans``; a mark and blank lines are not data."""
    path = tmp_path / "marked.jsonl"
    record = {"text": "张三去北京", "entities": [{"start": 0, "end": 2, "label": "PER"}]}
    path.write_text("\ufeff" + json.dumps(record, ensure_ascii=False) + "\r\n\r\n", encoding="utf-8")
    texts, bad = read_spans(path)
    assert not bad
    assert texts[0].spans == (Span(0, 2, "PER"),)


def test_labels_follow_token_borders() -> None:
    """First token B, the rest I; tokens of no text are left out of the loss."""
    # text "Ann Lee, Rio": <s> Ann Lee , Rio </s>
    offsets = np.array([[0, 0], [0, 3], [4, 7], [7, 8], [9, 12], [0, 0]])
    names, misfits = align([Span(0, 7, "PER"), Span(9, 12, "LOC")], offsets, LABEL_IDS)
    assert names[1:-1] == [LABEL_IDS[k] for k in ("B-PER", "I-PER", "O", "B-LOC")]
    assert names[0] == names[-1] == IGNORED_LABEL
    assert not misfits


def test_a_span_inside_a_token_is_reported() -> None:
    """Such a span can never be given back; training says how many there are."""
    offsets = np.array([[0, 6], [7, 9]])
    _, misfits = align([Span(0, 3, "PER"), Span(7, 9, "LOC")], offsets, LABEL_IDS)
    assert misfits == [Span(0, 3, "PER")]


def test_a_stray_inside_label_begins_a_span() -> None:
    """As seqeval does: I-LOC after O or after I-PER opens a new span."""
    offsets = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    assert spans_of(["O", "I-LOC", "I-PER", "B-PER"], offsets) == [
        Span(1, 2, "LOC"),
        Span(2, 3, "PER"),
        Span(3, 4, "PER"),
    ]


@given(st.data())
def test_labels_give_the_spans_back(data: st.DataObject) -> None:
    """Whatever spans lie on token borders, labelling and reading back is the identity."""
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    ends = np.cumsum(lengths)
    offsets = np.stack((ends - lengths, ends), axis=1)
    spans: list[Span] = []
    token = 0
    while token < len(lengths):
        width = data.draw(st.integers(0, 3))
        if width and token + width <= len(lengths):
            label = data.draw(st.sampled_from(["PER", "LOC"]))
            spans.append(Span(int(offsets[token, 0]), int(offsets[token + width - 1, 1]), label))
        token += max(width, 1)
    label_ids, misfits = align(spans, offsets, LABEL_IDS)
    assert not misfits
    assert spans_of([LABELS[k] for k in label_ids], offsets) == spans


def test_an_unknown_label_is_an_error() -> None:
    """A label outside the list is not dropped in silence."""
    with pytest.raises(KeyError, match="B-ORG"):
        align([Span(0, 1, "ORG")], np.array([[0, 1]]), LABEL_IDS)

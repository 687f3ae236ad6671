"""A document is its paragraphs, whatever stands around them; and the model is shown what a reader sees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.runtime.documents import paragraphs, read_documents, visible_text
from model.runtime.tokenization import NotTextError, Tokenizer
from tests.bundles import tiny_tokenizer
from tests.model.runtime.work import RUNS, calls_of

TINY = Tokenizer(tiny_tokenizer())
SENTENCES = [
    "Tim Cook works in Paris.",
    "张三在北京。",
    "hello world",
    "在 New\nYork",
    "Apple!",
    "a。b",
    "『好。』",
]
GAPS = ["\n\n", "\r\n\r\n", "\n \t\n", "\u2029", "\n\n\n\n", " \n\n  "]


def parts(text: str) -> list[str]:
    """The paragraphs as text."""
    return [text[start:end] for start, end in paragraphs(text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        (" \n\r\n\t", []),
        ("one", ["one"]),
        ("one\n\ntwo", ["one", "two"]),
        ("one\r\n\r\ntwo\r\n \r\n\r\nthree\r\n", ["one", "two", "three"]),
        ("  one  \n\n\n\n  two  ", ["one", "two"]),
        ("one\u2029two", ["one", "two"]),
        ("one\r\rtwo", ["one", "two"]),
        ("New\nYork", ["New\nYork"]),
        ("New\r\nYork", ["New\r\nYork"]),
        ("New\u2028York", ["New\u2028York"]),
        ("One.\nTwo", ["One.", "Two"]),
        ("One.”  \r\nTwo", ["One.”", "Two"]),
        ("你好。\n再见！\n", ["你好。", "再见！"]),
        ("One. Two.", ["One. Two."]),
        ("at 3.5\nor", ["at 3.5\nor"]),
    ],
)
def test_paragraphs_end_at_empty_lines_and_behind_sentences_that_end_their_line(
    text: str, wanted: list[str]
) -> None:
    """A fold inside a sentence is none."""
    assert parts(text) == wanted


@settings(deadline=None)
@given(data=st.data(), texts=st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=12))
def test_a_document_is_read_as_its_paragraphs_alone(data: st.DataObject, texts: list[str]) -> None:
    """The same windows to the last id, at their places; so no answer can differ."""
    pieces: list[str] = []
    starts: list[int] = []
    for text in texts:
        starts.append(sum(map(len, pieces)))
        pieces += [text, data.draw(st.sampled_from(GAPS))]
    (whole,) = read_documents(["".join(pieces)], TINY, max_tokens=8)
    alone = read_documents(texts, TINY, max_tokens=8)
    wanted = [window for document in alone for window in document.windows]
    assert [window.input_ids.tolist() for window in whole.windows] == [w.input_ids.tolist() for w in wanted]
    places = [start + part.start for start, one in zip(starts, alone, strict=True) for part in one.paragraphs]
    assert [paragraph.start for paragraph in whole.paragraphs] == places
    assert whole.tokens == sum(document.tokens for document in alone)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain", "plain"),
        ("r\u00ade\u00adne", "rene"),
        ("in pa\u200bris", "in paris"),
        ("\ufeffPa\u2060ris\u200e", "Paris"),
        ("北\u200b京", "北京"),
        ("\u202bאבג\u202c", "אבג"),
        ("Pa\u200dris Pa\u200cris", "Paris Paris"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क\u200dष", "क\u200dष"),
        ("ไป\u200bเที่ยว", "ไป\u200bเที่ยว"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_what_no_reader_sees_is_left_out(text: str, wanted: str) -> None:
    """A normaliser makes spaces of it, which tear words apart; joiners that shape their letters stay."""
    seen, kept = visible_text(text)
    assert seen == wanted
    if kept is not None:
        assert "".join(text[place] for place in kept) == wanted


def test_offsets_are_those_of_the_text_as_sent() -> None:
    """Hidden characters inside a token belong to it, those around it do not."""
    text = "in\u200b \u00adPa\u200bris\u00ad now"
    (document,) = read_documents([text], TINY, max_tokens=20)
    (paragraph,) = document.paragraphs
    pieces = [text[start:end] for start, end in paragraph.tokenized.offsets.tolist() if end > start]
    assert pieces == ["in", "Pa\u200bris", "n", "o", "w"]


def test_half_a_character_is_named_by_text_and_place() -> None:
    """Also behind a paragraph and a hidden character."""
    with pytest.raises(NotTextError) as refused:
        read_documents(["fine", "one\n\n\u00adtwo \ud83d"], TINY, max_tokens=20)
    assert (refused.value.index, refused.value.character) == (1, 10)


def test_a_text_without_words_has_no_windows() -> None:
    """It costs no run."""
    for text in ("", " \n", "\u200b", "\u00ad\u00ad\n\n\ufeff"):
        (document,) = read_documents([text], TINY, max_tokens=20)
        assert document.windows == []


@pytest.mark.parametrize("unit", [*RUNS.values(), "a\n\n", "a.\n", "\u200b", "\n \t"])
def test_a_longer_text_takes_no_more_work_per_character(unit: str) -> None:
    """A text may be a million characters of one kind."""

    def work(length: int) -> int:
        text = (unit * length)[:length]
        return calls_of(lambda: read_documents([text], TINY, max_tokens=32))

    work(200)  # whatever is done once, is done
    assert work(1600) <= 9 * work(200)


def test_positions_of_windows_stay_inside_their_paragraph() -> None:
    """Stitching one paragraph needs nothing of another."""
    (document,) = read_documents(["hello world " * 40 + "\n\nTim Cook"], TINY, max_tokens=20)
    first, second = document.paragraphs
    assert len(first.windows) > 1
    assert len(second.windows) == 1
    assert np.array_equal(second.windows[0].positions, np.arange(len(second.tokenized)))

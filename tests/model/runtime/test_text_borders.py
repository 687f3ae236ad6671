"""Texts are cut between whole visible characters, and sentences end where readers think they do."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys

import numpy as np
import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.runtime.text_borders import (
    classify,
    grapheme_borders,
    is_unspaced,
    last_true,
    next_true,
    sentence_ends,
)
from tests.model.runtime.work import RUNS, calls_of

ALPHABET = "aé\u0301\u0308北가각\u1100\u1161\u11a8👩👧🙂👍🏽\u200d\u200c\ufe0f🇨🇳🇫\r\n\t\u200b\u00ad\ufeff ❤์ำ"


@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=12))
@example("👍\u0e33\u200d👍")
@example("👩\u200d👩\u200d👧🇨🇳🇫🇷e\u0301\r\n👍🏽❤\ufe0f")
def test_borders_are_those_of_the_unicode_standard(text: str) -> None:
    """Against the regex library, an independent and complete implementation."""
    ends = [match.end() for match in regex.finditer(r"\X", text)]
    assert np.flatnonzero(grapheme_borders(text)).tolist() == [0, *ends]


def test_each_distinct_character_is_looked_at_once() -> None:
    """The rest is array arithmetic, so a text's length costs next to nothing, whatever runs it holds."""
    asked = []

    def kind(character: str) -> int:
        asked.append(character)
        return ord(character)

    text = "a\u0301\ufe0f" * 50 + "\ud83d"
    assert classify(text, kind).tolist() == [ord(character) for character in text]
    assert sorted(asked) == sorted(set(text))


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=8))
def test_nearest_set_flags_are_found_on_both_sides(flags: list[bool]) -> None:
    """Against a search; none is -1 before and the length behind."""
    places = [index for index, flag in enumerate(flags) if flag]
    array = np.array(flags, dtype=np.bool_)
    every = range(len(flags))
    assert last_true(array).tolist() == [max((p for p in places if p <= i), default=-1) for i in every]
    assert next_true(array).tolist() == [
        min((p for p in places if p >= i), default=len(flags)) for i in every
    ]


@pytest.mark.parametrize("unit", RUNS.values(), ids=RUNS.keys())
def test_a_longer_text_takes_no_more_calls(unit: str) -> None:
    """Runs of flags, marks and joiners are counted for the whole text at once."""
    calls = [calls_of(functools.partial(grapheme_borders, unit * count)) for count in (100, 100, 1000)]
    assert calls[2] <= calls[1]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("今天。明天！后天？", ["今天。", "明天！", "后天？"]),
        ("他说：“走吧。”然后", ["他说：“走吧。”", "然后"]),
        ("It works. Really? Yes!", ["It works.", " Really?", " Yes!"]),
        ('He said "go." Then', ['He said "go."', " Then"]),
        ("Version 3.14 of example.org", ["Version 3.14 of example.org"]),
        ("One\nTwo", ["One\n", "Two"]),
        ("Wait... what", ["Wait...", " what"]),
        ("", []),
    ],
)
def test_sentences_end_behind_their_marks(text: str, sentences: list[str]) -> None:
    """Closing quotation marks belong to the sentence; numbers and host names are whole."""
    ends = [0, *sentence_ends(text), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends) if start < end]
    assert parts == sentences


@settings(deadline=None)
@given(text=st.text(alphabet='ab.。!…"”)\\] \n\u3000', max_size=30))
def test_sentence_ends_are_those_of_the_plain_pattern(text: str) -> None:
    """What keeps the search linear must not change what it finds."""
    closers = "[\"'”’」』）)》〉】\\]]"
    plain = re.compile(rf"[。！？!?…]+{closers}*|\.+{closers}*(?=\s|$)|\n")
    assert sentence_ends(text) == [match.end() for match in plain.finditer(text)]


@pytest.mark.parametrize("unit", [".", '."', '"', "!", "…”", ".\n"])
@pytest.mark.parametrize("closers", [0, 100_000])
def test_no_text_keeps_the_search_for_sentences_busy(unit: str, closers: int) -> None:
    """It holds the interpreter lock: a search that retries at every stop of a long run halts the service.

    In a process of its own, since one that hangs cannot be interrupted; a linear one needs milliseconds.
    """
    program = (
        "from model.runtime.text_borders import sentence_ends\n"
        f"sentence_ends({unit!r} * 500_000 + ')' * {closers} + 'a')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


@pytest.mark.parametrize(
    ("character", "expected"), [*((c, True) for c in "北あアｱ한ก〇𠀀"), *((c, False) for c in "aéЖαא1ع")]
)
def test_scripts_without_spaces(character: str, expected: bool) -> None:
    """There a word of the tokenizer may hold several names."""
    assert is_unspaced(character) is expected

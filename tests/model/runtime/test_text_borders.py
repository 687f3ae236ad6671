"""Texts are cut between whole visible characters, and sentences end where readers think they do."""

from __future__ import annotations

import itertools

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model.runtime.text_borders import is_grapheme_border, is_unspaced, sentence_ends

ALPHABET = "aé\u0301\u0308北가각\u1100\u1161\u11a8👩👧🙂👍🏽\u200d\u200c\ufe0f🇨🇳🇫\r\n\t\u200b\u00ad\ufeff ❤์ำ"


@settings(deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=12))
@example("👍\u0e33\u200d👍")
@example("👩\u200d👩\u200d👧🇨🇳🇫🇷e\u0301\r\n👍🏽❤\ufe0f")
def test_borders_are_those_of_the_unicode_standard(text: str) -> None:
    """Against the regex library, an independent and complete implementation."""
    ends = {match.end() for match in regex.finditer(r"\X", text)}
    assert {index for index in range(1, len(text) + 1) if is_grapheme_border(text, index)} == ends


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


@pytest.mark.parametrize(
    ("character", "expected"), [*((c, True) for c in "北あアｱ한ก〇𠀀"), *((c, False) for c in "aéЖαא1ع")]
)
def test_scripts_without_spaces(character: str, expected: bool) -> None:
    """There a word of the tokenizer may hold several names."""
    assert is_unspaced(character) is expected

"""Where a text may be cut: between whole characters as readers see them, and after sentences.

Works on code points and the interpreter's own Unicode data; no tokens, no model. Everything takes time linear
in the text, whatever it holds: runs of marks, joiners or flags may be as long as the text. Hence whole texts
as arrays, rather than one place at a time with a walk to the next visible character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_ZERO_WIDTH_JOINER = "\u200d"
_ZERO_WIDTH_NON_JOINER = "\u200c"
_CLOSERS = "\"'”’」』）)》〉】\\]"
# A sentence's last mark and what closes behind it. The Latin full stop ends one only before white space, or
# every number and host name would be cut; a wrong end (after "St.") does no harm where windows overlap.
# Linear on any text: a run of stops is tried from its first one only, and, once taken, never given back; both
# leave the matches as they are, since neither a stop nor a closer is white space.
_SENTENCE_END = re.compile(rf"[。！？!?…]++[{_CLOSERS}]*+|(?<!\.)\.++[{_CLOSERS}]*+(?=\s|$)|\n")
# Scripts written without spaces, or (Hangul) with particles joined to the name: ends of names fall inside
# what a pre-tokeniser calls a word. Code point ranges, ends included.
_UNSPACED = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1100, 0x11FF),  # Hangul letters
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x1AAF),  # Tai scripts
    (0x2E80, 0xA4CF),  # Han, kana, bopomofo, Yi
    (0xA960, 0xA97F),  # Hangul letters
    (0xAC00, 0xD7FF),  # Hangul syllables
    (0xF900, 0xFAFF),  # Han
    (0xFF66, 0xFFDC),  # half-width kana and Hangul
    (0x1B000, 0x1B16F),  # kana
    (0x20000, 0x3FFFF),  # Han
)


# What the grapheme rules ask about a character, a bit each.
_CONTROL, _EXTENDS, _MODIFIER, _JOINER, _PICTOGRAPH, _REGIONAL, _CARRIAGE_RETURN, _LINE_FEED = (
    1 << place for place in range(8)
)
_HANGUL = {kind: 1 << place for place, kind in enumerate(("L", "V", "T", "LV", "LVT"), start=8)}


def sentence_ends(text: str) -> list[int]:
    """Code-point positions just behind the last mark of each sentence, and behind each line; ascending."""
    return [match.end() for match in _SENTENCE_END.finditer(text)]


def is_unspaced(character: str) -> bool:
    """Whether its script lets a name end anywhere, not only at a space."""
    code_point = ord(character)
    return any(first <= code_point <= last for first, last in _UNSPACED)


def classify(text: str, kind: Callable[[str], int]) -> NDArray[np.uint16]:
    """``kind`` of each code point, asked once for each distinct one.

    Args:
        text: n code points.
        kind: from 0 to 65,535.

    Returns:
        [n].
    """
    if not text:
        return np.zeros(0, dtype=np.uint16)
    code_points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    kinds = np.zeros(int(code_points.max()) + 1, dtype=np.uint16)
    for character in set(text):
        kinds[ord(character)] = kind(character)
    of_text: NDArray[np.uint16] = kinds[code_points]
    return of_text


def last_true(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[n] for each index the greatest one up to it whose flag is set; -1 if none."""
    return np.maximum.accumulate(np.where(flags, np.arange(len(flags)), -1))


def next_true(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[n] for each index the least one from it on whose flag is set; n if none."""
    count = len(flags)
    return np.minimum.accumulate(np.where(flags, np.arange(count), count)[::-1])[::-1]


def grapheme_borders(text: str) -> NDArray[np.bool_]:
    """Whether ``text`` may be cut before each code point without splitting a visible character.

    Both ends of the text are borders. Covers combining marks, emoji sequences, flags, Hangul letters and
    CR LF; Indic conjuncts may be cut between their consonants.

    Returns:
        [n + 1], the last for the end of the text.

    Source: Unicode Standard Annex 29, section 3.1 (rules GB3 to GB13, without GB9b and GB9c).
    """
    borders = np.ones(len(text) + 1, dtype=np.bool_)
    if len(text) < 2:
        return borders
    kinds = classify(text, _grapheme_kind)
    before, after = kinds[:-1], kinds[1:]  # on both sides of each inner place
    joined = (
        _has(after, _EXTENDS) | _hangul_joins(before, after) | _emoji_joins(kinds) | _flags_are_halved(kinds)
    )
    control = _has(before | after, _CONTROL)
    line_end = _has(before, _CARRIAGE_RETURN) & _has(after, _LINE_FEED)
    borders[1:-1] = ~line_end & (control | ~joined)
    return borders


def _grapheme_kind(character: str) -> int:
    """Bits for what the rules ask about it."""
    kind = _HANGUL.get(_hangul_kind(character), 0)
    for bit, holds in (
        (_CONTROL, _is_control(character)),
        (_EXTENDS, _extends(character)),
        (_MODIFIER, _is_modifier(character)),
        (_JOINER, character == _ZERO_WIDTH_JOINER),
        (_PICTOGRAPH, _is_pictograph(character)),
        (_REGIONAL, _is_regional(character)),
        (_CARRIAGE_RETURN, character == "\r"),
        (_LINE_FEED, character == "\n"),
    ):
        if holds:
            kind |= bit
    return kind


def _has(kinds: NDArray[np.uint16], bits: int) -> NDArray[np.bool_]:
    """Whether each has one of ``bits``."""
    has: NDArray[np.bool_] = (kinds & bits) != 0
    return has


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    if category == "Cf":
        return not _extends(character)
    return category in {"Cc", "Zl", "Zp"}


def _extends(character: str) -> bool:
    """Whether it belongs to what stands before it: marks, joiners, modifiers, Thai and Lao AM."""
    return _is_modifier(character) or unicodedata.category(character) == "Mc" or character in "\u0e33\u0eb3"


def _is_modifier(character: str) -> bool:
    """Property Grapheme_Extend, and the zero-width joiner; these leave an emoji the emoji that it is."""
    if character in (_ZERO_WIDTH_JOINER, _ZERO_WIDTH_NON_JOINER, "\uff9e", "\uff9f"):
        return True
    code_point = ord(character)
    if 0x1F3FB <= code_point <= 0x1F3FF or 0xE0020 <= code_point <= 0xE007F:  # skin tones; flag tags
        return True
    return unicodedata.category(character) in {"Mn", "Me"}


def _hangul_joins(before: NDArray[np.uint16], after: NDArray[np.uint16]) -> NDArray[np.bool_]:
    lead, vowel, tail, open_syllable, closed_syllable = _HANGUL.values()
    return (
        (_has(before, lead) & _has(after, lead | vowel | open_syllable | closed_syllable))
        | (_has(before, open_syllable | vowel) & _has(after, vowel | tail))
        | (_has(before, closed_syllable | tail) & _has(after, tail))
    )


def _hangul_kind(character: str) -> str:
    code_point = ord(character)
    if 0xAC00 <= code_point <= 0xD7A3:
        return "LV" if (code_point - 0xAC00) % 28 == 0 else "LVT"
    for kind, ranges in (
        ("L", ((0x1100, 0x115F), (0xA960, 0xA97C))),
        ("V", ((0x1160, 0x11A7), (0xD7B0, 0xD7C6))),
        ("T", ((0x11A8, 0x11FF), (0xD7CB, 0xD7FB))),
    ):
        if any(first <= code_point <= last for first, last in ranges):
            return kind
    return ""


def _emoji_joins(kinds: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """[n - 1] for each inner place: a joiner between two pictographs, the first with or without modifiers."""
    pictograph, joiner = _has(kinds, _PICTOGRAPH), _has(kinds, _JOINER)
    bases = last_true(joiner | ~_has(kinds, _MODIFIER))  # a second joiner is no modifier of the first one's
    behind_pictograph = pictograph[bases] & (bases >= 0)
    joins = np.zeros(len(kinds) - 1, dtype=np.bool_)
    joins[1:] = behind_pictograph[:-2] & joiner[1:-1] & pictograph[2:]
    return joins


def _flags_are_halved(kinds: NDArray[np.uint16]) -> NDArray[np.bool_]:
    """[n - 1] for each inner place: inside a pair, counted from the start of a run of regional letters."""
    regional = _has(kinds, _REGIONAL)
    run_lengths = np.arange(len(kinds)) - last_true(~regional)  # 0 outside runs
    odd: NDArray[np.bool_] = run_lengths % 2 == 1
    return regional[1:] & odd[:-1]


def _is_pictograph(character: str) -> bool:
    # "So" also holds symbols that are no emoji; behind a joiner none of them occurs in running text.
    return unicodedata.category(character) == "So" and not _is_regional(character)


def _is_regional(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF

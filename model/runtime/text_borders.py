"""Where a text may be cut: between whole characters as readers see them, and after sentences.

Works on code points and the interpreter's own Unicode data; no tokens, no model.
"""

from __future__ import annotations

import re
import unicodedata

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


def sentence_ends(text: str) -> list[int]:
    """Code-point positions just behind the last mark of each sentence, and behind each line; ascending."""
    return [match.end() for match in _SENTENCE_END.finditer(text)]


def is_unspaced(character: str) -> bool:
    """Whether its script lets a name end anywhere, not only at a space."""
    code_point = ord(character)
    return any(first <= code_point <= last for first, last in _UNSPACED)


def is_grapheme_border(text: str, index: int) -> bool:
    """Whether ``text`` may be cut before code point ``index`` without splitting a visible character.

    Both ends of the text are borders. Covers combining marks, emoji sequences, flags, Hangul letters and
    CR LF; Indic conjuncts may be cut between their consonants.

    Source: Unicode Standard Annex 29, section 3.1 (rules GB3 to GB13, without GB9b and GB9c).
    """
    if index <= 0 or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before == "\r" and after == "\n":
        return False
    if _is_control(before) or _is_control(after):
        return True
    return not (
        _extends(after)
        or _hangul_joins(before, after)
        or _emoji_joins(text, index)
        or _halves_a_flag(text, index)
    )


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


def _hangul_joins(before: str, after: str) -> bool:
    first, second = _hangul_kind(before), _hangul_kind(after)
    return (
        (first == "L" and second in {"L", "V", "LV", "LVT"})
        or (first in {"LV", "V"} and second in {"V", "T"})
        or (first in {"LVT", "T"} and second == "T")
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


def _emoji_joins(text: str, index: int) -> bool:
    """A joiner between two pictographs, the first with or without modifiers."""
    if text[index - 1] != _ZERO_WIDTH_JOINER or not _is_pictograph(text[index]):
        return False
    first = index - 2
    while first >= 0 and _is_modifier(text[first]) and text[first] != _ZERO_WIDTH_JOINER:
        first -= 1
    return first >= 0 and _is_pictograph(text[first])


def _is_pictograph(character: str) -> bool:
    # "So" also holds symbols that are no emoji; behind a joiner none of them occurs in running text.
    return unicodedata.category(character) == "So" and not _is_regional(character)


def _is_regional(character: str) -> bool:
    return 0x1F1E6 <= ord(character) <= 0x1F1FF


def _halves_a_flag(text: str, index: int) -> bool:
    if not (_is_regional(text[index - 1]) and _is_regional(text[index])):
        return False
    first = index - 1
    while first > 0 and _is_regional(text[first - 1]):
        first -= 1
    return (index - first) % 2 == 1

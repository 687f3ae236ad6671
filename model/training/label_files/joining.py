"""Tokens put together again as people write: what a tagger learns from should look like what it will read.

Where a file does not say what stood between its tokens, punctuation, brackets, quotation marks, money and
clitics decide; whatever they leave open gets a space.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from model.runtime.text_borders import is_unspaced

# As treebanks write brackets and quotation marks.
_WRITTEN: Final = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
    "``": '"',
    "''": '"',
}
_OPENING: Final = frozenset("([{«“‘‚„¿¡‹")
_CLOSING: Final = frozenset(")]}»”›")
_APOSTROPHES: Final = frozenset("'’")
_STOPS: Final = re.compile(r"[.?!…]+|[,;:]")
_CLITIC: Final = re.compile(r"['’](?:[smdt]|re|ve|ll)|n['’]t", re.IGNORECASE)
_CUT_CLITIC: Final = re.compile(r"[smdt]|re|ve|ll", re.IGNORECASE)  # of tokenizers that cut at apostrophes
_INSIDE_WORDS: Final = "-/@"
_NUMBER: Final = re.compile(r"\d[.,]\d")
_THOUSAND: Final = re.compile(r"\d{1,3},\d{3}")
_DECIMAL_OR_TIME: Final = re.compile(r"\d+[.:]\d+")


def as_written(token: str) -> str:
    """A token as it stands in running text: ``-LRB-`` is a bracket."""
    return _WRITTEN.get(token, token)


class Joiner:
    """Joins the tokens of a file's sentences.

    Args:
        sentences: All of the file: whether its tokens are single characters, and whether numbers and words
            with marks in them are whole, shows there.
        spaced: Put a space between any two tokens, but beside scripts without spaces; for texts that will be
            cut into tokens too where the tagger is used.
    """

    def __init__(self, sentences: Iterable[Sequence[str]], *, spaced: bool = False) -> None:
        tokens = {token for sentence in sentences for token in sentence}
        # Chinese files often have a character a line, their Latin words in letters too.
        self._by_character = all(len(token) == 1 for token in tokens) and any(map(is_unspaced, tokens))
        # A tokenizer that keeps "and/or" or 62.99 whole somewhere does so everywhere.
        self._cuts_numbers = not any(map(_NUMBER.search, tokens))
        self._cuts_at = {mark for mark in _INSIDE_WORDS if not any(mark in token[1:-1] for token in tokens)}
        self._spaced = spaced

    def join(
        self, tokens: Sequence[str], spaces: Sequence[bool] | None = None
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text, and where each token stands in it, in code points.

        Args:
            tokens: Not empty.
            spaces: Whether a space follows each; None = the file does not say.
        """
        if spaces is None:
            spaces = self._spaces(tokens)
        parts: list[str] = []
        borders: list[tuple[int, int]] = []
        length = 0
        for index, token in enumerate(tokens):
            if index and spaces[index - 1]:
                parts.append(" ")
                length += 1
            parts.append(token)
            borders.append((length, length + len(token)))
            length += len(token)
        return "".join(parts), borders

    def _spaces(self, tokens: Sequence[str]) -> list[bool]:
        """Whether a space follows each token."""
        if self._by_character:
            return [False] * len(tokens)
        quotes = {} if self._spaced else _quotes(tokens)
        return [
            not (_needs_no_space(before[-1]) or _needs_no_space(token[0]))
            and (self._spaced or not self._are_tight(tokens, index, quotes))
            for index, (before, token) in enumerate(itertools.pairwise(tokens))
        ] + [False]

    def _are_tight(self, tokens: Sequence[str], index: int, quotes: Mapping[int, bool]) -> bool:
        """Whether nothing stands between the tokens ``index`` and ``index + 1``."""
        before, token = tokens[index], tokens[index + 1]
        earlier = tokens[index - 1] if index else ""
        later = tokens[index + 2] if index + 2 < len(tokens) else ""
        return (
            (before in _OPENING and quotes.get(index) is not False)
            or token in _CLOSING
            or quotes.get(index) is True
            or quotes.get(index + 1) is False
            or _STOPS.fullmatch(token) is not None
            or (token[0].isdecimal() and (_is_money(before[-1]) or before == "#"))
            or (token[0] == "%" and before[-1].isdecimal())
            or (_CLITIC.fullmatch(token) is not None and before[-1].isalpha())
            or (token in _APOSTROPHES and index + 1 not in quotes)  # neither: it stands in a word
            or (before in _APOSTROPHES and index not in quotes)
            or (token == before and not token.isalnum() and len(token) == 1)
            or (before[-1].isalnum() and token in self._cuts_at and later[:1].isalnum())
            or (earlier[-1:].isalnum() and before in self._cuts_at and token[0].isalnum())
            or (self._cuts_numbers and _is_number(earlier + before + token, earlier, token))
        )


def _quotes(tokens: Sequence[str]) -> dict[int, bool]:
    """Which tokens are quotation marks that do not say so themselves; True = an opening one.

    They open and close by turns; one at the end of a sentence closes what an earlier sentence opened. An
    apostrophe is none, nor one behind a plural ("the students' books").
    """
    found: dict[int, bool] = {}
    is_open = {'"': False, "'": False, "“": False}
    rest_is_marks = len(tokens)
    while rest_is_marks and not tokens[rest_is_marks - 1][0].isalnum():
        rest_is_marks -= 1
    for index, piece in enumerate(tokens):
        before = tokens[index - 1] if index else " "
        behind = tokens[index + 1] if index + 1 < len(tokens) else " "
        mark = "'" if piece in _APOSTROPHES else piece
        if mark not in is_open:
            if piece in ("‘", "„"):
                is_open["'" if piece == "‘" else "“"] = True
            continue
        if mark == "“" and not is_open[mark]:  # it closes in German, and opens elsewhere
            continue
        if mark == "'" and not is_open[mark]:
            if before[-1].isalpha() and _CUT_CLITIC.fullmatch(behind):
                continue
            if piece == "’" or before[-1] in "sS":
                found[index] = False
                continue
        found[index] = not is_open[mark] and index < rest_is_marks
        is_open[mark] = found[index]
    return found


def _is_money(character: str) -> bool:
    return unicodedata.category(character) == "Sc"


def _is_number(joined: str, first: str, last: str) -> bool:
    """Whether digits, a mark and digits are one number; "May 5, 200 people" looks like one too."""
    if not (first.isdecimal() and last.isdecimal()):
        return False
    return (_DECIMAL_OR_TIME.fullmatch(joined) or _THOUSAND.fullmatch(joined)) is not None


def _needs_no_space(character: str) -> bool:
    """Whether it is of a script without spaces, or a full-width mark."""
    if character.isspace():
        return True
    if is_unspaced(character):  # Korean words have spaces between them
        return not unicodedata.name(character, "").startswith(("HANGUL", "HALFWIDTH HANGUL"))
    return unicodedata.category(character)[0] == "P" and unicodedata.east_asian_width(character) in "WF"

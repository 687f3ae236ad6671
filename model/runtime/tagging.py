"""Logits of tokens to entities; pure functions.

The unit is the *word*: in scripts with spaces the tokens of one pre-tokeniser word, cut at punctuation;
elsewhere (Han, kana, Thai, ...) each token. A word's first token decides for it, even if that is a bare
word-start mark; training must put the word's label there. Labels of words are decoded together, under the
scheme's rules (``decoding``), so no answer holds an ``I-X`` out of place.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.runtime.decoding import Joint, SequenceDecoder
from model.runtime.label_schemes import LabelScheme
from model.runtime.text_borders import classify, grapheme_borders, is_unspaced, last_true, next_true

# An enumeration comma stands between entities, never in one.
LIST_SEPARATORS = frozenset("、")
# Not part of an entity at its border. The Latin full stop is missing on purpose ("U.S.", "Inc."), as are
# brackets and quotation marks, which may belong to a name.
_TRIMMED = frozenset(",;:，；：、。")
# Symbols that belong to what is before them: degrees ("25°"), and kana's sound marks.
_KEPT_SYMBOLS = frozenset("\u00b0\u309b\u309c")
_MARK, _LETTER, _DIGIT, _KEYCAP, _EMOJI_STYLE = range(5)
# A tokenizer may have a piece such as "53)" or "2.", so that no label can part the number from the mark.
_OPENING, _CLOSING = "([{（［【｛《〈「『", ")]}）］】｝》〉」』"
_PARTNERS = dict(zip(_OPENING + _CLOSING, _CLOSING + _OPENING, strict=True))
_ENDS_OF_SENTENCES = frozenset(".!?．！？")
# A normaliser may drop them, so they part nothing.
_INVISIBLE_CATEGORIES = frozenset({"Mn", "Mc", "Me", "Cf"})
_OTHER, _INVISIBLE, _SPACED_LETTER = range(3)
_IMPOSSIBLE = -1e4  # a logit; finite, so that every sequence has a score
# Between the parts of one name; an entity never begins or ends with one, see ``Joint``.
_CONNECTORS = frozenset("-\u2010\u2011\u2013'\u2019&\u00b7\u2027\u30fb\uff0d")
# By how much a connector's "outside" must beat its likeliest label inside for the names on both sides to be
# two ("the Bush-Cheney ticket"): in the texts that the default model learned from they are one in 334 of 345
# such places. In 29 phrases of ours it was at most 6.5 in double names, and between two names 7.8 or more in
# eight of ten. A tagger less sure of itself joins more.
_SURELY_OUTSIDE = 7.0


@dataclass(frozen=True, slots=True)
class Entity:
    """A named entity: ``text[start:end]`` in code points, its type, and a score, 0..1."""

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Word:
    """``text[start:end]``, and the token that decides for it."""

    start: int
    end: int
    first_token: int


def mean_of(probabilities: NDArray[np.float64]) -> float:
    """The score that is usual: the mean over an entity's words."""
    return float(probabilities.mean())


def find_entities(
    text: str,
    offsets: NDArray[np.int64],
    word_ids: Sequence[int | None],
    logits: NDArray[np.float32] | NDArray[np.float64],
    decoder: SequenceDecoder,
    *,
    score: Callable[[NDArray[np.float64]], float] = mean_of,
) -> list[Entity]:
    """Entities of ``text``, in order and without overlap.

    Args:
        text: one paragraph of the caller's text.
        offsets: [S, 2] int64, code points; empty for tokens of no text (see ``TokenizedText``).
        word_ids: [S].
        logits: [S, L], finite, in the scheme's order.
        decoder: of the bundle.
        score: of an entity, by the [W] probabilities of its words' labels.
    """
    scheme = decoder.scheme
    if logits.shape != (len(offsets), len(scheme.labels)):
        raise ValueError(f"logits are {list(logits.shape)}, not [{len(offsets)}, {len(scheme.labels)}]")
    words = words_of(text, offsets, word_ids)
    if not words:
        return []
    of_words = logits[[word.first_token for word in words]].astype(np.float64)  # [W, L]
    for index, word in enumerate(words):
        if text[word.start : word.end] in LIST_SEPARATORS:
            of_words[index] = _IMPOSSIBLE
            of_words[index, scheme.outside] = 0.0
    joints = _joints(text, words)
    path, probabilities = decoder.decode(of_words, joints)
    entities = []
    trimmer = Trimmer(text)
    free_from = 0  # an entity widened to a whole visible character must not reach into the next
    for first, last in _linked(_runs(path, scheme), path, joints, of_words, scheme):
        start, end = trimmer.tidy(max(words[first].start, free_from), words[last].end)
        start, end = trimmer.without_stray_marks(start, end)
        label = scheme.types[path[first]]
        if start < end and label is not None:
            named = [scheme.types[index] is not None for index in path[first : last + 1]]
            entities.append(Entity(start, end, label, score(probabilities[first : last + 1][named])))
            free_from = end
    return entities


def words_of(text: str, offsets: NDArray[np.int64], word_ids: Sequence[int | None]) -> list[Word]:
    """Group tokens into the words that are labelled as one; see the module's docstring.

    Args:
        text: the caller's text.
        offsets: [S, 2] int64; tokens with an empty range belong to no word.
        word_ids: [S].
    """
    words: list[Word] = []
    seams = _Seams(text)
    last_id: int | None = None
    for index, (start, end) in enumerate(offsets.tolist()):
        if start >= end:
            continue
        if words and (
            start < words[-1].end  # a bare word-start mark shares its character with the next token
            or (word_ids[index] == last_id and seams.join(words[-1].end, start))
        ):
            words[-1] = Word(words[-1].start, max(end, words[-1].end), words[-1].first_token)
        else:
            words.append(Word(start, end, index))
        last_id = word_ids[index]
    return words


class _Seams:
    """Where tokens of one pre-tokeniser word are one word; a pass over the text, then constant time each."""

    def __init__(self, text: str) -> None:
        kinds = classify(text, _seam_kind)
        visible = kinds != _INVISIBLE
        self._last_visible = last_true(visible)
        self._next_visible = next_true(visible)
        # One more at the end, never set: the "none" of either, -1 or n, finds it.
        self._spaced_letter = np.append(kinds == _SPACED_LETTER, False)

    def join(self, end: int, start: int) -> bool:
        """Whether a token that ends at ``end`` and one that starts at ``start`` are parts of one word.

        Not if punctuation stands between or at the border ("Paris," is one word to tokenizers that split at
        spaces only), nor in scripts without spaces. Marks and invisible characters, which normalisers drop,
        do not part.
        """
        return bool(
            (end == start or self._next_visible[end] >= start)
            and self._spaced_letter[self._last_visible[end - 1]]
            and self._spaced_letter[self._next_visible[start]]
        )


def _seam_kind(character: str) -> int:
    if unicodedata.category(character) in _INVISIBLE_CATEGORIES:
        return _INVISIBLE
    return _SPACED_LETTER if character.isalnum() and not is_unspaced(character) else _OTHER


def _joints(text: str, words: Sequence[Word]) -> NDArray[np.int8]:
    """[W] ``Joint`` values: where connectors stand tight between two words."""
    joints = np.full(len(words), Joint.FREE, dtype=np.int8)
    for index in range(1, len(words) - 1):
        before, word, after = words[index - 1 : index + 2]
        if (
            text[word.start : word.end] in _CONNECTORS
            and before.end == word.start
            and word.end == after.start
            and text[before.end - 1].isalnum()
            and text[after.start].isalnum()
        ):
            joints[index : index + 2] = Joint.CONNECTOR, Joint.BEHIND
    return joints


def _runs(path: Sequence[int], scheme: LabelScheme) -> list[tuple[int, int]]:
    """(first, last) word of each entity on ``path``."""
    runs: list[tuple[int, int]] = []
    for index, label in enumerate(path):
        if scheme.types[label] is None:
            continue
        if index and scheme.continues[path[index - 1], label]:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs


def _linked(
    runs: Sequence[tuple[int, int]],
    path: Sequence[int],
    joints: NDArray[np.int8],
    logits: NDArray[np.float64],
    scheme: LabelScheme,
) -> list[tuple[int, int]]:
    """``runs`` with those made one that are parts of one name: "Marie-Anne Smith".

    Few connectors are seen in training, so that a model often takes one for the end of a name. Two entities
    of one type tight on both sides of it are one unless it is sure of that; see ``_SURELY_OUTSIDE``.
    """
    linked: list[tuple[int, int]] = []
    for first, last in runs:
        between = first - 1
        if (
            linked
            and linked[-1][1] == between - 1
            and joints[between] == Joint.CONNECTOR
            and (own := scheme.types[path[first]]) == scheme.types[path[between - 1]]
        ):
            inside = max(
                value for value, kind in zip(logits[between], scheme.types, strict=True) if kind == own
            )
            if logits[between, scheme.outside] - inside < _SURELY_OUTSIDE:
                linked[-1] = linked[-1][0], last
                continue
        linked.append((first, last))
    return linked


class Trimmer:
    """Gives spans their final borders; a pass over the text, then constant time each."""

    def __init__(self, text: str) -> None:
        self._text = text
        borders = grapheme_borders(text)
        self._last_border = last_true(borders)
        self._next_border = next_true(borders)
        # A visible character goes or stays whole, as its first code point has it.
        firsts = self._last_border[:-1]
        kept = classify(text, _is_trimmed)[firsts] == 0
        kept &= ~np.isin(firsts, firsts[_makes_emoji(text, firsts)])
        self._last_kept = last_true(kept)
        self._next_kept = next_true(kept)

    def widen(self, start: int, end: int) -> tuple[int, int]:
        """Widen a range that is not empty to whole visible characters."""
        return int(self._last_border[start]), int(self._next_border[end])

    def tidy(self, start: int, end: int) -> tuple[int, int]:
        """Trim whole characters that belong to no name; widen to whole ones. Equal ends = nothing left."""
        if start >= end or self._next_kept[start] >= end:
            return end, end
        first, last = self._next_kept[start], self._last_kept[end - 1]
        return int(self._last_border[first]), int(self._next_border[last + 1])

    def without_stray_marks(self, start: int, end: int) -> tuple[int, int]:
        """Take off brackets whose other half is outside, and the end of a sentence behind a digit.

        Both stand at the border of a tidy range only because a token holds them together with what is named.
        """
        brackets = Counter(mark for mark in self._text[start:end] if mark in _PARTNERS)
        while start < end:
            last = int(self._last_border[end - 1])
            mark = self._text[last]
            if mark in _CLOSING:
                stray = brackets[mark] > brackets[_PARTNERS[mark]]
                brackets[mark] -= stray
            else:
                stray = mark in _ENDS_OF_SENTENCES and last > start and self._text[last - 1].isdecimal()
            if not stray:
                break
            start, end = self.tidy(start, last)
        while start < end and (mark := self._text[start]) in _OPENING:
            if brackets[mark] <= brackets[_PARTNERS[mark]]:
                break
            brackets[mark] -= 1
            start, end = self.tidy(int(self._next_border[start + 1]), end)
        return start, end


def _is_trimmed(character: str) -> bool:
    return (
        character in _TRIMMED
        or character.isspace()
        or unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Zs"}
        or _is_picture(character)
    )


def _is_picture(character: str) -> bool:
    """Whether it is an emoji or another symbol that no name begins or ends with.

    Not what is made of letters or digits, such as ℃, № and ㈱; but ™ only says something about the name.
    """
    if unicodedata.category(character) not in {"So", "Sk"} or character in _KEPT_SYMBOLS:
        return False
    return character in "\u2120\u2122" or not any(map(str.isalnum, unicodedata.normalize("NFKC", character)))


def _makes_emoji(text: str, firsts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[n] what makes an emoji of a mark or a digit: the keycap around 1, the emoji style of ‼.

    A letter stays one before a selector of style, which may be left over from an emoji that was taken out.

    Args:
        text: n code points.
        firsts: [n], where the visible character of each begins.
    """
    kinds = classify(text, _emoji_kind)
    base = kinds[firsts]
    makes: NDArray[np.bool_] = ((kinds == _KEYCAP) & (base != _LETTER)) | (
        (kinds == _EMOJI_STYLE) & (base != _LETTER) & (base != _DIGIT)
    )
    return makes


def _emoji_kind(character: str) -> int:
    if character == "\u20e3":
        return _KEYCAP
    if character == "\ufe0f":
        return _EMOJI_STYLE
    if character.isalpha():
        return _LETTER
    return _DIGIT if character.isalnum() else _MARK

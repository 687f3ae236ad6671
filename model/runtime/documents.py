"""A text of any length as a tagger reads it: paragraph by paragraph, each in windows of its own.

Paragraphs share nothing: not tokens, not windows, not decoding. So a document gives the entities of its
paragraphs, exactly, whatever stands around them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.runtime.text_borders import sentence_ends
from model.runtime.tokenization import TokenizedText, Tokenizer, check_characters
from model.runtime.windows import Window, plan_windows

_LINE_END: Final = r"(?>\r\n|[\n\r\u0085\u2028])"
# An empty line, or Unicode's own mark.
_PARAGRAPH_END: Final = re.compile(rf"{_LINE_END}[^\S\n\r\u0085\u2028]*+{_LINE_END}|\u2029")
_REST_OF_LINE: Final = re.compile(rf"[^\S\n\r\u0085\u2028]*+{_LINE_END}")
# Characters that a reader does not see and a normaliser turns into a space, or that tear a word apart.
_HIDDEN: Final = re.compile("[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_JOINERS: Final = frozenset("\u200c\u200d")
_ZERO_WIDTH_SPACE: Final = "\u200b"
# Scripts in which a zero-width space is the space between words (Thai to Khmer).
_SPACED_BY_ZERO_WIDTH: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x1AAF))


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A stretch of a document that is read by itself.

    Attributes:
        start: where it begins in the document, in code points.
        text: exactly what stands there, without white space around it.
        tokenized: its tokens; offsets count from the paragraph's start.
        windows: what the model reads; none if the paragraph holds no words.
    """

    start: int
    text: str
    tokenized: TokenizedText
    windows: list[Window]


@dataclass(frozen=True, slots=True)
class Document:
    """A caller's text, ready for the model."""

    text: str
    paragraphs: list[Paragraph]

    @property
    def windows(self) -> list[Window]:
        """Of all paragraphs, in order."""
        return [window for paragraph in self.paragraphs for window in paragraph.windows]

    @property
    def tokens(self) -> int:
        """That the windows read of all paragraphs, special tokens included; overlaps count once."""
        return sum(len(paragraph.tokenized) for paragraph in self.paragraphs)


def read_documents(texts: Sequence[str], tokenizer: Tokenizer, *, max_tokens: int) -> list[Document]:
    """Cut each text into paragraphs, tokenise them, plan their windows.

    Args:
        texts: any length.
        tokenizer: of the bundle.
        max_tokens: in a window, special tokens included.

    Raises:
        NotTextError: a text holds half of a surrogate pair.
    """
    for index, text in enumerate(texts):
        check_characters(text, index)
    places = [(index, start, end) for index, text in enumerate(texts) for start, end in paragraphs(text)]
    parts = [texts[index][start:end] for index, start, end in places]
    seen = [visible_text(part) for part in parts]
    tokenized = tokenizer.tokenize([text for text, _ in seen])
    documents = [Document(text, []) for text in texts]
    for (index, start, _), part, (_, kept), tokens in zip(places, parts, seen, tokenized, strict=True):
        own = tokens if kept is None else replace(tokens, offsets=_in_source(tokens.offsets, kept))
        has_words = any(word_id is not None for word_id in own.word_ids)
        windows = plan_windows(part, own, max_tokens=max_tokens) if has_words else []
        documents[index].paragraphs.append(Paragraph(start, part, own, windows))
    return documents


def paragraphs(text: str) -> list[tuple[int, int]]:
    """[start, end) of each paragraph, without the white space around it; none for a blank text.

    A paragraph ends at an empty line, and at a line end right behind the end of a sentence. Any other line
    end is taken for a fold inside a paragraph.
    """
    cuts = {match.end() for match in _PARAGRAPH_END.finditer(text)}
    for end in sentence_ends(text):
        rest = _REST_OF_LINE.match(text, end)
        if rest is not None and text[end - 1] not in "\n\r":
            cuts.add(rest.end())
    found = []
    start = 0
    for cut in (*sorted(cuts), len(text)):
        part = text[start:cut]
        inner = part.strip()
        if inner:
            begin = start + len(part) - len(part.lstrip())
            found.append((begin, begin + len(inner)))
        start = cut
    return found


def visible_text(text: str) -> tuple[str, NDArray[np.int64] | None]:
    """What a reader sees of ``text``: without soft hyphens, zero-width characters and direction marks.

    Joiners stay where they have a say in the shape of what they join (emoji, Arabic, Indic scripts), and so
    does a zero-width space that stands for a space (Thai, Khmer and their neighbours).

    Returns:
        The text, and where each of its characters stands in the original; None = nothing was left out.
    """
    left_out = [match.start() for match in _HIDDEN.finditer(text) if _is_noise(text, match.start())]
    if not left_out:
        return text, None
    kept = np.delete(np.arange(len(text)), left_out)
    pieces = []
    start = 0
    for place in left_out:
        pieces.append(text[start:place])
        start = place + 1
    return "".join([*pieces, text[start:]]), kept


def _is_noise(text: str, place: int) -> bool:
    character = text[place]
    before, after = text[place - 1 : place], text[place + 1 : place + 2]
    if character in _JOINERS:
        return all(_is_plain_letter(neighbour) for neighbour in (before, after) if neighbour)
    if character == _ZERO_WIDTH_SPACE:
        return not any(_takes_zero_width_spaces(neighbour) for neighbour in (before, after) if neighbour)
    return True


def _is_plain_letter(character: str) -> bool:
    """Of a script whose letters do not join: up to Armenian, and Han, kana, Hangul."""
    code_point = ord(character)
    return code_point < 0x0590 or (
        unicodedata.category(character)[0] in "LNZ" and 0x1E00 <= code_point <= 0x3FFFF
    )


def _takes_zero_width_spaces(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _SPACED_BY_ZERO_WIDTH)


def _in_source(offsets: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """[S, 2] offsets in a visible text as those in its original; ranges of no text stay (0, 0)."""
    moved = np.zeros_like(offsets)
    real = offsets[:, 1] > offsets[:, 0]
    moved[real, 0] = kept[offsets[real, 0]]
    moved[real, 1] = kept[offsets[real, 1] - 1] + 1
    return moved

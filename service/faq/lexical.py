"""BM25 that also works where nothing parts the words: Han, kana and Hangul count as characters and pairs.

Characters let a query of one character match; pairs bring back the order that single characters lose. On
short Chinese questions they find more than a dictionary's words do. Written out rather than taken from a
library: the weights are worked out per query, so that an entry can come or go without touching any other
entry's postings.
"""

import functools
import itertools
import math
import operator
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

# Letters of scripts written without spaces (or, for Hangul, with endings stuck to the words), then runs of
# anything else that is a letter, digit or mark: "5g套餐" is "5g" and "套餐", "e1024" one word.
_UNSPACED: Final = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
_RUN: Final = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|[^\W_{_UNSPACED}]+")
# The same where there is nothing but ASCII, folded.
_ASCII_WORD: Final = re.compile(r"[a-z0-9]+")
_WORD_CHAR: Final = re.compile(rf"[^\W_{_UNSPACED}]")

# Unicode's Stream-Safe Text Format (UAX #15, section 13) allows as many.
_MOST_MARKS: Final = 30
# Half-width sound marks: no combining characters, but NFKC makes them such.
_BECOME_MARKS: Final = "\uff9e\uff9f"

K1: Final = 1.2
B: Final = 0.5

# A character that no entry has (`service.faq.entries` refuses it) and no word.
_BORDER: Final = "\0"
# What is counted at a time: some twenty bytes a character for the while.
_BLOCK_CHARACTERS: Final = 262_144
_BLOCK_DOCUMENTS: Final = 65_536
# A term as a number: 21 bits are enough for any character.
_CODE_BITS: Final = 21
_CODE: Final = (1 << _CODE_BITS) - 1
_WORDS_FROM: Final = 1 << 2 * _CODE_BITS
_KEY_BITS: Final = 2 * _CODE_BITS + 1
_IS_WORD: Final = 1
_IS_UNSPACED: Final = 2

Number = TypeVar("Number", bound=np.generic)

# Counts are kept in 16 bits: BM25 has long stopped growing where they end.
_MOST_COUNTED: Final = 65_535


def fold(text: str) -> str:
    """Make full-width and half-width, upper and lower case, and composed and decomposed letters the same.

    Of more than `_MOST_MARKS` marks on one letter the rest is dropped: no language stacks so many, and to put
    marks in order takes time by the square of their number, with the interpreter held all the while.
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", _few_marks(text)).casefold())


def _few_marks(text: str) -> str:
    if len(text) <= _MOST_MARKS or not any(map(_is_mark, set(text))):
        return text
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if _is_mark(character) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)


def _is_mark(character: str) -> bool:
    return unicodedata.combining(character) != 0 or character in _BECOME_MARKS


def lexical_terms(text: str) -> list[str]:
    """Return the words, characters and character pairs of ``text``, folded, repeats kept."""
    folded = fold(text)
    if folded.isascii():
        return _ASCII_WORD.findall(folded)
    terms: list[str] = []
    for run in _RUN.finditer(folded):
        word = run.group()
        if run.lastgroup == "unspaced":
            terms.extend(word)
            terms.extend(map("".join, itertools.pairwise(word)))
        else:
            terms.append(word)
    return terms


def highlights(text: str, terms: Iterable[str]) -> tuple[tuple[int, int], ...]:
    """Return where ``text`` holds any of ``terms``.

    Args:
        text: as a person wrote it.
        terms: all that `lexical_terms` gives for another text.

    Returns:
        Half-open spans in code points of ``text`` as it stands, in order, neither touching nor overlapping.
    """
    folded = fold(text)
    # By looking for the few terms, not by cutting up the text, which may be long.
    found = sorted({place for term in terms for place in _occurrences(folded, term)})
    if not found:
        return ()
    origins = _origins(text, folded)
    spans: list[tuple[int, int]] = []
    for start, end in found:
        first, last = (start, end) if origins is None else (origins[start][0], origins[end - 1][1])
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
        else:
            spans.append((first, last))
    return tuple(spans)


def _occurrences(folded: str, term: str) -> Iterator[tuple[int, int]]:
    """Yield where ``term`` stands in ``folded`` as a term of it."""
    unspaced = _WORD_CHAR.match(term) is None
    if unspaced and len(term) > 1:  # a pair: both of its characters are terms as well
        return
    start = folded.find(term)
    while start >= 0:
        end = start + len(term)
        if unspaced or not (
            (start and _WORD_CHAR.match(folded[start - 1])) or _WORD_CHAR.match(folded[end : end + 1])
        ):
            yield start, end
        start = folded.find(term, end)


@functools.lru_cache(maxsize=16_384)
def _fold_char(char: str) -> str:
    return fold(char)


def _origins(text: str, folded: str) -> Sequence[tuple[int, int]] | None:
    """Return for each character of the folded text the span of ``text`` it came from; None: it is its own."""
    if text.isascii():
        return None
    pieces = list(map(_fold_char, text))
    spans = [(position, position + 1) for position in range(len(text))]
    if "".join(pieces) != folded:
        # Characters met that make up one, such as a letter and its accent: they are folded as one piece.
        spans = _composing_spans(text)
        pieces = [fold(text[start:end]) for start, end in spans]
        if "".join(pieces) != folded:  # nothing known does this; then the whole text is where it came from
            spans, pieces = [(0, len(text))], [folded]
    elif len(folded) == len(text) and "" not in pieces:
        return None
    return [span for span, piece in zip(spans, pieces, strict=True) for _ in piece]


def _composing_spans(text: str) -> list[tuple[int, int]]:
    """Part ``text`` before every character that no normalisation joins to the one before it."""
    borders = [position for position in range(1, len(text)) if not _joins(text[position - 1], text[position])]
    return list(zip([0, *borders], [*borders, len(text)], strict=True)) if text else []


def _joins(before: str, char: str) -> bool:
    first = unicodedata.normalize("NFKD", char)[0]
    # Combining marks, and the vowels and finals of Hangul written letter by letter.
    return unicodedata.combining(first) > 0 or (
        "\u1160" <= first <= "\u11ff" and unicodedata.normalize("NFKC", before + char) != before + char
    )


@dataclass(frozen=True, slots=True)
class LexicalDocument:
    """What BM25 reads of an entry: its phrasings, as one text, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Holders:
    """The documents that hold one term: M of them.

    Attributes:
        documents: [M], rising.
        counts: [M], how often.
        in_question: [M], False where only the answer holds it.
    """

    documents: NDArray[np.int32]
    counts: NDArray[np.uint16]
    in_question: NDArray[np.bool_]


class Postings:
    """Which of N documents hold which terms; never changed once made.

    Shapes: N documents, T distinct terms, M pairs of a document and a distinct term of it, sorted by term.
    """

    def __init__(
        self,
        number_of: Mapping[str, int],
        starts: NDArray[np.int64],
        holders: Holders,
        lengths: NDArray[np.int32],
    ) -> None:
        """Take the parts as `of` and `merged` make them.

        Args:
            number_of: T terms, numbered from 0.
            starts: [T + 1], where each term's pairs start.
            holders: the M pairs of all terms.
            lengths: [N], terms in each document, repeats counted.
        """
        self._number_of = number_of
        self._starts = starts
        self._holders = holders
        self.lengths = lengths

    @classmethod
    def of(cls, documents: Iterable[LexicalDocument]) -> Self:
        """Index ``documents``, numbered in their order; a few at a time are held."""
        number_of: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        blocks = [_count_terms(block, number_of) for block in _blocks(documents)]
        first_documents = np.cumsum([0, *(len(block.lengths) for block in blocks)], dtype=np.int32)
        keys = _joined([block.terms for block in blocks], np.int32)
        numbered = [block.documents + first for block, first in zip(blocks, first_documents, strict=False)]
        holding = _joined(numbered, np.int32)
        # A term's number above its place: sorting bare numbers takes a tenth of what `argsort` does.
        order = np.sort(keys.astype(np.int64) << 32 | np.arange(len(keys))) & (1 << 32) - 1
        holders = Holders(
            holding[order],
            _joined([block.counts for block in blocks], np.uint16)[order],
            _joined([block.in_question for block in blocks], np.bool_)[order],
        )
        lengths = _joined([block.lengths for block in blocks], np.int32)
        return cls(dict(number_of), _starts(keys, len(number_of)), holders, lengths)

    @classmethod
    def merged(cls, parts: Sequence[tuple["Postings", NDArray[np.bool_]]]) -> Self:
        """Join the documents that ``kept`` marks, in their order, into one.

        Args:
            parts: postings and [N], True for a document to keep.
        """
        pairs = [postings._kept(kept) for postings, kept in parts]  # noqa: SLF001 - of this class
        number_of: dict[str, int] = {}
        totals = np.zeros(0, dtype=np.int64)
        renumbered: list[NDArray[np.int64]] = []
        for (postings, _), (sizes, _) in zip(parts, pairs, strict=True):
            # A term whose last holder has gone gets no number.
            numbers = np.full(len(sizes), -1, dtype=np.int64)
            for (term, number), size in zip(postings._number_of.items(), sizes.tolist(), strict=True):  # noqa: SLF001 - of its own class
                if size:
                    numbers[number] = number_of.setdefault(term, len(number_of))
            renumbered.append(numbers)
            totals = np.concatenate([totals, np.zeros(len(number_of) - len(totals), dtype=np.int64)])
            there = numbers >= 0
            totals[numbers[there]] += sizes[there]
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(totals)])
        size = int(starts[-1])
        result = Holders(
            np.empty(size, dtype=np.int32), np.empty(size, dtype=np.uint16), np.empty(size, dtype=np.bool_)
        )
        free = starts[:-1].copy()  # of each term, the place of its next pair
        first_document = 0
        for (_, kept), (sizes, holders), numbers in zip(parts, pairs, renumbered, strict=True):
            there = numbers >= 0
            used, target = sizes[there], numbers[there]
            before = np.cumsum(used) - used
            places = np.repeat(free[target] - before, used) + np.arange(int(used.sum()))
            result.documents[places] = holders.documents + np.int32(first_document)
            result.counts[places] = holders.counts
            result.in_question[places] = holders.in_question
            free[target] += used
            first_document += int(np.count_nonzero(kept))
        lengths = np.concatenate([postings.lengths[kept] for postings, kept in parts])
        return cls(number_of, starts, result, lengths)

    def holders(self, term: str) -> Holders | None:
        """Return who holds ``term``; None if nobody does."""
        number = self._number_of.get(term)
        if number is None:
            return None
        pairs = slice(self._starts[number], self._starts[number + 1])
        return Holders(
            self._holders.documents[pairs], self._holders.counts[pairs], self._holders.in_question[pairs]
        )

    def nbytes(self) -> int:
        """Return the bytes of the arrays; the terms themselves are not counted."""
        arrays = (self._starts, self.lengths, self._holders.documents, self._holders.counts)
        return sum(array.nbytes for array in arrays) + self._holders.in_question.nbytes

    def _kept(self, kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Holders]:
        """Return [T], how many kept documents hold each term, and the pairs left, documents renumbered."""
        sizes = np.diff(self._starts)
        if kept.all():
            return sizes, self._holders
        stays = kept[self._holders.documents]
        terms = np.repeat(np.arange(len(sizes)), sizes)[stays]
        renumbered = (np.cumsum(kept) - 1).astype(np.int32)
        return np.bincount(terms, minlength=len(sizes)).astype(np.int64), Holders(
            renumbered[self._holders.documents[stays]],
            self._holders.counts[stays],
            self._holders.in_question[stays],
        )


@dataclass(frozen=True, slots=True)
class _TermCounts:
    """What some documents hold: P pairs of a document and a distinct term of it, by document; N documents.

    Attributes:
        documents: [P] int32, from 0.
        terms: [P] int32, numbers.
        counts: [P] uint16.
        in_question: [P] bool.
        lengths: [N] int32, terms in each document, repeats counted.
    """

    documents: NDArray[np.int32]
    terms: NDArray[np.int32]
    counts: NDArray[np.uint16]
    in_question: NDArray[np.bool_]
    lengths: NDArray[np.int32]


def _blocks(documents: Iterable[LexicalDocument]) -> Iterator[list[LexicalDocument]]:
    """Part ``documents`` so that the arrays of one block's characters stay small."""
    block: list[LexicalDocument] = []
    characters = 0
    for document in documents:
        block.append(document)
        characters += len(document.question) + len(document.answer)
        if characters >= _BLOCK_CHARACTERS or len(block) == _BLOCK_DOCUMENTS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _count_terms(documents: Sequence[LexicalDocument], number_of: defaultdict[str, int]) -> _TermCounts:
    """Count what `lexical_terms` gives for each text; characters are numbers here, which is quicker.

    Args:
        documents: of one block.
        number_of: numbers of terms; new ones are added.
    """
    folded, owners = _folded(documents)
    codes = np.frombuffer(folded.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
    stands = owners[np.cumsum(codes == ord(_BORDER))]
    classes = _classes(codes)
    unspaced, in_word = classes == _IS_UNSPACED, classes == _IS_WORD
    paired = unspaced[:-1] & unspaced[1:]
    words = np.where(in_word, codes, ord(" ")).astype(np.uint32).tobytes().decode("utf-32-le").split(" ")
    numbers = list(map(number_of.__getitem__, filter(None, words)))
    starts = np.flatnonzero(in_word & ~np.concatenate([[False], in_word[:-1]]))
    # A character is its code, a pair both codes, so above any character; words come above all pairs.
    keys = np.concatenate(
        [
            codes[unspaced],
            codes[:-1][paired] << _CODE_BITS | codes[1:][paired],
            np.array(numbers, dtype=np.int64) | _WORDS_FROM,
        ]
    )
    stands = np.concatenate([stands[unspaced], stands[:-1][paired], stands[starts]])
    lengths = np.bincount(stands >> 1, minlength=len(documents)).astype(np.int32)
    # Sorted by document, then term, then whether it is the answer's: a term of the question comes first.
    occurrences = np.sort((stands >> 1) << (_KEY_BITS + 1) | keys << 1 | stands & 1)
    pairs = occurrences >> 1
    firsts = np.flatnonzero(np.diff(pairs, prepend=-1))
    counts = np.diff(firsts, append=len(pairs))
    held = pairs[firsts] & (1 << _KEY_BITS) - 1
    distinct = np.sort(held)  # `np.unique` takes six times as long
    distinct = distinct[np.diff(distinct, prepend=-1) > 0]
    return _TermCounts(
        documents=(pairs[firsts] >> _KEY_BITS).astype(np.int32),
        terms=_numbers(distinct, number_of)[np.searchsorted(distinct, held)],
        counts=np.minimum(counts, _MOST_COUNTED).astype(np.uint16),
        in_question=occurrences[firsts] & 1 == 0,
        lengths=lengths,
    )


def _folded(documents: Sequence[LexicalDocument]) -> tuple[str, NDArray[np.int64]]:
    """Join and fold the documents' texts.

    No character composes with a border, so that many texts fold at once as each would by itself.

    Returns:
        The texts, each followed by a border; and [2 N + 1] whose each is: twice its document's number, and
        one more if it is the answer. The last is nobody's.
    """
    texts = [
        text.replace(_BORDER, " ") for document in documents for text in (document.question, document.answer)
    ]
    ascii_only = np.array([text.isascii() for text in texts])  # folding those takes no time
    owners = np.concatenate([np.flatnonzero(ascii_only), np.flatnonzero(~ascii_only), [0]])
    parts = [
        "".join([text + _BORDER for text in texts if text.isascii() == which]) for which in (True, False)
    ]
    return "".join(map(fold, parts)), owners


def _numbers(keys: NDArray[np.int64], number_of: defaultdict[str, int]) -> NDArray[np.int32]:
    """Return [K], the terms' numbers; ``keys`` rise."""
    words = int(np.searchsorted(keys, _WORDS_FROM))
    characters = int(np.searchsorted(keys, 1 << _CODE_BITS))
    numbers = keys.astype(np.int32)  # of words what is left of them is their number
    terms = list(map(chr, keys[:characters].tolist()))
    pairs = keys[characters:words]
    terms += map(operator.add, map(chr, (pairs >> _CODE_BITS).tolist()), map(chr, (pairs & _CODE).tolist()))
    numbers[:words] = list(map(number_of.__getitem__, terms))
    return numbers


def _classes(codes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return what each character is, as `_RUN` sees it."""
    there = np.zeros(sys.maxunicode + 1, dtype=np.uint8)
    there[codes] = 1
    distinct = np.flatnonzero(there)
    there[distinct] = [_class_of(chr(code)) for code in distinct.tolist()]
    return there[codes]


@functools.lru_cache(maxsize=65_536)
def _class_of(character: str) -> int:
    run = _RUN.match(character)
    if run is None:
        return 0
    return _IS_UNSPACED if run.lastgroup == "unspaced" else _IS_WORD


def _joined(arrays: Sequence[NDArray[Number]], dtype: type[Number]) -> NDArray[Number]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=dtype)


def idf(documents: int, holding: int) -> float:
    """Return the weight of a term that ``holding`` of ``documents`` hold; positive, the rarer the higher.

    Source: Lucene's BM25, ln(1 + (N - df + 0.5) / (df + 0.5)), which unlike the original is never negative.
    """
    return math.log1p((documents - holding + 0.5) / (holding + 0.5))


def length_norms(lengths: NDArray[np.int32], mean_length: float) -> NDArray[np.float32]:
    """Return [N]: what BM25 adds to a count in its denominator, for documents of these lengths."""
    # With no term anywhere there are no postings either, so the quotient is never used.
    return (K1 * (1 - B + B * lengths.astype(np.float64) / (mean_length or 1.0))).astype(np.float32)


def saturated(counts: NDArray[np.uint16], norms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return [M] in 0..1: BM25's part of the counts.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", section 3.4.
    """
    frequencies = counts.astype(np.float32)
    return frequencies / (frequencies + norms)


def _starts(keys: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    sizes = np.bincount(keys, minlength=count) if count else np.zeros(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])

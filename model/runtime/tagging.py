"""Label probabilities of tokens to entities; pure functions.

The unit is the *word*: in scripts with spaces the tokens of one pre-tokeniser word, cut at punctuation;
elsewhere (Han, kana, Thai, ...) each token. A word's first token decides for it, even if that is a bare
word-start mark; training must put the word's label there. Labels of words are decoded together by Viterbi,
under the scheme's rules, so no answer holds an ``I-X`` out of place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.text_borders import classify, grapheme_borders, is_unspaced, last_true, next_true

OUTSIDE = "O"
# An enumeration comma stands between entities, never in one.
_LIST_SEPARATORS = frozenset("、")
# Not part of an entity at its border. The Latin full stop is missing on purpose ("U.S.", "Inc."), as are
# brackets and quotation marks, which may belong to a name.
_TRIMMED = frozenset(",;:，；：、。")
# A normaliser may drop them, so they part nothing.
_INVISIBLE_CATEGORIES = frozenset({"Mn", "Mc", "Me", "Cf"})
_OTHER, _INVISIBLE, _SPACED_LETTER = range(3)
_LOWEST_PROBABILITY = 1e-30  # keeps logarithms finite


@dataclass(frozen=True, slots=True)
class Entity:
    """A named entity: ``text[start:end]`` in code points, its type, and a score.

    ``score`` is the mean, over its words, of the probability of each word's label; 0..1.
    """

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


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """What may follow what; L labels in logit order.

    Attributes:
        labels: names, as the bundle has them.
        types: [L] entity type, None for O.
        begins: [L] bool; always starts a new entity (``B-X``).
        outside: index of O.
        may_start: [L] bool; allowed at the start of a text or paragraph.
        may_follow: [L, L] bool; ``may_follow[a, b]`` = b may come right after a.
    """

    labels: tuple[str, ...]
    types: tuple[str | None, ...]
    begins: tuple[bool, ...]
    outside: int
    may_start: NDArray[np.bool_]
    may_follow: NDArray[np.bool_]

    @classmethod
    def from_labels(cls, labels: Sequence[str]) -> Self:
        """Read BIO from label names: ``O``, ``B-X``, ``I-X``.

        A type without a ``B-`` label (``I-X`` or plain ``X`` alone) has nothing to start with, so there
        ``I-X`` may stand anywhere and neighbours of one type join.

        Raises:
            ValueError: no O, a repeated label, or a prefix of a scheme that is not supported.
        """
        if OUTSIDE not in labels or len(set(labels)) != len(labels):
            raise ValueError(f"labels must be distinct and hold {OUTSIDE}: {list(labels)}")
        parsed = [_parse_label(label) for label in labels]
        with_begin = {entity_type for prefix, entity_type in parsed if prefix == "B"}
        free = np.array([prefix != "I" or entity_type not in with_begin for prefix, entity_type in parsed])
        may_follow = np.tile(free, (len(labels), 1))
        for after, (_, entity_type) in enumerate(parsed):
            for before, (_, previous_type) in enumerate(parsed):
                if entity_type is not None and entity_type == previous_type:
                    may_follow[before, after] = True
        return cls(
            labels=tuple(labels),
            types=tuple(entity_type for _, entity_type in parsed),
            begins=tuple(prefix == "B" for prefix, _ in parsed),
            outside=list(labels).index(OUTSIDE),
            may_start=free,
            may_follow=may_follow,
        )


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Probabilities over the last axis; float64, each row summing to 1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def find_entities(
    text: str,
    offsets: NDArray[np.int64],
    word_ids: Sequence[int | None],
    probabilities: NDArray[np.float64],
    scheme: LabelScheme,
    *,
    threshold: float = 0.0,
) -> list[Entity]:
    """Entities of ``text``, in order and without overlap.

    Args:
        text: the caller's text.
        offsets: [S, 2] int64, code points; empty for tokens of no text (see ``TokenizedText``).
        word_ids: [S].
        probabilities: [S, L], in the scheme's order.
        scheme: the labels and their rules.
        threshold: least score; drops whole entities and never changes another's borders.
    """
    if probabilities.shape != (len(offsets), len(scheme.labels)):
        raise ValueError(
            f"probabilities are {list(probabilities.shape)}, not [{len(offsets)}, {len(scheme.labels)}]"
        )
    words = words_of(text, offsets, word_ids)
    if not words:
        return []
    of_words = probabilities[[word.first_token for word in words]]  # [W, L]
    for index, word in enumerate(words):
        if text[word.start : word.end] in _LIST_SEPARATORS:
            of_words[index] = 0.0
            of_words[index, scheme.outside] = 1.0
    restarts = _paragraph_starts(text, words)
    path = decode(of_words, scheme, restarts=restarts)
    chosen = of_words[np.arange(len(words)), path]
    entities = []
    trimmer = _Trimmer(text)
    free_from = 0  # an entity widened to a whole visible character must not reach into the next
    for first, last in _runs(path, scheme, restarts):
        start, end = trimmer.tidy(max(words[first].start, free_from), words[last].end)
        score = float(np.clip(chosen[first : last + 1].mean(), 0.0, 1.0))
        label = scheme.types[path[first]]
        if start < end and label is not None:
            entities.append(Entity(start, end, label, score))
            free_from = end
    return [entity for entity in entities if entity.score >= threshold]


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


def decode(
    probabilities: NDArray[np.float64], scheme: LabelScheme, *, restarts: NDArray[np.bool_] | None = None
) -> list[int]:
    """The most probable sequence of labels that the scheme allows (Viterbi).

    Args:
        probabilities: [W, L], taken as independent.
        scheme: what may follow what.
        restarts: [W] bool; True = nothing may go on from the word before. Default: nowhere.

    Returns:
        [W] label indices.
    """
    count = len(probabilities)
    if count == 0:
        return []
    fresh = np.zeros(count, dtype=np.bool_) if restarts is None else restarts.copy()
    fresh[0] = True
    greedy = probabilities.argmax(axis=1)
    # Where each word's best label happens to be allowed, nothing can beat them all.
    allowed = scheme.may_follow[greedy[:-1], greedy[1:]]
    if scheme.may_start[greedy[fresh]].all() and allowed.all():
        return [int(label) for label in greedy]

    emissions = np.log(np.maximum(probabilities, _LOWEST_PROBABILITY))
    follow = np.where(scheme.may_follow, 0.0, -np.inf)  # [L, L]
    start = np.where(scheme.may_start, 0.0, -np.inf)  # [L]
    labels = np.arange(len(scheme.labels))
    previous = np.zeros((count, len(labels)), dtype=np.int64)
    best = np.zeros(len(labels))
    for index in range(count):
        arriving = best[:, None] + follow  # [L before, L after]
        if fresh[index]:
            arriving = arriving + start
        previous[index] = arriving.argmax(axis=0)
        best = arriving[previous[index], labels] + emissions[index]
    path = [int(best.argmax())]
    for index in range(count - 1, 0, -1):
        path.append(int(previous[index, path[-1]]))
    return path[::-1]


def _parse_label(label: str) -> tuple[str, str | None]:
    if label == OUTSIDE:
        return OUTSIDE, None
    prefix, dash, entity_type = label.partition("-")
    if dash and entity_type and len(prefix) == 1:
        if prefix not in "BI":
            raise ValueError(f"label {label!r}: prefix {prefix}- is not supported, only B- and I- are")
        return prefix, entity_type
    return "I", label


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


def _paragraph_starts(text: str, words: Sequence[Word]) -> NDArray[np.bool_]:
    """[W] bool; words behind an empty line. No entity goes across one."""
    starts = np.zeros(len(words), dtype=np.bool_)
    for index in range(1, len(words)):
        starts[index] = text[words[index - 1].end : words[index].start].count("\n") > 1
    return starts


def _runs(path: Sequence[int], scheme: LabelScheme, restarts: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(first, last) word of each entity on ``path``."""
    runs: list[tuple[int, int]] = []
    previous_type: str | None = None
    for index, label in enumerate(path):
        entity_type = scheme.types[label]
        if entity_type is not None:
            if entity_type == previous_type and not scheme.begins[label] and not restarts[index]:
                runs[-1] = (runs[-1][0], index)
            else:
                runs.append((index, index))
        previous_type = entity_type
    return runs


class _Trimmer:
    """Gives spans their final borders; a pass over the text, then constant time each."""

    def __init__(self, text: str) -> None:
        borders = grapheme_borders(text)
        self._last_border = last_true(borders)
        self._next_border = next_true(borders)
        # A visible character goes or stays whole, as its first code point has it.
        kept = classify(text, _is_trimmed)[self._last_border[:-1]] == 0
        self._last_kept = last_true(kept)
        self._next_kept = next_true(kept)

    def tidy(self, start: int, end: int) -> tuple[int, int]:
        """Trim whole characters that belong to no name; widen to whole ones. Equal ends = nothing is left."""
        if start >= end or self._next_kept[start] >= end:
            return end, end
        first, last = self._next_kept[start], self._last_kept[end - 1]
        return int(self._last_border[first]), int(self._next_border[last + 1])


def _is_trimmed(character: str) -> bool:
    return (
        character in _TRIMMED
        or character.isspace()
        or unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Zs"}
    )

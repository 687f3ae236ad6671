"""Texts longer than the model reads: overlapping windows, and their outputs put together again.

Every token is read at least once. Where windows overlap, a token's output is taken from the window in which
it is farther from a border, that is, where it saw more of what stands on both sides. Entities are then
decoded once, over the whole text, so that one across a border is found once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.runtime.tagging import words_of
from model.runtime.text_borders import sentence_ends
from model.runtime.tokenization import TokenizedText

_LARGEST_DEFAULT_OVERLAP = 64


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a tokenised text with the text's opening and closing special tokens; n tokens.

    Attributes:
        input_ids: [n] int64, ready for a batch.
        positions: [n] int64, where each token stands in the whole text.
        reach: [n] int64, distance in tokens to the nearest border at which text is missing.
    """

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    reach: NDArray[np.int64]


def plan_windows(
    text: str,
    tokenized: TokenizedText,
    *,
    max_tokens: int,
    overlap: int | None = None,
) -> list[Window]:
    """Cut a text into windows, one if it fits.

    Windows end behind a sentence if one ends in their second half, else between words, else anywhere; they
    begin likewise, up to ``overlap`` tokens before the end of the one before. So a word longer than a window
    is read whole too, window by window, though its first token decides for it as for any word (``tagging``).

    Args:
        text: the caller's text.
        tokenized: its tokens, not truncated. Special tokens and those of a prefix go into every window.
        max_tokens: in a window, special tokens included.
        overlap: tokens of text shared by neighbours, at most a quarter of a window's room; by default that
            quarter or 64, whichever is less.

    Raises:
        ValueError: no room for text, or ``overlap`` out of range.
    """
    count = len(tokenized)
    first, last = _text_range(tokenized)
    room = max_tokens - (count - (last - first))
    if count > max_tokens and room < 1:
        raise ValueError(
            f"max_tokens {max_tokens} leaves no room beside {count - (last - first)} other tokens"
        )
    largest = max(room, 0) // 4
    shared = min(_LARGEST_DEFAULT_OVERLAP, largest) if overlap is None else overlap
    if not 0 <= shared <= largest:
        raise ValueError(f"overlap must be from 0 to {largest}, not {shared}")
    if count <= max_tokens:
        return [_window(tokenized, first, last, first, last)]
    sentence_starts, word_starts = _cut_points(text, tokenized)
    windows = []
    start = first
    while True:
        stop = min(start + room, last)
        if stop < last:
            least = start + room // 2 + 1
            stop = _latest(sentence_starts, least, stop) or _latest(word_starts, least, stop) or stop
        windows.append(_window(tokenized, start, stop, first, last))
        if stop == last:
            return windows
        earliest = stop - shared
        start = (
            _earliest(sentence_starts, earliest, stop) or _earliest(word_starts, earliest, stop) or earliest
        )


def stitch(windows: Sequence[Window], outputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Put per-token outputs of all windows of one text together.

    Args:
        windows: as planned.
        outputs: [n_i, L] each, without padding.

    Returns:
        [S, L] for the whole text. Special tokens have the first window's values.
    """
    count = 1 + max(int(window.positions.max(initial=0)) for window in windows)
    stitched = np.zeros((count, outputs[0].shape[-1]), dtype=np.float32)
    reached = np.full(count, -1, dtype=np.int64)
    for window, output in zip(windows, outputs, strict=True):
        if len(output) != len(window.positions):
            raise ValueError(f"{len(output)} rows of output for a window of {len(window.positions)} tokens")
        better = window.reach > reached[window.positions]  # a tie stays with the earlier window
        stitched[window.positions[better]] = output[better]
        reached[window.positions[better]] = window.reach[better]
    return stitched


def _text_range(tokenized: TokenizedText) -> tuple[int, int]:
    """[first, last) of the tokens that stand for the caller's text."""
    with_word = [index for index, word_id in enumerate(tokenized.word_ids) if word_id is not None]
    if not with_word:
        end = len(tokenized)
        return end, end
    return with_word[0], with_word[-1] + 1


def _window(tokenized: TokenizedText, start: int, stop: int, first: int, last: int) -> Window:
    count = len(tokenized)
    positions = np.r_[0:first, start:stop, last:count]
    inside = np.arange(start, stop)
    far = np.full(stop - start, count)
    from_start = inside - start if start > first else far
    from_stop = stop - 1 - inside if stop < last else far
    reach = np.zeros(len(positions), dtype=np.int64)
    reach[first : first + stop - start] = np.minimum(from_start, from_stop)
    return Window(tokenized.input_ids[positions], positions, reach)


def _cut_points(text: str, tokenized: TokenizedText) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Token positions before which a sentence, a word may be cut; ascending."""
    words = words_of(text, tokenized.offsets, tokenized.word_ids)
    word_starts = np.array([word.first_token for word in words], dtype=np.int64)
    starts = np.array([word.start for word in words], dtype=np.int64)
    passed = np.searchsorted(np.array(sentence_ends(text), dtype=np.int64), starts, side="right")
    return word_starts[1:][np.diff(passed) > 0], word_starts


def _latest(points: NDArray[np.int64], low: int, high: int) -> int | None:
    """Greatest point in [low, high], if any."""
    index = int(np.searchsorted(points, high, side="right")) - 1
    return int(points[index]) if index >= 0 and points[index] >= low else None


def _earliest(points: NDArray[np.int64], low: int, high: int) -> int | None:
    """Least point in [low, high), if any."""
    index = int(np.searchsorted(points, low, side="left"))
    return int(points[index]) if index < len(points) and points[index] < high else None

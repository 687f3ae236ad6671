"""How texts are put into batches: the two schedules that are compared, and what padding each costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Batch = list[int]
"""Positions of the texts that run together."""


def in_arrival_order(lengths: Sequence[int], *, most_texts: int, most_tokens: int) -> list[Batch]:
    """Cut texts into batches as they come.

    Args:
        lengths: tokens of each text, 1 at least.
        most_texts: of a batch.
        most_tokens: of a batch, padding counted; a text that is longer than that runs alone.
    """
    return _filled(range(len(lengths)), lengths, most_texts, most_tokens)


def length_grouped(lengths: Sequence[int], *, most_tokens: int) -> list[Batch]:
    """Put texts of like length together: the least padding that whole texts can have within a token budget.

    Args:
        lengths: tokens of each text, 1 at least.
        most_tokens: of a batch, padding counted; a text that is longer than that runs alone.

    Returns:
        Batches from the shortest texts to the longest; each text once.
    """
    order = sorted(range(len(lengths)), key=lambda position: lengths[position])
    return _filled(order, lengths, len(lengths), most_tokens)


def _filled(order: Iterable[int], lengths: Sequence[int], most_texts: int, most_tokens: int) -> list[Batch]:
    batches: list[Batch] = []
    longest = 0
    for position in order:
        longest = max(longest, lengths[position])
        if not batches or len(batches[-1]) == most_texts or longest * (len(batches[-1]) + 1) > most_tokens:
            batches.append([])
            longest = lengths[position]
        batches[-1].append(position)
    return batches


def padded_tokens(batches: Iterable[Batch], lengths: Sequence[int]) -> int:
    """Tokens that the model computes: rows times the longest row of each batch."""
    return sum(len(batch) * max(lengths[position] for position in batch) for batch in batches)


def padding_ratio(batches: Sequence[Batch], lengths: Sequence[int]) -> float:
    """Computed tokens over tokens of the texts; 1 = no padding.

    Raises:
        ValueError: no batches.
    """
    if not batches:
        raise ValueError("no batches, no padding")
    return padded_tokens(batches, lengths) / sum(lengths[position] for batch in batches for position in batch)

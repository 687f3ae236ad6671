"""The texts of the comparison, the same for every contestant.

Every text is cut beforehand to what the shortest-sighted contestant reads, so nobody cuts, refuses or saves
work. Texts are dealt: any stretch of ``HAND`` has the lengths of the whole, so that a slow contestant, which
gets less far down the list in the time that it has, is asked for the same mix as a quick one.
"""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "texts.jsonl.xz"
MOST_TOKENS: Final = 256
HAND: Final = 128

Ends = Callable[[Sequence[str]], list[list[int]]]
"""Tells where, in characters, the tokens of each text end; special tokens are not among them."""


def read_texts(kind: str, language: str, source: Path = SOURCE) -> list[str]:
    """Read the texts (``text``) or documents (``document``) of one language."""
    lines = lzma.decompress(source.read_bytes()).decode().splitlines()
    records = [json.loads(line) for line in lines]
    return [one["text"] for one in records if one["kind"] == kind and one["language"] == language]


def dealt(texts: Sequence[str], lengths: Sequence[int], *, hand: int = HAND) -> list[str]:
    """Order texts so that every ``hand`` of them have the lengths of all, in an order that is no order.

    Args:
        texts: of which as many as fill whole hands are kept; all, if they fill none.
        lengths: tokens of each.
        hand: texts that are alike in their lengths to any other such stretch.
    """
    hands = len(texts) // hand
    if hands == 0:
        return list(texts)
    order = sorted(range(len(texts)), key=lambda position: (lengths[position], position))
    # The longest of the odd ones stay out rather than the whole of one length.
    order = order[: hands * hand]
    chance = random.Random(hand)
    piles: list[list[int]] = [[] for _ in range(hands)]
    for first in range(0, len(order), hands):
        # One of each stretch of like lengths to each pile; which one is left to chance.
        stretch = order[first : first + hands]
        chance.shuffle(stretch)
        for pile, position in zip(piles, stretch, strict=True):
            pile.append(position)
    for pile in piles:
        chance.shuffle(pile)
    return [texts[position] for pile in piles for position in pile]


def of_length(texts: Sequence[str], ends: Ends, tokens: int, count: int) -> list[str]:
    """Make ``count`` texts of about ``tokens`` tokens, special ones included, by joining and cutting.

    Args:
        texts: to make them from, used again and again.
        ends: where tokens end.
        tokens: wanted of each, 3 at least: one, and the two special ones.
        count: of texts.
    """
    found: list[str] = []
    joined: list[str] = []
    position = 0
    while len(joined) < count:
        # A character is a token at most.
        text = ""
        while len(text) < 8 * tokens:
            text += texts[position % len(texts)] + " "
            position += 1
        joined.append(text)
    for text, places in zip(joined, ends(joined), strict=True):
        found.append(text[: places[min(tokens - 2, len(places)) - 1]])
    return found


def cut(texts: Sequence[str], ends: Ends, most_tokens: int = MOST_TOKENS) -> list[str]:
    """Cut texts to ``most_tokens``, special ones included; shorter ones stay as they are."""
    return [
        text if len(places) <= most_tokens - 2 else text[: places[most_tokens - 3]]
        for text, places in zip(texts, ends(texts), strict=True)
    ]

"""Counts work instead of timing it, so that a test of growth does not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

# As long as a text of them may be: what visible characters, words and sentences are told apart by.
RUNS = {
    "marks": "\u0301",
    "variation selectors": "\ufe0f",
    "joiners": "\u200d",
    "flags": "\U0001f1e8",
    "joined emoji": "\U0001f469\u200d",
    "zero width": "\u200b",
    "stops": ".",
    "quotation marks": '"',
    "lines": "\n",
    "letters": "a",
    "Han": "北",
    "letters with marks": "a\u0301\u0308",
}


def calls_of(function: Callable[[], object]) -> int:
    """Functions called while ``function`` runs, those written in C included."""
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count

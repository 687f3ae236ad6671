"""What an offset counts: code points, UTF-16 units (Java, JavaScript, C#) or UTF-8 bytes (Go, Rust)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

OffsetUnit = Literal["code-points", "utf-16", "bytes"]


def places_in(text: str, unit: OffsetUnit) -> Callable[[int], int]:
    """How to turn a place of ``text`` in code points, 0 to its length, into one in ``unit``.

    Args:
        text: without halves of surrogate pairs.
        unit: what is counted.
    """
    if unit == "code-points" or text.isascii():
        return lambda place: place
    code_points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    widths = np.ones(len(text), dtype=np.int64)
    for least in (0x10000,) if unit == "utf-16" else (0x80, 0x800, 0x10000):
        widths += code_points >= least
    places = np.concatenate([[0], np.cumsum(widths)])
    return lambda place: int(places[place])

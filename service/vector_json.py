"""Vectors as JSON, without holding up the event loop.

Each number is written in the shortest form that reads back as the same float32, as orjson does for float32
arrays.
"""

import asyncio
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

# orjson keeps the interpreter to itself while it writes. So a large answer is written in a thread, in pieces:
# between two of them the event loop gets its turn.
_PIECE_NUMBERS: Final = 32_768


async def encode_vectors(vectors: NDArray[np.float32]) -> bytes:
    """JSON list of lists of ``vectors``, [n, d] float32."""
    if vectors.size <= _PIECE_NUMBERS:
        return _encode(vectors)
    return await asyncio.to_thread(_encode_in_pieces, vectors)


def _encode(vectors: NDArray[np.float32]) -> bytes:
    return orjson.dumps(np.ascontiguousarray(vectors, dtype=np.float32), option=orjson.OPT_SERIALIZE_NUMPY)


def _encode_in_pieces(vectors: NDArray[np.float32]) -> bytes:
    rows = max(1, _PIECE_NUMBERS // vectors.shape[1])
    pieces = [_encode(vectors[first : first + rows])[1:-1] for first in range(0, len(vectors), rows)]
    return b"[" + b",".join(pieces) + b"]"

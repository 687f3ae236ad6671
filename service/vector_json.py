"""Vectors as JSON, in numbers or in base64, without holding up the event loop.

Each number is written in the shortest form that reads back as the same float32, as orjson does for float32
arrays.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

# orjson keeps the interpreter to itself while it writes. So a large answer is written in a thread, in pieces:
# between two of them the event loop gets its turn.
_PIECE_NUMBERS: Final = 32_768
# What a number of a vector comes to in JSON, its comma included; seen: 11.5.
BYTES_PER_NUMBER: Final = 12


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


async def encode_token_vectors(states: Sequence[NDArray[np.float32]]) -> bytes:
    """JSON list, a list of vectors for each text, of ``states``, [S, d] float32 each."""
    if sum(state.size for state in states) <= _PIECE_NUMBERS:
        return _encode_states(states)
    return await asyncio.to_thread(_encode_states, states)


async def encode_openai_vectors(vectors: NDArray[np.float32], *, as_base64: bool) -> bytes:
    """JSON list of OpenAI's embedding objects for ``vectors``, [n, d] float32, numbered from 0.

    In base64 a vector is its float32 numbers, the lowest byte of each first whatever the machine.
    """
    spell = _spell_base64 if as_base64 else _encode
    if vectors.size <= _PIECE_NUMBERS:
        return _encode_objects(vectors, spell)
    return await asyncio.to_thread(_encode_objects, vectors, spell)


def _encode_states(states: Sequence[NDArray[np.float32]]) -> bytes:
    return b"[" + b",".join(_encode_in_pieces(state) for state in states) + b"]"


def _encode_objects(vectors: NDArray[np.float32], spell: Callable[[NDArray[np.float32]], bytes]) -> bytes:
    objects = (
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, spell(vector))
        for index, vector in enumerate(vectors)
    )
    return b"[" + b",".join(objects) + b"]"


def _spell_base64(vector: NDArray[np.float32]) -> bytes:
    return b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"'

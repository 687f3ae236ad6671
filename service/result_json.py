"""Records as JSON without holding up the event loop: a large answer holds a hundred thousand of them."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import orjson

Record = TypeVar("Record")

# As for vectors: orjson keeps the interpreter to itself while it writes, so a large answer is written in a
# thread, in pieces; between two of them the event loop gets its turn.
_PIECE_RECORDS: Final = 256


async def encode_results(
    results: Sequence[Sequence[Record]],
    shape: Callable[[Record], dict[str, Any]],
    *,
    around: tuple[bytes, bytes] = (b"[", b"]"),
    endings: Sequence[bytes] | None = None,
) -> bytes:
    """JSON of ``results``, which is one list of records per text.

    Args:
        results: in the order of the texts.
        shape: what a record is in JSON.
        around: what stands before and after the records of each text.
        endings: what stands after the records of each text, if it differs.
    """
    before, after = around
    if endings is None:
        endings = [after] * len(results)
    if sum(map(len, results)) <= _PIECE_RECORDS:
        return _encode(results, shape, before, endings)
    return await asyncio.to_thread(_encode, results, shape, before, endings)


def _encode(
    results: Sequence[Sequence[Record]],
    shape: Callable[[Record], dict[str, Any]],
    before: bytes,
    endings: Sequence[bytes],
) -> bytes:
    texts = [
        before + _encode_list(records, shape) + ending
        for records, ending in zip(results, endings, strict=True)
    ]
    return b"[" + b",".join(texts) + b"]"


def _encode_list(records: Sequence[Record], shape: Callable[[Record], dict[str, Any]]) -> bytes:
    """The records without the brackets around them."""
    firsts = range(0, len(records), _PIECE_RECORDS)
    pieces = (orjson.dumps([shape(one) for one in records[at : at + _PIECE_RECORDS]])[1:-1] for at in firsts)
    return b",".join(pieces)

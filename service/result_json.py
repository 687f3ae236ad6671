"""Records as JSON without holding up the event loop: a large answer holds a hundred thousand of them."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import orjson

from service.admission import AnswerTooLargeError

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
    max_bytes: int | None = None,
) -> bytes:
    """JSON of ``results``, which is one list of records per text.

    Args:
        results: in the order of the texts.
        shape: what a record is in JSON.
        around: what stands before and after the records of each text.
        endings: what stands after the records of each text, if it differs.
        max_bytes: of all of it; None = any number.

    Raises:
        AnswerTooLargeError: it comes to more. No more is written than one piece beyond.
    """
    before, after = around
    if endings is None:
        endings = [after] * len(results)
    if sum(map(len, results)) <= _PIECE_RECORDS:
        return _encode(results, shape, before, endings, max_bytes)
    return await asyncio.to_thread(_encode, results, shape, before, endings, max_bytes)


def _encode(
    results: Sequence[Sequence[Record]],
    shape: Callable[[Record], dict[str, Any]],
    before: bytes,
    endings: Sequence[bytes],
    max_bytes: int | None,
) -> bytes:
    pieces = [b"["]
    size = 1
    for piece in _pieces(results, shape, before, endings):
        pieces.append(piece)
        size += len(piece)
        if max_bytes is not None and size > max_bytes:
            raise AnswerTooLargeError(max_bytes)
    return b"".join(pieces) + b"]"


def _pieces(
    results: Sequence[Sequence[Record]],
    shape: Callable[[Record], dict[str, Any]],
    before: bytes,
    endings: Sequence[bytes],
) -> Iterator[bytes]:
    for number, (records, ending) in enumerate(zip(results, endings, strict=True)):
        yield b"," + before if number else before
        for at in range(0, len(records), _PIECE_RECORDS):
            # Without the brackets around them.
            piece = orjson.dumps([shape(one) for one in records[at : at + _PIECE_RECORDS]])[1:-1]
            yield b"," + piece if at else piece
        yield ending

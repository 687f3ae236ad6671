"""What a supervisor and its workers tell each other: a kind, a number and bytes, over a socket.

A question that one worker has for all goes through the supervisor, which asks each of them and sends all of
their answers back: workers know of nobody but the supervisor.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct(">BII")  # kind, number, bytes that follow
# What is said comes to some megabytes at most. A length out of spoilt memory would be waited for.
_LARGEST: Final = 1 << 28


class GarbledError(Exception):
    """What came makes no sense: whoever sent it is not to be believed any more."""


class Kind(IntEnum):
    """What a message is."""

    BEAT = 1  # of a worker: its event loop turns
    READY = 2  # of a worker: it serves; with what it has to say of that, as JSON
    STOPPING = 3  # of a worker: it ends in order, and beats no more
    ASK = 4  # of a worker: a question to all; the number is its own
    QUESTION = 5  # of the supervisor: to be answered under this number
    ANSWER = 6  # of a worker
    ANSWERS = 7  # of the supervisor: of all, under the number that the worker asked with
    HURRY = 8  # of the supervisor: it was told again to stop, by the signal of this number


_KINDS: Final = frozenset(Kind)


class Message(NamedTuple):
    """One message."""

    kind: Kind
    number: int = 0
    content: bytes = b""

    def packed(self) -> bytes:
        """As it is sent."""
        return _HEAD.pack(self.kind, self.number, len(self.content)) + self.content


class Inbox:
    """Makes messages of the bytes that come."""

    def __init__(self) -> None:
        self._received = bytearray()

    def take(self, piece: bytes) -> Iterator[Message]:
        """What is whole now.

        Raises:
            GarbledError: these are no messages.
        """
        self._received += piece
        while len(self._received) >= _HEAD.size:
            kind, number, size = _HEAD.unpack_from(self._received)
            if kind not in _KINDS or size > _LARGEST:
                raise GarbledError(f"a message of kind {kind} and {size} bytes")
            ends = _HEAD.size + size
            if len(self._received) < ends:
                return
            content = bytes(self._received[_HEAD.size : ends])
            del self._received[:ends]
            yield Message(Kind(kind), number, content)

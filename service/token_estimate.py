"""TokenEstimate: how many tokens texts come to at least, before they are tokenised. Standard library only."""

from collections.abc import Iterable, Sequence
from typing import Final

# After so many bytes of texts that come to more, half of the way back up or more is gone. Counted in bytes,
# since short texts come to more for their special tokens and prompts, and are few bytes.
_REMEMBERED: Final = 262_144
# More have only the shortest, for their special tokens, and what is nothing but signs.
_MOST_A_BYTE: Final = 0.5


def utf8_sizes(texts: Iterable[str | tuple[str, str]]) -> list[int]:
    """Bytes of each text, or pair of texts, in UTF-8.

    A byte comes to much the same in Chinese and English (0.25 to 0.36 tokens, with two vocabularies and the
    texts of bench/), a character does not (0.25 to 1.01).
    """
    return [_utf8_size(text if isinstance(text, str) else "".join(text)) for text in texts]


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class TokenEstimate:
    """The fewest tokens a byte that recent requests came to; nothing is expected of the first.

    Tokenising what is refused afterwards takes the processor from what was admitted. An estimate that is too
    low costs that; one that is too high refuses what would have had room. So it falls at once to what was
    seen, and rises slowly.
    """

    __slots__ = ("_tokens_per_byte",)

    def __init__(self) -> None:
        self._tokens_per_byte: float | None = None

    def note(self, size: int, tokens: int) -> None:
        """Learn from a request whose texts had so many bytes and came to so many tokens."""
        if size < 1:
            return
        seen, known = min(tokens / size, _MOST_A_BYTE), self._tokens_per_byte
        if known is None or seen < known:
            self._tokens_per_byte = seen
        else:
            self._tokens_per_byte = known + size / (size + _REMEMBERED) * (seen - known)

    def at_least(self, sizes: Sequence[int], *, most: int | None = None) -> int:
        """The tokens of texts with so many bytes each.

        Args:
            sizes: of each text.
            most: tokens of one text, since the rest of it is cut off or refused; None = any number.
        """
        rate = self._tokens_per_byte
        if rate is None:
            return 0
        if most is None:
            return int(rate * sum(sizes))
        return int(sum(min(rate * one, most) for one in sizes))

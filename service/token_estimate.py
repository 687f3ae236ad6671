"""TokenEstimate: how many tokens texts come to at least, before they are tokenised. Standard library only."""

from collections.abc import Sequence
from typing import Final

# After so many characters of texts that come to more, half of the way back up or more is gone. Counted in
# characters, since short texts come to more for their special tokens and prompts, and are few characters.
_REMEMBERED: Final = 262_144
# More have only the shortest, for their special tokens, and alphabets of bytes; neither is to be expected.
_MOST_A_CHARACTER: Final = 1.0


class TokenEstimate:
    """The fewest tokens a character that recent requests came to; nothing is expected of the first.

    Tokenising what is refused afterwards takes the processor from what was admitted. An estimate that is too
    low costs that; one that is too high refuses what would have had room. So it falls at once to what was
    seen, and rises slowly.
    """

    __slots__ = ("_tokens_per_character",)

    def __init__(self) -> None:
        self._tokens_per_character: float | None = None

    def note(self, characters: int, tokens: int) -> None:
        """Learn from a request whose texts had so many characters and came to so many tokens."""
        if characters < 1:
            return
        seen, known = min(tokens / characters, _MOST_A_CHARACTER), self._tokens_per_character
        if known is None or seen < known:
            self._tokens_per_character = seen
        else:
            self._tokens_per_character = known + characters / (characters + _REMEMBERED) * (seen - known)

    def at_least(self, characters: Sequence[int], *, most: int | None = None) -> int:
        """The tokens of texts with so many characters each.

        Args:
            characters: of each text.
            most: tokens of one text, since the rest of it is cut off or refused; None = any number.
        """
        rate = self._tokens_per_character
        if rate is None:
            return 0
        if most is None:
            return int(rate * sum(characters))
        return int(sum(min(rate * one, most) for one in characters))

"""Places: how much may wait, and how much of that one request may take; one rule for every backlog."""

from typing import Final

# A request that wants more than this part of all places is a large one.
_SMALL_PART: Final = 8


class Places:
    """Places of one unit (texts, tokens, characters), of which ``taken`` are taken.

    A small request, one that wants an eighth of all places at most, is let in while it fits. A larger one
    gets half of what is free at most, and nothing once that would be less than an eighth. So a request of any
    size can be let in, and however many large ones come, the last eighth is never theirs. When nothing waits
    anything is let in, since a refusal would be for ever.

    Args:
        limit: places, at least 1.

    Attributes:
        limit: as given; the owner may change it. What is in stays in, if it is more.
        taken: 0 to ``limit``, or more for a while after it was lowered; kept by the owner, who adds what it
            lets in.
    """

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def lack(self, wanted: int) -> bool:
        """Whether a request that takes so much, or more, finds no room; for an estimate.

        Said of a small request only: a larger one may be small after all, or be let in by its share.
        """
        free = max(0, self.limit - self.taken)
        return self.taken > 0 and min(wanted, max(1, self.limit // _SMALL_PART)) > free

    def share(self, wanted: int) -> int | None:
        """The most places that a request may take at a time; None = there is no room for it.

        Args:
            wanted: what all of the request would take, >= 0.
        """
        free = max(0, self.limit - self.taken)
        small = max(1, self.limit // _SMALL_PART)
        if wanted <= small:
            return wanted if wanted <= free else None
        if not self.taken:
            return min(wanted, max(1, free // 2))
        return min(wanted, free // 2) if free // 2 >= small else None

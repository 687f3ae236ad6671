"""An embedder for tests of the FAQ: no model, the same vectors for the same texts, and a record of calls."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from model.runtime.bundle import Manifest
from service.errors import EmptyInputError, InputTooLongError, OverloadedError
from service.inference import EmbeddingOptions, EmbeddingResult
from tests.service.faq.hashed_vectors import hashed_vectors

LONGEST = 40


@dataclass
class HashingEmbedder:
    """Embeds by `hashed_vectors`; a text has as many tokens as characters, and 40 at most are read.

    Attributes:
        manifest: of some embedding bundle.
        calls: what was asked.
        refusals: how many calls are refused as overloaded before the next is served.
        room: texts that one call may hold; more are refused as overloaded.
        turned: numbers of the vectors are reversed, as if of another model.
        before: awaited before every call.
    """

    manifest: Manifest
    model_id: str = "hashing"
    calls: list[tuple[tuple[str, ...], EmbeddingOptions]] = field(default_factory=list)
    refusals: int = 0
    room: int = 1_000
    turned: bool = False
    before: Callable[[Sequence[str]], Awaitable[None]] | None = None

    async def embed(
        self, texts: Sequence[str], options: EmbeddingOptions, *, param: str = "inputs"
    ) -> EmbeddingResult:
        """Embed, and note what was asked."""
        if self.refusals or len(texts) > self.room:
            self.refusals = max(0, self.refusals - 1)
            raise OverloadedError("full", retry_after_s=0.001)
        if self.before is not None:
            await self.before(texts)
        self.calls.append((tuple(texts), options))
        for index, text in enumerate(texts):
            if not text.strip("\u200b"):
                raise EmptyInputError("nothing", index=index, param=param)
        excess = [max(0, len(text) - LONGEST) for text in texts]
        if any(excess) and not options.truncate:
            raise InputTooLongError(
                "long", tokens=max(excess) + LONGEST, limit=LONGEST, setting="truncate", index=0, param=param
            )
        vectors = hashed_vectors([text[:LONGEST] for text in texts])
        if self.turned:
            vectors = np.ascontiguousarray(vectors[:, ::-1])
        return EmbeddingResult(vectors, [len(text) for text in texts], excess)

    @property
    def texts(self) -> list[str]:
        """All texts embedded so far."""
        return [text for texts, _ in self.calls for text in texts]

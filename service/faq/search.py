"""FAQ search: queries in, hits out."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Manifest
from service.errors import InputTooLongError, InvalidInputError
from service.faq.calibration import UNRELATED_QUESTIONS, unrelated_cosine
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.filters import Filter
from service.faq.index import FaqIndex, Hit, Mode
from service.inference import EmbeddingOptions, EmbeddingResult

logger = logging.getLogger(__name__)

# Files of a bundle that say something about the model but do not change a vector.
_NOT_THE_MODEL: Final = ("golden.json", "parity.json", "license", "notice", "readme")

# Both sides of the comparison are short and alike, so both take the prompt made for queries: the one for
# passages was no better on any of the evaluation sets.
_PROMPT_NAME: Final = "query"

Progress = Callable[[int, int], None]
"""Called with the number of texts embedded so far and the number of all."""


class TextEmbedder(Protocol):
    """What the search needs of `service.inference.Embedder`."""

    @property
    def model_id(self) -> str:
        """Name of the model."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The bundle's manifest."""
        ...

    async def embed(
        self, texts: Sequence[str], options: EmbeddingOptions, *, param: str = "inputs"
    ) -> EmbeddingResult:
        """Embed each text, in the order given; ``param`` names them in error messages."""
        ...


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What building an index came to.

    Attributes:
        entries: enabled entries, all of them in the index.
        texts: distinct texts embedded.
        truncated: ids of entries with a text longer than the model reads; only its beginning has a say in the
            cosines, all of it in BM25.
    """

    entries: int
    texts: int
    truncated: tuple[str, ...]


class FaqSearcher:
    """Finds the FAQ entries that answer a query.

    Attributes:
        index: what is searched.
        model_id: name of the model that made the index, and embeds the queries.
        fingerprint: that model's, as `model_fingerprint` makes it; vectors of another model do not compare.
        unrelated: the model's mean cosine of unrelated texts, where the score is 0.
        report: what building the index came to.
    """

    def __init__(
        self, embedder: TextEmbedder, index: FaqIndex, *, unrelated: float, report: IndexReport
    ) -> None:
        self._embedder = embedder
        self.index = index
        self.model_id = embedder.model_id
        self.fingerprint = model_fingerprint(embedder.manifest)
        self.unrelated = unrelated
        self.report = report

    @classmethod
    async def build(
        cls,
        embedder: TextEmbedder,
        entries: Sequence[FaqEntry],
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Self:
        """Embed all texts of ``entries`` and index them.

        Args:
            embedder: any model; prompts are taken from its manifest.
            entries: with ids that are unique.
            batch_size: texts handed to the embedder at a time, at least 1; small enough that live requests
            get
                their turn between two of them.
            progress: told after each batch.

        Raises:
            ValueError: two entries have the same id.
            InvalidInputError: an entry's text holds nothing for the model to read; it is named.
            OverloadedError, UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
        """
        anchor, _ = await _embed_all(embedder, UNRELATED_QUESTIONS, batch_size, None)
        texts = texts_to_embed(entries)
        try:
            vectors, cut = await _embed_all(embedder, texts, batch_size, progress)
        except _BadTextError as error:
            culprit = next(entry.id for entry in entries if error.text in texts_to_embed([entry]))
            raise InvalidInputError(f"entry {culprit!r}: {error}", param="entries") from error
        index = await asyncio.to_thread(
            FaqIndex.empty().with_changes,
            entries,
            vectors=dict(zip(texts, vectors, strict=True)),
        )
        report = IndexReport(
            entries=len(index),
            texts=len(texts),
            truncated=tuple(entry.id for entry in entries if not cut.isdisjoint(texts_to_embed([entry]))),
        )
        if report.truncated:
            logger.warning(
                "%d FAQ entries have a text longer than the model reads, only its beginning is embedded: %s",
                len(report.truncated),
                ", ".join(map(repr, report.truncated[:5])),
            )
        return cls(embedder, index, unrelated=unrelated_cosine(anchor), report=report)

    async def search(
        self,
        queries: Sequence[str],
        *,
        top_k: int = 5,
        min_score: float | None = None,
        mode: Mode = "hybrid",
        filter: Filter | None = None,  # noqa: A002 - the field's own name
    ) -> list[list[Hit]]:
        """Return each query's hits, best first, each entry once at most.

        Args:
            queries: in any language the model knows.
            top_k: hits a query at most; more than there are entries gives all of them.
            min_score: leave out hits that score less, 0..1; None or 0 leaves out none. 0 is no closer than
                unrelated texts, 1 the same text, on every model.
            mode: what decides the order.
            filter: which entries are searched; None for all.

        Raises:
            InvalidInputError: ``top_k`` or ``min_score`` is out of range, or a query is empty or not text.
            InputTooLongError: a query is longer than the model reads; it is never cut.
            OverloadedError, UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
        """
        if top_k < 1:
            raise InvalidInputError(f"top_k is {top_k}; it must be at least 1", param="top_k")
        if min_score is not None and not 0.0 <= min_score <= 1.0:
            raise InvalidInputError(
                f"min_score is {min_score}; it must lie within 0 and 1", param="min_score"
            )
        if not queries:
            return []
        try:
            embedded = await self._embedder.embed(queries, _options(self._embedder.manifest), param="query")
        except InputTooLongError as error:
            # The embedder would offer to cut the text, which a search does not: half a question finds what
            # the other half did not ask for.
            raise InputTooLongError(
                f"the query has {error.tokens} tokens, prompt and special tokens included, and "
                f"{self.model_id} reads {error.limit}; shorten it",
                tokens=error.tokens,
                limit=error.limit,
                setting="query",
                index=error.index,
                param=error.param,
            ) from error
        # In a thread: a large index takes milliseconds, in which the event loop must go on serving others.
        found = await asyncio.to_thread(
            self.index.search,
            queries,
            embedded.vectors,
            unrelated=self.unrelated,
            top_k=top_k,
            mode=mode,
            filter=filter,
        )
        if min_score is None:
            return found
        return [[hit for hit in hits if hit.score >= min_score] for hits in found]


def model_fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256, in hex, of all that a text's vector depends on: files, pooling, prompt, length."""
    lines = [
        f"{name} {entry.sha256}"
        for name, entry in sorted(manifest.files.items())
        if not name.lower().startswith(_NOT_THE_MODEL)
    ]
    lines.append(f"pooling {manifest.pooling}")
    lines.append(f"prompt {_prompt(manifest)!r}")
    lines.append(f"max_tokens {manifest.max_tokens}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _prompt(manifest: Manifest) -> str:
    return manifest.prompts.get(_PROMPT_NAME, "")


def _options(manifest: Manifest) -> EmbeddingOptions:
    return EmbeddingOptions(pooling=manifest.pooling, normalize=True, prompt=_prompt(manifest))


class _BadTextError(Exception):
    """The embedder refuses ``text``; says why."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(reason)
        self.text = text


async def _embed_all(
    embedder: TextEmbedder, texts: Sequence[str], batch_size: int, progress: Progress | None
) -> tuple[NDArray[np.float32], set[str]]:
    """Return [T, d] vectors and the texts of which only the beginning was embedded.

    Raises:
        _BadTextError: the embedder takes one of the texts for bad input.
    """
    options = replace(_options(embedder.manifest), truncate=True)
    blocks: list[NDArray[np.float32]] = []
    cut: set[str] = set()
    for first in range(0, len(texts), batch_size):
        batch = texts[first : first + batch_size]
        try:
            result = await embedder.embed(batch, options)
        except InvalidInputError as error:
            if error.index is None:
                raise
            raise _BadTextError(
                batch[error.index], "a text of it holds nothing that the model reads"
            ) from error
        blocks.append(result.vectors)
        cut.update(text for text, tokens in zip(batch, result.truncated, strict=True) if tokens)
        if progress is not None:
            progress(first + len(batch), len(texts))
    if not blocks:
        return np.zeros((0, 0), dtype=np.float32), cut
    return np.concatenate(blocks), cut

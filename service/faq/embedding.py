"""Texts to vectors for the FAQ: with which prompt, in batches that leave room, and of which model."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Manifest
from model.runtime.engine import GRAPH_NAME
from service.errors import InputTooLongError, InvalidInputError, OverloadedError
from service.inference import EmbeddingOptions, EmbeddingResult

# Texts handed to the embedder at a time: small enough that live requests get their turn between two of them.
_BATCH: Final = 32
# How long a full queue is waited out, without one text getting through, before the work is given up.
_PATIENCE_S: Final = 60.0

# Files of a bundle that do not change a vector. The graph is among them: it says no more than the
# architecture does, export and start prove that it computes the same, and an index shall outlive one that is
# only faster.
_NOT_THE_MODEL: Final = (GRAPH_NAME, "golden.json", "parity.json", "license", "notice", "readme")

# Both sides of the comparison are short and alike, so both take the prompt made for queries: the one for
# passages was no better on any of the evaluation sets.
_PROMPT_NAME: Final = "query"

Progress = Callable[[int, int], None]
"""Called with the number of texts embedded so far and the number of all."""


class TextEmbedder(Protocol):
    """What the FAQ needs of `service.inference.Embedder`."""

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


class UnreadableTextError(Exception):
    """The embedder finds nothing to read in ``text``."""

    def __init__(self, text: str) -> None:
        super().__init__("a text of it holds nothing that the model reads")
        self.text = text


@dataclass(slots=True)
class EmbeddedTexts:
    """Vectors of texts.

    Attributes:
        vectors: by text, unit length, [d] each.
        cut: texts longer than the model reads, of which only the beginning was embedded.
    """

    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)


async def embed_texts(
    embedder: TextEmbedder, texts: Sequence[str], *, progress: Progress | None = None
) -> EmbeddedTexts:
    """Embed distinct texts of entries, however many; too long ones by their beginning.

    While the queue is full this waits and asks for less, so that it never takes the place of live requests.

    Raises:
        UnreadableTextError: the embedder takes one of the texts for bad input.
        OverloadedError: the queue was full for a minute.
        UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
    """
    options = replace(_options(embedder.manifest), truncate=True)
    # Alike in length, they are padded less.
    ordered = sorted(texts, key=lambda text: (len(text), text))
    embedded = EmbeddedTexts()
    size, waited_s, first = _BATCH, 0.0, 0
    while first < len(ordered):
        batch = ordered[first : first + size]
        try:
            result = await embedder.embed(batch, options)
        except OverloadedError as error:
            if waited_s >= _PATIENCE_S:
                raise
            pause_s = error.retry_after_s or 1.0
            await asyncio.sleep(pause_s)
            waited_s += pause_s
            # The queue may be set to hold less than a batch at any time.
            size = max(1, size // 2)
            continue
        except InvalidInputError as error:
            if error.index is None:
                raise
            raise UnreadableTextError(batch[error.index]) from error
        embedded.vectors.update(zip(batch, result.vectors, strict=True))
        embedded.cut.update(text for text, tokens in zip(batch, result.truncated, strict=True) if tokens)
        first, size, waited_s = first + len(batch), min(_BATCH, 2 * size), 0.0
        if progress is not None:
            progress(first, len(ordered))
    return embedded


async def embed_queries(
    embedder: TextEmbedder, queries: Sequence[str], *, read_empty: bool = False
) -> EmbeddingResult:
    """Embed the queries, [Q, d]; all of each query or an error.

    Raises:
        InvalidInputError: a query is not text, or empty and ``read_empty`` was not asked for.
        InputTooLongError: a query is longer than the model reads; it is never cut.
        OverloadedError, UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
    """
    try:
        options = replace(_options(embedder.manifest), read_empty=read_empty)
        return await embedder.embed(queries, options, param="query")
    except InputTooLongError as error:
        # The embedder would offer to cut the text, which a search does not: half a question finds what the
        # other half did not ask for.
        raise InputTooLongError(
            f"the query has {error.tokens} tokens, prompt and special tokens included, and "
            f"{embedder.model_id} reads {error.limit}; shorten it",
            tokens=error.tokens,
            limit=error.limit,
            setting="query",
            index=error.index,
            param=error.param,
        ) from error


def model_fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256, in hex, of all that a text's vector depends on.

    Weights, tokenizer, architecture, pooling, prompt, longest input; not what engine computes it, nor how.
    """
    lines = [
        f"{name} {entry.sha256}"
        for name, entry in sorted(manifest.files.items())
        if not name.lower().startswith(_NOT_THE_MODEL)
    ]
    lines.append(f"architecture {manifest.architecture.model_dump_json()}")
    lines.append(f"pooling {manifest.pooling}")
    lines.append(f"prompt {_prompt(manifest)!r}")
    lines.append(f"max_tokens {manifest.max_tokens}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _prompt(manifest: Manifest) -> str:
    return manifest.prompts.get(_PROMPT_NAME, "")


def _options(manifest: Manifest) -> EmbeddingOptions:
    return EmbeddingOptions(pooling=manifest.pooling, normalize=True, prompt=_prompt(manifest))

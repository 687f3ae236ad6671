"""How close texts are to a query, by an embedding model: what /rerank and /similarity answer with.

A bi-encoder embeds query and texts apart, and their cosine is the score; a cross-encoder, which reads both
together, orders better and costs a run of the model for each pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from service.errors import EmptyInputError, ServiceError
from service.inference import Embedder, EmbeddingOptions

# Prompts of models that embed questions and documents differently.
_QUERY: Final = "query"
_PASSAGE: Final = "passage"


@dataclass(frozen=True, slots=True)
class Reading:
    """What becomes of texts that are too long, or empty; as of `EmbeddingOptions`."""

    truncate: bool
    truncate_from_start: bool = False
    read_empty: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """Texts in order.

    Attributes:
        order: (place in the request, cosine of -1..1), best first; equals stay in the request's order.
        tokens: read; of the query, then of each text.
        truncated: cut off; the same.
        empty: which of them, the query being 0, held nothing to read.
    """

    order: list[tuple[int, float]]
    tokens: list[int]
    truncated: list[int]
    empty: list[int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How close sentences are to a source.

    Attributes:
        cosines: -1..1, of each sentence, in the order given.
        tokens, truncated, empty: as of `Ranking`, the source first.
    """

    cosines: list[float]
    tokens: list[int]
    truncated: list[int]
    empty: list[int]


async def rank(
    embedder: Embedder, query: str, texts: Sequence[str], reading: Reading, *, param: str
) -> Ranking:
    """Order ``texts`` by their cosine with ``query``, each under the model's prompt for its kind.

    Raises:
        as `Embedder.embed`; what is about a text names ``param``, what is about the query "query".
    """
    manifest = embedder.manifest
    fallback = "" if manifest.default_prompt_name is None else manifest.prompts[manifest.default_prompt_name]
    options = EmbeddingOptions(truncate=reading.truncate, truncate_from_start=reading.truncate_from_start)
    try:
        asked = await embedder.embed(
            [query], replace(options, prompt=manifest.prompts.get(_QUERY, fallback)), param="query"
        )
    except ServiceError as error:
        if error.param == "query":
            error.call_item("query", index=None)
        raise
    passages = replace(
        options, prompt=manifest.prompts.get(_PASSAGE, fallback), read_empty=reading.read_empty
    )
    found = await embedder.embed(texts, passages, param=param)
    cosines = found.vectors.astype(np.float64) @ asked.vectors[0].astype(np.float64)
    order = np.argsort(-cosines, kind="stable")
    return Ranking(
        [(int(place), float(cosines[place])) for place in order],
        asked.tokens + found.tokens,
        asked.truncated + found.truncated,
        [place + 1 for place in found.empty],
    )


async def similarities(
    embedder: Embedder, source: str, sentences: Sequence[str], options: EmbeddingOptions, *, param: str
) -> Comparison:
    """The cosine of ``source`` with each sentence, all read alike.

    Raises:
        EmptyInputError: the source holds nothing that the model reads, whatever ``options`` say of others.
        as `Embedder.embed`; the source has index 0, the first sentence 1.
    """
    result = await embedder.embed([source, *sentences], options, param=param)
    if 0 in result.empty:
        raise EmptyInputError(f"{param}[0] holds nothing that the model reads", index=0, param=param)
    vectors = result.vectors.astype(np.float64)
    return Comparison(
        (vectors[1:] @ vectors[0]).tolist(), result.tokens, result.truncated, list(result.empty)
    )

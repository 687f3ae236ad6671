"""How close texts are to a query, by an embedding model: what /rerank and /similarity answer with.

A bi-encoder embeds query and texts apart, and their cosine is the score; a cross-encoder, which reads both
together, orders better and costs a run of the model for each pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from service.errors import ServiceError
from service.inference import Embedder, EmbeddingOptions

# Prompts of models that embed questions and documents differently.
_QUERY: Final = "query"
_PASSAGE: Final = "passage"


@dataclass(frozen=True, slots=True)
class Reading:
    """What becomes of texts that are too long; as of `EmbeddingOptions`."""

    truncate: bool
    truncate_from_start: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """Texts in order.

    Attributes:
        order: (place in the request, cosine of -1..1), best first; equals stay in the request's order.
        tokens: read; of the query, then of each text.
        truncated: cut off; the same.
    """

    order: list[tuple[int, float]]
    tokens: list[int]
    truncated: list[int]


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
    found = await embedder.embed(
        texts, replace(options, prompt=manifest.prompts.get(_PASSAGE, fallback)), param=param
    )
    cosines = found.vectors.astype(np.float64) @ asked.vectors[0].astype(np.float64)
    order = np.argsort(-cosines, kind="stable")
    return Ranking(
        [(int(place), float(cosines[place])) for place in order],
        asked.tokens + found.tokens,
        asked.truncated + found.truncated,
    )


async def similarities(
    embedder: Embedder, source: str, sentences: Sequence[str], options: EmbeddingOptions, *, param: str
) -> tuple[list[float], list[int], list[int]]:
    """The cosine of ``source`` with each sentence, all read alike; then tokens and tokens cut, as `Ranking`.

    Raises:
        as `Embedder.embed`.
    """
    result = await embedder.embed([source, *sentences], options, param=param)
    vectors = result.vectors.astype(np.float64)
    return (vectors[1:] @ vectors[0]).tolist(), result.tokens, result.truncated

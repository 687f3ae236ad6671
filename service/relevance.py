"""How close texts are to a query: what /rerank and /similarity answer with.

A bi-encoder (an embedding model) embeds query and texts apart, and their cosine is the score; a
cross-encoder, which reads both together, orders better and costs a run of the model for each pair.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from model.runtime.label_scores import label_scores
from service.errors import EmptyInputError, ServiceError
from service.inference import CrossEncoder, Embedder, EmbeddingOptions

Method = Literal["bi-encoder", "cross-encoder"]

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
class Ranked:
    """One text.

    Attributes:
        index: its place in the request.
        score: 0..1.
        raw: what the model gave: a cosine, -1..1, or a cross-encoder's logit, any number.
    """

    index: int
    score: float
    raw: float


@dataclass(frozen=True, slots=True)
class QueryRead:
    """What a list of texts was compared with, read by itself.

    Attributes:
        tokens: read.
        truncated: cut off.
    """

    tokens: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Texts in order.

    Attributes:
        order: best first; equals stay in the request's order.
        method: what the scores are of.
        tokens: read of each text, or, by a cross-encoder, of the query with each text.
        truncated: cut off; the same.
        empty: places of the texts that held nothing to read.
        query: what was read of the query by itself; None by a cross-encoder.
    """

    order: list[Ranked]
    method: Method
    tokens: list[int]
    truncated: list[int]
    empty: list[int]
    query: QueryRead | None = None

    @property
    def tokens_in_all(self) -> int:
        """Read, the query's included."""
        return sum(self.tokens) + (self.query.tokens if self.query is not None else 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How close sentences are to a source.

    Attributes:
        cosines: -1..1, of each sentence, in the order given.
        tokens, truncated, empty: as of `Ranking`, of each sentence.
        source: what was read of the source.
    """

    cosines: list[float]
    tokens: list[int]
    truncated: list[int]
    empty: list[int]
    source: QueryRead


async def rank(
    model: Embedder | CrossEncoder, query: str, texts: Sequence[str], reading: Reading, *, param: str
) -> Ranking:
    """Order ``texts`` for ``query``.

    By an embedder: the cosine, each text under the model's prompt for its kind; the score is the cosine,
    negative ones as 0. By a cross-encoder: its logit, the score is the logit's sigmoid.

    Raises:
        as `Embedder.embed` or `Classifier.classify`; what is about a text names ``param``, what is about the
        query alone "query".
    """
    if isinstance(model, CrossEncoder):
        return await _rank_pairs(model, query, texts, reading, param=param)
    manifest = model.manifest
    fallback = "" if manifest.default_prompt_name is None else manifest.prompts[manifest.default_prompt_name]
    options = EmbeddingOptions(truncate=reading.truncate, truncate_from_start=reading.truncate_from_start)
    with _query_by_itself():
        asked = await model.embed(
            [query], replace(options, prompt=manifest.prompts.get(_QUERY, fallback)), param=_QUERY
        )
    passages = replace(
        options, prompt=manifest.prompts.get(_PASSAGE, fallback), read_empty=reading.read_empty
    )
    found = await model.embed(texts, passages, param=param)
    cosines = found.vectors.astype(np.float64) @ asked.vectors[0].astype(np.float64)
    return Ranking(
        _in_order(cosines, np.maximum(cosines, 0.0)),
        "bi-encoder",
        found.tokens,
        found.truncated,
        list(found.empty),
        QueryRead(asked.tokens[0], asked.truncated[0]),
    )


async def _rank_pairs(
    model: CrossEncoder, query: str, texts: Sequence[str], reading: Reading, *, param: str
) -> Ranking:
    result = await model.classify(
        [(query, text) for text in texts],
        truncate=reading.truncate,
        truncate_from_start=reading.truncate_from_start,
        read_empty=reading.read_empty,
        param=param,
        first_param=_QUERY,
    )
    # The sigmoid whatever the bundle says for /predict: scores of /rerank lie within 0 and 1.
    scores = label_scores(result.logits, "sigmoid")[:, 0]
    return Ranking(
        _in_order(result.logits[:, 0].astype(np.float64), scores),
        "cross-encoder",
        result.tokens,
        result.truncated,
        result.empty,
    )


def _in_order(raw: NDArray[np.float64], scores: NDArray[np.float64]) -> list[Ranked]:
    return [
        Ranked(int(place), float(scores[place]), float(raw[place]))
        for place in np.argsort(-raw, kind="stable")
    ]


@contextmanager
def _query_by_itself() -> Iterator[None]:
    """Call what is embedded as the only text of "query" by that name alone."""
    try:
        yield
    except ServiceError as error:
        if error.param == _QUERY:
            error.call_item(_QUERY, index=None)
        raise


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
        (vectors[1:] @ vectors[0]).tolist(),
        result.tokens[1:],
        result.truncated[1:],
        [place - 1 for place in result.empty],
        QueryRead(result.tokens[0], result.truncated[0]),
    )

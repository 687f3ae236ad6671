"""The interface of text-embeddings-inference beyond /embed: token vectors, comparisons, the tokenizer."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Response

from service.admission import AnswerTooLargeError
from service.dependencies import LimitsDep, ReaderDep, ServicesDep, SettingsDep
from service.errors import ServiceError
from service.http_errors import documented
from service.inference import EmbeddingOptions, TooManyNumbersError
from service.json_body import StrictJsonRoute
from service.prompts import prompt_of
from service.relevance import Reading, rank, similarities
from service.response_headers import documented_headers, reading_headers
from service.routes.embed import EMBEDDING_ERRORS, HEADERS
from service.tei_schemas import (
    DECODE_EXAMPLES,
    EMBED_ALL_EXAMPLES,
    RANK_EXAMPLES,
    SIMILARITY_EXAMPLES,
    TOKENIZE_EXAMPLES,
    DecodeRequest,
    EmbedAllRequest,
    Rank,
    RankRequest,
    SimilarityRequest,
    Token,
    TokenizeRequest,
)
from service.token_text import decode_ids, tokens_of
from service.vector_json import BYTES_PER_NUMBER, encode_token_vectors

router = APIRouter(route_class=StrictJsonRoute, tags=["text-embeddings-inference"])

COMPARED = {
    **documented(*EMBEDDING_ERRORS),
    200: {"headers": {**HEADERS, **documented_headers("x-conche-tokens-query")}},
}
RANKED = {
    **COMPARED,
    200: {"headers": {**HEADERS, **documented_headers("x-conche-tokens-query", "x-conche-ranked-by")}},
}
LARGE = {**documented(*EMBEDDING_ERRORS, AnswerTooLargeError), 200: {"headers": HEADERS}}
CUT_INTO_TOKENS = {
    **documented(*EMBEDDING_ERRORS, AnswerTooLargeError),
    200: {
        "headers": documented_headers(
            "x-conche-model", "x-conche-tokens", "x-conche-tokens-by-input", "x-conche-empty"
        )
    },
}
NAMED = {
    **documented(*EMBEDDING_ERRORS, AnswerTooLargeError),
    200: {"headers": documented_headers("x-conche-model")},
}


@router.post(
    "/embed_all",
    response_model=list[list[list[float]]],
    response_description="Per text, in the order sent, one vector per token.",
    responses=LARGE,
)
async def embed_all(
    body: Annotated[EmbedAllRequest, Body(openapi_examples=EMBED_ALL_EXAMPLES)],
    services: ServicesDep,
    reader: ReaderDep,
    settings: SettingsDep,
) -> Response:
    """Give the vector of each token, special tokens and those of the prompt included, not normalised."""
    embedder, prompt = services.embedder_named(body.model)
    options = body.reading(
        embedder.manifest,
        model_prompt=prompt,
        truncate_unless_said=settings.truncate,
        read_empty=reader.limits.read_empty,
    )
    texts = await reader.read(body.inputs, embedder.tokenizer, param="inputs")
    max_bytes = settings.limits.max_answer_bytes
    try:
        result = await embedder.embed_tokens(texts, options, max_numbers=max_bytes // BYTES_PER_NUMBER)
    except TooManyNumbersError as error:
        raise AnswerTooLargeError(max_bytes) from error
    return Response(
        await encode_token_vectors(result.states),
        media_type="application/json",
        headers=reading_headers(embedder.model_id, result.tokens, result.truncated, result.empty),
    )


@router.post(
    "/similarity",
    response_model=list[float],
    response_description="Per sentence, in the order sent, its cosine with the source sentence.",
    responses=COMPARED,
)
async def compare(
    body: Annotated[SimilarityRequest, Body(openapi_examples=SIMILARITY_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Compare a sentence with others: the cosine of their vectors, -1 to 1."""
    embedder, prompt = services.embedder_named(body.model)
    parameters = body.parameters
    named = prompt if parameters.prompt_name is None else parameters.prompt_name
    options = EmbeddingOptions(
        prompt=prompt_of(embedder.manifest, named, param="parameters"),
        truncate=settings.truncate if parameters.truncate is None else parameters.truncate,
        truncate_from_start=parameters.truncation_direction.lower() == "left",
        read_empty=limits.read_empty,
    )
    source, sentences = body.inputs.source_sentence, body.inputs.sentences
    limits.admit(sentences, param="sentences")
    try:
        limits.admit([source], param="source_sentence", needed=True)
        compared = await similarities(embedder, source, sentences, options, param="sentences")
    except ServiceError as error:
        _name_as_sent(error)
        raise
    return Response(
        orjson.dumps(compared.cosines),
        media_type="application/json",
        headers=reading_headers(
            embedder.model_id,
            compared.tokens,
            compared.truncated,
            compared.empty,
            query=compared.source,
        ),
    )


@router.post(
    "/rerank",
    response_model=list[Rank],
    response_model_exclude_none=True,
    response_description="Best first; equals in the order sent.",
    responses=RANKED,
)
async def rerank(
    body: Annotated[RankRequest, Body(openapi_examples=RANK_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Put texts in order for a query, best first.

    With a cross-encoder, which reads query and text together, scores are the sigmoid of its logit; a pair
    that is too long loses tokens from its longer text first, where it may be cut. Without one they are of
    the embedding model (a bi-encoder): the cosine of query and text, each under its prompt, negative ones as
    0. The header `x-conche-ranked-by` says which. `raw_scores` asks for logit or cosine as they are.
    """
    limits.admit([body.query], param="query", needed=True)
    limits.admit(body.texts, param="texts")
    ranker = services.ranker_named(body.model)
    reading = Reading(
        settings.truncate if body.truncate is None else body.truncate,
        body.truncation_direction.lower() == "left",
        read_empty=limits.read_empty,
    )
    ranking = await rank(ranker, body.query, body.texts, reading, param="texts")
    found: list[dict[str, Any]] = []
    for text in ranking.order:
        one: dict[str, Any] = {"index": text.index, "score": text.raw if body.raw_scores else text.score}
        found.append(one | {"text": body.texts[text.index]} if body.return_text else one)
    headers = reading_headers(
        ranker.model_id, ranking.tokens, ranking.truncated, ranking.empty, query=ranking.query
    )
    return Response(
        orjson.dumps(found),
        media_type="application/json",
        headers={**headers, "x-conche-ranked-by": ranking.method},
    )


@router.post(
    "/tokenize",
    response_model=list[list[Token]],
    response_description="Per text, in the order sent, its tokens.",
    responses=CUT_INTO_TOKENS,
)
async def tokenize(
    body: Annotated[TokenizeRequest, Body(openapi_examples=TOKENIZE_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Cut texts into the tokens that the embedding model reads; nothing is cut off."""
    limits.admit(body.inputs, param="inputs")
    embedder, prompt = services.embedder_named(body.model)
    named = prompt if body.prompt_name is None else body.prompt_name
    # Without a word about prompts the tokens are those of the text alone.
    prefix = "" if named is None else prompt_of(embedder.manifest, named, param="prompt_name")
    result = await tokens_of(
        embedder,
        body.inputs,
        prefix=prefix,
        add_special_tokens=body.add_special_tokens,
        param="inputs",
        max_bytes=settings.limits.max_answer_bytes,
    )
    return Response(
        result.encoded,
        media_type="application/json",
        headers=reading_headers(embedder.model_id, result.tokens, [], result.empty),
    )


@router.post(
    "/decode",
    response_model=list[str],
    response_description="Per sequence, in the order sent, its text.",
    responses=NAMED,
)
async def decode(
    body: Annotated[DecodeRequest, Body(openapi_examples=DECODE_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
) -> Response:
    """Make text of the embedding model's token ids."""
    limits.admit_sizes([len(sequence) for sequence in body.ids], param="ids", unit="token ids")
    embedder, _ = services.embedder_named(body.model)
    texts = await decode_ids(embedder, body.ids, skip_special_tokens=body.skip_special_tokens, param="ids")
    return Response(
        orjson.dumps(texts), media_type="application/json", headers={"x-conche-model": embedder.model_id}
    )


def _name_as_sent(error: ServiceError) -> None:
    """The source sentence is embedded as the first of all; callers count the others only."""
    if error.param == "source_sentence" or (error.param == "sentences" and error.index == 0):
        error.call_item("source_sentence", index=None)
        error.param = "source_sentence"
    elif error.param == "sentences" and error.index is not None:
        error.call_item(f"sentences[{error.index - 1}]", index=error.index - 1)

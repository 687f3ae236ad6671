"""The interface that OpenAI's clients speak: ``/v1/embeddings`` and ``/v1/models``.

``/v1/rerank`` is Cohere's and Jina's, for clients that look for it beside.
"""

from datetime import UTC, datetime
from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Response

from model.runtime.bundle import Manifest
from service.dependencies import LimitsDep, ReaderDep, ServicesDep, SettingsDep
from service.errors import InvalidInputError, UnknownModelError
from service.http_errors import OpenAIErrorBody, documented
from service.inference import EmbeddingOptions
from service.json_body import StrictJsonRoute
from service.lifespan import Services
from service.openai_schemas import (
    EMBEDDINGS_EXAMPLES,
    RERANK_V1_EXAMPLES,
    EmbeddingsRequest,
    EmbeddingsResponse,
    ModelObject,
    ModelsResponse,
    RerankedDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
    Usage,
)
from service.prompts import prompt_of
from service.relevance import Reading, rank
from service.response_headers import documented_headers, reading_headers
from service.routes.both_methods import get_and_head
from service.routes.embed import EMBEDDING_ERRORS, HEADERS
from service.vector_json import encode_openai_vectors

router = APIRouter(route_class=StrictJsonRoute, tags=["OpenAI"])

RESPONSES = {**documented(*EMBEDDING_ERRORS, body=OpenAIErrorBody), 200: {"headers": HEADERS}}
RANKED = {**RESPONSES, 200: {"headers": {**HEADERS, **documented_headers("x-conche-ranked-by")}}}


@router.post("/v1/embeddings", response_model=EmbeddingsResponse, responses=RESPONSES)
@router.post("/embeddings", response_model=EmbeddingsResponse, responses=RESPONSES)
async def create_embeddings(
    body: Annotated[EmbeddingsRequest, Body(openapi_examples=EMBEDDINGS_EXAMPLES)],
    services: ServicesDep,
    reader: ReaderDep,
    settings: SettingsDep,
) -> Response:
    """Embed each text as one vector of length one.

    Beyond OpenAI's fields, `input_type` names one of the model's prompts, and so does `model` as
    `NAME:PROMPT`; `truncate` cuts what is too long instead of refusing it. `usage` counts the tokens that the
    model read.
    """
    embedder, prompt = services.embedder_named(body.model)
    options = EmbeddingOptions(
        prompt=prompt_of(
            embedder.manifest,
            prompt if body.input_type is None else body.input_type,
            param="model" if body.input_type is None and prompt is not None else "input_type",
        ),
        truncate=settings.truncate if body.truncate is None else body.truncate,
        dimensions=body.dimensions,
        read_empty=reader.limits.read_empty,
    )
    texts = await reader.read(body.input, embedder.tokenizer, param="input")
    result = await embedder.embed(texts, options, param="input")
    tokens = sum(result.tokens)
    data = await encode_openai_vectors(result.vectors, as_base64=body.encoding_format == "base64")
    rest = {"model": embedder.model_id, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return Response(
        b'{"object":"list","data":' + data + b"," + orjson.dumps(rest)[1:],
        media_type="application/json",
        headers=reading_headers(embedder.model_id, result.tokens, result.truncated, result.empty),
    )


@get_and_head(router, "/v1/models", response_model=ModelsResponse)
async def list_models(services: ServicesDep) -> ModelsResponse:
    """List the models that requests can name."""
    return ModelsResponse(data=_models(services))


@get_and_head(
    router,
    "/v1/models/{model_id:path}",
    response_model=ModelObject,
    responses=documented(UnknownModelError, InvalidInputError, body=OpenAIErrorBody),
)
async def retrieve_model(model_id: str, services: ServicesDep) -> ModelObject:
    """Describe one model."""
    models = _models(services)
    for model in models:
        if model.id == model_id:
            return model
    listed = ", ".join(model.id for model in models) or "none"
    raise UnknownModelError(f"there is no model of that name; there is: {listed}", param="model")


@router.post("/v1/rerank", response_model=RerankResponse, responses=RANKED)
async def rerank_documents(
    body: Annotated[RerankRequest, Body(openapi_examples=RERANK_V1_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Put documents in order for a query, best first.

    With a cross-encoder, which reads query and document together, scores are the sigmoid of its logit;
    without one they are of the embedding model (a bi-encoder): the cosine of query and document, negative
    ones as 0. The header `x-conche-ranked-by` says which.
    """
    texts = []
    for index, document in enumerate(body.documents):
        text = document if isinstance(document, str) else document.get("text")
        if not isinstance(text, str):
            raise InvalidInputError(f"documents[{index}] has no field text", index=index, param="documents")
        texts.append(text)
    limits.admit([body.query], param="query", needed=True)
    limits.admit(texts, param="documents")
    ranker = services.ranker_named(body.model)
    ranking = await rank(
        ranker,
        body.query,
        texts,
        Reading(
            truncate=settings.truncate if body.truncate is None else body.truncate,
            read_empty=limits.read_empty,
        ),
        param="documents",
    )
    results = [
        RerankResult(
            index=one.index,
            relevance_score=one.score,
            document=RerankedDocument(text=texts[one.index]) if body.return_documents else None,
        )
        for one in ranking.order[: body.top_n]
    ]
    tokens = ranking.tokens_in_all
    answer = RerankResponse(
        results=results,
        model=ranker.model_id,
        usage=Usage(prompt_tokens=tokens, total_tokens=tokens),
    )
    headers = reading_headers(
        ranker.model_id, ranking.tokens, ranking.truncated, ranking.empty, query=ranking.query
    )
    return Response(
        answer.model_dump_json(exclude_none=True),
        media_type="application/json",
        headers={**headers, "x-conche-ranked-by": ranking.method},
    )


def _models(services: Services) -> list[ModelObject]:
    return [_model(loaded.model.manifest) for loaded in services.models]


def _model(manifest: Manifest) -> ModelObject:
    created = datetime.fromisoformat(manifest.created).replace(tzinfo=UTC)
    return ModelObject(
        id=manifest.name,
        created=int(created.timestamp()),
        owned_by=manifest.source.name,
        task=manifest.task,
    )

"""``POST /embed``: texts to vectors."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.dependencies import ReaderDep, ServicesDep, SettingsDep
from service.errors import InputTooLongError, UnknownModelError
from service.http_errors import TEXT_ERRORS, documented
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, reading_headers
from service.schemas import EMBED_EXAMPLES, EmbedRequest
from service.token_ids import TokenIdsError
from service.vector_json import encode_vectors

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

HEADERS = documented_headers(
    "x-conche-model",
    "x-conche-tokens",
    "x-conche-tokens-by-input",
    "x-conche-truncated",
    "x-conche-empty",
)
EMBEDDING_ERRORS = (*TEXT_ERRORS, InputTooLongError, TokenIdsError, UnknownModelError)


@router.post(
    "/embed",
    response_model=list[list[float]],
    response_description="One vector per text, in the order sent; always a list of lists.",
    responses={**documented(*EMBEDDING_ERRORS), 200: {"headers": HEADERS}},
)
async def embed(
    body: Annotated[EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    services: ServicesDep,
    reader: ReaderDep,
    settings: SettingsDep,
) -> Response:
    """Embed each text as one vector.

    A text that is too long for the model is refused, unless `truncate` asks to cut it; a cut is reported in
    the header `x-conche-truncated`. Numbers are float32 in their shortest decimal form.
    """
    embedder, prompt = services.embedder_named(body.model)
    options = body.options(
        embedder.manifest,
        model_prompt=prompt,
        truncate_unless_said=settings.truncate,
        read_empty=reader.limits.read_empty,
    )
    texts = await reader.read(body.inputs, embedder.tokenizer, param="inputs")
    result = await embedder.embed(texts, options)
    return Response(
        await encode_vectors(result.vectors),
        media_type="application/json",
        headers=reading_headers(embedder.model_id, result.tokens, result.truncated, result.empty),
    )


@router.post(
    "/models/{model_id:path}/pipeline/feature-extraction",
    response_model=list[list[float]],
    response_description="As of /embed.",
    responses={**documented(*EMBEDDING_ERRORS), 200: {"headers": HEADERS}},
)
async def extract_features(
    model_id: str,
    body: Annotated[EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    services: ServicesDep,
    reader: ReaderDep,
    settings: SettingsDep,
) -> Response:
    """Embed each text, as /embed does, under the path that clients of Hugging Face's inference API use."""
    return await embed(body.model_copy(update={"model": model_id}), services, reader, settings)

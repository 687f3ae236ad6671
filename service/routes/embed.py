"""``POST /embed``: texts to vectors."""

from typing import Annotated

from fastapi import APIRouter, Body, Response

from service.dependencies import EmbedderDep, LimitsDep, SettingsDep
from service.errors import InputTooLongError
from service.http_errors import TEXT_ERRORS, documented
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, embedding_headers
from service.schemas import EMBED_EXAMPLES, EmbedRequest
from service.vector_json import encode_vectors

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

HEADERS = documented_headers("x-conche-model", "x-conche-tokens", "x-conche-truncated")


@router.post(
    "/embed",
    response_model=list[list[float]],
    response_description="One vector per text, in the order sent; always a list of lists.",
    responses={**documented(*TEXT_ERRORS, InputTooLongError), 200: {"headers": HEADERS}},
)
async def embed(
    body: Annotated[EmbedRequest, Body(openapi_examples=EMBED_EXAMPLES)],
    embedder: EmbedderDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Embed each text as one vector.

    A text that is too long for the model is refused, unless `truncate` asks to cut it; a cut is reported in
    the header `x-conche-truncated`. Numbers are float32 in their shortest decimal form.
    """
    limits.admit(body.inputs, param="inputs")
    options = body.options(embedder.manifest, truncate_unless_said=settings.truncate)
    result = await embedder.embed(body.inputs, options)
    return Response(
        await encode_vectors(result.vectors),
        media_type="application/json",
        headers=embedding_headers(embedder.model_id, result.tokens, result.truncated),
    )

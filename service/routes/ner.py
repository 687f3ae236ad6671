"""``POST /ner``: texts to named entities."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from service.dependencies import LimitsDep, ServicesDep
from service.errors import UnknownModelError
from service.http_errors import TEXT_ERRORS, documented
from service.inference import Entity
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, tagging_headers
from service.result_json import encode_results
from service.schemas import NER_EXAMPLES, EntityBody, NerRequest, PipelineEntityBody

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

HEADERS = documented_headers(
    "x-conche-model",
    "x-conche-tokens",
    "x-conche-tokens-by-input",
    "x-conche-windows",
    "x-conche-windows-total",
    "x-conche-empty",
)


@router.post(
    "/ner",
    response_model=list[list[EntityBody]] | list[list[PipelineEntityBody]] | list[PipelineEntityBody],
    response_description="Per text, in the order sent, its entities in the order of the text.",
    responses={**documented(*TEXT_ERRORS, UnknownModelError), 200: {"headers": HEADERS}},
)
async def find_entities(
    body: Annotated[NerRequest, Body(openapi_examples=NER_EXAMPLES)],
    request: Request,
    services: ServicesDep,
    limits: LimitsDep,
) -> Response:
    """Find the named entities of each text.

    A text of any length is read to its end: each paragraph by itself, in overlapping windows where it is
    longer than the model reads. `text` is exactly what stands from `start` to `end` of the text as sent,
    counted in `offset_unit`. Entities do not overlap (the tokens that `none` gives may), and end with whole
    visible characters and, in scripts with spaces, whole words.
    """
    tagger = services.tagger_named(body.model)
    limits.admit(body.inputs, param="inputs")
    tagged = await tagger.tag(body.inputs, body.options(), offset_unit=body.offset_unit)
    found = [text.entities for text in tagged]
    if body.parameters is None:
        encoded = await encode_results(found, _entity)
    else:
        left_out = set(body.parameters.ignore_labels)
        found = [[one for one in entities if one.label not in left_out] for entities in found]
        shape = _token if body.parameters.aggregation_strategy == "none" else _group
        encoded = await encode_results(found, shape)
        if isinstance(request.scope["conche.body"]["inputs"], str):
            encoded = encoded[1:-1]  # one text, in no list
    return Response(
        encoded,
        media_type="application/json",
        headers=tagging_headers(
            tagger.model_id, [text.tokens for text in tagged], [text.windows for text in tagged]
        ),
    )


def _entity(found: Entity) -> dict[str, Any]:
    """As ``EntityBody``."""
    return {
        "start": found.start,
        "end": found.end,
        "text": found.text,
        "label": found.label,
        "score": found.score,
    }


def _group(found: Entity) -> dict[str, Any]:
    """As ``PipelineEntityBody``, of an entity."""
    return {
        "entity_group": found.label,
        "score": found.score,
        "word": found.text,
        "start": found.start,
        "end": found.end,
    }


def _token(found: Entity) -> dict[str, Any]:
    """As ``PipelineEntityBody``, of a token."""
    return {
        "entity": found.label,
        "score": found.score,
        "word": found.text,
        "start": found.start,
        "end": found.end,
    }

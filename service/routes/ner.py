"""``POST /ner``: texts to named entities."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from service.dependencies import LimitsDep, TaggerDep
from service.http_errors import TEXT_ERRORS, documented
from service.inference import Entity
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, tagging_headers
from service.result_json import encode_results
from service.schemas import NER_EXAMPLES, EntityBody, NerRequest

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

HEADERS = documented_headers(
    "x-conche-model", "x-conche-tokens", "x-conche-windows", "x-conche-windows-total"
)


@router.post(
    "/ner",
    response_model=list[list[EntityBody]],
    response_description="Per text, in the order sent, its entities in the order of the text.",
    responses={**documented(*TEXT_ERRORS), 200: {"headers": HEADERS}},
)
async def find_entities(
    body: Annotated[NerRequest, Body(openapi_examples=NER_EXAMPLES)],
    tagger: TaggerDep,
    limits: LimitsDep,
) -> Response:
    """Find the named entities of each text.

    A text of any length is read to its end: each paragraph by itself, in overlapping windows where it is
    longer than the model reads. `text` is exactly what stands from `start` to `end` of the text as sent,
    counted in `offset_unit`. Entities do not overlap, and end with whole visible characters and, in scripts
    with spaces, whole words.
    """
    limits.admit(body.inputs, param="inputs")
    tagged = await tagger.tag(body.inputs, body.options(), offset_unit=body.offset_unit)
    return Response(
        await encode_results([text.entities for text in tagged], _entity),
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

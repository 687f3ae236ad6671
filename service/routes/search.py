"""``POST /search``: questions to FAQ entries."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Response

from service.dependencies import LimitsDep, SearcherDep, SettingsDep
from service.errors import InputTooLongError
from service.faq.index import Hit
from service.http_errors import TEXT_ERRORS, documented
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers
from service.result_json import encode_results
from service.schemas import SEARCH_EXAMPLES, SearchRequest, SearchResponse

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])


@router.post(
    "/search",
    response_model=SearchResponse,
    responses={
        **documented(*TEXT_ERRORS, InputTooLongError),
        200: {"headers": documented_headers("x-conche-model")},
    },
)
async def search(
    body: Annotated[SearchRequest, Body(openapi_examples=SEARCH_EXAMPLES)],
    searcher: SearcherDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Find the FAQ entries that answer each query, best first.

    Queries get the model's query prompt by themselves. Fewer than `top_k` hits come back when the FAQ is
    smaller or `min_score` leaves some out.
    """
    limits.admit(body.query, param="query")
    body.admit_top_k(settings.limits.max_top_k)
    found = await searcher.search(body.query, top_k=body.top_k, min_score=body.min_score)
    results = await encode_results(found, _hit, around=(b'{"hits":[', b"]}"))
    return Response(
        b'{"results":' + results + b"}",
        media_type="application/json",
        headers={"x-conche-model": searcher.model_id},
    )


def _hit(hit: Hit) -> dict[str, Any]:
    """As ``HitBody``."""
    return {"id": hit.id, "question": hit.question, "answer": hit.answer, "score": hit.score}

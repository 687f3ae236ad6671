"""``POST /search``: questions to FAQ entries."""

from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Body, Response

from service.admission import AnswerTooLargeError
from service.dependencies import CatalogueDep, LimitsDep, SettingsDep
from service.errors import (
    InputTooLongError,
    InvalidFilterError,
    ModelMismatchError,
    UnknownCollectionError,
)
from service.faq.catalogue import FoundHit
from service.http_errors import FAQ_ERRORS, documented
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, reading_headers
from service.result_json import encode_results
from service.schemas import SEARCH_EXAMPLES, SearchRequest, SearchResponse

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

SEARCH_ERRORS = (
    AnswerTooLargeError,
    InputTooLongError,
    InvalidFilterError,
    UnknownCollectionError,
    ModelMismatchError,
    *FAQ_ERRORS,
)


@router.post(
    "/search",
    response_model=SearchResponse,
    responses={
        **documented(*SEARCH_ERRORS),
        200: {
            "headers": documented_headers(
                "x-conche-model", "x-conche-tokens", "x-conche-tokens-by-input", "x-conche-empty"
            )
        },
    },
)
async def search(
    body: Annotated[SearchRequest, Body(openapi_examples=SEARCH_EXAMPLES)],
    catalogue: CatalogueDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Find the FAQ entries that answer each query, best first.

    Queries get the model's query prompt by themselves. Fewer than `top_k` hits come back when the collection
    is smaller, or when `filter` or `min_score` leaves some out.
    """
    limits.admit(body.query, param="query")
    body.admit_top_k(settings.limits.max_top_k)
    found = await catalogue.search(
        body.collection,
        body.query,
        mode=body.mode,
        top_k=body.top_k,
        min_score=body.min_score,
        filter_=body.entry_filter(),
        read_empty=limits.read_empty,
    )
    results = await encode_results(
        [one.hits for one in found],
        _hit,
        around=(b'{"hits":[', b"]}"),
        max_bytes=settings.limits.max_answer_bytes,
        endings=[b'],"default_answer":' + orjson.dumps(one.default_answer) + b"}" for one in found],
    )
    return Response(
        b'{"results":' + results + b"}",
        media_type="application/json",
        headers=reading_headers(
            catalogue.model_id,
            [one.tokens for one in found],
            [],  # a query is never cut
            [place for place, one in enumerate(found) if one.empty],
        ),
    )


def _hit(found: FoundHit) -> dict[str, Any]:
    """As ``HitBody``."""
    hit = found.hit
    return {
        "id": hit.id,
        "question": hit.question,
        "answer": hit.answer,
        "score": found.confidence,
        "explain": {
            "dense": hit.dense,
            "lexical": hit.lexical,
            "dense_rank": hit.dense_rank,
            "lexical_rank": hit.lexical_rank,
            "matched": hit.matched_phrasing,
            "relevance": hit.score,
        },
        "highlights": {"question": hit.question_highlights, "answer": hit.answer_highlights},
    }

"""Probes: ``/livez`` (the loop turns), ``/readyz`` and ``/health`` (requests will be served)."""

import orjson
from fastapi import APIRouter, Request, Response

from service.dependencies import ServicesDep
from service.errors import UnavailableError
from service.http_errors import error_response, request_id_of
from service.routes.both_methods import get_and_head
from service.schemas import LivenessBody, ReadinessBody

router = APIRouter(tags=["probes"])

READY_RESPONSES = {
    503: {"model": ReadinessBody, "description": "Not ready; also holds the usual error body."}
}


@get_and_head(router, "/livez", response_model=LivenessBody)
async def livez() -> LivenessBody:
    """Say that the process lives; restart it if this stops answering."""
    return LivenessBody()


@get_and_head(router, "/readyz", response_model=ReadinessBody, responses=READY_RESPONSES)
async def readyz(request: Request, services: ServicesDep) -> Response:
    """Say whether to send requests here; if not, why."""
    return _readiness(request, services.not_ready())


@get_and_head(router, "/health", response_model=ReadinessBody, responses=READY_RESPONSES)
async def health(request: Request, services: ServicesDep) -> Response:
    """Answer as `/readyz` does, under the name that other servers use."""
    return _readiness(request, services.not_ready())


def _readiness(request: Request, reasons: list[str]) -> Response:
    if not reasons:
        body = ReadinessBody(status="ready", reasons=[])
        return Response(orjson.dumps(body.model_dump()), media_type="application/json")
    error = UnavailableError("not ready: " + "; ".join(reasons))
    refusal = error_response(error, request_id_of(request), request.url.path)
    both = orjson.loads(refusal.body) | ReadinessBody(status="not ready", reasons=reasons).model_dump()
    headers = {name: value for name, value in refusal.headers.items() if name != "content-length"}
    return Response(orjson.dumps(both), status_code=refusal.status_code, headers=headers)

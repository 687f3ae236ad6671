"""Probes: ``/livez`` (the loop turns), ``/readyz`` and ``/health`` (requests will be served)."""

from typing import Literal

import orjson
from fastapi import APIRouter, Request, Response

from service.dependencies import ServicesDep, TeamDep
from service.errors import UnavailableError
from service.http_errors import error_response, request_id_of
from service.routes.both_methods import get_and_head
from service.schemas import LivenessBody, ReadinessBody
from service.team import Team

router = APIRouter(tags=["probes"])

READY_RESPONSES = {
    503: {"model": ReadinessBody, "description": "Not ready; also holds the usual error body."}
}


@get_and_head(router, "/livez", response_model=LivenessBody)
async def livez() -> LivenessBody:
    """Say that the process lives; restart it if this stops answering."""
    return LivenessBody()


@get_and_head(router, "/readyz", response_model=ReadinessBody, responses=READY_RESPONSES)
async def readyz(request: Request, services: ServicesDep, team: TeamDep) -> Response:
    """Say whether to send requests here; if not, why. Of several workers each answers for itself."""
    return _readiness(request, services.not_ready(), team)


@get_and_head(router, "/health", response_model=ReadinessBody, responses=READY_RESPONSES)
async def health(request: Request, services: ServicesDep, team: TeamDep) -> Response:
    """Answer as `/readyz` does, under the name that other servers use."""
    return _readiness(request, services.not_ready(), team)


def _readiness(request: Request, reasons: list[str], team: Team) -> Response:
    status: Literal["ready", "not ready"] = "not ready" if reasons else "ready"
    worker = team.number if team.size > 1 else None
    body = ReadinessBody(status=status, reasons=reasons, worker=worker).model_dump(exclude_none=True)
    if not reasons:
        return Response(orjson.dumps(body), media_type="application/json")
    error = UnavailableError("not ready: " + "; ".join(reasons))
    refusal = error_response(error, request_id_of(request.scope), request.url.path)
    both = orjson.loads(refusal.body) | body
    headers = {name: value for name, value in refusal.headers.items() if name != "content-length"}
    return Response(orjson.dumps(both), status_code=refusal.status_code, headers=headers)

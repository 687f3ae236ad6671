"""``GET /metrics``: for Prometheus."""

from fastapi import APIRouter, Request, Response

from service.dependencies import MetricsDep, TeamDep
from service.metrics import render_sums
from service.routes.both_methods import get_and_head
from service.team import METRICS

router = APIRouter(tags=["server"])


@get_and_head(router, "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def read_metrics(request: Request, metrics: MetricsDep, team: TeamDep) -> Response:
    """Every series of this service, in the format that the scraper asks for.

    With several workers, whichever of them answers: what they count is added up, and what ended ones had
    counted stays in the sums.
    """
    accept = request.headers.get("accept", "")
    if team.size == 1:
        body, content_type = metrics.render(accept)
    else:
        gathered = await team.gather(METRICS)
        body, content_type = await team.run(lambda: render_sums(gathered, size=team.size, accept=accept))
    return Response(body, headers={"content-type": content_type})

"""``GET /metrics``: for Prometheus."""

from fastapi import APIRouter, Request, Response

from service.dependencies import MetricsDep
from service.routes.both_methods import get_and_head

router = APIRouter(tags=["server"])


@get_and_head(router, "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def read_metrics(request: Request, metrics: MetricsDep) -> Response:
    """Every series of this process, in the format that the scraper asks for."""
    body, content_type = metrics.render(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})

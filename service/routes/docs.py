"""``GET /docs``: the OpenAPI document as a page whose examples run; nothing is fetched from elsewhere."""

from importlib import resources

from fastapi import APIRouter, Response

from service.routes.both_methods import get_and_head

router = APIRouter(include_in_schema=False)

# The page may talk to this server and to nobody else, whatever is pasted into it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


@get_and_head(router, "/")
@get_and_head(router, "/docs")
async def docs() -> Response:
    """Serve the page."""
    page = resources.files("service.routes").joinpath("docs.html").read_bytes()
    return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": _POLICY})

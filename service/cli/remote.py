"""Requests from a command to a running server, and its errors as the command's own."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

import click

_TIMEOUT_S = 300.0


def call(
    url: str, method: str, path: str, body: dict[str, Any] | None = None, *, api_key: str | None = None
) -> Any:
    """The JSON answer of a server.

    Args:
        url: of the server, without a path.
        method: of the request.
        path: begins with /.
        body: sent as JSON; None = none.
        api_key: sent with it; None = none.

    Raises:
        ClickException: it cannot be reached, or answers with an error, whose message it is then.
    """
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked by `server_url`
        url.rstrip("/") + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"} | ({"x-api-key": api_key} if api_key else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise click.ClickException(_message(error)) from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ValueError) as error:
        raise click.ClickException(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from error


def server_url(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Check an option that holds a server's URL."""
    if not value.startswith(("http://", "https://")):
        raise click.BadParameter("must begin with http:// or https://")
    return value


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return f"{json.load(error)['error']} ({error.code})"
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code}"

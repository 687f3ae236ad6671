"""`conche models loaded|load|unload`: the models of a running server, by its /admin routes."""

from collections.abc import Callable
from typing import Any

import click

from service.cli.models import models
from service.cli.remote import call, server_url
from service.settings import API_KEY_VARIABLE

__all__ = ["models"]

_url = click.option(
    "--url",
    default="http://127.0.0.1:8080",
    show_default=True,
    callback=server_url,
    help="Of the running server; it has to be started with CONCHE_ADMIN=true.",
)


_api_key = click.option(
    "--api-key",
    envvar=API_KEY_VARIABLE,
    metavar="KEY",
    help="With the scope admin, if the server has keys; better set as a variable than as a flag, which "
    f"others can see. [{API_KEY_VARIABLE}]",
)


def _command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    return lambda function: models.command(name)(_url(_api_key(function)))


@_command("loaded")
def loaded(url: str, api_key: str | None) -> None:
    """Show the models that a running server has loaded, with their memory and queues."""
    _show(call(url, "GET", "/admin/models", api_key=api_key))


@_command("load")
@click.argument("name")
def load(url: str, name: str, api_key: str | None) -> None:
    """Load bundle NAME of the server's models folder, without a restart."""
    found = call(url, "POST", "/admin/models", {"bundle": name}, api_key=api_key)
    click.echo(f"{found['id']} serves ({_megabytes(found['memory_bytes'])})")


@_command("unload")
@click.argument("name")
def unload(url: str, name: str, api_key: str | None) -> None:
    """Unload model NAME: finish what it has in work and free its memory."""
    _show(call(url, "DELETE", f"/admin/models/{name}", api_key=api_key))


def _show(found: dict[str, Any]) -> None:
    for model in found["models"]:
        state = "healthy" if model["healthy"] else "NOT HEALTHY"
        default = ", default" if model["default"] else ""
        click.echo(
            f"{model['id']}  {model['task']}{default}, {state}, {_megabytes(model['memory_bytes'])}, "
            f"{model['queued_texts']} texts waiting, loaded {model['loaded_at']}"
        )
    click.echo(
        f"process: {_megabytes(found['resident_bytes'])}; bundles there: {', '.join(found['bundles'])}"
    )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"

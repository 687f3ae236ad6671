"""``conche keys ...``: the file of API keys; a running service sees each change."""

from pathlib import Path
from typing import Final

import click

from service.api_keys import SCOPES, KeyFile, KeyFileError, Scope, change_keys, new_key, read_keys
from service.cli.options import read_settings, settings_flags
from service.settings import OFF

KEY_SETTINGS: Final = frozenset({("api_keys_file",)})


@click.group()
def keys() -> None:
    """Manage the API keys that requests need."""


@keys.command("add")
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    required=True,
    help="What it may do; several if given several times. read: everything that changes nothing; write: "
    "change the FAQ; admin: models, and making and deleting snapshots. None includes another.",
)
@click.option("--requests-per-minute", type=click.IntRange(1, 1_000_000), help="At most; default: no limit.")
@click.option(
    "--concurrent-requests", type=click.IntRange(1, 100_000), help="At once, at most; default: no limit."
)
@settings_flags(KEY_SETTINGS)
def add(
    name: str,
    scopes: tuple[Scope, ...],
    requests_per_minute: int | None,
    concurrent_requests: int | None,
    **flags: str | None,
) -> None:
    """Make a key called NAME and print it: the only time that it is shown."""
    try:
        key, record = new_key(
            name,
            scopes,
            requests_per_minute=requests_per_minute,
            concurrent_requests=concurrent_requests,
        )

        def with_it(file: KeyFile) -> KeyFile:
            if any(one.name == name for one in file.keys):
                raise click.ClickException(
                    f"there is a key called {name}; remove it first, or take another name"
                )
            return KeyFile(keys=(*file.keys, record))

        change_keys(_path(flags), with_it, create=True)
    except (KeyFileError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(key)


@keys.command("list")
@settings_flags(KEY_SETTINGS)
def list_(**flags: str | None) -> None:
    """List the keys: their names, scopes and limits."""
    for key in _read(_path(flags)).keys:
        limits = [
            f"{number} {what}"
            for number, what in (
                (key.requests_per_minute, "a minute"),
                (key.concurrent_requests, "at once"),
            )
            if number is not None
        ]
        scopes = "+".join(scope for scope in SCOPES if scope in key.scopes)
        click.echo(f"{key.name}  {scopes}  {', '.join(limits) or 'no limits'}  {key.created_at:%Y-%m-%d}")


@keys.command("remove")
@click.argument("name")
@settings_flags(KEY_SETTINGS)
def remove(name: str, **flags: str | None) -> None:
    """Remove key NAME; a running service refuses it within a second."""
    path = _path(flags)

    def without_it(file: KeyFile) -> KeyFile:
        kept = tuple(key for key in file.keys if key.name != name)
        if len(kept) == len(file.keys):
            raise click.ClickException(f"{path} has no key called {name}")
        return KeyFile(keys=kept)

    try:
        change_keys(path, without_it)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error


def _path(flags: dict[str, str | None]) -> Path:
    name = read_settings(flags).api_keys_file
    if name == OFF:
        raise click.ClickException("name the file of the keys: CONCHE_API_KEYS_FILE or --api-keys-file")
    return Path(name).expanduser()


def _read(path: Path) -> KeyFile:
    try:
        return read_keys(path)
    except KeyFileError as error:
        raise click.ClickException(str(error)) from error

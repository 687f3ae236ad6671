"""``--languages zh,en``, spelt the same wherever a bundle is made."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def languages_option(*, default: str | None = None, help: str) -> Callable[[Command], Command]:
    """The option; the command gets a tuple of codes, None if nothing was said."""
    return click.option(
        "--languages", default=default, show_default=default is not None, callback=_split, help=help
    )


def _split(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    codes = tuple(code.strip() for code in value.split(",") if code.strip())
    if not codes:
        raise click.BadParameter(f"{value!r} names no language")
    return codes

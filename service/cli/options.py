"""Command-line flags made from the settings class, so that no setting lacks one and none drifts."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from service.settings import OFF, InvalidSettingsError, Option, Settings, load_settings, options

Command = TypeVar("Command", bound=Callable[..., Any])

# What the one-shot commands can make use of: they listen nowhere and have one caller.
EMBED_SETTINGS = frozenset({("models_dir",), ("embedding_bundle",), ("threads",)})
SEARCH_SETTINGS = EMBED_SETTINGS | {("data_dir",), ("faq_file",)}
# What they have no use for, whatever the environment says.
NO_CLASSIFIERS: Final[dict[str, str | None]] = {"classifier_bundle": OFF, "reranker_bundle": OFF}
NER_SETTINGS = frozenset({("models_dir",), ("ner_bundle",), ("threads",)})
# Of those that answer one text a line.
QUERY_SETTINGS = frozenset({("empty_input",)})


def settings_flags(only: frozenset[tuple[str, ...]] | None = None) -> Callable[[Command], Command]:
    """Add a flag for each setting, or for those of ``only``."""

    def decorate(command: Command) -> Command:
        for option in reversed([option for option in options() if only is None or option.path in only]):
            command = _flag(option)(command)
        return command

    return decorate


def read_settings(flags: dict[str, str | None]) -> Settings:
    """Settings from the flags given and the environment.

    Raises:
        click.ClickException: they cannot be used; one line a fault.
    """
    paths = {option.name: option.path for option in options()}
    given = {paths[name]: value for name, value in flags.items() if value is not None}
    try:
        return load_settings(given)
    except InvalidSettingsError as error:
        raise click.ClickException(str(error)) from error


def _flag(option: Option) -> Callable[[Command], Command]:
    text = f"{option.info.description} [{option.variable}; default: {option.default}]"
    if option.info.annotation is bool:
        # `--truncate` alone says yes; `--truncate false` takes back what the environment says.
        return click.option(
            option.flag, option.name, metavar="[true|false]", is_flag=False, flag_value="true", help=text
        )
    metavar = "|".join(option.kinds).upper() if len(option.kinds) == 1 else "|".join(option.kinds)
    return click.option(option.flag, option.name, metavar=metavar, help=text)

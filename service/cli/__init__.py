"""``conche``: thin commands over the two packages, each imported when it is called.

A command's module may need what serving must not load (torch, for one), so the group knows names and one line
of help only.
"""

import importlib
import os
from typing import NamedTuple

import click

from model.runtime.threads import thread_count


class LazyCommand(NamedTuple):
    """Where a command lives, and its line in the list."""

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, LazyCommand] = {
    "serve": LazyCommand("service.cli.serve", "serve", "Serve over HTTP until interrupted."),
    "embed": LazyCommand("service.cli.query", "embed", "Embed texts, without a server."),
    "search": LazyCommand("service.cli.query", "search", "Look up questions in the FAQ, without a server."),
    "ner": LazyCommand("service.cli.query", "ner", "Find named entities, without a server."),
    "faq": LazyCommand("service.cli.faq", "faq", "Manage the FAQ's collections."),
    "models": LazyCommand("service.cli.loaded", "models", "List models, here or in a server."),
    "import": LazyCommand("service.cli.models", "import_", "Check that a checkpoint's weights can be read."),
    "export": LazyCommand(
        "service.cli.models", "export", "Write a checkpoint as a bundle that can be served."
    ),
    "train": LazyCommand("service.cli.train", "train", "Fine-tune a model on your own files."),
    "augment": LazyCommand(
        "service.cli.augment", "augment", "Write labelled texts with other names, to train from."
    ),
    "average": LazyCommand(
        "service.cli.average", "average", "Make one tagger of several that were trained on from one."
    ),
    "eval": LazyCommand("service.cli.evaluate", "evaluate", "Measure a model on your own files."),
    "profile": LazyCommand(
        "service.cli.profile", "profile", "Show what a model spends its time on, by stage and operator."
    ),
    "keys": LazyCommand("service.cli.keys", "keys", "Manage the API keys that requests need."),
    "settings": LazyCommand("service.cli.settings", "settings", "Show every setting."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is run or asked for help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        del ctx
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        # NumPy's matrix library starts a thread for each core of the host when it is imported, whatever the
        # quota. It reads this variable then, and never again.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(thread_count()))
        try:
            module = importlib.import_module(entry.module)
        except ModuleNotFoundError as error:
            raise click.ClickException(
                f"`conche {cmd_name}` needs the package {error.name}, which serving does not; "
                "`pip install -e '.[train]'` installs what it needs"
            ) from error
        command = getattr(module, entry.attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - the table is ours
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing one of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="conche", prog_name="conche")
def main() -> None:
    """Sentence embeddings, FAQ search and named entities in Chinese and English."""

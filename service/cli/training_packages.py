"""What the commands that import, export and train need beyond serving, and how to get it."""

from importlib.util import find_spec
from typing import Final

import click

_PACKAGES: Final = ("torch", "onnx", "onnxscript", "safetensors", "huggingface_hub")


def require_training_packages() -> None:
    """Stop a command before its work if a package of the ``train`` extra is missing.

    Raises:
        click.ClickException: names what is missing and where it is to be had.
    """
    missing = [name for name in _PACKAGES if not find_spec(name)]
    if missing:
        raise click.ClickException(
            f"not installed here: {', '.join(missing)}. `make test` or `make setup-test` puts them into "
            ".venv-dev (then: .venv-dev/bin/conche ...); into an environment of your own, "
            "`pip install -e '.[train]'`"
        )

"""The prompts of embedding models, by name: what is put before a text."""

from typing import Final

from model.runtime.bundle import Manifest
from service.errors import InvalidInputError

NO_PROMPT: Final = "none"


def prompt_of(manifest: Manifest, name: str | None, *, param: str) -> str:
    """The prompt of that name; the model's default one for None.

    Raises:
        InvalidInputError: the model has no such prompt.
    """
    if name is None:
        name = manifest.default_prompt_name or NO_PROMPT
    if name not in manifest.prompts and name != NO_PROMPT:
        raise InvalidInputError(
            f"the model has no such prompt; it has: {', '.join([*manifest.prompts, NO_PROMPT])}", param=param
        )
    return manifest.prompts.get(name, "")

"""The front matter of a checkpoint's README.md: licence and languages, as its author states them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# The hub writes SPDX identifiers in lower case; these are the licences of most encoders.
_SPDX: Final = {
    name.lower(): name
    for name in (
        "Apache-2.0",
        "MIT",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC",
        "MPL-2.0",
        "LGPL-3.0",
        "GPL-2.0",
        "GPL-3.0",
        "AGPL-3.0",
        "CC0-1.0",
        "CC-BY-3.0",
        "CC-BY-4.0",
        "CC-BY-SA-3.0",
        "CC-BY-SA-4.0",
        "CC-BY-NC-4.0",
        "CC-BY-NC-SA-4.0",
        "CC-BY-NC-ND-4.0",
        "Unlicense",
    )
}
_KEY: Final = re.compile(r"(?P<key>[\w-]+):\s*(?P<value>.*)")
_ITEM: Final = re.compile(r"\s*-\s+(?P<value>.*)")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a model's README states.

    Attributes:
        licence: An SPDX identifier, ``LicenseRef-...`` for one that SPDX does not list; None = not stated.
        languages: Codes such as ``en`` and ``zh``; empty = not stated.
    """

    licence: str | None = None
    languages: tuple[str, ...] = ()


def read_model_card(readme: Path) -> ModelCard:
    """Read the front matter of ``readme``; a README that is absent or has none states nothing."""
    if not readme.is_file():
        return ModelCard()
    fields = _front_matter(readme.read_text(encoding="utf-8", errors="replace"))
    licences = fields.get("license", []) + fields.get("license_name", [])
    licence = licences[0] if licences else None
    if licence == "other" and len(licences) > 1:
        licence = licences[1]
    return ModelCard(_spdx(licence) if licence else None, tuple(fields.get("language", [])))


def _spdx(licence: str) -> str:
    known = _SPDX.get(licence.lower())
    return known or "LicenseRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", licence)


def _front_matter(text: str) -> dict[str, list[str]]:
    """Top-level scalars and lists of scalars of the YAML between the first two ``---`` lines.

    Not a YAML parser: nested entries, of which a card has hundreds of lines, are passed over.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    fields: dict[str, list[str]] = {}
    values: list[str] = []
    for line in lines[1:]:
        if line.strip() == "---":
            return fields
        if entry := _KEY.fullmatch(line):
            values = fields.setdefault(entry["key"], [])
            inline = entry["value"].strip()
            parts = inline[1:-1].split(",") if inline.startswith("[") and inline.endswith("]") else [inline]
            values.extend(value for part in parts if (value := _scalar(part)))
        elif (item := _ITEM.fullmatch(line)) and (value := _scalar(item["value"])):
            values.append(value)
    return {}  # never closed: not front matter


def _scalar(text: str) -> str:
    return text.strip().strip("\"'")

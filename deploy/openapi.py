# ruff: noqa: INP001 - a script
"""Write docs/openapi.json anew, from the app; `make openapi`."""

import json
from pathlib import Path

from service.app import create_app
from service.settings import Settings

DOCUMENT = Path(__file__).parents[1] / "docs" / "openapi.json"


def committed_form() -> str:
    """The document of an app with the default settings, as it is committed.

    In alphabetical order, so that a diff shows changes of the interface and nothing else; and without the
    version, which a release changes and the interface may not.
    """
    document = create_app(Settings()).openapi()
    document["info"]["version"] = "unversioned"
    return json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(committed_form(), encoding="utf-8")

"""ARCHITECTURE.md places every module, so that whoever opens the tree finds its way."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Routes and commands are placed as a folder: one a router, one a group of commands.
PLACED_AS_A_FOLDER = {"service/routes"}


def test_every_module_is_named_in_the_code_map() -> None:
    """A module nobody can place has no clear responsibility; one named but gone misleads."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    code_map = text[text.index("## Code map") : text.index("## What must stay true")]
    named = set(re.findall(r"`(\w+)`", code_map))
    modules = {
        path
        for package in ("conche_client", "model", "service")
        for path in (REPOSITORY / package).rglob("*.py")
        if path.stem != "__init__"
        and path.parent.relative_to(REPOSITORY).as_posix() not in PLACED_AS_A_FOLDER
    }
    commands = {path.stem for path in modules if path.parent.name == "cli"}
    missing = {path.stem for path in modules} - named - commands
    assert not missing

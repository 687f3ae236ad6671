"""docs/openapi.json is the interface as it is: whoever changes it sees, and commits, what changed."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "openapi.json"
LINES_SHOWN = 80


def made_anew() -> str:
    """What `make openapi` would write; in a process without this one's settings."""
    script = "import deploy.openapi as made, sys; sys.stdout.write(made.committed_form())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCHE_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONHASHSEED": "random"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, cwd=ROOT
    )
    return done.stdout.decode()


def difference(committed: str, made: str) -> str:
    """What differs, as a diff of its first lines."""
    lines = list(
        difflib.unified_diff(
            committed.splitlines(), made.splitlines(), "docs/openapi.json", "the app", lineterm="", n=6
        )
    )
    more = [f"... {len(lines) - LINES_SHOWN} more lines"] if len(lines) > LINES_SHOWN else []
    return "\n".join(lines[:LINES_SHOWN] + more)


def test_the_committed_document_is_the_apps() -> None:
    """Clients are made from it, and reviewers read the interface's changes in it."""
    committed, made = DOCUMENT.read_text(encoding="utf-8"), made_anew()
    if committed != made:
        pytest.fail("run `make openapi`, and read the diff:\n" + difference(committed, made), pytrace=False)


def test_a_difference_is_told_by_the_lines_that_changed() -> None:
    """Not by two documents of 10,000 lines."""
    committed = DOCUMENT.read_text(encoding="utf-8")
    told = difference(committed, committed.replace('"/embed"', '"/embedded"', 1))
    assert '-  "/embed": {' in told
    assert '+  "/embedded": {' in told
    assert len(told.splitlines()) < 30


def test_a_release_does_not_change_the_document() -> None:
    """Its version is that of /info; the interface may be the same."""
    assert json.loads(DOCUMENT.read_text(encoding="utf-8"))["info"]["version"] == "unversioned"

"""Measurements are run by hand and rarely; they must at least still fit the code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELP = Path(__file__).with_name("script_help.py")
SCRIPTS = sorted((ROOT / "bench").glob("*.py"))


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str]]:
    """Of each script the exit status of `--help` and what it wrote."""
    done = subprocess.run(
        [sys.executable, HELP, *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_can_say_what_it_does(helps: dict[str, tuple[int, str]], script: Path) -> None:
    """A module that moved shows here, not when somebody wants a figure."""
    status, written = helps[str(script)]
    assert status == 0, written
    assert "usage" in written.lower()

"""`make` on a machine with nothing but Python and make: targets, help and the choice of interpreter."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def make(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run make, without the variables that an outer `make test PYTHON=...` hands down."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHON")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_help_lists_every_target() -> None:
    """A target that `make help` does not show is not found."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (\S+)$", text, re.MULTILINE)) - {"require-python"}
    listed = set(re.findall(r"^  make (\S+) +\S", make("help").stdout, re.MULTILINE))
    assert {"serve", "test", "check", "lock", "clean"} <= targets
    assert listed == targets


def test_plain_make_shows_the_help() -> None:
    """Whoever types only `make` wants to know what there is."""
    assert make().stdout == make("help").stdout


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_missing_python_is_named(python: str) -> None:
    """The first thing that can go wrong for a new user says what to do."""
    result = make(f"PYTHON={python}", "require-python")
    assert result.returncode != 0
    assert "No Python >= 3.11" in result.stderr
    assert python in result.stderr


def test_environment_follows_its_lock(tmp_path: Path) -> None:
    """The stamp of an environment names what it is made from, so a changed lock is installed."""
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "requirements").mkdir()
    for path in (ROOT / "requirements").glob("*.txt"):
        (tmp_path / "requirements" / path.name).write_bytes(path.read_bytes())

    def plan() -> str:
        return make("--dry-run", "setup-serve", folder=tmp_path).stdout

    stamp = re.search(r"touch (\S+)", plan())
    assert stamp
    (tmp_path / ".venv").mkdir()
    (tmp_path / stamp[1]).touch()
    assert "pip install" not in plan()
    with (tmp_path / "requirements" / "serve.txt").open("a", encoding="utf-8") as lock:
        lock.write("# changed\n")
    assert "pip install" in plan()

"""An environment of its own for each peer: made once, used again until what it is made from changes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REQUIREMENTS: Final = Path(__file__).parents[1] / "peers"
_PATIENCE_S: Final = 3600.0
# Enough of pip's complaint to see what is missing.
_LINES_SHOWN: Final = 6


class NotInstalledError(Exception):
    """A peer cannot be had here; the message says what pip or the peer said."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with one peer in it.

    Attributes:
        folder: of the environment.
        versions: of what was installed, by distribution.
    """

    folder: Path
    versions: dict[str, str]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


def environment(name: str, work: Path, say: Callable[[str], None]) -> Environment:
    """Make the environment of ``peers/NAME.txt``, or take the one that is there.

    Args:
        name: of the file with its requirements.
        work: folder that holds environments.
        say: told what is under way, since it takes minutes.

    Raises:
        NotInstalledError: it cannot be installed.
    """
    requirements = REQUIREMENTS / f"{name}.txt"
    index = os.environ.get("TORCH_INDEX", "")
    key = hashlib.sha256(
        f"{sys.version}\n{index}\n{requirements.read_text(encoding='utf-8')}".encode()
    ).hexdigest()
    folder = work / name
    stamp = folder / "made.json"
    if stamp.is_file() and (made := json.loads(stamp.read_text(encoding="utf-8")))["key"] == key:
        return Environment(folder, made["versions"])
    say(f"setting up {name} (minutes, the first time) ...")
    venv.EnvBuilder(clear=True, with_pip=True).create(folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    lines = requirements.read_text(encoding="utf-8").splitlines()
    torch = [line for line in lines if line.startswith("torch==")]
    if index and torch:
        _run([*pip, "install", "--quiet", "--index-url", index, *torch])
    _run([*pip, "install", "--quiet", "-r", str(requirements)])
    listed = json.loads(_run([*pip, "list", "--format", "json"]))
    versions = {one["name"]: one["version"] for one in listed}
    stamp.write_text(json.dumps({"key": key, "versions": versions}), encoding="utf-8")
    return Environment(folder, versions)


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise NotInstalledError(f"{' '.join(command[3:6])} took more than {_PATIENCE_S:.0f} s") from None
    if done.returncode:
        said = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()
        raise NotInstalledError(" / ".join(said[-_LINES_SHOWN:]) or f"pip ended with {done.returncode}")
    return done.stdout

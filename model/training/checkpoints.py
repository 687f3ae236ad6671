"""What a run leaves behind while it trains, so that it can go on after whatever ends it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_IDENTITY: Final = "run.json"
_STATE: Final = "state.pt"
_BEST: Final = "best.pt"


class OtherRunError(RuntimeError):
    """The work folder holds another run than the one that is asked for."""


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """The folder of one training run, hidden beside its output, gone when the bundle is written.

    A file takes its name only when it is whole, so a kill at any moment leaves the state before or after.
    """

    path: Path

    @classmethod
    def beside(cls, output: Path) -> WorkFolder:
        """The folder that belongs to an output; ``.NAME.training``."""
        output = output.resolve()
        return cls(output.parent / f".{output.name}.training")

    def open(self, identity: Mapping[str, Any], *, restart: bool = False) -> None:
        """Claim the folder for a run.

        Args:
            identity: All that decides what the run computes; JSON values by name.
            restart: Forget what is there.

        Raises:
            OtherRunError: A run with another identity was interrupted here; names what differs.
            OSError: The folder cannot be written.
        """
        if restart:
            self.remove()
        wanted = json.loads(json.dumps(identity))
        record = self.path / _IDENTITY
        if record.is_file():
            found = json.loads(record.read_text(encoding="utf-8"))
            if found != wanted:
                raise OtherRunError(
                    f"{self.path} holds an interrupted run of other {_difference(found, wanted)}; "
                    "give the same command to go on with it, or --restart to forget it"
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._put(_IDENTITY, lambda path: path.write_text(json.dumps(wanted, indent=1), encoding="utf-8"))

    def left(self) -> Literal["nothing", "unsaved", "saved"]:
        """What an interrupted run left here: nothing, its name before any state was saved, or a state."""
        if (self.path / _STATE).is_file():
            return "saved"
        return "unsaved" if (self.path / _IDENTITY).is_file() else "nothing"

    def load_state(self) -> dict[str, Any] | None:
        """What was saved last; None = nothing yet."""
        return self._load(_STATE)

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Replace the saved state."""
        self._put(_STATE, lambda path: torch.save(dict(state), path))

    def load_best(self) -> dict[str, Any]:
        """The weights of the best epoch so far.

        Raises:
            FileNotFoundError: No epoch has ended yet.
        """
        best = self._load(_BEST)
        if best is None:
            raise FileNotFoundError(self.path / _BEST)
        return best

    def save_best(self, weights: Mapping[str, Any]) -> None:
        """Replace them."""
        self._put(_BEST, lambda path: torch.save(dict(weights), path))

    def remove(self) -> None:
        """Delete the folder and all in it."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _load(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        if not path.is_file():
            return None
        loaded: dict[str, Any] = torch.load(path, weights_only=True)
        return loaded

    def _put(self, name: str, write: Any) -> None:
        partial = self.path / f"{name}.partial"
        write(partial)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(self.path / name)


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    shown = [
        f"{name} ({found[name]} then, {wanted[name]} now)"
        if name in found and name in wanted and len(f"{found[name]}{wanted[name]}") < 60
        else name
        for name in names
    ]
    return ", ".join(shown)

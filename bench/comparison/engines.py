"""Engines by name, for measuring them bare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from model.runtime.engine_choice import EngineWishes, candidates, open_engine
from model.runtime.threads import thread_count

if TYPE_CHECKING:
    from model.runtime.bundle import Bundle
    from model.runtime.engine import Engine

REFERENCE: Final = "onnxruntime float32"
"""What TEI runs on a CPU."""


def engine_names() -> list[str]:
    """All that Conche would choose from on this machine, the reference first."""
    return [str(candidate) for candidate in candidates(EngineWishes())]


def engine_by_name(bundle: Bundle, name: str) -> Engine:
    """Open one of ``engine_names`` with as many threads and streams as the service takes.

    Raises:
        ValueError: there is no such engine here.
    """
    for candidate in candidates(EngineWishes()):
        if str(candidate) == name:
            return open_engine(bundle, candidate, threads=thread_count(), streams=None)
    raise ValueError(f"no engine {name} here; there are {', '.join(engine_names())}")

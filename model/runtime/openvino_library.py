"""OpenVINO itself, imported as this service wants it; what else needs it here imports it from this module.

Needs the extra ``openvino``; ``engine_choice`` imports it only where that is installed.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

# Importing OpenVINO reports that to its maker, by this package of its dependencies; this service reports to
# nobody. Where the package cannot be imported, OpenVINO has a silent stand-in.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
# oneDNN, below it, keeps 1,024 of the kernels that it makes for each shape; what it keeps is kept once more
# by OpenVINO. It reads the variable when it makes the first.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
import openvino as ov  # noqa: E402
from openvino import opset8, passes  # noqa: E402

# Its binding gets hold of NumPy when it first needs it, and two threads that do at a time wait for each other
# for ever: one for the interpreter's lock, and the other, who has it, for the first. Here one thread does.
ov.Type.f32.to_dtype()

__all__ = ["core", "multiplies_bfloat16", "opset8", "ov", "passes", "version"]


def version() -> str:
    """Of OpenVINO: "2026.4.1", without build and branch."""
    return str(ov.__version__).split("-", 1)[0]


def multiplies_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor; where it does not, it would silently not."""
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@functools.cache
def core() -> Any:
    """What OpenVINO has once a process: its plugins."""
    made = ov.Core()
    # Weights are copied while loading, as ONNX Runtime does: a model folder may be replaced, or its disk be
    # gone, under a running service, and a map of a file that became shorter kills the process.
    made.set_property({"ENABLE_MMAP": False})
    return made

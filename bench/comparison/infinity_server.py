"""Infinity's command, with one import mended: run by the interpreter of its environment.

Its ONNX engine imports the exporter of optimum, whatever it is given, and that takes helpers from a module of
torch that newer releases have moved. Nothing is exported here, and nothing that runs is changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def mend(module: Any, moved_to: Any) -> None:
    """Let ``module`` have again what ``moved_to`` holds; what it has itself stays."""
    for name, value in vars(moved_to).items():
        if not hasattr(module, name):
            setattr(module, name, value)


if __name__ == "__main__":
    name = "symbolic_opset14"
    mend(
        import_module(f"torch.onnx.{name}"),
        import_module(f"torch.onnx._internal.torchscript_exporter.{name}"),
    )
    import_module("infinity_emb.cli").cli()

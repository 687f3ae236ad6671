"""What the tests of training share: a graph for each structure, since weights do not matter to it."""

from collections.abc import Iterator
from typing import Final

import onnx
import pytest

from model.export import writer
from model.export.graph import GraphModule, trace

_TRACED: Final[dict[str, onnx.ModelProto]] = {}


def _structure(module: GraphModule) -> str:
    """All that a graph depends on: layers and their sizes, and what says how they are put together."""
    configs = {str(part.config) for part in module.module.modules() if hasattr(part, "config")}
    return f"{module.module} {sorted(configs)} {module.outputs} {module.vocab_size} {module.token_types}"


@pytest.fixture(autouse=True, scope="module")
def _trace_once() -> Iterator[None]:
    """Take a graph that was traced before; that each computes what its module does is still measured."""

    def traced_once(module: GraphModule) -> onnx.ModelProto:
        structure = _structure(module)
        if structure not in _TRACED:
            _TRACED[structure] = trace(module)
        return _TRACED[structure]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "trace", traced_once)
        yield

"""The profile names what ran, once a node, with the least time of the repeats."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.profiling import OperatorTime, add_up, profile_operators
from tests.bundles import HIDDEN_SIZE, refresh_manifest, write_tiny_ner_bundle


def event(node: str, operator: str, microseconds: int, kind: str = "kernel_time") -> dict[str, object]:
    """As ONNX Runtime writes it."""
    return {"cat": "Node", "name": f"{node}_{kind}", "dur": microseconds, "args": {"op_name": operator}}


def test_the_least_time_of_each_batch_counts() -> None:
    """Two batches of two runs: 3 + 20 for the one node, 1 + 1 for the other; no other event counts."""
    trace = [
        *(event("first", "MatMul", time) for time in (5, 3, 20, 30)),
        *(event("second", "MatMul", time) for time in (1, 2, 2, 1)),
        *(event("sum", "Add", time) for time in (100, 200, 100, 200)),
        event("first", "MatMul", 0, kind="fence_before"),
        {"cat": "Session", "name": "model_run", "dur": 1000, "args": {}},
    ]
    assert add_up(trace, runs=2) == [
        OperatorTime("Add", 1, pytest.approx(200e-6)),
        OperatorTime("MatMul", 2, pytest.approx(25e-6)),
    ]


def test_a_bundle_is_profiled(tmp_path: Path) -> None:
    """The tagger for tests has a product and two look-ups, in whatever engine optimised it."""
    bundle = Bundle.load(write_tiny_ner_bundle(tmp_path / "tiny"))
    batches = [pad_batch([np.arange(2, 2 + length)], 0) for length in (3, 9)]
    times = profile_operators(bundle, batches, ["logits"], threads=1, repeats=2)
    nodes = {time.operator: time.nodes for time in times}
    assert (nodes["MatMul"], nodes["Gather"]) == (1, 2)
    assert [time.seconds for time in times] == sorted((time.seconds for time in times), reverse=True)


def test_a_sum_and_its_norm_are_not_fused(tmp_path: Path) -> None:
    """Left alone, ONNX Runtime puts its slower SkipLayerNormalization in their place."""
    path = write_tiny_ner_bundle(tmp_path / "tiny")
    model = onnx.load(path / "graph.onnx", load_external_data=False)
    scale, bias = np.ones(HIDDEN_SIZE, np.float32), np.zeros(HIDDEN_SIZE, np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(scale, "scale"), numpy_helper.from_array(bias, "bias")]
    )
    (product,) = (node for node in model.graph.node if node.op_type == "MatMul")
    product.input[0] = "normed"
    norm = helper.make_node("LayerNormalization", ["embedded", "scale", "bias"], ["normed"])
    model.graph.node.insert(list(model.graph.node).index(product), norm)
    (path / "graph.onnx").write_bytes(model.SerializeToString())
    refresh_manifest(path)
    batches = [pad_batch([np.arange(2, 7)], 0)]
    times = profile_operators(Bundle.load(path), batches, ["logits"], threads=1, repeats=1)
    nodes = {time.operator: time.nodes for time in times}
    assert "SkipLayerNormalization" not in nodes
    assert nodes["LayerNormalization"] == nodes["Add"] == 1

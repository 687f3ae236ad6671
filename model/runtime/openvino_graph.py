"""What is changed in a bundle's graph before OpenVINO compiles it; no result changes by it.

The largest of these is that padding is left out. A graph takes texts padded to the longest, [B, S], and would
compute its layers for padding as well. After `unpad`, whatever treats each token by itself, which is all of a
layer but the mixing of tokens in its attention, is computed for the M tokens alone, one after the other,
[1, M]; they are laid out as rows before each attention and taken out of them behind it. So texts of unlike
length share a batch at little cost, and most kernels, of which OpenVINO makes new ones for each shape, depend
on one number. Zhai et al. 2022, arXiv:2210.03052, section III, do it with kernels of their own; here it takes
gathers, and no kernel.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from model.runtime.openvino_library import opset8, ov

KEPT: Final = "kept"
"""Input [1, M] int64 of a packed graph: where each token stands in the rows, counted through [B, S]."""
PLACES: Final = "places"
"""Input [B, S] int64 of a packed graph: which of the M tokens stands there; padding has one of its row."""

# These treat each number by itself, or with its counterpart.
_ELEMENTWISE: Final = frozenset({"Add", "Convert", "Divide", "Gelu", "Multiply", "Relu", "Subtract"})


def floor_quotients(model: Any) -> None:
    """Make divisions of unsigned bytes round down, as integer division does.

    OpenVINO reads BitShift to the right as a division, which its CPU plugin computes in float32 and rounds to
    the nearest (seen in 2026.4.1): every other upper half of a packed byte of the word table would be one too
    large, and vectors off by 0.006.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Divide" and node.get_element_type() == ov.Type.u8:
            dividend, divisor = (opset8.convert(port.get_source_output(), "f32") for port in node.inputs())
            quotient = opset8.convert(opset8.floor(opset8.divide(dividend, divisor)), "u8")
            node.output(0).replace(quotient.output(0))


def drop_nan_guards(model: Any) -> None:
    """Take out what makes zeros of an attention's results that are not numbers.

    OpenVINO's reader puts it behind each ONNX Attention, for queries that may attend to nothing. Here no row
    is hidden altogether (`model.runtime.engine.BatchRules`), and no broken model is to pass for one of zeros.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Select" or node.input_value(0).get_node().get_type_name() != "IsNaN":
            continue
        guarded = node.input_value(2)
        if guarded.get_node().get_type_name() == "ScaledDotProductAttention":
            node.output(0).replace(guarded)


def unpad(model: Any) -> bool:
    """Compute for tokens alone what treats each by itself.

    Knows no architecture: products with weights are packed, and so is what follows them as long as each token
    stays by itself; all else gets rows as before. Then the graph has the inputs ``kept`` and ``places``, too.

    Returns:
        False: there is nothing of the kind, and the graph is as it was.
    """
    return _Unpadding(model).apply()


def unpadded_inputs(mask: NDArray[np.int64], size: int) -> dict[str, NDArray[np.int64]]:
    """What a packed graph takes beside the others.

    Args:
        mask: [B, S] int64, 1 = token; each row has some.
        size: M, tokens at least; what is more are copies of the first, which nothing reads.
    """
    kept = np.zeros((1, size), np.int64)
    tokens = np.flatnonzero(mask)
    kept[0, : len(tokens)] = tokens
    kept[0, len(tokens) :] = tokens[0]
    places = np.cumsum(mask, dtype=np.int64).reshape(mask.shape) - 1
    # Padding is a token of its own row, not of another: were that one infinite, the weight 0 would not help.
    firsts = np.concatenate(([0], places[:-1, -1] + 1))[:, None]
    return {KEPT: kept, PLACES: np.where(mask == 1, places, firsts)}


class _Unpadding:
    """One pass over a graph, in the order of computation; outputs are known by node and number."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept = _input(KEPT, [1, -1])
        self._places = _input(PLACES, [-1, -1])
        self._of_batch: set[tuple[str, int]] = set()  # depend on an input; the others are weights
        self._packed: set[tuple[str, int]] = set()  # [1, M, width]
        self._packs: dict[tuple[str, int], Any] = {}
        self._rows: dict[tuple[str, int], Any] = {}

    def apply(self) -> bool:
        for node in self._model.get_ordered_ops():
            sources = [port.get_source_output() for port in node.inputs()]
            if node.get_type_name() != "Parameter" and not any(map(self._is_of_batch, sources)):
                continue
            self._of_batch.update(map(_key, node.outputs()))
            tokenwise = self._is_tokenwise(node, sources)
            if tokenwise:
                self._packed.update(map(_key, node.outputs()))
            for port, source in zip(node.inputs(), sources, strict=True):
                if tokenwise and self._is_of_batch(source):
                    port.replace_source_output(self._as_tokens(source))
                elif not tokenwise and _key(source) in self._packed:
                    port.replace_source_output(self._as_rows(source))
        if not self._packed:
            return False
        self._model.add_parameters([self._kept, self._places])
        self._model.validate_nodes_and_infer_types()
        return True

    def _is_of_batch(self, output: Any) -> bool:
        return _key(output) in self._of_batch

    def _is_tokenwise(self, node: Any, sources: list[Any]) -> bool:
        kind = node.get_type_name()
        if kind == "MatMul":
            data, weights = sources
            flipped = node.get_attributes()["transpose_a"]
            return (
                self._is_of_batch(data)
                and not self._is_of_batch(weights)
                and _width(data) > 0
                and not flipped
            )
        widths = {_width(source) for source in sources if _key(source) in self._packed}
        if len(widths) != 1:  # none of its inputs is packed; two would be of one width, but for a broadcast
            return False
        if kind == "MVN":  # layer normalisation, which the exporter writes over the last axis only
            return True
        return kind in _ELEMENTWISE and all(
            _width(source) in widths if self._is_of_batch(source) else _is_alike_for_all(source)
            for source in sources
        )

    def _as_tokens(self, output: Any) -> Any:
        if _key(output) in self._packed:
            return output
        return _gathered(self._packs, output, self._kept)

    def _as_rows(self, output: Any) -> Any:
        return _gathered(self._rows, output, self._places)


def _gathered(made: dict[tuple[str, int], Any], output: Any, indices: Any) -> Any:
    key = _key(output)
    if key not in made:
        flat = opset8.reshape(output, np.array([-1, _width(output)]), False)
        made[key] = opset8.gather(flat, indices, np.array(0)).output(0)
    return made[key]


def _input(name: str, shape: list[int]) -> Any:
    parameter = opset8.parameter(ov.PartialShape(shape), ov.Type.i64, name=name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _width(output: Any) -> int:
    """Numbers of a token, where the shape is that of tokens, [any, any, numbers]; else 0."""
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic or [size.is_dynamic for size in shape] != [True, True, False]:
        return 0
    return int(shape[2].get_length())


def _is_alike_for_all(weights: Any) -> bool:
    """Whether every token of every row gets the same of it."""
    shape = weights.get_partial_shape()
    return shape.is_static and all(size == 1 for size in list(shape.to_shape())[:-1])

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

_RANK_OF_TOKENS: Final = 3
_RANK_OF_WEIGHTS: Final = 2
# These treat each number by itself, or with its counterpart.
_ELEMENTWISE: Final = frozenset({"Add", "Convert", "Divide", "Gelu", "Multiply", "Relu", "Subtract"})


def prepare(model: Any) -> bool:
    """Change a graph as OpenVINO has read it into the one that is served.

    Returns:
        Whether it has the inputs of `unpadded_inputs`, too.
    """
    floor_quotients(model)
    drop_nan_guards(model)
    return unpad(model)


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
        looked_at, guarded = node.input_value(0).get_node().input_value(0), node.input_value(2)
        is_attention = guarded.get_node().get_type_name() == "ScaledDotProductAttention"
        if is_attention and _key(looked_at) == _key(guarded):
            node.output(0).replace(guarded)


def unpad(model: Any) -> bool:
    """Compute for tokens alone what treats each by itself.

    Products of [B, S, n] with weights are packed, and so is what follows them as long as each token stays by
    itself; all else gets rows as before. What is [B, S, n] is read off the graph: the sizes of its inputs are
    named, and the names go where the sizes go. Then it has the inputs ``kept`` and ``places``, too.

    Returns:
        False: there is nothing of the kind, and the graph computes what it did.
    """
    return _Unpadding(model).apply()


def unpadded_inputs(mask: NDArray[np.int64], size: int) -> dict[str, NDArray[np.int64]]:
    """What a packed graph takes beside the others.

    Args:
        mask: [B, S] int64, 1 = token; each row has some.
        size: M, tokens at least; what is more are copies of the first, which nothing reads.

    A place of padding has a token's numbers, not those that padding would have: nobody is to look there.
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
        self._sizes = (ov.Symbol(), ov.Symbol())  # names of B and S
        self._of_batch: set[tuple[str, int]] = set()  # depend on an input; the others are weights
        self._packed: set[tuple[str, int]] = set()  # [1, M, width]
        self._packs: dict[tuple[str, int], Any] = {}
        self._rows: dict[tuple[str, int], Any] = {}

    def apply(self) -> bool:
        for parameter in self._model.get_parameters():
            parameter.set_partial_shape(ov.PartialShape([_named(symbol) for symbol in self._sizes]))
        self._model.validate_nodes_and_infer_types()
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

    def _width(self, output: Any) -> int:
        """Numbers of a token, where the shape is [B, S, numbers]; else 0."""
        shape = output.get_partial_shape()
        if shape.rank.is_dynamic or len(shape) != _RANK_OF_TOKENS or shape[2].is_dynamic:
            return 0
        named = all(
            size.is_dynamic and size.has_symbol() and size.get_symbol() == symbol
            for size, symbol in zip(list(shape)[:2], self._sizes, strict=True)
        )
        return int(shape[2].get_length()) if named else 0

    def _is_tokenwise(self, node: Any, sources: list[Any]) -> bool:
        if node.get_output_size() != 1 or not self._width(node.output(0)):
            return False
        kind = node.get_type_name()
        if kind == "MatMul":
            data, weights = sources
            return (
                self._width(data) > 0
                and not self._is_of_batch(weights)
                and len(weights.get_partial_shape()) == _RANK_OF_WEIGHTS
                and not node.get_attributes()["transpose_a"]
            )
        if not any(_key(source) in self._packed for source in sources):
            return False
        if kind == "MVN":
            return _integers(sources[1]) in ([-1], [_RANK_OF_TOKENS - 1])
        width = self._width(node.output(0))
        return kind in _ELEMENTWISE and all(
            self._width(source) == width if self._is_of_batch(source) else _is_alike_for_all(source)
            for source in sources
        )

    def _as_tokens(self, output: Any) -> Any:
        if _key(output) in self._packed:
            return output
        return self._gathered(self._packs, output, self._kept)

    def _as_rows(self, output: Any) -> Any:
        return self._gathered(self._rows, output, self._places)

    def _gathered(self, made: dict[tuple[str, int], Any], output: Any, indices: Any) -> Any:
        key = _key(output)
        if key not in made:
            flat = opset8.reshape(output, np.array([-1, self._width(output)]), False)
            made[key] = opset8.gather(flat, indices, np.array(0)).output(0)
        return made[key]


def _named(symbol: Any) -> Any:
    size = ov.Dimension()
    size.set_symbol(symbol)
    return size


def _input(name: str, shape: list[int]) -> Any:
    parameter = opset8.parameter(ov.PartialShape(shape), ov.Type.i64, name=name)
    parameter.output(0).get_tensor().set_names({name})
    return parameter


def _key(output: Any) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _integers(output: Any) -> list[int]:
    """Those of a constant, or of a range between constants; none if it is neither."""
    node = output.get_node()
    if node.get_type_name() == "Range":
        bounds = [_integers(port.get_source_output()) for port in node.inputs()]
        return list(range(*(bound[0] for bound in bounds))) if all(bounds) else []
    return [int(number) for number in node.data.flatten()] if node.get_type_name() == "Constant" else []


def _is_alike_for_all(weights: Any) -> bool:
    """Whether every token of every row gets the same of it."""
    shape = weights.get_partial_shape()
    if shape.is_dynamic or len(shape) > _RANK_OF_TOKENS:
        return False
    return all(size == 1 for size in list(shape.to_shape())[:-1])

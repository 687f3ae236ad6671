"""From a PyTorch module to an ONNX graph that holds no weights.

The graph is traced with its parameters as inputs, so that the optimiser of the exporter sees only structure:
it would otherwise transpose, merge and rename the weights, and the bundle could no longer be read back into
the module. Each parameter then becomes what the bundle stores: an initialiser whose bytes lie in a
safetensors file, followed by the operators that turn codes into float32. Those operators are part of the
ONNX standard (opset 23), so that any engine can run the graph.

Attention is traced as the standard's own operator, which engines run as one kernel: written out, ONNX Runtime
computes it in nine, each of which goes over all scores once more. ``bench/README.md`` has the figures.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnxscript.optimizer
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from model.encoder.attention import SelfAttention
from model.encoder.heads import SequenceClassifier, TokenClassifier
from model.encoder.pooling import cls_pool, l2_normalise, mean_pool
from model.export.storage import BLOCK_SIZE, CODES, SCALES, EncodedTensor, StoredArray, int8_block_size
from model.runtime.engine import INPUT_NAMES, OUTPUT_NAMES

if TYPE_CHECKING:
    from model.encoder.encoder import Encoder

OPSET: Final = 23  # the first with Attention
WORD_TABLE: Final = "embeddings.word.weight"
# The module that is traced holds the encoder under this name; the bundle's names go without it, so that
# the encoder of an embedding model and that of a tagger have the same ones.
_PREFIX: Final = "encoder."


# Added to the scores of padding. Least of bfloat16, not of float32: an engine that computes in bfloat16 would
# round the latter to minus infinity.
_NEVER_ATTEND: Final = float(torch.finfo(torch.bfloat16).min)


class GraphError(RuntimeError):
    """The traced graph is not what the bundle needs."""


class EmbeddingOutputs(nn.Module):
    """The encoder with both kinds of pooling, raw and scaled to length one."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute every output, in the order of ``OUTPUT_NAMES``.

        Args:
            input_ids: [B, S], int64.
            attention_mask: [B, S], int64; 1 = token, 0 = padding.
            token_type_ids: [B, S], int64.

        Returns:
            last hidden state [B, S, H], then four times [B, H].
        """
        hidden_states = self.encoder(input_ids, attention_mask, token_type_ids)
        by_cls = cls_pool(hidden_states)
        by_mean = mean_pool(hidden_states, attention_mask)
        return hidden_states, by_cls, by_mean, l2_normalise(by_cls), l2_normalise(by_mean)


class TaggingOutputs(nn.Module):
    """The token classifier, under the interface that the graph has."""

    def __init__(self, tagger: TokenClassifier) -> None:
        super().__init__()
        self.encoder = tagger.encoder
        self.classifier = tagger.classifier

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the logits, [B, S, L], as a tuple of one."""
        return (self.classifier(self.encoder(input_ids, attention_mask, token_type_ids)),)


class ClassifyingOutputs(nn.Module):
    """The classifier of whole texts, under the interface that the graph has."""

    def __init__(self, classifier: SequenceClassifier) -> None:
        super().__init__()
        self.encoder = classifier.encoder
        self.transform = classifier.transform
        self.activation = classifier.activation
        self.classifier = classifier.classifier

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the logits, [B, L], as a tuple of one; what makes scores of them is left to the caller."""
        first = cls_pool(self.encoder(input_ids, attention_mask, token_type_ids))
        return (self.classifier(self.activation(self.transform(first))),)


class _AttentionOperator(nn.Module):
    """``SelfAttention`` with ONNX's Attention operator between its projections; for tracing only."""

    def __init__(self, attention: SelfAttention) -> None:
        super().__init__()
        self.num_attention_heads = attention.num_attention_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.output = attention.output

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """As ``SelfAttention.forward``: [B, S, H] and [B, 1, 1, S] -> [B, S, H]."""
        tokens = hidden_states.shape[1]
        # Numbers to add, and a row for each query, though all are alike: ONNX Runtime's kernel takes nothing
        # smaller, and turns a mask of truth values into this itself, in every layer. Every layer asks for the
        # same here, and engines compute it once.
        added = torch.where(attention_mask, 0.0, _NEVER_ATTEND).expand(-1, -1, tokens, -1)  # [B, 1, S, S]
        context, *_ = torch.onnx.ops.attention(
            self.query(hidden_states),
            self.key(hidden_states),
            self.value(hidden_states),
            added,
            q_num_heads=self.num_attention_heads,
            kv_num_heads=self.num_attention_heads,
        )  # [B, S, H]
        mixed: Tensor = self.output(context)
        return mixed


def _with_attention_operators(module: nn.Module) -> nn.Module:
    """Copy ``module``, its attention replaced; the names of its parameters stay."""
    copied = copy.deepcopy(module)
    for parent in list(copied.modules()):
        for name, child in parent.named_children():
            if isinstance(child, SelfAttention):
                setattr(parent, name, _AttentionOperator(child))
    return copied


@dataclass(frozen=True, slots=True)
class GraphModule:
    """What is traced, and what its outputs are called.

    Attributes:
        module: In evaluation mode.
        outputs: One name per tensor that the module returns.
        vocab_size: Token ids are below it.
        token_types: Token types are below it; 1 = texts come one by one, all tokens with type 0.
    """

    module: nn.Module
    outputs: tuple[str, ...]
    vocab_size: int
    token_types: int = 1

    @classmethod
    def of(cls, model: Encoder | TokenClassifier | SequenceClassifier) -> GraphModule:
        """Wrap an encoder for embeddings, or a classifier of tokens or of whole texts."""
        match model:
            case TokenClassifier():
                outputs = OUTPUT_NAMES["token-classification"]
                return cls(TaggingOutputs(model).eval(), outputs, model.encoder.config.vocab_size)
            case SequenceClassifier():
                config = model.encoder.config
                return cls(
                    ClassifyingOutputs(model).eval(),
                    OUTPUT_NAMES["sequence-classification"],
                    config.vocab_size,
                    token_types=max(1, min(2, config.type_vocab_size)),
                )
            case _:
                outputs = OUTPUT_NAMES["embedding"]
                return cls(EmbeddingOutputs(model).eval(), outputs, model.config.vocab_size)

    def parameters(self) -> dict[str, Tensor]:
        """The module's parameters, under the names that the bundle gives them."""
        return {bundle_name(name): parameter for name, parameter in self.module.named_parameters()}

    def load(self, weights: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
        """Put weights, by the bundle's names, into the module.

        Raises:
            GraphError: A parameter is absent.
        """
        parameters = self.parameters()
        missing = sorted(parameters.keys() - weights.keys())
        if missing:
            raise GraphError(f"no weights for {', '.join(missing)}")
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.from_numpy(np.array(weights[name], np.float32)))

    def run(
        self, feeds: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]
    ) -> dict[str, np.ndarray]:
        """Run the module on NumPy arrays, as an engine would run the graph."""
        with torch.inference_mode():
            results = self.module(*(torch.from_numpy(feeds[name]) for name in INPUT_NAMES))
        return {name: result.numpy() for name, result in zip(self.outputs, results, strict=True)}

    def run_in_float64(
        self, feeds: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]
    ) -> dict[str, np.ndarray]:
        """Do as ``run``, with the same weights and twice the digits; takes a few times as long."""
        self.module.double()
        try:
            return self.run(feeds)
        finally:
            self.module.float()  # exact: every number was one of float32


def bundle_name(name: str) -> str:
    """Turn a parameter's name in the traced module, or in a classifier, into the bundle's."""
    return name.removeprefix(_PREFIX)


def trace(traced: GraphModule) -> onnx.ModelProto:
    """Trace a module into a graph whose parameters are inputs.

    Args:
        traced: The module; its weights do not matter.

    Returns:
        A model whose inputs are ``INPUT_NAMES`` with the dynamic axes ``batch`` and ``sequence``, followed by
        one for each parameter, under the bundle's name.

    Raises:
        GraphError: The exporter lost a parameter, or froze an axis.
    """
    # Three different tensors: the exporter takes one passed twice for one input, and wires the graph so.
    ids = torch.ones(2, 3, dtype=torch.int64)
    example = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    with _quiet():
        program = torch.onnx.export(
            _with_attention_operators(traced.module),
            example,
            dynamo=True,
            input_names=list(INPUT_NAMES),
            output_names=list(traced.outputs),
            dynamic_shapes=(axes,) * len(INPUT_NAMES),
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
        if program is None:
            raise GraphError("the exporter returned nothing")
        model = program.model_proto
        _turn_parameters_into_inputs(model, traced)
        optimised: onnx.ModelProto = onnxscript.optimizer.optimize(model)
    _strip_records(optimised)
    _name_axes(optimised)
    return optimised


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks about packages that are not there and names that it merges."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _turn_parameters_into_inputs(model: onnx.ModelProto, traced: GraphModule) -> None:
    renamed = {name: bundle_name(name) for name, _ in traced.module.named_parameters()}
    constants: list[TensorProto] = []
    found: set[str] = set()
    for tensor in model.graph.initializer:
        if tensor.name not in renamed:
            constants.append(tensor)
            continue
        found.add(tensor.name)
        model.graph.input.append(
            helper.make_tensor_value_info(renamed[tensor.name], tensor.data_type, list(tensor.dims))
        )
    lost = sorted(renamed.keys() - found)
    if lost:
        raise GraphError(f"the exporter lost {', '.join(lost)}")
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
    del model.graph.value_info[:]


def _strip_records(model: onnx.ModelProto) -> None:
    """Drop what the exporter noted for its own debugging: it names the machine's paths."""
    graph = model.graph
    del model.metadata_props[:]
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer, *graph.value_info):
        del part.metadata_props[:]
        part.doc_string = ""


def _name_axes(model: onnx.ModelProto) -> None:
    """Call the dynamic axes by their meaning, and check that they are dynamic."""
    inputs = {value.name: value for value in model.graph.input}
    if missing := [name for name in INPUT_NAMES if name not in inputs]:
        raise GraphError(f"the exporter dropped the input {', '.join(missing)}")
    renamed: dict[str, str] = {}
    for name in INPUT_NAMES:
        for axis, dim in zip(("batch", "sequence"), inputs[name].type.tensor_type.shape.dim, strict=True):
            if not dim.HasField("dim_param"):
                raise GraphError(f"axis {axis} of {name} was frozen to {dim.dim_value}")
            renamed[dim.dim_param] = axis
            dim.dim_param = axis
    for output in model.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = renamed.get(dim.dim_param, dim.dim_param)
    del model.graph.value_info[:]


def attach_weights(
    model: onnx.ModelProto, tensors: Sequence[EncodedTensor], stored: Mapping[str, tuple[str, StoredArray]]
) -> onnx.ModelProto:
    """Replace the parameter inputs of a traced graph by what the bundle stores.

    Args:
        model: From ``trace``; it is not changed.
        tensors: Every parameter of the graph, encoded.
        stored: File name and place of each array of ``tensors``, by its name.

    Returns:
        The finished graph, its weights as external data.

    Raises:
        GraphError: A parameter of the graph is not among ``tensors``, or the result is not valid ONNX.
    """
    finished = onnx.ModelProto()
    finished.CopyFrom(model)
    graph = finished.graph
    encoded = {tensor.name: tensor for tensor in tensors}
    parameters = [value.name for value in graph.input if value.name not in INPUT_NAMES]
    if missing := sorted(set(parameters) - encoded.keys()):
        raise GraphError(f"no weights for {', '.join(missing)}")
    inputs = [value for value in graph.input if value.name in INPUT_NAMES]
    del graph.input[:]
    graph.input.extend(inputs)
    nodes: list[onnx.NodeProto] = []
    builder = _Decoder(stored)
    for name in parameters:
        if not encoded[name].gathered or encoded[name].encoding == "float32":
            nodes.extend(builder.whole(encoded[name]))
    for node in graph.node:
        table = encoded.get(node.input[0]) if node.op_type == "Gather" else None
        if table is not None and table.gathered and table.encoding != "float32":
            nodes.extend(builder.rows(table, indices=node.input[1], output=node.output[0]))
        else:
            nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(builder.initialisers.values())
    graph.name = "conche"
    finished.producer_name = "conche"
    finished.producer_version = ""
    _check(finished)
    return finished


def _check(model: onnx.ModelProto) -> None:
    """Check names and wiring; the checker itself would look for the weight files in the working folder."""
    known = {value.name for value in model.graph.input} | {"", *(t.name for t in model.graph.initializer)}
    for node in model.graph.node:
        if unknown := [name for name in node.input if name not in known]:
            raise GraphError(f"node {node.name} reads {', '.join(unknown)}, which nothing computes")
        known.update(node.output)
    if missing := [value.name for value in model.graph.output if value.name not in known]:
        raise GraphError(f"nothing computes {', '.join(missing)}")
    if {opset.domain for opset in model.opset_import} != {""}:
        raise GraphError("the graph needs operators from outside the ONNX standard")


class _Decoder:
    """Makes initialisers for stored arrays, and the nodes that turn them into float32."""

    def __init__(self, stored: Mapping[str, tuple[str, StoredArray]]) -> None:
        self.stored = stored
        self.initialisers: dict[str, TensorProto] = {}

    def whole(self, tensor: EncodedTensor) -> list[onnx.NodeProto]:
        """Decode a whole parameter; engines fold these nodes into a constant when they load."""
        name = tensor.name
        if tensor.encoding == "float32":
            self._external(name, TensorProto.FLOAT, tensor.shape)
            return []
        if tensor.encoding == "float16":
            half = self._external(name, TensorProto.FLOAT16, tensor.shape, called=f"{name}.float16")
            return [self._cast(half, name)]
        scales, cast = self._scales(tensor)
        if tensor.encoding == "int8_row":
            codes = self._external(name + CODES, TensorProto.INT8, tensor.shape)
            return [cast, self._node("DequantizeLinear", [codes, scales], name, axis=0)]
        if tensor.encoding == "int8_block":
            codes = self._external(name + CODES, TensorProto.INT8, tensor.shape)
            size = int8_block_size(tensor.shape[1])
            return [cast, self._node("DequantizeLinear", [codes, scales], name, axis=1, block_size=size)]
        codes = self._external(name + CODES, TensorProto.UINT4, tensor.shape)
        zero_point = self._zero_point((tensor.shape[0], tensor.shape[1] // BLOCK_SIZE))
        dequantise = self._node(
            "DequantizeLinear", [codes, scales, zero_point], name, axis=1, block_size=BLOCK_SIZE
        )
        return [cast, dequantise]

    def rows(self, tensor: EncodedTensor, *, indices: str, output: str) -> list[onnx.NodeProto]:
        """Look up rows of a stored table and decode those only: the table stays packed in memory."""
        name = tensor.name
        if tensor.encoding == "float16":
            table = self._external(name, TensorProto.FLOAT16, tensor.shape)
            picked = self._node("Gather", [table, indices], f"{name}.rows", axis=0)
            return [picked, self._cast(f"{name}.rows", output)]
        scales = self._external(name + SCALES, TensorProto.FLOAT16, self.stored[name + SCALES][1].shape)
        nodes = [
            self._node("Gather", [scales, indices], f"{name}.row_scales_half", axis=0),
            self._cast(f"{name}.row_scales_half", f"{name}.row_scales"),
        ]
        last = self._integers(f"{name}.last_axis", [-1])
        expanded = self._node("Unsqueeze", [f"{name}.row_scales", last], f"{name}.row_scales_each")
        if tensor.encoding == "int8_row":
            codes = self._external(name + CODES, TensorProto.INT8, tensor.shape)
            return [
                *nodes,
                expanded,
                self._node("Gather", [codes, indices], f"{name}.row_codes", axis=0),
                self._cast(f"{name}.row_codes", f"{name}.row_integers"),
                self._node("Mul", [f"{name}.row_integers", f"{name}.row_scales_each"], output),
            ]
        width = tensor.shape[1]
        size = int8_block_size(width) if tensor.encoding == "int8_block" else BLOCK_SIZE
        blocks = self._integers(f"{name}.block_shape", [0, 0, width // size, size])
        row = self._integers(f"{name}.row_shape", [0, 0, width])
        scaled = [
            self._node("Reshape", [f"{name}.centred", blocks], f"{name}.row_blocks"),
            self._node("Mul", [f"{name}.row_blocks", f"{name}.row_scales_each"], f"{name}.scaled"),
            self._node("Reshape", [f"{name}.scaled", row], output),
        ]
        if tensor.encoding == "int8_block":
            codes = self._external(name + CODES, TensorProto.INT8, tensor.shape)
            picked = self._node("Gather", [codes, indices], f"{name}.row_codes", axis=0)
            return [*nodes, expanded, picked, self._cast(f"{name}.row_codes", f"{name}.centred"), *scaled]
        codes = self._external(name + CODES, TensorProto.UINT8, (tensor.shape[0], width // 2))
        low_bits = self._bytes(f"{name}.low_bits", 15)
        four = self._bytes(f"{name}.four", 4)
        zero_point = f"{name}.zero_point"
        self.initialisers[zero_point] = numpy_helper.from_array(np.array(8, np.float32), zero_point)
        return [
            *nodes,
            expanded,
            self._node("Gather", [codes, indices], f"{name}.row_codes", axis=0),
            self._node("BitwiseAnd", [f"{name}.row_codes", low_bits], f"{name}.low"),
            self._node("BitShift", [f"{name}.row_codes", four], f"{name}.high", direction="RIGHT"),
            self._node("Concat", [f"{name}.low", f"{name}.high"], f"{name}.unpacked", axis=-1),
            self._cast(f"{name}.unpacked", f"{name}.row_integers"),
            self._node("Sub", [f"{name}.row_integers", zero_point], f"{name}.centred"),
            *scaled,
        ]

    def _scales(self, tensor: EncodedTensor) -> tuple[str, onnx.NodeProto]:
        """The scales as float32: DequantizeLinear gives the type of its scales."""
        half = tensor.name + SCALES
        self._external(half, TensorProto.FLOAT16, self.stored[half][1].shape)
        return half + ".float32", self._cast(half, half + ".float32")

    def _external(self, stored: str, data_type: int, shape: tuple[int, ...], called: str = "") -> str:
        file, place = self.stored[stored]
        tensor = TensorProto(name=called or stored, data_type=data_type, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", file), ("offset", place.offset), ("length", place.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self.initialisers[tensor.name] = tensor
        return tensor.name

    def _zero_point(self, shape: tuple[int, int]) -> str:
        """Eight for every block, in the graph itself, once for all layers of one shape."""
        name = f"zero_point_{shape[0]}x{shape[1]}"
        elements = shape[0] * shape[1]
        packed = np.full((elements + 1) // 2, 0x88, np.uint8)
        if elements % 2:
            packed[-1] = 0x08
        self.initialisers[name] = TensorProto(
            name=name, data_type=TensorProto.UINT4, dims=shape, raw_data=packed.tobytes()
        )
        return name

    def _integers(self, name: str, values: list[int]) -> str:
        self.initialisers[name] = numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def _bytes(self, name: str, value: int) -> str:
        self.initialisers[name] = numpy_helper.from_array(np.array(value, np.uint8), name)
        return name

    def _cast(self, source: str, output: str) -> onnx.NodeProto:
        return self._node("Cast", [source], output, to=TensorProto.FLOAT)

    def _node(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, inputs, [output], name=f"{operator}:{output}", **attributes)

"""The graph holds structure, standard operators and named axes; its weights lie where the bundle says."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
import torch

from model.encoder.encoder import Encoder
from model.export import graph as exporter
from model.export.graph import (
    WORD_TABLE,
    GraphError,
    GraphModule,
    attach_weights,
    trace,
)
from model.export.parity import ParityError, Run, measure_parity
from model.export.storage import EncodedTensor, encode, write_safetensors
from model.runtime.bundle import STORAGES, Storage
from model.runtime.engine import INPUT_NAMES, OUTPUT_NAMES
from model.runtime.openvino_graph import prepare, unpadded_inputs
from model.runtime.openvino_library import core
from tests.model.export.models import classifier, config, encoder, scramble, tagger

CASES = [
    (batch, sequence, padded)
    for batch in (1, 2, 5)
    for sequence in (1, 2, 17, 40)
    for padded in (False, True)
]
CASES = [case for case in CASES if case[1:] != (1, True)]
FILE = "weights.safetensors"


@pytest.fixture(scope="module")
def traced() -> tuple[GraphModule, onnx.ModelProto]:
    """An embedding graph, traced once; its parameters are inputs, so that any weights can be attached."""
    torch.manual_seed(0)
    model = Encoder(config())  # as it is drawn: all biases zero, all norms one
    module = GraphModule.of(model)
    graph = trace(module)
    scramble(model)
    return module, graph


def encoded(module: GraphModule, encoding: Storage) -> list[EncodedTensor]:
    """Every parameter; matrices and the word table in ``encoding``."""
    tensors = []
    for name, parameter in module.parameters().items():
        chosen = encoding if name == WORD_TABLE or ("layers" in name and parameter.ndim == 2) else "float32"
        tensors.append(encode(name, parameter.detach().numpy(), chosen, gathered=name == WORD_TABLE))
    return tensors


def attached(module: GraphModule, graph: onnx.ModelProto, encoding: Storage, folder: Path) -> onnx.ModelProto:
    """The finished graph, its weights in ``folder``, and the module holding the same weights."""
    tensors = encoded(module, encoding)
    stored = write_safetensors(folder / FILE, tensors)
    module.load({tensor.name: tensor.decode() for tensor in tensors})
    finished = attach_weights(graph, tensors, {name: (FILE, place) for name, place in stored.items()})
    onnx.save(finished, folder / "graph.onnx")
    return finished


def session(
    folder: Path, *, disable_quantising: bool = True, optimised: Path | None = None
) -> ort.InferenceSession:
    """What any user of ONNX Runtime would write; it finds the weights by their offsets."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", str(int(disable_quantising)))
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return ort.InferenceSession(
        folder / "graph.onnx",
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # as the engine does
    )


def runner(running: ort.InferenceSession) -> Run:
    """All outputs by name."""
    names = [output.name for output in running.get_outputs()]
    return lambda feeds: dict(zip(names, running.run(names, dict(feeds)), strict=True))


def without_padding(folder: Path) -> Run:
    """The graph as OpenVINO runs it, all outputs by name."""
    model = core().read_model(folder / "graph.onnx")
    assert prepare(model)
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    compiled = core().compile_model(model, "CPU", options)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        mask = feeds["attention_mask"]
        results = compiled({**feeds, **unpadded_inputs(mask, int(mask.sum()) + 3)})
        return {port.get_any_name(): values for port, values in results.items()}

    return run


@pytest.mark.parametrize("encoding", STORAGES)
def test_the_graph_computes_what_pytorch_computes(
    encoding: Storage, traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path
) -> None:
    """With every storage, for every batch and length: 1e-5 on unit vectors, as parity.TOLERANCES has it."""
    module, graph = traced
    attached(module, graph, encoding, tmp_path)
    for run in (runner(session(tmp_path)), without_padding(tmp_path)):
        measure_parity(module, run, cases=CASES).raise_if_missed()


@pytest.mark.parametrize(
    "changes",
    [
        {
            "norm_placement": "pre",
            "position_embedding": "sinusoidal",
            "type_vocab_size": 0,
            "hidden_act": "relu",
        },
        {"position_offset": 2, "type_vocab_size": 1, "pad_token_id": 1},
        {"embedding_layer_norm": False, "scale_embeddings": True, "num_hidden_layers": 1},
    ],
    ids=["pre-ln", "roberta", "paper"],
)
def test_every_kind_of_encoder_exports(changes: dict[str, object], tmp_path: Path) -> None:
    """A model without segments still takes token_type_ids, so that the service need not know."""
    module = GraphModule.of(encoder(**changes))
    attached(module, trace(module), "float32", tmp_path)
    running = session(tmp_path)
    assert [value.name for value in running.get_inputs()] == list(INPUT_NAMES)
    for run in (runner(running), without_padding(tmp_path)):
        measure_parity(module, run, cases=[(1, 1, False), (3, 17, True), (2, 38, False)]).raise_if_missed()


def test_logits_match_and_share_the_encoders_names(tmp_path: Path) -> None:
    """A tagger's tables have the names of the embedding model's, so that one file serves both."""
    module = GraphModule.of(tagger())
    attached(module, trace(module), "int8_row", tmp_path)
    for run in (runner(session(tmp_path)), without_padding(tmp_path)):
        measure_parity(module, run, cases=CASES).raise_if_missed()
    own = set(GraphModule.of(encoder()).parameters())
    assert set(module.parameters()) == own | {"classifier.weight", "classifier.bias"}


def test_logits_of_texts_match_whatever_the_token_types(tmp_path: Path) -> None:
    """Random segments, or a graph that lost them would pass."""
    module = GraphModule.of(classifier())
    assert module.token_types == 2
    attached(module, trace(module), "int8_row", tmp_path)
    run = runner(session(tmp_path))
    measure_parity(module, run, cases=CASES).raise_if_missed()
    measure_parity(module, without_padding(tmp_path), cases=CASES).raise_if_missed()
    without = measure_parity(
        module, lambda feeds: run({**feeds, "token_type_ids": feeds["token_type_ids"] * 0}), cases=CASES
    )
    with pytest.raises(ParityError, match="sequence_logits differs"):
        without.raise_if_missed()
    own = set(GraphModule.of(encoder()).parameters())
    head = {f"{layer}.{part}" for layer in ("transform", "classifier") for part in ("weight", "bias")}
    assert set(module.parameters()) == own | head


def test_axes_are_named_and_dynamic(traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path) -> None:
    """Engines print these names, and a frozen axis would serve one length only."""
    finished = attached(*traced, "float32", tmp_path)
    for value in finished.graph.input:
        assert [dim.dim_param for dim in value.type.tensor_type.shape.dim] == ["batch", "sequence"]
    assert [value.name for value in finished.graph.output] == list(OUTPUT_NAMES["embedding"])
    first = finished.graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in first] == ["batch", "sequence", 64]


def test_only_standard_operators_and_no_weights_inside(
    traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path
) -> None:
    """Other engines can run it, and the graph file stays small and free of the machine's paths."""
    finished = attached(*traced, "q4_block32", tmp_path)
    assert {(opset.domain, opset.version) for opset in finished.opset_import} == {("", 23)}
    inside = [t for t in finished.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    assert sum(len(t.raw_data) for t in inside) < 2000
    text = finished.SerializeToString()
    assert b".py" not in text
    assert str(Path.cwd()).encode() not in text
    onnx.checker.check_model(str(tmp_path / "graph.onnx"))


def test_identical_parameters_stay_apart(traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path) -> None:
    """The exporter merges equal constants: the biases, zeros when the graph was traced, must not be one."""
    module, _ = traced
    finished = attached(*traced, "float32", tmp_path)
    external = {t.name for t in finished.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL}
    assert external == set(module.parameters())


def test_the_optimised_graph_is_what_we_count_on(
    traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path
) -> None:
    """Attention, LayerNorm and GELU whole operators, dequantisation folded away, the word table still packed.

    The mask is made once for all layers, and the operators between them are what a layer needs: four products
    of tokens and weights around attention, two after it.
    """
    attached(*traced, "q4_block32", tmp_path)
    session(tmp_path, optimised=tmp_path / "optimised.onnx")
    optimised = onnx.load(tmp_path / "optimised.onnx", load_external_data=False)
    layers = config().num_hidden_layers
    operators = Counter(node.op_type for node in optimised.graph.node)
    assert not operators.keys() & {"DequantizeLinear", "MatMulNBits", "DynamicQuantizeLinear", "Range"}
    assert not operators.keys() & {"Erf", "ReduceMean", "Softmax", "Transpose", "SkipLayerNormalization"}
    assert operators["Attention"] == operators["BiasGelu"] == layers
    assert operators["LayerNormalization"] == 2 * layers + 1
    assert operators["MatMul"] == 6 * layers
    assert operators["Where"] == operators["Expand"] == 1
    table = next(t for t in optimised.graph.initializer if t.name == f"{WORD_TABLE}.codes")
    assert list(table.dims) == [config().vocab_size, 32]


def test_left_alone_the_engine_would_quantise_activations(
    traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path
) -> None:
    """Why the engine sets session.disable_quant_qdq: without it an 8-bit graph misses its tolerance."""
    module, graph = traced
    attached(module, graph, "int8_row", tmp_path)
    report = measure_parity(
        module, runner(session(tmp_path, disable_quantising=False)), cases=[(2, 17, False)]
    )
    assert report.worst()["embeddings_mean_normalized"] > 1e-5


def test_a_parameter_without_weights_is_named(
    traced: tuple[GraphModule, onnx.ModelProto], tmp_path: Path
) -> None:
    """A graph with a hole would fail at load, far from the cause."""
    module, graph = traced
    tensors = [t for t in encoded(module, "float32") if t.name != "layers.1.attention.key.bias"]
    stored = write_safetensors(tmp_path / FILE, tensors)
    with pytest.raises(GraphError, match=r"layers\.1\.attention\.key\.bias"):
        attach_weights(graph, tensors, {name: (FILE, place) for name, place in stored.items()})
    with pytest.raises(GraphError, match=r"layers\.1\.attention\.key\.bias"):
        module.load({tensor.name: tensor.decode() for tensor in tensors})


def test_a_lost_parameter_stops_the_export(traced: tuple[GraphModule, onnx.ModelProto]) -> None:
    """Should an exporter fold a parameter into the graph, its weights could not be replaced any more."""
    module, _ = traced
    parameters = {f"encoder.{name}": value for name, value in module.parameters().items()}
    kept = [onnx.TensorProto(name=name) for name in parameters if not name.endswith("key.bias")]
    program = onnx.ModelProto(graph=onnx.GraphProto(initializer=kept))
    with pytest.raises(
        GraphError, match=r"lost encoder\.layers\.0\.attention\.key\.bias, encoder\.layers\.1"
    ):
        exporter._turn_parameters_into_inputs(program, module)

"""A graph that leaves padding out gives what it gave before, and really leaves it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.runtime import openvino_engine
from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.openvino_engine import OpenVinoEngine
from model.runtime.openvino_graph import KEPT, PLACES, drop_nan_guards, unpad, unpadded_inputs
from model.runtime.openvino_library import core, opset8, ov
from tests.bundles import write_tiny_embedding_bundle

MODELS = Path(__file__).parents[3] / "models"
EMBEDDER = MODELS / "multilingual-e5-small-zh-en"
OUTPUTS = {
    "multilingual-e5-small-zh-en": ["embeddings_mean_normalized", "embeddings_cls", "last_hidden_state"],
    "ner-zh-en": ["logits"],
}


@pytest.fixture(scope="module")
def shipped() -> Bundle:
    """The embedding model that comes with the project."""
    return Bundle.load(EMBEDDER, verify_hashes=False)


def graph() -> Any:
    """Its graph, as OpenVINO reads it."""
    return core().read_model(EMBEDDER / "graph.onnx")


def rows_of(lengths: list[int], seed: int = 0) -> list[NDArray[np.int64]]:
    """Texts of so many tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 20_000, length) for length in lengths]


@pytest.mark.parametrize("name", OUTPUTS)
@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_a_batch_of_unlike_lengths_is_what_the_reference_says_of_each(
    name: str, lengths: list[int], seed: int, engines: dict[str, tuple[OpenVinoEngine, OnnxRuntimeEngine]]
) -> None:
    """Text by text and token by token, of both kinds of model; padding is anything."""
    openvino, reference = engines[name]
    rows = rows_of(lengths, seed)
    together = openvino.run(pad_batch(rows, 1), OUTPUTS[name])
    for number, row in enumerate(rows):
        alone = reference.run(pad_batch([row], 1), OUTPUTS[name])
        for output, values in alone.items():
            own = together[output][number]
            if values.ndim == 3:
                assert len(own) == max(lengths)
                own = own[: len(row)]
            np.testing.assert_allclose(own, values[0], rtol=0, atol=2e-5 * np.abs(values).max())


@pytest.fixture(scope="module")
def engines() -> dict[str, tuple[OpenVinoEngine, OnnxRuntimeEngine]]:
    """OpenVINO and the reference, with each shipped model."""
    bundles = {name: Bundle.load(MODELS / name, verify_hashes=False) for name in OUTPUTS}
    return {
        name: (OpenVinoEngine(bundle, threads=2), OnnxRuntimeEngine(bundle, threads=2))
        for name, bundle in bundles.items()
    }


def kinds_of(model: Any) -> list[str]:
    """Of all its nodes."""
    return [node.get_type_name() for node in model.get_ordered_ops()]


def test_layers_see_tokens_and_attention_sees_rows(shipped: Bundle) -> None:
    """All products with weights, norms and activations: else the padding is computed after all."""
    model = graph()
    drop_nan_guards(model)
    assert unpad(model)
    kinds = kinds_of(model)
    layers = shipped.manifest.architecture.num_hidden_layers
    assert kinds.count("IsNaN") == 0
    assert kinds.count("ScaledDotProductAttention") == layers
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("MatMul", "Gelu"):
            assert node.get_output_partial_shape(0)[0] == 1, node
    norms = [node for node in model.get_ordered_ops() if node.get_type_name() == "MVN"]
    # That of the embeddings comes before the first product and is not worth a gather of its own.
    assert [norm.get_output_partial_shape(0)[0] == 1 for norm in norms] == [False] + [True] * 2 * layers
    # Of the embeddings and, in each layer, three into rows and one out of them; of the last layer, once more.
    assert kinds.count("Gather") - kinds_of(graph()).count("Gather") == 1 + 4 * layers + 1


WEIGHTS = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


def norm_over(*axes: int) -> Callable[[Any], Any]:
    """A product, and a norm over these axes of its [B, S, 4]."""
    return lambda tokens: opset8.mvn(
        opset8.matmul(tokens, WEIGHTS, False, False), np.array(axes), True, 1e-6, "INSIDE_SQRT"
    )


def first_of_each(tokens: Any) -> Any:
    """[B, 1, 4], whose second size nobody knows beforehand, times weights, and added to all of the row."""
    tokens_of_one = opset8.gather(opset8.shape_of(tokens), np.array([1]), np.array(0))
    one = opset8.add(opset8.multiply(tokens_of_one, np.array([0])), np.array([1]))
    places = opset8.range(np.array(0), opset8.squeeze(one, np.array([0])), np.array(1), "i64")
    first = opset8.gather(tokens, places, np.array(1))
    own, shared = (opset8.matmul(data, WEIGHTS, False, False) for data in (tokens, first))
    return opset8.add(own, shared)


HAND_MADE: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "a norm over numbers": (norm_over(2), True),
    "the same from the end": (norm_over(-1), True),
    "a norm over tokens": (norm_over(1, 2), True),
    "tokens before texts": (
        lambda tokens: opset8.matmul(opset8.transpose(tokens, np.array([1, 0, 2])), WEIGHTS, False, False),
        False,
    ),
    "a vector of weights": (lambda tokens: opset8.matmul(tokens, WEIGHTS[0], False, False), False),
    "a row of its own": (first_of_each, True),
    "a number for each place": (
        lambda tokens: opset8.add(opset8.matmul(tokens, WEIGHTS, False, False), WEIGHTS[None, :3]),
        True,
    ),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_what_is_not_by_itself_gets_rows(name: str) -> None:
    """Graphs that no export of ours writes, all of them right."""
    make, changes = HAND_MADE[name]

    def made() -> Any:
        mask = opset8.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="attention_mask")
        ids = opset8.parameter(ov.PartialShape([-1, -1]), ov.Type.i64, name="input_ids")
        table = np.random.default_rng(1).standard_normal((9, 4)).astype(np.float32)
        shown = opset8.convert(opset8.unsqueeze(mask, np.array(2)), "f32")
        tokens = opset8.multiply(opset8.gather(table, ids, np.array(0)), shown)
        return ov.Model([make(tokens)], [ids, mask], "hand-made")

    mask = np.ones((2, 3), np.int64)  # what is read of padding would be another matter
    feeds = {"input_ids": np.array([[1, 2, 3], [4, 5, 6]], np.int64), "attention_mask": mask}

    def run(model: Any, more: dict[str, Any]) -> NDArray[np.float32]:
        compiled = core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        values = feeds | more
        return np.array(
            compiled([values[port.get_node().get_friendly_name()] for port in compiled.inputs])[0]
        )

    expected = run(made(), {})
    model = made()
    assert unpad(model) is changes
    actual = run(model, dict(unpadded_inputs(mask, 8)) if changes else {})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


def test_a_graph_without_weights_is_left_alone(tmp_path: Path) -> None:
    """The tiny bundle's products are of whole texts: no token is by itself there."""
    folder = write_tiny_embedding_bundle(tmp_path / "tiny")
    model = core().read_model(folder / "graph.onnx")
    assert not unpad(model)
    assert {port.get_any_name() for port in model.inputs} == {"input_ids", "attention_mask", "token_type_ids"}
    engine = OpenVinoEngine(Bundle.load(folder), threads=1)
    assert engine.padding_cost == 1
    assert engine.computed_tokens([3, 9]) == 18


def test_tokens_are_kept_and_padding_stands_for_a_token_of_its_row() -> None:
    """Copies of the first fill up what is more; padding must not bring one row's numbers into another."""
    mask = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]], np.int64)
    inputs = unpadded_inputs(mask, 8)
    assert inputs[KEPT].tolist() == [[0, 1, 3, 6, 7, 8, 0, 0]]
    assert inputs[PLACES].tolist() == [[0, 1, 0], [2, 2, 2], [3, 4, 5]]
    assert {array.dtype for array in inputs.values()} == {np.dtype(np.int64)}


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4).filter(any), min_size=1, max_size=5))
def test_each_token_comes_back_to_its_place(rows: list[list[bool]]) -> None:
    """Wherever in its row it stands."""
    mask = np.array(rows, np.int64)
    inputs = unpadded_inputs(mask, int(mask.sum()) + 3)
    numbers = np.arange(mask.size)
    back = numbers[inputs[KEPT][0]][inputs[PLACES]]
    assert (back == numbers.reshape(mask.shape))[mask == 1].all()
    assert (back // mask.shape[1] == np.arange(len(rows))[:, None]).all()


def test_what_is_computed_is_little_more_than_the_texts(shipped: Bundle) -> None:
    """And comes in few sizes: each new one waits for kernels."""
    engine = OpenVinoEngine(shipped, threads=1)
    sizes = [engine.computed_tokens([tokens]) for tokens in range(1, 2049)]
    assert all(tokens <= size for tokens, size in enumerate(sizes, 1))
    assert all(size - tokens < max(8, tokens / 4) for tokens, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 8 + 28 + 48  # in steps of 8, 16 and 32
    assert engine.computed_tokens([30, 200, 2]) == engine.computed_tokens([232])
    assert 0 < engine.padding_cost < 1


def test_rows_come_in_few_lengths_and_in_none_that_the_model_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its positions may end at no round number."""
    seen: set[tuple[int, ...]] = set()

    def looked_at(mask: NDArray[np.int64], size: int) -> dict[str, NDArray[np.int64]]:
        seen.add(mask.shape)
        return unpadded_inputs(mask, size)

    monkeypatch.setattr(openvino_engine, "unpadded_inputs", looked_at)
    bundle = Bundle.load(EMBEDDER, verify_hashes=False)
    engine = OpenVinoEngine(bundle, threads=1)
    for length in (1, 8, 9, 64, 65, 130, 512):
        hidden = engine.run(pad_batch(rows_of([length]), 1), ["last_hidden_state"])["last_hidden_state"]
        assert hidden.shape[:2] == (1, length)
    assert seen == {(1, 8), (1, 16), (1, 64), (1, 80), (1, 160), (1, 512)}
    seen.clear()
    monkeypatch.setattr(engine, "_rules", openvino_engine.BatchRules(61, 250_000, ("last_hidden_state",)))
    engine.run(pad_batch(rows_of([58]), 1), ["last_hidden_state"])
    assert seen == {(1, 61)}

"""Each engine computes what the graph says, in float32, and refuses what would go wrong later."""

from __future__ import annotations

import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from safetensors.numpy import save_file

from model.runtime import openvino_engine
from model.runtime.bundle import Bundle, BundleError
from model.runtime.cores import CORES
from model.runtime.engine import INPUT_NAMES, OUTPUT_NAMES, Engine, TokenBatch, pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine, _run_in_pool
from model.runtime.openvino_engine import OpenVinoEngine
from model.runtime.processor import read_processor
from tests.bundles import (
    HIDDEN_SIZE,
    LABELS,
    MAX_TOKENS,
    external_tensor,
    refresh_manifest,
    write_tiny_embedding_bundle,
    write_tiny_ner_bundle,
)
from tests.fakes import HANG_LIMIT_S

MEAN = "embeddings_mean_normalized"
BLOCK = 32

MakeEngine = Callable[..., Engine]
ENGINES: dict[str, MakeEngine] = {
    "onnxruntime": OnnxRuntimeEngine,
    "openvino": OpenVinoEngine,
    "openvino-unpacked": partial(OpenVinoEngine, packed=False),
}


def wait_until(condition: Callable[[], bool]) -> None:
    """For what happens in other threads."""
    ends_at = time.monotonic() + HANG_LIMIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it never came to that"
        time.sleep(0.001)


@pytest.fixture(scope="module", params=ENGINES)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    """An engine of each kind, in turn."""
    return ENGINES[request.param]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The tiny embedding bundle."""
    return Bundle.load(write_tiny_embedding_bundle(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def engine(bundle: Bundle, make: MakeEngine) -> Engine:
    """Running that bundle."""
    return make(bundle, threads=1)


def row(*ids: int) -> NDArray[np.int64]:
    """One text's ids."""
    return np.array(ids, dtype=np.int64)


def test_padding_goes_to_the_end_with_a_mask() -> None:
    """The mask is the only thing that tells padding from text."""
    batch = pad_batch([row(2, 5, 3), row(2, 3)], 7)
    assert batch.input_ids.tolist() == [[2, 5, 3], [2, 3, 7]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.token_type_ids.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert {batch.input_ids.dtype, batch.attention_mask.dtype, batch.token_type_ids.dtype} == {
        np.dtype(np.int64)
    }


def test_token_types_are_padded_like_the_ids() -> None:
    """A row without any has 0 throughout, as padding has."""
    rows = [row(2, 5, 3), row(2, 5, 3, 6, 3)]
    batch = pad_batch(rows, 7, token_types=[None, row(0, 0, 0, 1, 1)])
    assert batch.token_type_ids.tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]
    batch = pad_batch(rows, 7, token_types=[row(0, 1, 1), None])
    assert batch.token_type_ids.tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    with pytest.raises(ValueError, match="shape"):
        pad_batch(rows, 7, token_types=[row(0, 0), None])


@pytest.mark.parametrize("rows", [[], [row(1), row()]])
def test_a_batch_without_tokens_is_refused(rows: list[NDArray[np.int64]]) -> None:
    """Its mean would be 0/0."""
    with pytest.raises(ValueError, match="at least one"):
        pad_batch(rows, 0)


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    pad=st.integers(0, 50),
)
def test_a_vector_does_not_depend_on_its_batch(
    engine: Engine, lengths: list[int], seed: int, pad: int
) -> None:
    """Alone or among longer ones, padded with any id: the same within float32 rounding."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 50, size=length, dtype=np.int64) for length in lengths]
    together = engine.run(pad_batch(rows, pad), [MEAN])[MEAN]
    for index, ids in enumerate(rows):
        alone = engine.run(pad_batch([ids], pad), [MEAN])[MEAN]
        np.testing.assert_allclose(together[index], alone[0], rtol=0, atol=1e-6)


def test_only_the_outputs_asked_for_come_back_in_float32(engine: Engine) -> None:
    """Hidden states of a large batch are megabytes nobody wants copied."""
    outputs = engine.run(pad_batch([row(2, 5, 3)], 0), [MEAN, "last_hidden_state"])
    assert {name: array.shape for name, array in outputs.items()} == {
        MEAN: (1, HIDDEN_SIZE),
        "last_hidden_state": (1, 3, HIDDEN_SIZE),
    }
    assert {array.dtype for array in outputs.values()} == {np.dtype(np.float32)}


def test_every_output_of_the_task_is_there(make: MakeEngine, tmp_path: Path, engine: Engine) -> None:
    """The names are the contract between export and service."""
    batch = pad_batch([row(2, 3)], 0)
    assert set(engine.run(batch, OUTPUT_NAMES["embedding"])) == set(OUTPUT_NAMES["embedding"])
    tagger = make(Bundle.load(write_tiny_ner_bundle(tmp_path / "ner")), threads=1)
    assert tagger.run(batch, ["logits"])["logits"].shape == (1, 2, len(LABELS))


def spoilt(**arrays: object) -> TokenBatch:
    """A valid batch of one text but for ``arrays``."""
    valid = pad_batch([row(2, 5, 3)], 0)
    fields = {name: arrays.get(name, getattr(valid, name)) for name in INPUT_NAMES}
    return TokenBatch(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        (spoilt(input_ids=np.array([[2, 5, 3]], dtype=np.int32)), "int32"),
        (spoilt(input_ids=row(2, 5, 3)), "int64 \\[B, S\\]"),
        (spoilt(attention_mask=np.ones((1, 2), dtype=np.int64)), "attention_mask"),
        (spoilt(token_type_ids=np.zeros((2, 3), dtype=np.int64)), "token_type_ids"),
        (spoilt(input_ids=np.array([[2, -1, 3]])), "-1 to 3 leave the vocabulary"),
        (spoilt(input_ids=np.array([[2, 10**6, 3]])), "leave the vocabulary"),
        (spoilt(attention_mask=np.array([[1, 2, 0]])), "other than 0 and 1"),
        (spoilt(attention_mask=np.array([[1, -1, 0]])), "other than 0 and 1"),
        (spoilt(attention_mask=np.array([[0, 0, 0]])), "hides every token"),
        (pad_batch([np.full(MAX_TOKENS + 1, 5, dtype=np.int64)], 0), f"{MAX_TOKENS + 1} tokens"),
        (TokenBatch(*[np.zeros((0, 3), dtype=np.int64)] * 3), "int64"),
    ],
)
def test_a_batch_that_the_graph_would_misread_is_refused(
    engine: Engine, batch: TokenBatch, told: str
) -> None:
    """An engine's own answer is a crash message at best, a wrong vector at worst."""
    with pytest.raises(ValueError, match=told):
        engine.run(batch, [MEAN])


@pytest.mark.parametrize("outputs", [[], ["logits"], [MEAN, "nonsense"]])
def test_unknown_outputs_are_refused_with_the_list(engine: Engine, outputs: list[str]) -> None:
    """An empty list would mean "all" to ONNX Runtime."""
    with pytest.raises(ValueError, match="last_hidden_state"):
        engine.run(pad_batch([row(2, 3)], 0), outputs)


def test_a_closed_engine_refuses_and_closes_again(make: MakeEngine, bundle: Bundle) -> None:
    """Shutdown may come twice."""
    engine = make(bundle, threads=1)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.run(pad_batch([row(2, 3)], 0), [MEAN])


def test_threads_are_reported_and_must_be_positive(make: MakeEngine, bundle: Bundle) -> None:
    """The metrics show what is in use; 0 would let the engine count the host's cores."""
    engine = make(bundle, threads=2)
    assert engine.threads == 2
    assert re.fullmatch(r"(onnxruntime|openvino) [0-9.]+", engine.name)
    assert engine.precision == "float32"
    with pytest.raises(ValueError, match="threads"):
        make(bundle, threads=0)


@pytest.mark.parametrize("streams", [0, 3])
def test_each_stream_needs_a_thread(make: MakeEngine, bundle: Bundle, streams: int) -> None:
    """More would wait for each other with a batch each in memory."""
    with pytest.raises(ValueError, match="from 1 to the number of threads, 2"):
        make(bundle, threads=2, streams=streams)


@pytest.mark.parametrize(("threads", "streams"), [(2, 2), (4, 2), (3, 3)])
def test_runs_at_the_same_time_give_the_same_answers(
    make: MakeEngine, bundle: Bundle, engine: Engine, threads: int, streams: int
) -> None:
    """Each caller has his own, whatever others run meanwhile; more callers than streams wait."""
    rng = np.random.default_rng(3)
    batches = [
        pad_batch([rng.integers(2, 40, length) for length in rng.integers(1, MAX_TOKENS, rows)], 0)
        for rows in rng.integers(1, 9, 40)
    ]
    other = make(bundle, threads=threads, streams=streams)
    assert other.threads == threads
    assert other.streams == streams or (
        make is not OnnxRuntimeEngine and other.streams < streams
    )  # of few cores
    with ThreadPoolExecutor(3) as callers:
        found = list(callers.map(lambda batch: other.run(batch, [MEAN])[MEAN], batches))
    for batch, vectors in zip(batches, found, strict=True):
        np.testing.assert_allclose(vectors, engine.run(batch, [MEAN])[MEAN], rtol=0, atol=1e-6)


def test_threads_give_the_same_answer(make: MakeEngine, bundle: Bundle, engine: Engine) -> None:
    """Answers must not change with the machine's size."""
    batch = pad_batch([np.arange(1, 40, dtype=np.int64), row(2, 3)], 0)
    other = make(bundle, threads=2)
    np.testing.assert_allclose(
        other.run(batch, [MEAN])[MEAN], engine.run(batch, [MEAN])[MEAN], rtol=0, atol=1e-6
    )


class _Session:
    """Stands for ONNX Runtime's; notes who computes a run and lets it wait for ``gate``."""

    def __init__(self, *, fails: bool = False) -> None:
        self.gate = threading.Event()
        self.computed_by: list[str] = []
        self._fails = fails

    def run(self, outputs: list[str], feeds: object) -> list[object]:
        self.computed_by.append("caller")
        self.gate.wait(HANG_LIMIT_S)
        return [None] * len(outputs)

    def run_async(self, outputs: list[str], feeds: object, callback: Any, data: object) -> None:
        self.computed_by.append("pool")

        def compute() -> None:
            self.gate.wait(HANG_LIMIT_S)
            callback([] if self._fails else [None] * len(outputs), data, "no memory" if self._fails else "")

        threading.Thread(target=compute).start()


def _on(bundle: Bundle, session: _Session, **how: int) -> OnnxRuntimeEngine:
    engine = OnnxRuntimeEngine(bundle, **how)
    engine._session = session  # type: ignore[assignment]
    return engine


def test_of_runs_at_the_same_time_one_is_its_callers_and_the_others_the_pools(bundle: Bundle) -> None:
    """With a caller beside each thread of the pool more threads would compute than there are cores."""
    session, other_session = _Session(), _Session()
    engine = _on(bundle, session, threads=3, streams=3)
    other = _on(bundle, other_session, threads=2, streams=2)
    batch = pad_batch([row(2, 3)], 0)
    with ThreadPoolExecutor(4) as callers:
        running = []
        for number in (1, 2, 3):
            running.append(callers.submit(engine.run, batch, [MEAN]))
            wait_until(lambda number=number: len(session.computed_by) == number)  # type: ignore[misc]
        running.append(callers.submit(other.run, batch, [MEAN]))
        wait_until(lambda: other_session.computed_by != [])
        session.gate.set()
        other_session.gate.set()
        for run in running:
            run.result(HANG_LIMIT_S)
    engine.run(batch, [MEAN])
    other.run(batch, [MEAN])
    assert session.computed_by == ["caller", "pool", "pool", "caller"]
    assert other_session.computed_by == [
        "pool",
        "caller",
    ]  # another engine was at work, with threads of its own


def test_without_a_pool_every_caller_computes(bundle: Bundle) -> None:
    """One thread is the caller's own."""
    session = _Session()
    engine = _on(bundle, session, threads=1)
    batch = pad_batch([row(2, 3)], 0)
    with ThreadPoolExecutor(2) as callers:
        running = [callers.submit(engine.run, batch, [MEAN]) for _ in range(2)]
        wait_until(lambda: len(session.computed_by) == 2)
        session.gate.set()
        for run in running:
            run.result(HANG_LIMIT_S)
    assert session.computed_by == ["caller", "caller"]


def test_what_fails_in_the_pool_is_tried_by_its_caller(bundle: Bundle) -> None:
    """Whom ONNX Runtime tells what it is, and who may have better luck where there was no memory."""
    session = _Session(fails=True)
    engine = _on(bundle, session, threads=2, streams=2)
    batch = pad_batch([row(2, 3)], 0)
    with ThreadPoolExecutor(2) as callers:
        running = [callers.submit(engine.run, batch, [MEAN])]
        wait_until(lambda: session.computed_by == ["caller"])
        running.append(callers.submit(engine.run, batch, [MEAN]))
        wait_until(lambda: session.computed_by == ["caller", "pool"])
        session.gate.set()
        for run in running:
            run.result(HANG_LIMIT_S)
    assert session.computed_by == ["caller", "pool", "caller"]


def test_failures_in_the_pool_have_the_types_of_those_outside(bundle: Bundle) -> None:
    """ONNX Runtime's own, with its message."""
    session = OnnxRuntimeEngine(bundle, threads=2)._session
    assert session is not None
    wrong = {name: np.ones((1, 3), np.int64) for name in INPUT_NAMES[1:]}
    wrong[INPUT_NAMES[0]] = np.full((1, 3), 10**6)  # beyond the table
    outside = pytest.raises(Exception, match="out of data bounds")
    with outside as expected:
        session.run([MEAN], wrong)
    assert _run_in_pool(session, [MEAN], wrong) == []

    engine = OnnxRuntimeEngine(bundle, threads=2, streams=2)
    engine._rules = _Anything()  # type: ignore[assignment]
    with CORES.run_with_pool(engine._share), pytest.raises(type(expected.value), match="out of data bounds"):
        engine.run(TokenBatch(**wrong), [MEAN])


class _Anything:
    """Rules that let everything pass."""

    def check(self, *_: object) -> None:
        """Nothing is wrong."""


def test_a_full_pool_leaves_the_run_to_its_caller(bundle: Bundle) -> None:
    """Behind another it would wait in ONNX Runtime's queue, and nobody could tell."""
    session, other_session = _Session(), _Session()
    engine = _on(bundle, session, threads=2, streams=2)
    other = _on(bundle, other_session, threads=2)
    batch = pad_batch([row(2, 3)], 0)
    with ThreadPoolExecutor(3) as callers:
        running = [callers.submit(other.run, batch, [MEAN])]
        wait_until(lambda: other_session.computed_by == ["caller"])
        for number in (1, 2):
            running.append(callers.submit(engine.run, batch, [MEAN]))
            wait_until(lambda number=number: len(session.computed_by) == number)  # type: ignore[misc]
        session.gate.set()
        other_session.gate.set()
        for run in running:
            run.result(HANG_LIMIT_S)
    assert session.computed_by == ["pool", "caller"]


def test_a_run_in_the_pool_outlives_the_end_of_its_engine(bundle: Bundle) -> None:
    """A model is unloaded while somebody computes with it; again and again, for it is a race."""
    batch = pad_batch([np.arange(1, 40, dtype=np.int64)] * 16, 0)
    expected = OnnxRuntimeEngine(bundle, threads=1).run(batch, [MEAN])[MEAN]
    with ThreadPoolExecutor(1) as callers:
        for _ in range(50):
            engine = OnnxRuntimeEngine(bundle, threads=2, streams=2)
            share = engine._share
            with CORES.run_with_pool(share):
                running = callers.submit(engine.run, batch, [MEAN])
                wait_until(lambda share=share, running=running: share.runs == 2 or running.done())  # type: ignore[misc]
            engine.close()
            np.testing.assert_allclose(running.result(HANG_LIMIT_S)[MEAN], expected, rtol=0, atol=1e-6)
            del engine, running


@pytest.mark.parametrize("streams", [1, 2])
def test_whoever_waits_for_a_stream_of_a_closed_engine_is_told(bundle: Bundle, streams: int) -> None:
    """He would else wait for ever, for a run that nobody will end."""
    engine = OpenVinoEngine(bundle, threads=2, streams=streams)
    taken = [form.requests.get() for form in engine._forms for _ in range(form.streams)]
    with ThreadPoolExecutor(3) as callers:
        waiting = [callers.submit(engine.run, pad_batch([row(2, 3)], 0), [MEAN]) for _ in range(3)]
        engine.close()
        for caller in waiting:
            with pytest.raises(RuntimeError, match="closed"):
                caller.result(HANG_LIMIT_S)
    del taken


def test_weights_behind_a_link_load_and_need_no_file_afterwards(
    make: MakeEngine, bundle: Bundle, tmp_path: Path
) -> None:
    """By path, engines refuse links; and a model folder may be replaced under a running service."""
    models = tmp_path / "models"
    shutil.copytree(bundle.path, models / "a")
    shutil.copytree(bundle.path, models / "b")
    (models / "b" / "embeddings.safetensors").unlink()
    (models / "b" / "embeddings.safetensors").symlink_to("../a/embeddings.safetensors")
    engine = make(Bundle.load(models / "b"), threads=1)
    batch = pad_batch([row(2, 5, 3)], 0)
    before = engine.run(batch, [MEAN])[MEAN]
    for path in models.rglob("*.safetensors"):
        path.write_bytes(b"")
    np.testing.assert_array_equal(engine.run(batch, [MEAN])[MEAN], before)


def test_a_broken_graph_fails_its_check(make: MakeEngine, bundle: Bundle, tmp_path: Path) -> None:
    """With the file's name, not with a protobuf trace."""
    folder = tmp_path / "tiny"
    shutil.copytree(bundle.path, folder)
    (folder / "graph.onnx").write_bytes(b"not a graph")
    refresh_manifest(folder)
    with pytest.raises(BundleError, match=r"tiny/graph\.onnx") as caught:
        make(Bundle.load(folder), threads=1)
    assert caught.value.check == "graph"


@pytest.mark.parametrize("name", ["graph.onnx", "encoder.safetensors"])
def test_a_file_that_is_gone_fails_the_graphs_check(make: MakeEngine, tmp_path: Path, name: str) -> None:
    """The folder may be replaced while the service starts."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny"))
    bundle.file(name).unlink()
    with pytest.raises(BundleError, match=f"tiny/{name}") as caught:
        make(bundle, threads=1)
    assert caught.value.check == "graph"


def test_a_graph_of_another_task_fails_its_check(make: MakeEngine, bundle: Bundle, tmp_path: Path) -> None:
    """Found at start, not at the first request."""
    folder = write_tiny_ner_bundle(tmp_path / "tiny")
    for name in ("graph.onnx", "embeddings.safetensors", "encoder.safetensors"):
        shutil.copy(bundle.file(name), folder / name)
    refresh_manifest(folder)
    with pytest.raises(BundleError, match="logits") as caught:
        make(Bundle.load(folder), threads=1)
    assert caught.value.check == "graph"


# Weights stored small: each must come out as its exact value times float32 inputs.


def int8_row_weight(rng: np.random.Generator) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.float32]]:
    """Stored tensors of one [out, in] matrix, and the matrix."""
    codes = rng.integers(-127, 128, (HIDDEN_SIZE, HIDDEN_SIZE), dtype=np.int8)
    scales = (rng.random(HIDDEN_SIZE) / 100).astype(np.float16)
    return {"w.codes": codes, "w.scales": scales}, codes * scales.astype(np.float32)[:, None]


def int8_block_weight(rng: np.random.Generator) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.float32]]:
    """The same, with a scale for each half of a row."""
    codes = rng.integers(-127, 128, (HIDDEN_SIZE, HIDDEN_SIZE), dtype=np.int8)
    scales = (rng.random((HIDDEN_SIZE, 2)) / 100).astype(np.float16)
    weight = codes * scales.astype(np.float32).repeat(HIDDEN_SIZE // 2, 1)
    return {"w.codes": codes, "w.scales": scales}, weight


def q4_block_weight(rng: np.random.Generator) -> tuple[dict[str, NDArray[np.generic]], NDArray[np.float32]]:
    """The same; two codes a byte, the first in the low half, as ONNX packs uint4."""
    packed = rng.integers(0, 256, (HIDDEN_SIZE, HIDDEN_SIZE // 2), dtype=np.uint8)
    scales = (rng.random((HIDDEN_SIZE, HIDDEN_SIZE // BLOCK)) / 10).astype(np.float16)
    codes = np.empty((HIDDEN_SIZE, HIDDEN_SIZE), np.float32)
    codes[:, 0::2], codes[:, 1::2] = packed & 15, packed >> 4
    return {"w.codes": packed, "w.scales": scales}, (codes - 8) * scales.astype(np.float32).repeat(BLOCK, 1)


def write_graph(folder: Path, nodes: list[NodeProto], tensors: list[TensorProto]) -> None:
    """Give a tagging bundle another graph, with logits as wide as hidden states."""
    graph = helper.make_graph(
        nodes,
        "stored",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
            for name in INPUT_NAMES
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", HIDDEN_SIZE])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "graph.onnx").write_bytes(model.SerializeToString())
    refresh_manifest(folder)


def write_stored_bundle(folder: Path, storage: str, tensors: dict[str, NDArray[np.generic]]) -> Bundle:
    """The tiny NER bundle with hidden states (embeddings times a stored matrix) in place of logits.

    The graph's last product is against the stored matrix's transpose, as a linear layer's is.
    """
    write_tiny_ner_bundle(folder)
    rng = np.random.default_rng(3)
    table = rng.standard_normal((60, HIDDEN_SIZE)).astype(np.float32)
    save_file({"table": table}, folder / "embeddings.safetensors")
    save_file(tensors, folder / "encoder.safetensors")
    codes = external_tensor(folder / "encoder.safetensors", "w.codes")
    constants, attributes, inputs = [], {"axis": 0}, ["w.codes", "scale"]
    if storage == "int8_block":
        attributes = {"axis": 1, "block_size": HIDDEN_SIZE // 2}
    if storage == "q4_block32":
        codes.data_type = TensorProto.UINT4
        codes.dims[:] = [HIDDEN_SIZE, HIDDEN_SIZE]
        shape = [HIDDEN_SIZE, HIDDEN_SIZE // BLOCK]
        constants.append(helper.make_tensor("zero", TensorProto.UINT4, shape, [8] * int(np.prod(shape))))
        attributes, inputs = {"axis": 1, "block_size": BLOCK}, [*inputs, "zero"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Cast", ["w.scales"], ["scale"], to=TensorProto.FLOAT),
        helper.make_node("DequantizeLinear", inputs, ["w"], **attributes),
        helper.make_node("Transpose", ["w"], ["w_t"], perm=[1, 0]),
        helper.make_node("MatMul", ["embedded", "w_t"], ["logits"]),
    ]
    write_graph(
        folder,
        nodes,
        [
            external_tensor(folder / "embeddings.safetensors", "table"),
            codes,
            external_tensor(folder / "encoder.safetensors", "w.scales"),
            *constants,
        ],
    )
    return Bundle.load(folder)


@pytest.mark.parametrize(
    ("storage", "make_weight"),
    [("int8_row", int8_row_weight), ("int8_block", int8_block_weight), ("q4_block32", q4_block_weight)],
)
def test_stored_integers_are_computed_as_float32(
    make: MakeEngine, tmp_path: Path, storage: str, make_weight: object
) -> None:
    """Seen failing in ONNX Runtime without ``session.disable_quant_qdq``: activations are then quantised too.

    Tolerance: float32 products of 32 terms up to about 20; quantised activations miss it a thousandfold.
    """
    assert callable(make_weight)
    tensors, weight = make_weight(np.random.default_rng(1))
    bundle = write_stored_bundle(tmp_path / "stored", storage, tensors)
    engine = make(bundle, threads=1)
    rng = np.random.default_rng(3)
    table = rng.standard_normal((60, HIDDEN_SIZE)).astype(np.float32)
    ids = np.arange(60, dtype=np.int64).reshape(2, 30)
    batch = TokenBatch(ids, np.ones_like(ids), np.zeros_like(ids))
    actual = engine.run(batch, ["logits"])["logits"]
    np.testing.assert_allclose(actual, table[ids] @ weight.T, rtol=0, atol=1e-5)


def test_models_share_one_arena(tmp_path: Path) -> None:
    """Registering the arena a second time would be an error; every engine of a process uses the first."""
    bundles = [write_tiny_embedding_bundle(tmp_path / name, name=name) for name in ("one", "two")]
    engines = [OnnxRuntimeEngine(Bundle.load(path), threads=1) for path in bundles]
    batch = pad_batch([np.array([2, 4, 3])], 0)
    first, second = (engine.run(batch, ["embeddings_mean"])["embeddings_mean"] for engine in engines)
    np.testing.assert_array_equal(first, second)


def test_bytes_are_shifted_and_not_divided(tmp_path: Path, make: MakeEngine) -> None:
    """Packed rows of the word table: the upper half of a byte is a code, whatever the lower half holds.

    Seen failing in OpenVINO 2026.4.1, whose CPU plugin rounds 159 / 16 to 10.
    """
    folder = write_tiny_ner_bundle(tmp_path / "shifted")
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (60, HIDDEN_SIZE), dtype=np.uint8)
    save_file({"packed": packed}, folder / "embeddings.safetensors")
    save_file({"unused": np.zeros(1, np.float32)}, folder / "encoder.safetensors")
    nodes = [
        helper.make_node("Gather", ["packed", "input_ids"], ["rows"]),
        helper.make_node("BitShift", ["rows", "four"], ["high"], direction="RIGHT"),
        helper.make_node("Cast", ["high"], ["logits"], to=TensorProto.FLOAT),
    ]
    write_graph(
        folder,
        nodes,
        [
            external_tensor(folder / "embeddings.safetensors", "packed"),
            helper.make_tensor("four", TensorProto.UINT8, [], [4]),
        ],
    )
    ids = np.arange(60, dtype=np.int64).reshape(2, 30)
    batch = TokenBatch(ids, np.ones_like(ids), np.zeros_like(ids))
    logits = make(Bundle.load(folder), threads=1).run(batch, ["logits"])["logits"]
    np.testing.assert_array_equal(logits, (packed >> 4)[ids])


def test_an_answer_is_not_changed_by_the_next_run(engine: Engine) -> None:
    """Engines reuse their buffers; who holds an array must not see another text's numbers appear in it."""
    first = engine.run(pad_batch([row(2, 5, 3)], 0), [MEAN])[MEAN]
    kept = first.copy()
    engine.run(pad_batch([row(2, 9, 3)], 0), [MEAN])
    np.testing.assert_array_equal(first, kept)


def test_openvino_quantises_no_activations_and_computes_in_what_is_said(bundle: Bundle) -> None:
    """Its defaults do otherwise on some processors: eight bits in groups of 32, bfloat16 with AMX.

    Needs two cores, as streams do.
    """
    engine = OpenVinoEngine(bundle, threads=2, streams=2)
    assert [form.streams for form in engine._forms] == [2, 1]
    for form in engine._forms:
        assert int(form.compiled.get_property("INFERENCE_NUM_THREADS")) == 2
        assert int(form.compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) == 0
        assert form.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name() == "f32"
        assert form.compiled.get_property("ENABLE_CPU_PINNING") is False


def test_a_text_by_itself_has_the_threads_of_all_streams(bundle: Bundle) -> None:
    """How many a run has is settled when OpenVINO compiles a model, so there are two forms; they agree.

    Needs two cores, as streams do.
    """
    engine = OpenVinoEngine(bundle, threads=2, streams=2)
    together, alone = engine._forms
    one, several = pad_batch([row(2, 5, 3)], 0), pad_batch([row(2, 5, 3), row(7)], 0)

    def run_without(form: Any, batch: TokenBatch) -> NDArray[np.float32]:
        """While no run in this form could end."""
        taken = [form.requests.get() for _ in range(form.streams)]
        with ThreadPoolExecutor(1) as caller:
            running = caller.submit(engine.run, batch, [MEAN])
            try:
                return running.result(HANG_LIMIT_S)[MEAN][:1]
            finally:
                for request in taken:
                    form.requests.put(request)

    assert [engine.lends_threads(rows) for rows in (1, 2)] == [True, False]
    by_itself = run_without(together, one)
    in_batch = run_without(alone, several)
    with CORES.run():  # another engine's, say
        beside_another = run_without(alone, one)
    np.testing.assert_allclose(beside_another, by_itself, rtol=0, atol=1e-6)
    np.testing.assert_allclose(in_batch, by_itself, rtol=0, atol=1e-6)
    assert len(OpenVinoEngine(bundle, threads=2)._forms) == 1


@pytest.mark.parametrize("wrong", [1.0002, np.nan])
def test_forms_that_do_not_agree_are_refused(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    """Which of them the golden texts are run by depends on what else runs. Needs two cores, as streams do."""
    real = openvino_engine._Form.infer

    def infer(form: Any, *arguments: Any) -> dict[str, NDArray[np.float32]]:
        factor = wrong if form.streams == 1 else 1
        return {name: array * factor for name, array in real(form, *arguments).items()}

    monkeypatch.setattr(openvino_engine._Form, "infer", infer)
    with pytest.raises(BundleError, match=r"with 2 threads in 2 streams than in 1") as caught:
        OpenVinoEngine(bundle, threads=2, streams=2)
    assert caught.value.check == "graph"


@pytest.mark.parametrize("from_export", [False, True])
def test_streams_may_be_set_anew(bundle: Bundle, from_export: bool) -> None:
    """Answers stay what they were, to the last digit here. Needs two cores, as streams do."""
    engine = OpenVinoEngine(bundle, threads=2)
    batch = pad_batch([row(2, 5, 3), row(7)], 0)
    before = engine.run(batch, [MEAN])[MEAN]
    exported = None
    if from_export:
        engine.set_streams(2, bundle)
        exported = engine.export()
        assert exported is not None
        engine.set_streams(1, bundle)
    engine.set_streams(2, bundle, exported)
    assert [form.streams for form in engine._forms] == [engine.streams] == [2]
    assert not engine.lends_threads(1)
    assert (engine.export() is None) == from_export
    np.testing.assert_array_equal(engine.run(batch, [MEAN])[MEAN], before)
    engine.set_streams(1, bundle)
    assert engine.streams == 1
    np.testing.assert_array_equal(engine.run(batch, [MEAN])[MEAN], before)


def test_runs_go_on_while_streams_are_set_anew(bundle: Bundle) -> None:
    """Those at work end in the form that is replaced, those that wait for it go to the other."""
    engine = OpenVinoEngine(bundle, threads=2)
    batch = pad_batch([row(2, 5, 3)], 0)
    expected = engine.run(batch, [MEAN])[MEAN]
    (old,) = engine._forms
    compute, begun, gate = old.requests.get(), threading.Event(), threading.Event()

    class Slow:
        """A run at work for as long as the test wants."""

        def infer(self, *arguments: Any, **how: Any) -> None:
            begun.set()
            assert gate.wait(HANG_LIMIT_S)
            compute.infer(*arguments, **how)

        def get_tensor(self, name: str) -> Any:
            return compute.get_tensor(name)

    class Line:
        """The form's requests, of which whoever asks is counted."""

        def __init__(self) -> None:
            self.asked = 0
            self.ends: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self.put = self.ends.put

        def get(self) -> Any:
            self.asked += 1
            return self.ends.get()

    old.requests = line = Line()  # type: ignore[assignment]
    line.put(Slow())
    with ThreadPoolExecutor(3) as callers:
        at_work = callers.submit(engine.run, batch, [MEAN])
        assert begun.wait(HANG_LIMIT_S)
        waiting = callers.submit(engine.run, batch, [MEAN])
        try:
            wait_until(lambda: line.asked == 2)
            # A text is computed in either form before one takes the other's place; here the old one is busy.
            engine._check_alike = lambda *_: None  # type: ignore[method-assign]
            engine.set_streams(2, bundle)
            np.testing.assert_array_equal(engine.run(batch, [MEAN])[MEAN], expected)
        finally:
            gate.set()
        for run in (at_work, waiting):
            np.testing.assert_array_equal(run.result(HANG_LIMIT_S)[MEAN], expected)


def test_streams_that_cannot_be_set_leave_all_as_it_was(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers are served as before; what computes otherwise never serves them."""
    engine = OpenVinoEngine(bundle, threads=2)
    batch = pad_batch([row(2, 5, 3)], 0)
    before, forms = engine.run(batch, [MEAN])[MEAN], list(engine._forms)
    with pytest.raises(ValueError, match="streams must be from 1 to the number of threads, 2, not 3"):
        engine.set_streams(3, bundle)
    with pytest.raises(BundleError, match="as exported"):
        engine.set_streams(2, bundle, b"no model")
    real = openvino_engine._Form.infer

    def infer(form: Any, *arguments: Any) -> dict[str, NDArray[np.float32]]:
        factor = 1 if form in forms else 1.01
        return {name: array * factor for name, array in real(form, *arguments).items()}

    monkeypatch.setattr(openvino_engine._Form, "infer", infer)
    with pytest.raises(BundleError, match="gives another"):
        engine.set_streams(2, bundle)
    assert engine._forms == forms
    np.testing.assert_array_equal(engine.run(batch, [MEAN])[MEAN], before)


def test_another_models_export_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """It has other outputs."""
    tagger = OpenVinoEngine(Bundle.load(write_tiny_ner_bundle(tmp_path / "ner")), threads=2)
    engine = OpenVinoEngine(bundle, threads=2)
    with pytest.raises(BundleError, match="outputs"):
        engine.set_streams(1, bundle, tagger.export())


def test_a_closed_engine_has_no_streams_set(bundle: Bundle) -> None:
    """A model is unloaded while it is compiled: the new form is not to stay, nor to serve."""
    engine = OpenVinoEngine(bundle, threads=2)
    real = engine._form_of

    def form_of(*arguments: Any) -> Any:
        made = real(*arguments)
        engine.close()
        return made

    engine._form_of = form_of  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="closed"):
        engine.set_streams(2, bundle)
    with pytest.raises(RuntimeError, match="closed"):
        engine.run(pad_batch([row(2)], 0), [MEAN])


SHIPPED = Path(__file__).parents[3] / "models" / "multilingual-e5-small-zh-en"


def test_openvino_keeps_kernels_of_some_shapes_only() -> None:
    """By default it keeps those of 700 and more: half a gigabyte, and 48 MiB of the 150 here (3 as it is)."""
    program = f"""
from pathlib import Path
import numpy as np
from model.runtime.bundle import Bundle
from model.runtime.engine import pad_batch
from model.runtime.openvino_engine import OpenVinoEngine

engine = OpenVinoEngine(Bundle.load(Path({str(SHIPPED)!r}), verify_hashes=False), threads=1)

def mib_after(shapes):
    for rows, length in shapes:
        engine.run(pad_batch([np.arange(5, 5 + length)] * rows, 1), ["embeddings_mean"])
    return int(Path("/proc/self/statm").read_text().split()[1]) / 256

shapes = [(1 + n % 3, 60 - n // 5) for n in range(250)]
print(-mib_after(shapes[:100]) + mib_after(shapes[100:]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 20


def test_openvinos_threads_give_way(bundle: Bundle) -> None:
    """As ONNX Runtime's do; asked in a process where no other test's threads come and go."""
    program = f"""
import os, sys
from pathlib import Path
import numpy as np
from model.runtime.bundle import Bundle
from model.runtime.engine import load_gently, pad_batch
from model.runtime.openvino_engine import OpenVinoEngine

def threads():
    return {{int(task.name) for task in Path("/proc/self/task").iterdir()}}

before = threads()
engine = OpenVinoEngine(Bundle.load(Path({str(bundle.path)!r})), threads=2)
batch = pad_batch([np.arange(2, 50)] * 20, 0)
load_gently(lambda: engine.run(batch, ["last_hidden_state"]))
nice = {{os.getpriority(os.PRIO_PROCESS, thread) for thread in threads() - before}}
print(nice <= {{min(19, os.nice(0) + 10)}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_openvinos_first_runs_may_be_at_the_same_time() -> None:
    """Its binding would hang, and hold the interpreter's lock, where two threads first need NumPy's types."""
    program = """
import sys, threading
from model.runtime.openvino_library import ov

sys.setswitchinterval(1e-6)
together = threading.Barrier(2, timeout=10)

def ask():
    together.wait()
    ov.Type.f32.to_dtype()

threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    for _ in range(3):  # it happened in seven of ten
        subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_LIMIT_S)


def test_openvino_reports_to_nobody(tmp_path: Path) -> None:
    """Seen reporting its own import, by a package that pip installs with it."""
    package = tmp_path / "openvino_telemetry"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('about to report')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import model.runtime.openvino_engine"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_processor_is_read_from_either_kind_of_file(tmp_path: Path) -> None:
    """The kernel writes other names on Arm; a system without the file has a processor too."""
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor\t: 0\nmodel name\t: Some 9\nflags\t\t: fpu avx2\n\nmodel name\t: Other\n")
    arm.write_text("processor\t: 0\nFeatures\t: fp bf16\nCPU part\t: 0xd40\n")
    assert read_processor(x86).name == "Some 9"
    assert read_processor(x86).features == {"fpu", "avx2"}
    assert read_processor(arm).name == "0xd40"
    assert read_processor(arm).features == {"fp", "bf16"}
    assert read_processor(tmp_path / "none").features == frozenset()

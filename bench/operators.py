"""What an encoder layer's parts cost in ONNX Runtime, each in the forms that a graph may give it.

    .venv-dev/bin/python bench/operators.py
    .venv-dev/bin/python bench/operators.py OLD_BUNDLE NEW_BUNDLE

Without arguments: attention from projected queries, keys and values to their mixture, biases included; the
sum of residual, output and bias with its LayerNorm; the three projections; 384 features, 12 heads, 12 layers.
With bundles (folders): their graphs, for the mean vector or the logits. In float32, one thread, the forms in
turn; the least and the median of up to 40 repeats in CPU time, which other load on the machine moves least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import click
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from model.runtime.bundle import Bundle
from model.runtime.engine import OUTPUT_NAMES, pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine

HIDDEN, HEADS, LAYERS = 384, 12, 12
SHAPES = ((1, 12), (32, 16), (8, 64), (2, 256))
REPEATS = 40
SECONDS = 15.0
MICROSOFT = "com.microsoft"
LOWEST = float(np.finfo(np.float32).min)

Arrays = Mapping[str, NDArray[np.generic]]
Constants = dict[str, NDArray[np.generic]]


def constants() -> Constants:
    """Weights and small tensors that the forms below choose from; the same for all of them."""
    rng = np.random.default_rng(0)
    biases = [rng.standard_normal(HIDDEN).astype(np.float32) for _ in range(3)]
    matrices = [rng.standard_normal((HIDDEN, HIDDEN)).astype(np.float32) for _ in range(3)]
    return {
        **{f"{name}_bias": bias for name, bias in zip("qkv", biases, strict=True)},
        **{f"{name}_weight": matrix for name, matrix in zip("qkv", matrices, strict=True)},
        "qkv_bias": np.concatenate(biases),
        "qkv_weight": np.concatenate(matrices, axis=1),
        "split": np.array([0, 0, HEADS, HIDDEN // HEADS], np.int64),
        "joined": np.array([0, 0, HIDDEN], np.int64),
        "scale": np.array((HIDDEN // HEADS) ** -0.5, np.float32),
        "axes": np.array([1, 2], np.int64),
        "one": np.array([1], np.int64),
        "zero": np.array(0, np.float32),
        "lowest": np.array(LOWEST, np.float32),
    }


def session(
    nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str], *, skip_fusion: bool = False
) -> ort.InferenceSession:
    """A graph over [B, S, H] inputs (``mask``: [B, S] int64)."""
    read = {name for node in nodes for name in node.input}
    values = [
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["b", "s"])
        if name == "mask"
        else helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "s", HIDDEN])
        for name in inputs
    ]
    graph = helper.make_graph(
        list(nodes),
        "part",
        values,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "s", HIDDEN]) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants().items() if name in read],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MICROSOFT, 1)]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    return ort.InferenceSession(
        helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=[] if skip_fusion else ["SkipLayerNormFusion"],
    )


def mask_nodes(form: str) -> list[NodeProto]:
    """Once a run, from ``mask``: what a layer's attention takes."""
    node = helper.make_node
    if form == "MultiHeadAttention":
        return [node("Cast", ["mask"], ["layer_mask"], to=TensorProto.INT32)]
    boolean = [
        node("Cast", ["mask"], ["real"], to=TensorProto.BOOL),
        node("Unsqueeze", ["real", "axes"], ["real4"]),
    ]
    number = node("Where", ["real4", "zero", "lowest"], ["added"])
    shape = [
        node("Shape", ["mask"], ["shape"]),
        node("Split", ["shape"], ["rows", "tokens"], num_outputs=2),
        node("Concat", ["rows", "one", "tokens", "tokens"], ["scores_shape"], axis=0),
    ]
    match form:
        case "written out, Where":
            return [*boolean, node("Identity", ["real4"], ["layer_mask"])]
        case "written out, Add":
            return [*boolean, number, node("Identity", ["added"], ["layer_mask"])]
        case "Attention, truth values":
            return [*boolean, *shape, node("Expand", ["real4", "scores_shape"], ["layer_mask"])]
        case "Attention, numbers":
            return [*boolean, number, *shape, node("Expand", ["added", "scores_shape"], ["layer_mask"])]
    raise AssertionError(form)


def attention(form: str) -> ort.InferenceSession:
    """All layers; each one's mixture is the next one's queries."""
    node = helper.make_node
    nodes = mask_nodes(form)
    query = "q"
    for layer in range(LAYERS):
        own = f"layer{layer}_"
        mixed = f"{own}mixed"
        if form == "MultiHeadAttention":
            inputs = [query, "k", "v", "qkv_bias", "layer_mask"]
            nodes.append(
                node(form, inputs, [mixed], domain=MICROSOFT, num_heads=HEADS, mask_filter_value=LOWEST)
            )
            query = mixed
            continue
        for name, source in (("q", query), ("k", "k"), ("v", "v")):
            nodes.append(node("Add", [source, f"{name}_bias"], [own + name]))
        if form.startswith("Attention"):
            inputs = [own + "q", own + "k", own + "v", "layer_mask"]
            nodes.append(node("Attention", inputs, [mixed], q_num_heads=HEADS, kv_num_heads=HEADS))
        else:
            for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
                nodes.append(node("Reshape", [own + name, "split"], [f"{own}{name}4"]))
                nodes.append(node("Transpose", [f"{own}{name}4"], [f"{own}{name}t"], perm=order))
            masked = (
                node("Where", ["layer_mask", own + "scaled", "lowest"], [own + "masked"])
                if form.endswith("Where")
                else node("Add", [own + "scaled", "layer_mask"], [own + "masked"])
            )
            nodes += [
                node("MatMul", [own + "qt", own + "kt"], [own + "scores"]),
                node("Mul", [own + "scores", "scale"], [own + "scaled"]),
                masked,
                node("Softmax", [own + "masked"], [own + "shares"], axis=-1),
                node("MatMul", [own + "shares", own + "vt"], [own + "mixture"]),
                node("Transpose", [own + "mixture"], [own + "tokens"], perm=[0, 2, 1, 3]),
                node("Reshape", [own + "tokens", "joined"], [mixed]),
            ]
        query = mixed
    return session(nodes, ["q", "k", "v", "mask"], [query])


def norms(*, skip_fusion: bool) -> ort.InferenceSession:
    """Two a layer: residual + (output + bias), then LayerNorm."""
    node = helper.make_node
    nodes: list[NodeProto] = []
    residual = "q"
    for place in range(2 * LAYERS):
        nodes += [
            node("Add", ["k", "q_bias"], [f"biased{place}"]),
            node("Add", [residual, f"biased{place}"], [f"sum{place}"]),
            node("LayerNormalization", [f"sum{place}", "q_bias", "k_bias"], [f"norm{place}"], epsilon=1e-12),
        ]
        residual = f"norm{place}"
    return session(nodes, ["q", "k"], [residual], skip_fusion=skip_fusion)


def projections(*, packed: bool) -> ort.InferenceSession:
    """Queries, keys and values of one layer; the last one's feed the next layer."""
    node = helper.make_node
    nodes: list[NodeProto] = []
    states = "q"
    for layer in range(LAYERS):
        results = [f"{name}{layer}" for name in "qkv"]
        if packed:
            nodes.append(node("MatMul", [states, "qkv_weight"], [f"all{layer}"]))
            nodes.append(node("Split", [f"all{layer}"], results, axis=-1, num_outputs=3))
        else:
            nodes += [
                node("MatMul", [states, f"{name}_weight"], [result])
                for name, result in zip("qkv", results, strict=True)
            ]
        states = f"sum{layer}"
        nodes.append(node("Sum", results, [states]))
    return session(nodes, ["q"], [states])


def compare(title: str, forms: Mapping[str, Callable[[], object]]) -> None:
    """Run the forms in turn and print the CPU time of each, in milliseconds."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    for run in forms.values():
        run()
    until = time.monotonic() + SECONDS
    for _ in range(REPEATS):
        for form, run in forms.items():
            start = time.thread_time()
            run()
            times[form].append(time.thread_time() - start)
        if time.monotonic() > until:
            break
    click.echo(title)
    for form, each in times.items():
        click.echo(f"  {form:<42}{min(each) * 1e3:>9.2f}{np.median(each) * 1e3:>9.2f}")


def compare_parts(rows: int, tokens: int) -> None:
    """The parts of a layer at one shape."""
    rng = np.random.default_rng(1)
    feeds: dict[str, NDArray[np.generic]] = {
        name: rng.standard_normal((rows, tokens, HIDDEN)).astype(np.float32) for name in "qkv"
    }
    mask = np.ones((rows, tokens), np.int64)
    mask[-1, tokens * 9 // 10 :] = 0
    feeds["mask"] = mask

    def running(model: ort.InferenceSession) -> Callable[[], object]:
        own = {value.name: feeds[value.name] for value in model.get_inputs()}
        return lambda: model.run(None, own)

    title = f"{rows} rows of {tokens} tokens, ms in {LAYERS} layers, least and median:"
    forms = (
        "written out, Where",
        "written out, Add",
        "MultiHeadAttention",
        "Attention, truth values",
        "Attention, numbers",
    )
    compare(f"{title} attention", {form: running(attention(form)) for form in forms})
    summed = {"Add, Add, LayerNormalization": False, "SkipLayerNormalization": True}
    compare(
        f"{title} norms",
        {form: running(norms(skip_fusion=fused)) for form, fused in summed.items()},
    )
    projected = {"three products": False, "one product and Split": True}
    compare(
        f"{title} projections",
        {form: running(projections(packed=packed)) for form, packed in projected.items()},
    )


def compare_bundles(paths: Sequence[Path]) -> None:
    """Whole graphs, each for what the service asks of it."""
    with ExitStack() as stack:
        engines: dict[str, tuple[OnnxRuntimeEngine, str]] = {}
        for path in paths:
            bundle = Bundle.load(path)
            task = bundle.manifest.task
            output = "embeddings_mean_normalized" if task == "embedding" else OUTPUT_NAMES[task][0]
            engine = stack.enter_context(closing(OnnxRuntimeEngine(bundle, threads=1)))
            engines[str(path)] = (engine, output)
        for rows, tokens in SHAPES:
            ids = np.random.default_rng(2).integers(5, 1000, (rows, tokens))
            batch = pad_batch([*ids[:-1], ids[-1, : max(1, tokens * 9 // 10)]] if rows > 1 else [*ids], 1)
            compare(
                f"{rows} rows of {tokens} tokens, ms, least and median",
                {
                    path: lambda engine=engine, output=output, batch=batch: engine.run(batch, [output])  # type: ignore[misc]
                    for path, (engine, output) in engines.items()
                },
            )


@click.command()
@click.argument("bundles", nargs=-1, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(bundles: tuple[Path, ...]) -> None:
    """Compare forms of a layer's parts, or BUNDLES."""
    if bundles:
        compare_bundles(bundles)
        return
    for rows, tokens in SHAPES:
        compare_parts(rows, tokens)


if __name__ == "__main__":
    main()

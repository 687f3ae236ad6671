"""ONNX Runtime: the reference, which is there on every machine. On CPU, unless others are asked for."""

from __future__ import annotations

import functools
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle, BundleError, reading
from model.runtime.cores import CORES, Share
from model.runtime.engine import (
    CPU_PROVIDER,
    GRAPH_NAME,
    INPUT_NAMES,
    BatchRules,
    Precision,
    TokenBatch,
    check_signature,
    check_threads,
    load_gently,
    weight_files,
)

# Its SkipLayerNormalization goes number by number: five times slower on CPUs than the vectorised sums
# and LayerNormalization that it stands for (bench/README.md).
_SLOWER_FUSIONS: Final = ["SkipLayerNormFusion"]
# A promise of float32 is one of float32 products: CUDA would round their factors to 10 bits (TF32).
_PROVIDER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"CUDAExecutionProvider": {"use_tf32": "0"}}


class OnnxRuntimeEngine:
    """ONNX Runtime, on CPU unless other providers are asked for.

    One session, whose pool has a thread less than the engine: a run by itself is computed by its caller, whom
    the pool helps. Of several at a time each further one is computed in a thread of the pool while its caller
    sleeps, and helped by those of the pool that have no run of their own. So as many threads compute as the
    engine has, however many runs there are; with as many runs as threads none waits for another.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int,
        streams: int = 1,
        precision: Precision = "float32",
        providers: Sequence[str] = (CPU_PROVIDER,),
        trace_prefix: Path | None = None,
    ) -> None:
        """Load the graph and its weights.

        Args:
            bundle: a checked bundle.
            threads: compute threads, the calling ones included; see ``threads.thread_count``.
            streams: runs at a time, 1 to ``threads``, which share them.
            precision: bfloat16 only where ``engine_choice.candidates`` has it.
            providers: ONNX Runtime's names for what computes, the first that can being taken for each
                operator. Others than the CPU's have not been tried.
            trace_prefix: time every operator of every run, and write that, as JSON, to a file whose name
                begins so when the engine is closed.

        Raises:
            BundleError: the graph cannot be loaded, or has not the inputs and outputs of its task.
        """
        check_threads(threads, streams)
        self.threads = threads
        self.streams = streams
        self.precision: Precision = precision
        on_cpu = tuple(providers) == (CPU_PROVIDER,)
        on = "" if on_cpu else f" on {', '.join(providers)}"
        self.name = f"onnxruntime {ort.__version__}{on}"
        self._rules = BatchRules.of(bundle.manifest)
        self._session: ort.InferenceSession | None = load_gently(
            lambda: _open_session(bundle, threads, precision, providers, trace_prefix)
        )
        self._share = Share(threads - 1 if on_cpu else 0)
        self._traced = trace_prefix is not None
        _check_signature(self._session, bundle)

    def lends_threads(self, rows: int) -> bool:
        """A run by itself has all: see the class."""
        del rows
        return True

    @property
    def padding_cost(self) -> float:
        """1: it computes all of it."""
        return 1.0

    def computed_tokens(self, lengths: Sequence[int]) -> int:
        """Rows times longest row."""
        return len(lengths) * max(lengths)

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs for ``batch``.

        The interpreter lock is free meanwhile. Whether values are finite is for the caller to check.

        Raises:
            ValueError: see ``BatchRules``.
            RuntimeError: the engine is closed.
        """
        session = self._session  # that of now: a run that ends after `close` still has it
        if session is None:
            raise RuntimeError("the engine is closed")
        self._rules.check(batch, outputs)
        feeds = {name: getattr(batch, name) for name in INPUT_NAMES}
        with CORES.run_with_pool(self._share) as caller_computes:
            arrays = [] if caller_computes else _run_in_pool(session, list(outputs), feeds)
            # What failed in the pool is tried once more: `run` has a type of exception for each failure, and
            # where there was no memory there may be some by now.
            arrays = arrays or session.run(list(outputs), feeds)
        return dict(zip(outputs, arrays, strict=True))

    def export(self) -> bytes | None:
        """Nothing: an optimised graph would save 0.15 s and take as much disk as float32 weights."""
        return None

    def close(self) -> None:
        """Free the session and its memory. Closing twice is fine."""
        if self._session is not None and self._traced:
            self._session.end_profiling()
        self._session = None


def _run_in_pool(
    session: ort.InferenceSession, outputs: list[str], feeds: Mapping[str, NDArray[np.int64]]
) -> list[NDArray[np.float32]]:
    """Have a thread of the session's pool compute, and wait for it; no arrays = it failed."""
    answer: queue.SimpleQueue[list[NDArray[np.float32]]] = queue.SimpleQueue()
    # Called with the arrays, the None below and a text, which `put` makes nothing of. No Python code of ours:
    # in it the thread could lose the interpreter, and the caller, should he be the last to have the session,
    # wait for the thread to end while it waits for him.
    session.run_async(outputs, feeds, answer.put, None)
    return answer.get()


def _open_session(
    bundle: Bundle,
    threads: int,
    precision: Precision,
    providers: Sequence[str],
    trace_prefix: Path | None,
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    if trace_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(trace_prefix)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Waiting threads sleep. Spinning ones would shave some microseconds off each parallel section, but burn
    # CPU between requests and whenever one thread lags; on a shared host or under a quota that time is taken
    # from the event loop and the tokeniser, and a used-up quota stops the process for tens of milliseconds.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Weights are stored as small integers but computed in float32. Left alone, ONNX Runtime takes
    # "dequantise, multiply" for a request to quantise the activations as well: errors near 0.1 that change
    # with the batch. With this, the dequantisation is folded into a float32 weight once, at load.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Said in either case, so that a changed default cannot change vectors. Only builds for Arm read it.
    options.add_session_config_entry(
        "mlas.enable_gemm_fastmath_arm64_bfloat16", "1" if precision == "bfloat16" else "0"
    )
    # Patterns are kept per input shape; with any batch and any length they would only pile up.
    options.enable_mem_pattern = False
    options.log_severity_level = 3  # errors; they are raised as well
    # By memory, not by path: ONNX Runtime refuses external data behind links, and bundles may share a table.
    # It copies what it needs while loading, so the maps are free to go afterwards.
    names = weight_files(bundle)
    weights = []
    for name in names:
        with reading("graph", f"{bundle.path.name}/{name}"):
            weights.append(np.memmap(bundle.file(name), dtype=np.uint8, mode="r"))
    options.add_external_initializers_from_files_in_memory(
        names, weights, [array.nbytes for array in weights]
    )
    # One arena for all models holds the batches that are at work, and not the largest of each model.
    _prepare_environment()
    options.add_session_config_entry("session.use_env_allocators", "1")
    with reading("graph", f"{bundle.path.name}/{GRAPH_NAME}"):
        graph = bundle.file(GRAPH_NAME).read_bytes()
    try:
        session = ort.InferenceSession(
            graph,
            options,
            providers=[(name, dict(_PROVIDER_OPTIONS.get(name, {}))) for name in providers],
            disabled_optimizers=_SLOWER_FUSIONS,
        )
    except Exception as error:  # its exception types derive from Exception alone, one by one
        raise BundleError("graph", f"{bundle.path.name}/{GRAPH_NAME}: {error}") from error
    return_freed_memory()
    return session


@functools.cache
def _prepare_environment() -> None:
    """Set up what ONNX Runtime has once a process: no telemetry, and one arena for all sessions."""
    # Some builds report usage to their maker; this service reports to nobody.
    ort.disable_telemetry_events()
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def _check_signature(session: ort.InferenceSession, bundle: Bundle) -> None:
    check_signature(
        bundle,
        inputs={node.name: node.type for node in session.get_inputs()},
        outputs={node.name: node.type for node in session.get_outputs()},
        types=("tensor(int64)", "tensor(float)"),
    )

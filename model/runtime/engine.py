"""Runs a bundle's graph: padded int64 arrays in, float32 arrays out.

The interface of engines, and ONNX Runtime behind it: the reference, which is there on every machine. OpenVINO
is in ``openvino_engine``; ``engine_choice`` says which of the two runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle, BundleError, Manifest, reading
from model.runtime.processor import Processor
from model.runtime.threads import give_way

Loaded = TypeVar("Loaded")

GRAPH_NAME = "graph.onnx"
INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT_NAMES = {
    "embedding": (
        "last_hidden_state",
        "embeddings_cls",
        "embeddings_mean",
        "embeddings_cls_normalized",
        "embeddings_mean_normalized",
    ),
    "token-classification": ("logits",),
    "sequence-classification": ("sequence_logits",),
}
PER_TOKEN_OUTPUTS = frozenset({"last_hidden_state", "logits"})
"""Those with a row for each token; of the others each text has one."""
WEIGHTS_SUFFIX = ".safetensors"

Precision = Literal["float32", "bfloat16"]
"""What the network is computed in; what an engine takes and gives is the same either way."""

# What allocators of ONNX Runtime, OpenVINO and the C++ library say, in exceptions of whatever type.
_NO_MEMORY: Final = re.compile(
    r"failed to allocate memory|bad_?alloc|out of memory|not enough memory", re.IGNORECASE
)

CPU_PROVIDER: Final = "CPUExecutionProvider"
# Its SkipLayerNormalization goes number by number: five times slower on CPUs than the vectorised sums
# and LayerNormalization that it stands for (bench/README.md).
_SLOWER_FUSIONS: Final = ["SkipLayerNormFusion"]
# A promise of float32 is one of float32 products: CUDA would round their factors to 10 bits (TF32).
_PROVIDER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {"CUDAExecutionProvider": {"use_tf32": "0"}}


def lacks_memory(error: BaseException) -> bool:
    """Whether a run failed for want of memory, which says nothing about the model."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """B texts padded to S tokens; all arrays [B, S] int64.

    Attributes:
        input_ids: token ids, padded at the end.
        attention_mask: 1 = token, 0 = padding.
        token_type_ids: 1 for tokens of a pair's second text, where the model tells them apart; else 0.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]


def pad_batch(
    rows: Sequence[NDArray[np.int64]],
    pad_token_id: int,
    *,
    token_types: Sequence[NDArray[np.int64] | None] | None = None,
) -> TokenBatch:
    """Pad ``rows`` ([S_i] int64 each) at the end to the longest.

    Args:
        rows: token ids.
        pad_token_id: what is put behind them.
        token_types: of each row, [S_i] int64; None = all 0, for a row or for all.

    Raises:
        ValueError: no rows, or a row without tokens (its mean over no tokens would not be a number), or token
            types that are not one for each token.
    """
    if not rows or min(len(row) for row in rows) == 0:
        raise ValueError("a batch needs at least one row, and every row at least one token")
    shape = (len(rows), max(len(row) for row in rows))
    input_ids = np.full(shape, pad_token_id, dtype=np.int64)
    attention_mask = np.zeros(shape, dtype=np.int64)
    token_type_ids = np.zeros(shape, dtype=np.int64)
    for index, (row, types) in enumerate(zip(rows, token_types or [None] * len(rows), strict=True)):
        input_ids[index, : len(row)] = row
        attention_mask[index, : len(row)] = 1
        if types is not None:
            token_type_ids[index, : len(row)] = types
    return TokenBatch(input_ids, attention_mask, token_type_ids)


class Engine(Protocol):
    """What runs a graph. As many threads at a time as it has streams call ``run``; which ones, no matter."""

    @property
    def name(self) -> str:
        """Of the engine and its version, for logs and ``/info``."""
        ...

    @property
    def precision(self) -> Precision:
        """What it multiplies in."""
        ...

    @property
    def threads(self) -> int:
        """Compute threads in use, by all runs together."""
        ...

    @property
    def streams(self) -> int:
        """Runs at a time that are meant to be; more wait for each other, or share what is there."""
        ...

    @property
    def padding_cost(self) -> float:
        """What a token of padding costs, beside one of a text: 1 where all is computed for it, above 0."""
        ...

    def computed_tokens(self, lengths: Sequence[int]) -> int:
        """For how many tokens it computes its layers, in a batch of rows of these ``lengths``, not none."""
        ...

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs, and only those, for ``batch``."""
        ...

    def close(self) -> None:
        """Free the model; ``run`` must not be called afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What a batch has to be, whichever engine runs it: their answer to another is a crash or a wrong vector.

    Attributes:
        max_tokens: of a row.
        vocab_size: ids are below it.
        outputs: that the graph has.
    """

    max_tokens: int
    vocab_size: int
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, manifest: Manifest) -> BatchRules:
        """Those of a bundle."""
        return cls(manifest.max_tokens, manifest.architecture.vocab_size, OUTPUT_NAMES[manifest.task])

    def check(self, batch: TokenBatch, outputs: Sequence[str]) -> None:
        """Refuse what the graph would misread.

        Raises:
            ValueError: arrays that are not [B, S] int64 alike, more than ``max_tokens``, ids outside the
                vocabulary, a mask that is not 0 and 1 or hides a whole row, or an unknown output.
        """
        shape = batch.input_ids.shape
        for name in INPUT_NAMES:
            array: NDArray[np.int64] = getattr(batch, name)
            if array.dtype != np.int64 or array.ndim != 2 or array.shape != shape or array.size == 0:
                raise ValueError(
                    f"{name} is {array.dtype} {list(array.shape)}, not int64 [B, S] = {list(shape)}"
                )
        if shape[1] > self.max_tokens:
            raise ValueError(f"{shape[1]} tokens in a row, the model reads {self.max_tokens}")
        low, high = int(batch.input_ids.min()), int(batch.input_ids.max())
        if low < 0 or high >= self.vocab_size:
            raise ValueError(f"token ids {low} to {high} leave the vocabulary of {self.vocab_size}")
        if batch.attention_mask.min() < 0 or batch.attention_mask.max() > 1:
            raise ValueError("attention_mask holds values other than 0 and 1")
        if not batch.attention_mask.any(axis=1).all():
            raise ValueError("attention_mask hides every token of a row")
        unknown = [name for name in outputs if name not in self.outputs]
        if unknown or not outputs:
            raise ValueError(
                f"outputs {unknown or 'none'} asked for; the graph has {', '.join(self.outputs)}"
            )


def check_threads(threads: int, streams: int) -> None:
    """Refuse what an engine cannot have.

    Raises:
        ValueError: no threads, or not a thread for each stream.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if not 1 <= streams <= threads:
        raise ValueError(f"streams must be from 1 to the number of threads, {threads}, not {streams}")


def load_gently(load: Callable[[], Loaded]) -> Loaded:
    """Call ``load`` in a thread that gives way: those that it starts are as nice as the one it runs in."""
    with ThreadPoolExecutor(1, thread_name_prefix="conche-load", initializer=give_way) as loader:
        return loader.submit(load).result()


class OnnxRuntimeEngine:
    """ONNX Runtime, on CPU unless other providers are asked for."""

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
            precision: bfloat16 only where ``multiplies_bfloat16`` says so.
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
        on = "" if tuple(providers) == (CPU_PROVIDER,) else f" on {', '.join(providers)}"
        self.name = f"onnxruntime {ort.__version__}{on}"
        self._rules = BatchRules.of(bundle.manifest)
        self._session: ort.InferenceSession | None = load_gently(
            # Each caller computes itself, beside a pool that all of them share.
            lambda: _load_session(bundle, threads - streams + 1, precision, providers, trace_prefix)
        )
        self._traced = trace_prefix is not None
        _check_signature(self._session, bundle)

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
        if self._session is None:
            raise RuntimeError("the engine is closed")
        self._rules.check(batch, outputs)
        feeds = {name: getattr(batch, name) for name in INPUT_NAMES}
        arrays = self._session.run(list(outputs), feeds)
        return dict(zip(outputs, arrays, strict=True))

    def close(self) -> None:
        """Free the session and its memory. Closing twice is fine."""
        if self._session is not None and self._traced:
            self._session.end_profiling()
        self._session = None


def multiplies_bfloat16(processor: Processor) -> bool:
    """Whether ONNX Runtime can multiply in bfloat16 there: on 64-bit Arm under Linux, with that extension.

    Its x86 build has no such products for float32 graphs. Not tried here, for want of such a machine; what
    comes out passes ``golden.check_alike`` or is not served.
    """
    return processor.system == "Linux" and processor.machine == "aarch64" and "bf16" in processor.features


def _load_session(
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
    # Models run one after another, so one arena for all holds the largest batch once, not once a model.
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


def weight_files(bundle: Bundle) -> list[str]:
    """Names of the files that the graph's external data lies in."""
    return sorted(name for name in bundle.manifest.files if name.endswith(WEIGHTS_SUFFIX))


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


def check_signature(
    bundle: Bundle, *, inputs: dict[str, str], outputs: dict[str, str], types: tuple[str, str]
) -> None:
    """Hold a loaded graph's inputs and outputs, types by name, to those of the bundle's task.

    Args:
        bundle: whose graph it is.
        inputs: what it takes.
        outputs: what it gives.
        types: the engine's names of int64, which inputs are, and float32, which outputs are.

    Raises:
        BundleError: they differ.
    """
    expected_inputs = dict.fromkeys(INPUT_NAMES, types[0])
    expected_outputs = dict.fromkeys(OUTPUT_NAMES[bundle.manifest.task], types[1])
    if inputs != expected_inputs or outputs != expected_outputs:
        raise BundleError(
            "graph",
            f"{bundle.path.name}/{GRAPH_NAME} has inputs {inputs} and outputs {outputs}; task "
            f"{bundle.manifest.task} needs {expected_inputs} and {expected_outputs}",
        )

"""Runs a bundle's graph: padded int64 arrays in, float32 arrays out.

The interface of engines, and what they have in common. ``onnxruntime_engine`` is the reference, which is
there on every machine, ``openvino_engine`` the other; ``engine_choice`` says which of the two runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, BundleError, Manifest
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
CPU_PROVIDER: Final = "CPUExecutionProvider"
"""ONNX Runtime's name for computing on the CPU, which every build of it can."""

Precision = Literal["float32", "bfloat16"]
"""What the network is computed in; what an engine takes and gives is the same either way."""

# What allocators of ONNX Runtime, OpenVINO and the C++ library say, in exceptions of whatever type.
_NO_MEMORY: Final = re.compile(
    r"failed to allocate memory|bad_?alloc|out of memory|not enough memory", re.IGNORECASE
)


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
        """Runs at a time that are meant to be, now; more wait for each other, or share what is there."""
        ...

    def lends_threads(self, rows: int) -> bool:
        """Whether a run of so many rows has the threads of idle streams, too."""
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

    def export(self) -> bytes | None:
        """What it made of the graph, for ``engine_choice.open_engine``; None = that is not worth keeping."""
        ...

    def close(self) -> None:
        """Free the model; ``run`` must not be called afterwards."""
        ...


@runtime_checkable
class ChangingEngine(Engine, Protocol):
    """One whose number of streams is settled when a model is compiled, and can be settled anew."""

    def set_streams(self, streams: int, bundle: Bundle, exported: bytes | None = None) -> None:
        """Have so many runs at a time from now on; runs go on meanwhile. See ``OpenVinoEngine``."""
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


def weight_files(bundle: Bundle) -> list[str]:
    """Names of the files that the graph's external data lies in."""
    return sorted(name for name in bundle.manifest.files if name.endswith(WEIGHTS_SUFFIX))

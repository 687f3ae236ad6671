"""OpenVINO on CPU: the same graph and weights as ONNX Runtime's, in float32 or bfloat16.

Importing this module needs the extra ``openvino``; ``engine_choice`` imports it only where that is installed.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle, BundleError, reading
from model.runtime.engine import (
    GRAPH_NAME,
    INPUT_NAMES,
    BatchRules,
    Precision,
    TokenBatch,
    check_signature,
    load_gently,
    return_freed_memory,
    weight_files,
)

# Importing OpenVINO reports that to its maker, by this package of its dependencies; this service reports to
# nobody. Where the package cannot be imported, OpenVINO has a silent stand-in.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
# oneDNN, below it, keeps 1,024 of the kernels that it makes for each shape; what it keeps is kept once more
# by OpenVINO (`_KEPT_KERNELS`). It reads the variable when it makes the first.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
import openvino as ov  # noqa: E402
from openvino import opset8  # noqa: E402
from openvino.passes import ConstantFolding, Manager  # noqa: E402

_HINTS: Final[dict[Precision, Any]] = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16}
# For each shape of a batch OpenVINO makes kernels, some 4 of them in 3 to 4 ms, and keeps 5,000 by default:
# half a gigabyte after 700 shapes. These are for about 36 shapes (bench/README.md).
_KEPT_KERNELS: Final = 128
# So many rows are padded to a multiple of so many tokens, of twice as many above 64 tokens and of four times
# as many above 128: few rows are of few shapes then, and seldom wait for kernels to be made. Of many rows
# each token would cost more than that saves.
_STEPS: Final = {1: 8, 2: 4, 3: 2, 4: 2}


class OpenVinoEngine:
    """OpenVINO on CPU.

    Weights stay as small in memory as they are stored, and are unpacked in the products that need them. Only
    they are integers: activations are computed in ``precision``.
    """

    def __init__(
        self, bundle: Bundle, *, threads: int, precision: Precision = "float32", packed: bool = True
    ) -> None:
        """Load the graph and its weights.

        Args:
            bundle: a checked bundle.
            threads: compute threads, the calling one included; see ``threads.thread_count``.
            precision: bfloat16 only where ``multiplies_bfloat16`` says so.
            packed: keep weights in memory as they are stored; else as float32, once unpacked at load.

        Raises:
            BundleError: the graph cannot be loaded, or has not the inputs and outputs of its task; or the
                processor does not compute in that precision.
        """
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.threads = threads
        self.precision: Precision = precision
        self.name = f"openvino {version()}"
        self._rules = BatchRules.of(bundle.manifest)
        compiled = load_gently(lambda: _compile(bundle, threads, precision, packed=packed))
        check_signature(
            bundle,
            inputs={port.get_any_name(): port.get_element_type().get_type_name() for port in compiled.inputs},
            outputs={
                port.get_any_name(): port.get_element_type().get_type_name() for port in compiled.outputs
            },
            types=("i64", "f32"),
        )
        self._compiled: Any = compiled
        self._request: Any = compiled.create_infer_request()

    def row_length(self, rows: int, longest: int) -> int:
        """A multiple of some tokens where there are few rows, or the longest that the model reads."""
        step = _STEPS.get(rows, 1)
        if step > 1:
            step *= 1 + (longest > 64) + 2 * (longest > 128)
        return min(-(-longest // step) * step, max(longest, self._rules.max_tokens))

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs for ``batch``.

        The interpreter lock is free meanwhile. Whether values are finite is for the caller to check.

        Raises:
            ValueError: see ``BatchRules``.
            RuntimeError: the engine is closed.
        """
        if self._request is None:
            raise RuntimeError("the engine is closed")
        self._rules.check(batch, outputs)
        feeds = {name: np.ascontiguousarray(getattr(batch, name)) for name in INPUT_NAMES}
        # Without `share_outputs` it would copy all outputs, hidden states too. What is asked for is copied
        # here: the request's own arrays are overwritten by the next run.
        self._request.infer(feeds, share_inputs=True, share_outputs=True)
        return {name: np.array(self._request.get_tensor(name).data) for name in outputs}

    def close(self) -> None:
        """Free the model and its memory. Closing twice is fine."""
        self._request = None
        self._compiled = None


def version() -> str:
    """Of OpenVINO: "2026.4.1", without build and branch."""
    return str(ov.__version__).split("-", 1)[0]


def multiplies_bfloat16() -> bool:
    """Whether OpenVINO computes in bfloat16 on this processor; where it does not, it would silently not."""
    return "BF16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@functools.cache
def _core() -> Any:
    """What OpenVINO has once a process: its plugins."""
    core = ov.Core()
    # Weights are copied while loading, as ONNX Runtime does: a model folder may be replaced, or its disk be
    # gone, under a running service, and a map of a file that became shorter kills the process.
    core.set_property({"ENABLE_MMAP": False})
    return core


def _compile(bundle: Bundle, threads: int, precision: Precision, *, packed: bool) -> Any:
    if precision == "bfloat16" and not multiplies_bfloat16():
        raise BundleError("graph", f"{bundle.path.name}: OpenVINO has no bfloat16 on this processor")
    options = {
        # Said in either case: on processors with AMX the default is bfloat16.
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        # Threads tied to cores get in the way of whatever else runs there; and under a quota, which is not a
        # set of cores, there is nothing to tie them to.
        "ENABLE_CPU_PINNING": False,
        # Its default, where weights are small integers and the processor multiplies bytes, is to quantise the
        # activations as well, in groups: faster, and no longer the vectors of the model.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_KERNELS,
    }
    where = f"{bundle.path.name}/{GRAPH_NAME}"
    for name in (GRAPH_NAME, *weight_files(bundle)):  # it names neither the file nor what is wrong with it
        with reading("graph", f"{bundle.path.name}/{name}"), bundle.file(name).open("rb"):
            pass
    with reading("graph", where), _folder_of(bundle) as folder:
        try:
            model = _core().read_model(folder / GRAPH_NAME)
            _floor_quotients(model)
            if not packed:
                passes = Manager()
                passes.register_pass(ConstantFolding())
                passes.run_passes(model)
            compiled = _core().compile_model(model, "CPU", options)
        except RuntimeError as error:
            raise BundleError("graph", f"{where}: {str(error).strip()}") from error
    del model
    return_freed_memory()
    return compiled


@contextmanager
def _folder_of(bundle: Bundle) -> Iterator[Path]:
    """The bundle's folder; if a file of weights is a link, a copy of what OpenVINO reads.

    It refuses external data outside the graph's own folder, and bundles may share a table by a link. (From
    memory it takes a graph, but no external data.)
    """
    names = weight_files(bundle)
    if not any(bundle.file(name).is_symlink() for name in names):
        yield bundle.path
        return
    with tempfile.TemporaryDirectory(prefix="conche-") as folder:
        for name in (GRAPH_NAME, *names):
            shutil.copyfile(bundle.file(name), Path(folder) / name)
        yield Path(folder)


def _floor_quotients(model: Any) -> None:
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

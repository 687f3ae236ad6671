"""OpenVINO on CPU: the same graph and weights as ONNX Runtime's, in float32 or bfloat16.

Importing this module needs the extra ``openvino``; ``engine_choice`` imports it only where that is installed.
"""

from __future__ import annotations

import hashlib
import io
import logging
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from model.runtime import openvino_graph, openvino_library
from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle, BundleError, reading
from model.runtime.cores import CORES
from model.runtime.engine import (
    GRAPH_NAME,
    INPUT_NAMES,
    PER_TOKEN_OUTPUTS,
    BatchRules,
    Precision,
    TokenBatch,
    check_signature,
    check_threads,
    load_gently,
    weight_files,
)
from model.runtime.openvino_graph import (
    KEPT,
    PLACES,
    prepare,
    unpadded_inputs,
)
from model.runtime.openvino_library import core, ov, passes, version
from model.runtime.run_times import timed_batch

logger = logging.getLogger(__name__)

_HINTS: Final[dict[Precision, Any]] = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16}
# OpenVINO makes kernels for each number of tokens, in some 2 ms, and others for each length of rows; it keeps
# 5,000 by default (bench/README.md).
_KEPT_KERNELS: Final = 128
# Each stream of a form has its own, of batches that are smaller parts of what waits.
_LEAST_KEPT_KERNELS: Final = 32
# A text by itself has fewer shapes.
_KEPT_KERNELS_ALONE: Final = 64
# The two forms of a model are held to each other by a text of so many tokens; they may differ by rounding, by
# this part of an output's length.
_TOKENS_OF_CHECK: Final = 8
_FORMS_APART: Final[dict[Precision, float]] = {"float32": 1e-4, "bfloat16": 0.01}
# So tokens and lengths are rounded up: where there are up to 64, to a multiple of 8, and so on; beyond the
# last bound to a multiple of 32.
_TOKEN_STEPS: Final = ((64, 8), (512, 16))
_LENGTH_STEPS: Final = ((64, 8), (128, 16))
_LAST_STEP: Final = 32
# What a token of padding costs beside one of a text: attention alone is computed for it, a small part of a
# layer for texts of some dozens of tokens, a fifth and more of it for ten times as many (bench/README.md).
_PADDING_COST: Final = 0.15


class OpenVinoEngine:
    """OpenVINO on CPU.

    How many threads a run has is settled when a model is compiled. With several streams from the beginning it
    is compiled twice: for runs beside each other, each of which has a stream's threads, and for a text by
    itself, which has all of them. Both have stored weights and tables in common. An engine of one stream can
    be changed to several and back by `set_streams`, and has one form then as before, in little more memory.
    All forms give the same answers.

    Weights stay as small in memory as they are stored, and are unpacked in the products that need them. Only
    they are integers: activations are computed in ``precision``.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        threads: int,
        streams: int = 1,
        precision: Precision = "float32",
        packed: bool = True,
        exported: bytes | None = None,
    ) -> None:
        """Load the graph and its weights.

        Args:
            bundle: a checked bundle.
            threads: compute threads; see ``threads.thread_count``.
            streams: runs at a time, 1 to ``threads``, among which they are divided when there are several.
            precision: bfloat16 only where ``multiplies_bfloat16`` says so.
            packed: keep weights in memory as they are stored; else as float32, once unpacked at load.
            exported: by an engine of this bundle, processor and ``export_circumstances``, with as many
                streams, all of them in one form; is loaded in a quarter of the time that compiling takes.

        Raises:
            BundleError: the graph, or what was exported of it, cannot be loaded, or has not the inputs and
                outputs of its task; or the processor does not compute in that precision.
        """
        check_threads(threads, streams)
        self.threads = threads
        self.precision: Precision = precision
        self.name = f"openvino {version()}"
        self._packed = packed
        self._rules = BatchRules.of(bundle.manifest)
        self._changing = threading.Lock()
        self._is_closed = False
        self._forms = load_gently(
            lambda: (
                _compile(bundle, threads, streams, precision, packed=packed, alone=True)
                if exported is None
                else [_imported(bundle, exported, _options(threads, streams, precision))]
            )
        )
        self._unpadded = self._check_signature(bundle, self._forms[0])
        if len(self._forms) > 1:
            one, other = self._forms
            load_gently(lambda: self._check_alike(bundle, one, other))

    @property
    def streams(self) -> int:
        """No more than the processor has cores, whatever was asked for."""
        return self._forms[0].streams

    def set_streams(self, streams: int, bundle: Bundle, exported: bytes | None = None) -> None:
        """Have so many runs at a time from now on, and one form for all of them; runs go on meanwhile.

        Takes some tenths of a second of a core with ``exported``, else about one, and until the old form is
        gone the memory of both. As it is afterwards, a text by itself has a stream's threads.

        Args:
            streams: 1 to ``threads``.
            bundle: the engine's own, checked again: its files may be others by now.
            exported: by an engine with so many streams; see ``__init__``.

        Raises:
            ValueError: there is not a thread for each stream.
            BundleError: as when it was made, or the new form gives other answers than the one there is. All
                is as before then.
            RuntimeError: it is closed.
        """
        check_threads(self.threads, streams)
        form = load_gently(lambda: self._form_of(streams, bundle, exported))
        with self._changing:
            if self._is_closed:
                form.close()
                raise RuntimeError("the engine is closed")
            replaced, self._forms = self._forms, [form]
        for old in replaced:
            old.close()  # runs at work end in it; who waits for it turns to the new one
        del old, replaced
        return_freed_memory()

    def _form_of(self, streams: int, bundle: Bundle, exported: bytes | None) -> _Form:
        if exported is None:
            (form,) = _compile(
                bundle, self.threads, streams, self.precision, packed=self._packed, alone=False
            )
        else:
            form = _imported(bundle, exported, _options(self.threads, streams, self.precision))
        try:
            self._check_signature(bundle, form, unpadded=self._unpadded)
            self._check_alike(bundle, self._forms[0], form)
        except BaseException:
            form.close()
            raise
        return form

    def _check_signature(self, bundle: Bundle, form: _Form, *, unpadded: bool | None = None) -> bool:
        """Hold a form to the bundle's task.

        Args:
            bundle: whose it is.
            form: to be checked.
            unpadded: whether it has to leave out padding; None = it may.

        Returns:
            Whether it does.

        Raises:
            BundleError: it is of another task, or does not as it has to.
        """
        inputs, outputs = form.signature()
        check_signature(
            bundle,
            inputs={name: kind for name, kind in inputs.items() if name not in (KEPT, PLACES)},
            outputs=outputs,
            types=("i64", "f32"),
        )
        if unpadded not in (None, KEPT in inputs):
            raise BundleError("graph", f"{bundle.path.name}/{GRAPH_NAME} is compiled for other inputs")
        return KEPT in inputs

    def lends_threads(self, rows: int) -> bool:
        """A text by itself has all where there is a form for it.

        Several are several runs soon: the batcher divides them among streams.
        """
        return rows == 1 and len(self._forms) > 1

    @property
    def padding_cost(self) -> float:
        """Attention's share, where layers leave padding out."""
        return _PADDING_COST if self._unpadded else 1.0

    def computed_tokens(self, lengths: Sequence[int]) -> int:
        """The texts' own, rounded up; attention's padding is not counted."""
        return _rounded(sum(lengths), _TOKEN_STEPS) if self._unpadded else len(lengths) * max(lengths)

    def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Compute the named outputs for ``batch``.

        The interpreter lock is free meanwhile. Whether values are finite is for the caller to check.

        Raises:
            ValueError: see ``BatchRules``.
            RuntimeError: the engine is closed.
        """
        with CORES.run() as by_itself:
            alone = by_itself and self.lends_threads(len(batch.input_ids))
            while True:
                form = self._forms[-1 if alone else 0]
                try:
                    return self._run(form, batch, outputs)
                except _FormClosedError:
                    if form in self._forms:  # it is not that another took its place
                        raise

    def _run(self, form: _Form, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        self._rules.check(batch, outputs)
        longest = batch.input_ids.shape[1]
        if self._unpadded:
            batch = _lengthened(batch, min(_rounded(longest, _LENGTH_STEPS), self._rules.max_tokens))
        feeds = {name: np.ascontiguousarray(getattr(batch, name)) for name in INPUT_NAMES}
        if self._unpadded:
            tokens = int(batch.attention_mask.sum())
            feeds |= unpadded_inputs(batch.attention_mask, _rounded(tokens, _TOKEN_STEPS))
        return form.infer(feeds, outputs, longest)

    def export(self) -> bytes | None:
        """What was compiled, for an engine with the same ``export_circumstances``.

        It has the interpreter's lock meanwhile, 2 to 5 ms for each MB.

        Returns:
            None: it was loaded from that, or is closed; or there are two forms, which have weights in common
            only if they are compiled of one graph.
        """
        forms = self._forms
        compiled = forms[0].compiled
        if len(forms) > 1 or forms[0].is_imported or compiled is None:
            return None
        stream = io.BytesIO()
        try:
            compiled.export_model(stream)
            return stream.getvalue()
        except (RuntimeError, MemoryError) as error:
            logger.warning("what OpenVINO compiled cannot be exported: %s", error)
            return None

    def _check_alike(self, bundle: Bundle, one: _Form, other: _Form) -> None:
        """Have both compute one text: of what is proved later nobody knows which of them it is that computes.

        Raises:
            BundleError: they differ.
        """
        batch = timed_batch(bundle.manifest, [_TOKENS_OF_CHECK], 0)
        found = self._run(one, batch, self._rules.outputs)
        for name, array in self._run(other, batch, self._rules.outputs).items():
            # Written so that what is no number fails, too.
            apart = np.linalg.norm(array - found[name])
            if not apart <= _FORMS_APART[self.precision] * np.linalg.norm(found[name]):
                raise BundleError(
                    "graph",
                    f"{bundle.path.name}/{GRAPH_NAME}: {self.name} gives another {name} with {self.threads} "
                    f"threads in {one.streams} streams than in {other.streams}",
                )

    def close(self) -> None:
        """Free the model and its memory. Closing twice is fine."""
        with self._changing:
            self._is_closed = True
        for form in self._forms:
            form.close()


class _FormClosedError(RuntimeError):
    """A run came to a form that is closed."""

    def __init__(self) -> None:
        super().__init__("the engine is closed")


class _Form:
    """A model compiled for a number of runs at a time."""

    def __init__(self, compiled: Any, *, is_imported: bool = False) -> None:
        self.compiled = compiled
        self.is_imported = is_imported
        self.streams = int(compiled.get_property("NUM_STREAMS"))
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(self.streams):
            self.requests.put(compiled.create_infer_request())

    def signature(self) -> tuple[dict[str, str], dict[str, str]]:
        """Types of inputs and of outputs, by name."""
        inputs, outputs = (
            {port.get_any_name(): port.get_element_type().get_type_name() for port in ports}
            for ports in (self.compiled.inputs, self.compiled.outputs)
        )
        return inputs, outputs

    def infer(
        self, feeds: dict[str, NDArray[np.int64]], outputs: Sequence[str], longest: int
    ) -> dict[str, NDArray[np.float32]]:
        """Compute; rows of tokens end at the ``longest``.

        Raises:
            _FormClosedError: it is closed.
        """
        requests = self.requests  # those of now: a run that ends after `close` keeps nothing alive
        request = requests.get()
        try:
            if request is None:
                raise _FormClosedError
            if self.streams == 1:
                # Without `share_outputs` it would copy all outputs, hidden states too.
                request.infer(feeds, share_inputs=True, share_outputs=True)
            else:
                # In the calling thread it would take whichever stream that thread's number comes to, and two
                # callers might wait for one; its own threads have one each.
                request.start_async(feeds, share_inputs=True)
                request.wait()
            # What is asked for is copied: the request's own arrays are overwritten by the next run.
            results = {name: request.get_tensor(name).data for name in outputs}
            return {
                name: np.array(result[:, :longest] if name in PER_TOKEN_OUTPUTS else result)
                for name, result in results.items()
            }
        finally:
            requests.put(request)

    def close(self) -> None:
        """Let go of the model."""
        requests, self.requests = self.requests, queue.SimpleQueue()
        for end in (requests, self.requests):
            end.put(None)  # for whoever waits for a request, and those behind him
        self.compiled = None


def export_circumstances(*, threads: int, streams: int, precision: Precision) -> dict[str, Any]:
    """What ``OpenVinoEngine.export`` depends on, beside the bundle and the processor; JSON.

    Raises:
        OSError: the code that compiles is in no file that could be read.
    """
    files = (__file__, openvino_graph.__file__, openvino_library.__file__)
    code = b"".join(Path(file).read_bytes() for file in files)
    return {
        "openvino": str(ov.__version__),
        "code": hashlib.sha256(code).hexdigest(),
        "options": {name: str(value) for name, value in _options(threads, streams, precision).items()},
    }


def _imported(bundle: Bundle, exported: bytes, options: dict[str, Any]) -> _Form:
    try:
        form = _Form(core().import_model(exported, "CPU", options), is_imported=True)
    except Exception as error:  # whatever the binding makes of what it cannot read
        where = f"{bundle.path.name}/{GRAPH_NAME}"
        raise BundleError("graph", f"{where}, as exported: {str(error).strip()}") from error
    return_freed_memory()
    return form


def _options(threads: int, streams: int, precision: Precision) -> dict[str, Any]:
    """Of a form."""
    return {
        # Said in either case: on processors with AMX the default is bfloat16.
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": streams,
        # Threads tied to cores get in the way of whatever else runs there; and under a quota, which is not a
        # set of cores, there is nothing to tie them to.
        "ENABLE_CPU_PINNING": False,
        # Its default, where weights are small integers and the processor multiplies bytes, is to quantise the
        # activations as well, in groups: faster, and no longer the vectors of the model.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "CPU_RUNTIME_CACHE_CAPACITY": max(_KEPT_KERNELS // streams, _LEAST_KEPT_KERNELS),
    }


def _compile(
    bundle: Bundle, threads: int, streams: int, precision: Precision, *, packed: bool, alone: bool
) -> list[_Form]:
    """For ``streams`` runs at a time and, ``alone`` and if that is several, for one."""
    if precision == "bfloat16" and not openvino_library.multiplies_bfloat16():
        raise BundleError("graph", f"{bundle.path.name}: OpenVINO has no bfloat16 on this processor")
    options = _options(threads, streams, precision)
    where = f"{bundle.path.name}/{GRAPH_NAME}"
    for name in (GRAPH_NAME, *weight_files(bundle)):  # it names neither the file nor what is wrong with it
        with reading("graph", f"{bundle.path.name}/{name}"), bundle.file(name).open("rb"):
            pass
    with reading("graph", where), graph_folder(bundle) as folder:
        try:
            model = core().read_model(folder / GRAPH_NAME)
            prepare(model)
            if not packed:
                folding = passes.Manager()
                folding.register_pass(passes.ConstantFolding())
                folding.run_passes(model)
            forms = [_Form(core().compile_model(model, "CPU", options))]
            if alone and forms[0].streams > 1:
                # Of the same model, so that the two have tables and stored weights in common.
                options |= {"NUM_STREAMS": 1, "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_KERNELS_ALONE}
                forms.append(_Form(core().compile_model(model, "CPU", options)))
        except RuntimeError as error:
            raise BundleError("graph", f"{where}: {str(error).strip()}") from error
    del model
    return_freed_memory()
    return forms


@contextmanager
def graph_folder(bundle: Bundle) -> Iterator[Path]:
    """Where OpenVINO reads and compiles a graph: the bundle's folder, or a copy if a weights file is a link.

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


def _rounded(tokens: int, steps: Sequence[tuple[int, int]]) -> int:
    """Up to a multiple of the step of the first bound that is not below the number, or of ``_LAST_STEP``."""
    step = next((step for bound, step in steps if tokens <= bound), _LAST_STEP)
    return -(-tokens // step) * step


def _lengthened(batch: TokenBatch, length: int) -> TokenBatch:
    """With more padding behind each row, of any ids, so that it has ``length`` tokens."""
    rows, longest = batch.input_ids.shape
    if length == longest:
        return batch

    def longer(array: NDArray[np.int64]) -> NDArray[np.int64]:
        made = np.zeros((rows, length), np.int64)
        made[:, :longest] = array
        return made

    return TokenBatch(*(longer(getattr(batch, name)) for name in INPUT_NAMES))

"""Which engine runs a bundle, and in which precision: as set, or the fastest here that passes the checks.

What is measured is kept in a file, so that only the first start with a bundle, a processor and these versions
measures; and of several bundles with the same network only the first one is. A choice that was kept or taken
over is proved by the golden texts like any other.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle, BundleError, Manifest
from model.runtime.compiled_models import CompiledModels
from model.runtime.engine import CPU_PROVIDER, ChangingEngine, Engine, Precision, load_gently
from model.runtime.golden import prove
from model.runtime.processor import Processor, read_processor
from model.runtime.records import FOR_NOW_SECONDS, read_record, write_record
from model.runtime.run_times import compared_times, timed_batch, timed_output, timed_run
from model.runtime.stream_changes import StreamChanges
from model.runtime.tokenization import Tokenizer

logger = logging.getLogger(__name__)

EngineName = Literal["onnxruntime", "openvino"]
How = Literal["only", "measured", "remembered", "unsettled", "unmeasured"]

# Where a run by itself loses nothing by it. What two gain is in bench/README.md (Two streams); more were not
# measured, for want of cores.
_STREAMS: Final = 2
OPENVINO_EXTRA: Final = "pip install -e '.[openvino]' in Conche's folder"
_X86_BFLOAT16: Final = frozenset({"amx_bf16", "avx512_bf16"})
# To be raised with any change of what is measured or how it decides: older files are then passed over.
_PROCEDURE: Final = 5
# Tokens of the texts that are measured: one short text, and such as wait together when there is much to do.
# Alike they never are, and engines differ in what they make of that (`Engine.padding_cost`).
_ALONE: Final = (16,)
_RUNS_ALONE: Final = 3
_TOGETHER: Final = tuple(sorted((*range(26, 38), *range(26, 38))))
# As `service.waiting_room.BatchingLimits` has it: a part of the tokens, or so many.
_MOST_PADDING: Final = 0.05
_FREE_PADDING: Final = 16
# On a quiet machine one second is enough, or two where runs are long.
_MOST_SECONDS_OF_TIMES: Final = 5.0
# Another engine than the first has to be quicker by this much: less is noise, and next time another choice.
_WORTH_A_CHANGE: Final = 0.95
# What an engine that was loaded from an earlier start's work may fail by that work's fault.
_CHECKS_OF_ENGINES: Final = frozenset({"graph", "golden-outputs"})
# Where loading and proving one engine takes this long, the machine is slow or has no time just now: others
# would take as long each, somebody waits for the start, and what was measured would be noise.
_MOST_SECONDS_OF_ONE: Final = 10.0


class EngineUnavailableError(Exception):
    """What was asked for by name is not there; the message says what to install or set."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine and what it computes in."""

    engine: EngineName
    precision: Precision

    def __str__(self) -> str:
        """For logs, ``/info`` and the file of choices."""
        return f"{self.engine} {self.precision}"


@dataclass(frozen=True, slots=True)
class EngineWishes:
    """What the operator asks for.

    Attributes:
        engine: one by name, or ``auto``.
        precision: the same.
        providers: of ONNX Runtime; others than the CPU's leave no choice of engine or precision.
    """

    engine: Literal["auto"] | EngineName = "auto"
    precision: Literal["auto"] | Precision = "auto"
    providers: tuple[str, ...] = (CPU_PROVIDER,)


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What runs a bundle, and why.

    Attributes:
        candidate: what was chosen.
        how: it was the only one there is of what was asked for, was measured now or by an earlier start, was
            the fastest by times that contradict each other, or there was no time to measure it.
        milliseconds: geometric mean of the measured batches' times, by candidate, with this bundle or
            with another of the same network; none if ``only`` or ``unmeasured``.
        refused: candidates that failed one of the bundle's checks, and which one.
    """

    candidate: Candidate
    how: How
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def candidates(
    wishes: EngineWishes, processor: Processor | None = None, folder: Path | None = None
) -> tuple[Candidate, ...]:
    """What this machine has of what is wished for, at least one; the reference first, if it is among them.

    Args:
        wishes: of the operator.
        processor: None = this machine's.
        folder: where what OpenVINO can do is kept; None = it is asked.

    Raises:
        EngineUnavailableError: nothing, or not what is asked for by name.
    """
    processor = processor or read_processor()
    if wishes.providers != (CPU_PROVIDER,):
        _check_providers(wishes.providers)
        if wishes.engine == "openvino" or wishes.precision == "bfloat16":
            raise EngineUnavailableError(
                f"providers {', '.join(wishes.providers)} are ONNX Runtime's, and run in float32; set engine "
                "and precision accordingly, or to auto"
            )
        return (Candidate("onnxruntime", "float32"),)
    found = [
        candidate
        for engine in _engines(wishes.engine)
        for candidate in _precisions(engine, processor, folder)
        if wishes.precision in {"auto", candidate.precision}
    ]
    if not found:
        names = " and ".join(_engines(wishes.engine))
        raise EngineUnavailableError(
            f"{names} cannot compute in {wishes.precision} on this processor ({processor.name}, "
            f"{processor.machine})"
        )
    return tuple(found)


def _check_providers(providers: Sequence[str]) -> None:
    import onnxruntime as ort  # noqa: PLC0415 - 0.07 s and 20 MB, for nothing where OpenVINO runs

    there = ort.get_available_providers()
    if missing := sorted(set(providers) - set(there)):
        raise EngineUnavailableError(
            f"this build of ONNX Runtime has no {', '.join(missing)}; it has {', '.join(there)}"
        )


def _engines(wish: Literal["auto"] | EngineName) -> tuple[EngineName, ...]:
    installed = importlib.util.find_spec("openvino") is not None
    if wish == "openvino" and not installed:
        raise EngineUnavailableError(f"OpenVINO is not installed; it is an extra: {OPENVINO_EXTRA}")
    if wish == "auto":
        return ("onnxruntime", "openvino") if installed else ("onnxruntime",)
    return (wish,)


def _lacks_openvino(wishes: EngineWishes, processor: Processor) -> bool:
    """Whether the processor could do much more with the extra, and the operator leaves the choice to us."""
    free = (wishes.engine, wishes.precision, wishes.providers) == ("auto", "auto", (CPU_PROVIDER,))
    return (
        free
        and processor.machine == "x86_64"
        and not _X86_BFLOAT16.isdisjoint(processor.features)
        and importlib.util.find_spec("openvino") is None
    )


def _precisions(engine: EngineName, processor: Processor, folder: Path | None) -> list[Candidate]:
    if engine == "openvino":
        bfloat16 = _openvino_multiplies_bfloat16(processor, folder)
    else:
        bfloat16 = _onnxruntime_multiplies_bfloat16(processor)
    precisions: Sequence[Precision] = get_args(Precision) if bfloat16 else ("float32",)
    return [Candidate(engine, precision) for precision in precisions]


def _onnxruntime_multiplies_bfloat16(processor: Processor) -> bool:
    """On 64-bit Arm under Linux, with that extension.

    Its x86 build has no such products for float32 graphs. Not tried here, for want of such a machine; what
    comes out passes ``golden.check_alike`` or is not served.
    """
    return processor.system == "Linux" and processor.machine == "aarch64" and "bf16" in processor.features


def _openvino_multiplies_bfloat16(processor: Processor, folder: Path | None) -> bool:
    """As OpenVINO itself says, now or at an earlier start with this version and processor."""
    circumstances = {
        "version": _openvino_version(),
        "processor": processor.name,
        "features": _digest_of_features(processor),
    }
    path = None if folder is None else folder / "openvino.json"
    what = "what OpenVINO can do here"

    def read(record: Any) -> bool:
        return {"bfloat16": True, "no bfloat16": False}[record["has"]]

    if (known := read_record(path, what, circumstances, read)) is not None:
        return known
    # Here and not at the top: it takes a quarter of a second and 25 MB, and need not be installed.
    from model.runtime import openvino_library  # noqa: PLC0415

    has = openvino_library.multiplies_bfloat16()
    write_record(path, what, circumstances, {"has": "bfloat16" if has else "no bfloat16"})
    return has


def _onnxruntime_version() -> str:
    """As ONNX Runtime itself has it, without importing it where its package tells."""
    try:
        return importlib.metadata.version("onnxruntime")
    except importlib.metadata.PackageNotFoundError:  # builds for GPUs are packages of other names
        import onnxruntime as ort  # noqa: PLC0415 - 0.07 s and 20 MB, for nothing where OpenVINO runs

        return str(ort.__version__)


def _openvino_version() -> str:
    """As ``openvino_library.version`` has it, without importing OpenVINO where its package tells."""
    try:
        return importlib.metadata.version("openvino").split("-", 1)[0]
    except importlib.metadata.PackageNotFoundError:  # a folder that no package manager put there
        from model.runtime import openvino_library  # noqa: PLC0415 - see above

        return openvino_library.version()


def _digest_of_features(processor: Processor) -> str:
    return hashlib.sha256(" ".join(sorted(processor.features)).encode()).hexdigest()


def open_engine(
    bundle: Bundle,
    candidate: Candidate,
    *,
    threads: int,
    streams: int | None = 1,
    providers: Sequence[str] = (CPU_PROVIDER,),
    exported: bytes | None = None,
) -> Engine:
    """Load a bundle's graph into an engine that is there; unproved.

    Args:
        bundle: a checked bundle.
        candidate: which engine, and in what.
        threads: of the engine.
        streams: of the engine; None = two where that costs a run by itself nothing, else one.
        providers: of ONNX Runtime.
        exported: by such an engine before; see ``OpenVinoEngine``.

    Raises:
        BundleError: the graph cannot be loaded, or what was exported.
    """
    if candidate.engine == "openvino":
        from model.runtime.openvino_engine import OpenVinoEngine  # noqa: PLC0415 - see above

        return OpenVinoEngine(
            bundle,
            threads=threads,
            streams=streams or 1,
            precision=candidate.precision,
            exported=exported,
        )
    if streams is None:
        streams = min(threads, _STREAMS) if tuple(providers) == (CPU_PROVIDER,) else 1
    from model.runtime.onnxruntime_engine import OnnxRuntimeEngine  # noqa: PLC0415 - it imports onnxruntime

    return OnnxRuntimeEngine(
        bundle, threads=threads, streams=streams, precision=candidate.precision, providers=providers
    )


class EngineChooser:
    """Opens engines for bundles.

    Args:
        wishes: of the operator.
        threads: of each engine.
        streams: of each engine; None = see ``open_engine``.
        folder: where choices are kept, and what engines made of graphs; made when something is. None =
            nowhere.

    Raises:
        EngineUnavailableError: see ``candidates``.
    """

    def __init__(
        self, wishes: EngineWishes, *, threads: int, streams: int | None = 1, folder: Path | None = None
    ) -> None:
        self._processor = read_processor()
        self._candidates = candidates(wishes, self._processor, folder)
        if _lacks_openvino(wishes, self._processor):
            logger.info(
                "this processor has bfloat16, in which OpenVINO, an extra, is faster: %s",
                OPENVINO_EXTRA,
            )
        self._wishes = wishes
        self._threads = threads
        self._streams = streams
        self._folder = folder
        self._compiled = None if folder is None else CompiledModels(folder)
        self._measured: dict[str, EngineChoice] = {}  # by network

    def is_to_measure(self, bundle: Bundle) -> bool:
        """Whether `open` would compare engines for ``bundle``, beside which nothing else should compute."""
        known = len(self._candidates) == 1 or network_key(bundle.manifest) in self._measured
        return not known and self._recall(bundle) is None

    def open(
        self, bundle: Bundle, tokenizer: Tokenizer, *, keep_compiled: bool = False
    ) -> tuple[Engine, EngineChoice]:
        """The engine that runs ``bundle`` from now on, warm, and proved by its golden texts.

        Args:
            bundle: a checked bundle.
            tokenizer: its own.
            keep_compiled: keep what the engine made of the graph for the next start, during which the
                interpreter may stand still for some tenths of a second.

        Raises:
            BundleError: no candidate passes; of several, what the first one failed.
        """
        engine, choice = load_gently(lambda: self._open(bundle, tokenizer))
        if keep_compiled and self._compiled is not None:
            on = self._compiled_on(choice.candidate)
            if on is not None:
                self._compiled.keep(bundle, on, engine)
        return engine, choice

    def stream_changes(self, bundle: Bundle, engine: Engine, choice: EngineChoice) -> StreamChanges | None:
        """What changes the streams of an engine of ``open`` while it serves.

        Returns:
            None: they are set, or the threads cannot be divided among several, or the engine has them for
            good.
        """
        if self._streams is not None or self._threads % _STREAMS or not isinstance(engine, ChangingEngine):
            return None
        return StreamChanges(
            bundle,
            engine,
            most=_STREAMS,
            compiled=self._compiled,
            circumstances=partial(self._compiled_on, choice.candidate),
        )

    def _open(self, bundle: Bundle, tokenizer: Tokenizer) -> tuple[Engine, EngineChoice]:
        name = bundle.manifest.name
        if len(self._candidates) == 1:
            choice = EngineChoice(self._candidates[0], "only")
            return self._proved(bundle, tokenizer, choice.candidate), choice
        if (remembered := self._recall(bundle)) is not None:
            try:
                engine = self._proved(bundle, tokenizer, remembered.candidate)
            except BundleError as error:
                logger.warning("%s: %s, chosen before, is refused now: %s", name, remembered.candidate, error)
            else:
                logger.info("%s runs on %s, measured before", name, remembered.candidate)
                return engine, remembered
        engine, choice = self._taken_over(bundle, tokenizer) or self._measure(bundle, tokenizer)
        if choice.how == "unmeasured":
            logger.warning(
                "%s runs on %s, which took over %g s to load; others are measured at a start with more time",
                name,
                choice.candidate,
                _MOST_SECONDS_OF_ONE,
            )
            return engine, choice
        self._measured.setdefault(network_key(bundle.manifest), choice)
        measured = ", ".join(f"{one} {ms:.1f} ms" for one, ms in choice.milliseconds.items())
        if choice.how == "unsettled":
            logger.warning(
                "%s runs on %s for now; too much else to do here to rely upon what was measured, so a start "
                "in %g minutes or later measures again: %s",
                name,
                choice.candidate,
                FOR_NOW_SECONDS / 60,
                measured,
            )
        else:
            logger.info("%s runs on %s; measured: %s", name, choice.candidate, measured)
        self._keep(bundle, choice)
        return engine, choice

    def _proved(self, bundle: Bundle, tokenizer: Tokenizer, candidate: Candidate) -> Engine:
        on = self._compiled_on(candidate)
        if self._compiled is not None and on is not None:
            exported = self._compiled.read(bundle.digest, on)
            if exported is not None:
                try:
                    return self._opened(bundle, tokenizer, candidate, exported)
                except BundleError as error:
                    if error.check not in _CHECKS_OF_ENGINES:
                        raise
                    name = bundle.manifest.name
                    logger.warning("%s: what was compiled before is made anew: %s", name, error)
                    self._compiled.forget(bundle.digest, on)
        return self._opened(bundle, tokenizer, candidate, None)

    def _opened(
        self, bundle: Bundle, tokenizer: Tokenizer, candidate: Candidate, exported: bytes | None
    ) -> Engine:
        engine = open_engine(
            bundle,
            candidate,
            threads=self._threads,
            streams=self._streams,
            providers=self._wishes.providers,
            exported=exported,
        )
        if self._streams is not None and engine.streams < self._streams:
            logger.warning(
                "%s has %d streams of the %d asked for, since there are no more cores",
                engine.name,
                engine.streams,
                self._streams,
            )
        try:
            prove(bundle, tokenizer, engine)
        except BaseException:
            engine.close()
            raise
        return engine

    def _compiled_on(self, candidate: Candidate, streams: int = 1) -> dict[str, Any] | None:
        """What a compiled model depends on, beside the bundle; None where none is kept."""
        if self._compiled is None or candidate.engine != "openvino" or (self._streams or 1) > 1:
            return None
        from model.runtime.openvino_engine import export_circumstances  # noqa: PLC0415 - it imports OpenVINO

        try:
            of_engine = export_circumstances(
                threads=self._threads, streams=streams, precision=candidate.precision
            )
        except OSError as error:
            logger.warning("what OpenVINO compiles is not kept, for its own code cannot be read: %s", error)
            return None
        return {
            "processor": self._processor.name,
            "features": _digest_of_features(self._processor),
            **of_engine,
        }

    def _taken_over(self, bundle: Bundle, tokenizer: Tokenizer) -> tuple[Engine, EngineChoice] | None:
        """What was measured with another bundle of this network, if this one passes its checks with it."""
        choice = self._measured.get(network_key(bundle.manifest))
        if choice is None:
            return None
        try:
            return self._proved(bundle, tokenizer, choice.candidate), replace(choice, refused={})
        except BundleError as error:
            logger.warning("%s does not run on %s: %s", bundle.manifest.name, choice.candidate, error)
            return None

    def _measure(self, bundle: Bundle, tokenizer: Tokenizer) -> tuple[Engine, EngineChoice]:
        began = time.monotonic()
        engines: dict[Candidate, Engine] = {}
        errors: dict[Candidate, BundleError] = {}
        try:
            for candidate in self._candidates:
                if len(engines) == 1 and time.monotonic() - began > _MOST_SECONDS_OF_ONE:
                    only, engine = engines.popitem()
                    return engine, EngineChoice(only, "unmeasured", refused=_checks(errors))
                try:
                    engines[candidate] = self._proved(bundle, tokenizer, candidate)
                except BundleError as error:
                    errors[candidate] = error
                    logger.warning("%s does not run on %s: %s", bundle.manifest.name, candidate, error)
            if not engines:
                raise next(iter(errors.values()))
            times, plain = measure(engines, bundle.manifest, tokenizer.pad_token_id)
            chosen = fastest(times)
            engine = engines.pop(chosen)
        finally:
            for other in engines.values():
                other.close()
            engines.clear()
            return_freed_memory()
        return engine, EngineChoice(
            chosen,
            "measured" if plain else "unsettled",
            {str(candidate): round(1e3 * seconds, 3) for candidate, seconds in times.items()},
            _checks(errors),
        )

    def _path(self, bundle: Bundle) -> Path | None:
        return None if self._folder is None else self._folder / f"{bundle.digest}.json"

    def _circumstances(self) -> dict[str, Any]:
        """What a choice depends on, beside the bundle."""
        versions = {"onnxruntime": _onnxruntime_version()}
        if any(candidate.engine == "openvino" for candidate in self._candidates):
            versions["openvino"] = _openvino_version()
        return {
            "procedure": _PROCEDURE,
            "processor": self._processor.name,
            "features": _digest_of_features(self._processor),
            "threads": self._threads,
            "streams": self._streams,
            "versions": versions,
            "candidates": [str(candidate) for candidate in self._candidates],
        }

    def _recall(self, bundle: Bundle) -> EngineChoice | None:
        """The choice kept for these circumstances; a file that cannot be read can be made again."""

        def read(record: Any) -> EngineChoice | None:
            candidate = Candidate(**record["chosen"])
            milliseconds = {str(key): float(value) for key, value in record["milliseconds"].items()}
            refused = {str(key): str(value) for key, value in record["refused"].items()}
            if candidate not in self._candidates:
                return None
            return EngineChoice(candidate, "remembered", milliseconds, refused)

        return read_record(self._path(bundle), "engine choice", self._circumstances(), read)

    def _keep(self, bundle: Bundle, choice: EngineChoice) -> None:
        record = {
            "chosen": asdict(choice.candidate),
            "milliseconds": dict(choice.milliseconds),
            "refused": dict(choice.refused),
        }
        write_record(
            self._path(bundle),
            "engine choice",
            self._circumstances(),
            record,
            for_now=choice.how == "unsettled",
        )


def _checks(errors: Mapping[Candidate, BundleError]) -> dict[str, str]:
    return {str(candidate): error.check for candidate, error in errors.items()}


def network_key(manifest: Manifest) -> str:
    """Names what an engine's speed depends on, near enough: how weights are stored moves it by an eighth."""
    return manifest.architecture.model_dump_json(exclude={"parameters", "vocab_size"})


def measure(
    engines: Mapping[Candidate, Engine], manifest: Manifest, pad_token_id: int
) -> tuple[dict[Candidate, float], bool]:
    """Time each engine: the geometric mean over one text by itself and several together.

    Each gets texts in batches as it would get them at work, as many at a time as it has streams.

    Returns:
        Seconds of each, and whether to rely upon them: see ``compared_times``.
    """
    output = timed_output(manifest)
    alone = timed_batch(manifest, _ALONE, pad_token_id)
    with ThreadPoolExecutor(max(engine.streams for engine in engines.values())) as callers:

        def timer(engine: Engine) -> Callable[[], float]:
            together = [
                timed_batch(manifest, lengths, pad_token_id)
                for lengths in grouped(_TOGETHER, engine.padding_cost)
            ]

            def run() -> float:
                # Several, since it is as much of the mean as all of the others.
                by_itself = statistics.median(timed_run(engine, alone, output) for _ in range(_RUNS_ALONE))
                others = sum(timed_run(engine, batch, output, callers) for batch in together)
                return math.sqrt(by_itself * others / engine.streams)

            return run

        return compared_times(
            {candidate: timer(engine) for candidate, engine in engines.items()},
            fastest,
            most_seconds=_MOST_SECONDS_OF_TIMES,
        )


def grouped(lengths: Sequence[int], padding_cost: float) -> list[list[int]]:
    """Batches of neighbours in length whose padding costs little.

    Args:
        lengths: ascending.
        padding_cost: of a token of padding, beside one of a text.
    """
    groups: list[list[int]] = [[]]
    for length in lengths:
        rows = [*groups[-1], length]
        padding = padding_cost * (len(rows) * length - sum(rows))
        if padding > max(_FREE_PADDING, _MOST_PADDING * sum(rows)):
            groups.append([length])
        else:
            groups[-1] = rows
    return groups


def fastest(times: Mapping[Candidate, float]) -> Candidate:
    """The candidate to take: the first, unless another is quicker by more than noise."""
    chosen, *others = times
    for other in others:
        if times[other] < times[chosen] * _WORTH_A_CHANGE:
            chosen = other
    return chosen

"""The fastest engine that passes the checks runs and is remembered; what is asked for by name is there."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model.runtime import (
    compiled_models,
    engine_choice,
    onnxruntime_engine,
    openvino_engine,
    openvino_library,
)
from model.runtime.bundle import Bundle, BundleError
from model.runtime.engine import CPU_PROVIDER, Engine, TokenBatch, pad_batch
from model.runtime.engine_choice import (
    Candidate,
    EngineChoice,
    EngineChooser,
    EngineUnavailableError,
    EngineWishes,
    candidates,
    fastest,
    grouped,
    measure,
    open_engine,
)
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.openvino_engine import OpenVinoEngine
from model.runtime.processor import Processor, read_processor
from model.runtime.stream_changes import StreamChanges
from model.runtime.tokenization import Tokenizer
from tests.bundles import write_tiny_embedding_bundle
from tests.fakes import HANG_LIMIT_S, FakeEngine

ORT = Candidate("onnxruntime", "float32")
OPENVINO = Candidate("openvino", "float32")
OPENVINO_BF16 = Candidate("openvino", "bfloat16")
IN_FLOAT32 = EngineWishes(precision="float32")
PLAIN = Processor("some", "Linux", "x86_64", frozenset({"avx2"}))
ARM = Processor("some", "Linux", "aarch64", frozenset({"bf16"}))


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "openvino" else object())


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Say whether OpenVINO finds bfloat16 in the processor."""
    return lambda has: monkeypatch.setattr(openvino_library, "multiplies_bfloat16", lambda: has)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """The tiny embedding bundle."""
    return Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny"))


@pytest.mark.parametrize(
    ("wishes", "has", "expected"),
    [
        (EngineWishes(), False, (ORT, OPENVINO)),
        (EngineWishes(), True, (ORT, OPENVINO, OPENVINO_BF16)),
        (EngineWishes("openvino"), True, (OPENVINO, OPENVINO_BF16)),
        (EngineWishes(precision="bfloat16"), True, (OPENVINO_BF16,)),
        (EngineWishes("onnxruntime"), True, (ORT,)),
        (EngineWishes(precision="float32"), True, (ORT, OPENVINO)),
    ],
)
def test_candidates_are_what_is_wished_for_and_there(
    bfloat16: Callable[[bool], None], wishes: EngineWishes, has: bool, expected: tuple[Candidate, ...]
) -> None:
    """The reference comes first: it is the one to keep when nothing is gained."""
    bfloat16(has)
    assert candidates(wishes, PLAIN) == expected


def test_openvino_is_asked_once_for_what_it_can_do(
    bfloat16: Callable[[bool], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To import it takes memory and time, even where another engine is chosen."""
    bfloat16(True)
    found = candidates(EngineWishes(), PLAIN, tmp_path)
    assert OPENVINO_BF16 in found
    bfloat16(False)
    assert candidates(EngineWishes(), PLAIN, tmp_path) == found
    assert OPENVINO_BF16 not in candidates(EngineWishes(), ARM, tmp_path)
    monkeypatch.setattr(engine_choice, "_openvino_version", lambda: "2099.1")
    assert OPENVINO_BF16 not in candidates(EngineWishes(), PLAIN, tmp_path)
    (tmp_path / "openvino.json").write_text('{"circumstances": {}}', encoding="utf-8")
    assert OPENVINO_BF16 not in candidates(EngineWishes(), PLAIN, tmp_path)


def test_onnx_runtimes_bfloat16_is_arms(bfloat16: Callable[[bool], None]) -> None:
    """There OpenVINO may have none."""
    bfloat16(False)
    wishes = EngineWishes(precision="bfloat16")
    assert candidates(wishes, ARM) == (Candidate("onnxruntime", "bfloat16"),)


@pytest.mark.parametrize(
    ("machine", "features", "offered"),
    [("aarch64", "fp asimd bf16", True), ("aarch64", "fp asimd", False), ("x86_64", "avx512_bf16", False)],
)
def test_onnx_runtime_has_bfloat16_on_arm_only(machine: str, features: str, offered: bool) -> None:
    """On x86 the option would be accepted, ignored, and reported as bfloat16 all the same."""
    processor = Processor("some", "Linux", machine, frozenset(features.split()))
    found = candidates(EngineWishes("onnxruntime"), processor)
    assert (Candidate("onnxruntime", "bfloat16") in found) is offered


@pytest.mark.usefixtures("without_openvino")
def test_openvino_is_an_extra() -> None:
    """Asked for by name its absence is told, with what to do; else there is the reference."""
    assert candidates(EngineWishes(), PLAIN) == (ORT,)
    with pytest.raises(EngineUnavailableError, match=r"pip install -e '\.\[openvino\]'"):
        candidates(EngineWishes("openvino"), PLAIN)


@pytest.mark.usefixtures("without_openvino")
@pytest.mark.parametrize(
    ("wishes", "features", "told"),
    [
        (EngineWishes(), {"avx2", "amx_bf16"}, True),
        (EngineWishes(), {"avx512_bf16"}, True),
        (EngineWishes(), {"avx2"}, False),
        (EngineWishes("onnxruntime"), {"amx_bf16"}, False),
        (EngineWishes(precision="float32"), {"amx_bf16"}, False),
    ],
)
def test_a_processor_that_could_do_more_with_the_extra_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wishes: EngineWishes,
    features: set[str],
    told: bool,
) -> None:
    """Somebody who chose has no need of advice."""
    processor = Processor("some", "Linux", "x86_64", frozenset(features))
    monkeypatch.setattr("model.runtime.engine_choice.read_processor", lambda: processor)
    with caplog.at_level("INFO", "model.runtime.engine_choice"):
        EngineChooser(wishes, threads=1)
    assert ("pip install -e '.[openvino]'" in caplog.text) == told


@pytest.mark.parametrize("engine", ["auto", "openvino", "onnxruntime"])
def test_bfloat16_by_name_where_there_is_none_is_told(bfloat16: Callable[[bool], None], engine: str) -> None:
    """OpenVINO would take the wish, compute in float32 and say nothing."""
    bfloat16(False)
    with pytest.raises(EngineUnavailableError, match=r"bfloat16 on this processor \(some, x86_64\)"):
        candidates(EngineWishes(engine, "bfloat16"), PLAIN)  # type: ignore[arg-type]


def test_providers_leave_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a GPU wants that; a measurement on the CPU beside it would say nothing."""
    there = ["CUDAExecutionProvider", CPU_PROVIDER]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: there)
    assert candidates(EngineWishes(providers=tuple(there)), PLAIN) == (ORT,)
    with pytest.raises(EngineUnavailableError, match="ONNX Runtime's, and run in float32"):
        candidates(EngineWishes("openvino", providers=tuple(there)), PLAIN)


def test_a_provider_that_the_build_lacks_is_told() -> None:
    """ONNX Runtime itself would warn, and go on with the CPU."""
    with pytest.raises(EngineUnavailableError, match=f"no NpuExecutionProvider; it has .*{CPU_PROVIDER}"):
        candidates(EngineWishes(providers=("NpuExecutionProvider",)), PLAIN)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({ORT: 1.0, OPENVINO: 0.97}, ORT),
        ({ORT: 1.0, OPENVINO: 0.9}, OPENVINO),
        ({ORT: 1.0, OPENVINO: 0.9, OPENVINO_BF16: 0.87}, OPENVINO),
        ({ORT: 1.0, OPENVINO: 2.0, OPENVINO_BF16: 0.5}, OPENVINO_BF16),
        ({OPENVINO: 1.0}, OPENVINO),
    ],
)
def test_a_change_has_to_be_worth_it(times: Mapping[Candidate, float], expected: Candidate) -> None:
    """Within noise the reference stays, or each machine of a fleet would choose another."""
    assert fastest(times) == expected


def test_engines_take_turns_at_being_measured(bundle: Bundle) -> None:
    """Whatever else runs on the machine meanwhile slows all; each gets its batches as it would at work."""
    order: list[str] = []

    class Noting(FakeEngine):
        def run(self, batch: object, outputs: object) -> object:  # type: ignore[override]
            order.append(self.name)
            return super().run(batch, outputs)  # type: ignore[arg-type]

    engines: dict[Candidate, Engine] = {ORT: Noting("a"), OPENVINO: Noting("b", padding_cost=0.2)}
    times, _ = measure(engines, bundle.manifest, 0)
    assert list(times) == [ORT, OPENVINO]
    assert all(np.isfinite(seconds) and seconds > 0 for seconds in times.values())
    # Alone three times, and together in batches of four lengths or in one.
    assert order[:20] == 2 * (["a"] * 6 + ["b"] * 4)


def test_several_streams_are_measured_at_a_time_and_a_text_by_itself(bundle: Bundle) -> None:
    """As it is at work: together they have the cores, and a lone text has all of them."""
    at_work, most = 0, {True: 0, False: 0}
    lock = threading.Lock()

    class Counting(FakeEngine):
        def run(self, batch: TokenBatch, outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
            nonlocal at_work
            alone = len(batch.input_ids) == 1
            with lock:
                at_work += 1
                most[alone] = max(most[alone], at_work)
            time.sleep(0.002)
            try:
                return super().run(batch, outputs)
            finally:
                with lock:
                    at_work -= 1

    measure({ORT: Counting(streams=2)}, bundle.manifest, 0)
    assert most == {True: 1, False: 2}


@pytest.mark.parametrize(
    ("candidate", "threads", "asked", "expected"),
    [
        (ORT, 4, None, 2),
        (ORT, 1, None, 1),
        (ORT, 4, 3, 3),
        (ORT, 2, 1, 1),
        (OPENVINO, 2, None, 1),
        (OPENVINO, 2, 2, 2),
    ],
)
def test_two_streams_where_they_cost_a_lone_text_nothing(
    bundle: Bundle, candidate: Candidate, threads: int, asked: int | None, expected: int
) -> None:
    """Unless a number is asked for."""
    engine = open_engine(bundle, candidate, threads=threads, streams=asked)
    assert (engine.threads, engine.streams) == (threads, expected)


def test_on_other_providers_there_is_one_stream(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs on one GPU were not tried."""
    opened: dict[str, object] = {}
    monkeypatch.setattr(onnxruntime_engine, "OnnxRuntimeEngine", lambda _, **how: opened.update(how))
    open_engine(bundle, ORT, threads=4, streams=None, providers=("CUDAExecutionProvider", CPU_PROVIDER))
    assert opened["streams"] == 1


@given(st.lists(st.integers(1, 99), min_size=1, max_size=40), st.sampled_from((0.0, 0.2, 1.0)))
def test_texts_are_measured_in_batches_of_little_padding(lengths: list[int], cost: float) -> None:
    """Each once, and no fewer together than may be."""
    lengths.sort()
    groups = grouped(lengths, cost)
    assert [length for group in groups for length in group] == lengths

    def costs_little(group: list[int]) -> bool:
        return cost * (len(group) * max(group) - sum(group)) <= max(16, 0.05 * sum(group))

    assert all(costs_little(group) for group in groups)
    assert not any(costs_little([*group, after[0]]) for group, after in pairwise(groups))


class Scene:
    """An ``EngineChooser`` over the real engines, with times that the test sets."""

    def __init__(self, bundle: Bundle, folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Note what is opened and measured."""
        self.bundle, self.folder = bundle, folder
        self.tokenizer = Tokenizer.from_bundle(bundle)
        self.times = {ORT: 1.0, OPENVINO: 0.5}
        self.agreed = True
        self.measured: list[list[Candidate]] = []
        self.closed: list[str] = []
        monkeypatch.setattr(engine_choice, "measure", self._measure)
        for kind in (OnnxRuntimeEngine, OpenVinoEngine):
            monkeypatch.setattr(kind, "close", self._close)

    def _measure(
        self, engines: Mapping[Candidate, Engine], *_: object
    ) -> tuple[dict[Candidate, float], bool]:
        self.measured.append(list(engines))
        return {candidate: self.times[candidate] for candidate in engines}, self.agreed

    def _close(self, engine: Engine | None = None) -> None:
        self.closed.append("closed")

    def open(self, wishes: EngineWishes = IN_FLOAT32, *, keep: bool = False) -> tuple[Engine, EngineChoice]:
        """Start anew."""
        chooser = EngineChooser(wishes, threads=1, folder=self.folder)
        return chooser.open(self.bundle, self.tokenizer, keep_compiled=keep)


@pytest.fixture
def scene(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """With a folder for choices that is not there yet."""
    return Scene(bundle, tmp_path / "data" / "engines", monkeypatch)


def test_the_fastest_runs_and_the_others_are_closed(scene: Scene) -> None:
    """Their weights would stay in memory otherwise."""
    engine, choice = scene.open()
    assert engine.name.startswith("openvino ")
    assert (choice.candidate, choice.how) == (OPENVINO, "measured")
    assert choice.milliseconds == {"onnxruntime float32": 1000.0, "openvino float32": 500.0}
    assert len(scene.closed) == 1


def test_one_candidate_is_not_measured(scene: Scene) -> None:
    """Nor is anything written: there is nothing to remember."""
    engine, choice = scene.open(EngineWishes("onnxruntime", "float32"))
    assert (engine.precision, choice) == ("float32", EngineChoice(ORT, "only"))
    assert scene.measured == []
    assert scene.folder is not None
    assert not scene.folder.exists()


def test_a_second_start_remembers(scene: Scene) -> None:
    """With the times, which ``/info`` goes on telling."""
    first = scene.open()[1]
    engine, choice = scene.open()
    assert len(scene.measured) == 1
    assert engine.name.startswith("openvino ")
    assert choice == EngineChoice(OPENVINO, "remembered", first.milliseconds)


def test_onnx_runtime_is_not_imported_where_openvino_is_remembered(scene: Scene) -> None:
    """20 MiB, and not needed to tell that the choice is of this version."""
    scene.open()
    program = f"""
import sys
from pathlib import Path
from model.runtime.bundle import Bundle
from model.runtime.engine_choice import EngineChooser, EngineWishes
from model.runtime.tokenization import Tokenizer

bundle = Bundle.load(Path({str(scene.bundle.path)!r}))
chooser = EngineChooser(EngineWishes(precision="float32"), threads=1, folder=Path({str(scene.folder)!r}))
engine, choice = chooser.open(bundle, Tokenizer.from_bundle(bundle))
print(engine.name.split()[0], choice.how, "onnxruntime" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=3 * HANG_LIMIT_S,
    )
    assert done.stdout.strip() == "openvino remembered False"


@pytest.mark.parametrize("package", ["onnxruntime", "onnxruntime-gpu"])
def test_choices_are_kept_with_the_version_that_onnx_runtime_tells(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Whatever its package is called; those kept before it was asked for remain good."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "onnxruntime" != package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    scene.open()
    assert scene.folder is not None
    [path] = scene.folder.glob(f"{scene.bundle.digest}.json")
    [record] = json.loads(path.read_bytes())
    assert record["circumstances"]["versions"]["onnxruntime"] == ort.__version__


def test_a_choice_is_for_its_circumstances(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data folder moves to other machines, and images to other versions."""
    scene.open()
    real = engine_choice.read_processor
    monkeypatch.setattr(engine_choice, "_openvino_version", lambda: "2099.1")
    scene.open()
    monkeypatch.setattr(engine_choice, "read_processor", lambda: PLAIN)
    scene.open()
    scene.open()
    assert len(scene.measured) == 3
    monkeypatch.setattr(engine_choice, "read_processor", real)  # back on the first machine
    assert scene.open()[1].how == "remembered"


@pytest.mark.parametrize("content", ["", "[]", '{"circumstances": 1}', "\x00"])
def test_a_damaged_file_is_made_anew(scene: Scene, content: str) -> None:
    """It is a cache: nothing is lost with it."""
    scene.open()
    assert scene.folder is not None
    path = scene.folder / f"{scene.bundle.digest}.json"
    path.write_text(content, encoding="utf-8")
    assert scene.open()[1].how == "measured"
    record, *_ = json.loads(path.read_bytes())
    assert record["chosen"] == {"engine": "openvino", "precision": "float32"}


def test_a_folder_that_takes_nothing_is_no_error(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only volume must not keep a service from starting."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "engines", None):
        assert Scene(bundle, folder, monkeypatch).open()[1].how == "measured"


def refuse(monkeypatch: pytest.MonkeyPatch, *refused: str) -> None:
    """Let engines whose name begins with one of these fail the golden texts."""
    real = engine_choice.prove

    def prove(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> None:
        if engine.name.startswith(refused):
            raise BundleError("golden-outputs", f"{engine.name} is off")
        real(bundle, tokenizer, engine)

    monkeypatch.setattr(engine_choice, "prove", prove)


def test_what_fails_the_golden_texts_is_left_out_however_fast(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And told by name and check."""
    refuse(monkeypatch, "openvino")
    engine, choice = scene.open()
    assert engine.name.startswith("onnxruntime ")
    assert scene.measured == [[ORT]]
    assert choice.refused == {"openvino float32": "golden-outputs"}
    assert scene.open()[1] == EngineChoice(ORT, "remembered", choice.milliseconds, choice.refused)


def test_a_remembered_engine_that_fails_now_is_not_kept(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was right on one start need not be on the next: a driver, a library that was replaced."""
    scene.open()
    refuse(monkeypatch, "openvino")
    engine, choice = scene.open()
    assert engine.name.startswith("onnxruntime ")
    assert choice.how == "measured"


def test_a_bundle_that_nothing_passes_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference's fault, which is the one that says most."""
    refuse(monkeypatch, "openvino", "onnxruntime")
    with pytest.raises(BundleError, match=r"onnxruntime .* is off"):
        scene.open()
    assert len(scene.closed) == 2


def test_a_second_bundle_of_the_same_network_is_not_measured(scene: Scene, tmp_path: Path) -> None:
    """The default models are such a pair, and their first start should not take twice the time."""
    chooser = EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder)
    first = chooser.open(scene.bundle, scene.tokenizer)[1]
    other = Bundle.load(write_tiny_embedding_bundle(tmp_path / "other", name="other", seed=8))

    engine, choice = chooser.open(other, Tokenizer.from_bundle(other))

    assert engine.name.startswith("openvino ")
    assert choice == first
    assert len(scene.measured) == 1
    assert EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder).open(other, scene.tokenizer)[1].how == (
        "remembered"
    )


def test_what_is_to_be_measured_is_known_before(scene: Scene, tmp_path: Path) -> None:
    """Whoever is about to have other things computed can wait."""
    other = Bundle.load(write_tiny_embedding_bundle(tmp_path / "other", name="other", seed=8))
    chooser = EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder)
    assert chooser.is_to_measure(scene.bundle)
    assert not EngineChooser(EngineWishes("onnxruntime", "float32"), threads=1).is_to_measure(other)
    assert scene.measured == []
    chooser.open(scene.bundle, scene.tokenizer)
    assert not chooser.is_to_measure(scene.bundle)
    assert not chooser.is_to_measure(other), "it has the same network"
    later = EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder)
    assert not later.is_to_measure(scene.bundle)
    assert later.is_to_measure(other)


def test_what_is_taken_over_is_proved(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may do for one bundle, and not for another."""
    chooser = EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder)
    chooser.open(scene.bundle, scene.tokenizer)
    other = Bundle.load(write_tiny_embedding_bundle(tmp_path / "other", name="other", seed=8))
    refuse(monkeypatch, "openvino")

    engine, choice = chooser.open(other, Tokenizer.from_bundle(other))

    assert engine.name.startswith("onnxruntime ")
    assert choice.refused == {"openvino float32": "golden-outputs"}


def test_a_machine_without_time_takes_the_reference_for_now(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that outlasts a health check is worse than a slower engine; the next start measures."""
    with monkeypatch.context() as patched:
        patched.setattr(engine_choice, "_MOST_SECONDS_OF_ONE", -1.0)
        engine, choice = scene.open()
        assert engine.name.startswith("onnxruntime ")
        assert choice == EngineChoice(ORT, "unmeasured")
        assert scene.measured == []
        assert scene.closed == []
    assert scene.open()[1].how == "measured"


def test_times_that_do_not_agree_choose_for_now(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine that is busy during the first start would have the wrong engine for good."""
    scene.agreed = False
    chooser = EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder)
    with caplog.at_level(logging.WARNING):
        assert chooser.open(scene.bundle, scene.tokenizer)[1].how == "unsettled"
    assert "onnxruntime float32 1000.0 ms, openvino float32 500.0 ms" in caplog.text
    assert scene.folder is not None
    # The other workers of this start do the same; a later one measures.
    assert not EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder).is_to_measure(scene.bundle)
    assert scene.open()[1].how == "remembered"
    assert len(scene.measured) == 1
    scene.agreed, scene.times = True, {ORT: 0.5, OPENVINO: 1.0}
    now = time.time()
    monkeypatch.setattr("model.runtime.records.time.time", lambda: now + 601)
    assert EngineChooser(IN_FLOAT32, threads=1, folder=scene.folder).is_to_measure(scene.bundle)
    engine, choice = scene.open()
    assert engine.name.startswith("onnxruntime ")
    assert choice.how == "measured"


def test_threads_of_a_chosen_engine_give_way_once(bundle: Bundle, tmp_path: Path) -> None:
    """Twice as nice, they were seen to starve the thread that waits for them."""
    program = f"""
import os
from pathlib import Path
from model.runtime.bundle import Bundle
from model.runtime.engine_choice import EngineChooser, EngineWishes
from model.runtime.tokenization import Tokenizer

bundle = Bundle.load(Path({str(bundle.path)!r}))
for engine in ("onnxruntime", "auto"):
    EngineChooser(EngineWishes(engine), threads=2).open(bundle, Tokenizer.from_bundle(bundle))
nice = set()
for task in Path("/proc/self/task").iterdir():
    try:
        nice.add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    except ProcessLookupError:  # it ended just now
        pass
print(max(nice) == min(19, os.nice(0) + 10))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def compiled_files(scene: Scene) -> list[Path]:
    """What is kept of models."""
    assert scene.folder is not None
    return sorted(scene.folder.glob("*.compiled"))


def vectors(engine: Engine) -> NDArray[np.float32]:
    """Of some tokens."""
    return engine.run(two_rows(), ["embeddings_mean"])["embeddings_mean"]


def two_rows() -> TokenBatch:
    """Two rows, one of them padded."""
    return pad_batch([np.array([2, 5, 3]), np.array([2, 3])], 0)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The bundles that OpenVINO compiles."""
    real, compiled = openvino_engine._compile, []

    def compile_(bundle: Bundle, *arguments: Any, **how: Any) -> Any:
        compiled.append(bundle.manifest.name)
        return real(bundle, *arguments, **how)

    monkeypatch.setattr(openvino_engine, "_compile", compile_)
    return compiled


BY_OPENVINO = EngineWishes("openvino", "float32")


def test_a_later_start_need_not_compile(scene: Scene, compilations: list[str]) -> None:
    """What it loads gives the same numbers, and nothing is written anew."""
    first, _ = scene.open(BY_OPENVINO, keep=True)
    (kept,) = compiled_files(scene)
    written = kept.read_bytes()
    second, _ = scene.open(BY_OPENVINO, keep=True)
    assert compilations == ["tiny-embedding"]
    assert second.name == first.name
    np.testing.assert_array_equal(vectors(second), vectors(first))
    assert second.export() is None
    assert (compiled_files(scene), kept.read_bytes()) == ([kept], written)


def test_only_what_was_chosen_is_kept(scene: Scene, compilations: list[str]) -> None:
    """Of several that were measured the others will not be loaded again."""
    scene.times = {ORT: 0.5, OPENVINO: 1.0}
    scene.open(keep=True)
    assert compiled_files(scene) == []
    assert compilations == ["tiny-embedding"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[:-100],
        lambda content: content[:40],
        lambda content: b"",
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        lambda content: hashlib.sha256(b"no model").digest() + b"no model",
    ],
)
def test_what_is_damaged_is_compiled_anew(
    scene: Scene, compilations: list[str], spoil: Callable[[bytes], bytes]
) -> None:
    """A process that was killed, or a disk, left it so; OpenVINO itself may crash at it."""
    engine, _ = scene.open(BY_OPENVINO, keep=True)
    (kept,) = compiled_files(scene)
    whole = kept.read_bytes()
    kept.write_bytes(spoil(whole))
    again, _ = scene.open(BY_OPENVINO, keep=True)
    assert len(compilations) == 2
    np.testing.assert_array_equal(vectors(again), vectors(engine))
    scene.open(BY_OPENVINO, keep=True)
    assert len(compilations) == 2


def test_what_computes_otherwise_is_compiled_anew(
    scene: Scene, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The golden texts prove what was kept like anything else; the start does not fail for it."""
    scene.open(BY_OPENVINO, keep=True)
    real = engine_choice.prove

    def prove(bundle: Bundle, tokenizer: Tokenizer, engine: Engine) -> None:
        if len(compilations) == 1:
            raise BundleError("golden-outputs", "another vector")
        real(bundle, tokenizer, engine)

    monkeypatch.setattr(engine_choice, "prove", prove)
    scene.open(BY_OPENVINO)
    assert len(compilations) == 2
    assert compiled_files(scene) == []


def test_what_fails_for_another_reason_stays(
    scene: Scene, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tokenizer that reads otherwise, say, is no fault of the engine's, nor mended by compiling."""
    scene.open(BY_OPENVINO, keep=True)

    def prove(*_: object) -> None:
        raise BundleError("golden-tokens", "other tokens")

    monkeypatch.setattr(engine_choice, "prove", prove)
    with pytest.raises(BundleError, match="other tokens"):
        scene.open(BY_OPENVINO)
    assert len(compilations) == 1
    assert len(compiled_files(scene)) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_it_is_kept_at_a_start_only(scene: Scene, keep: bool) -> None:
    """Exporting holds the interpreter's lock, which others want who are being served."""
    scene.open(BY_OPENVINO, keep=keep)
    assert len(compiled_files(scene)) == keep


def test_nothing_is_exported_that_will_not_be_kept(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model too large for the folder would be written to memory at each start, in vain."""
    exports: list[object] = []
    monkeypatch.setattr(OpenVinoEngine, "export", exports.append)
    monkeypatch.setattr(compiled_models, "_MOST_BYTES", 1000)
    scene.open(BY_OPENVINO, keep=True)
    assert exports == []


def test_code_that_cannot_be_read_is_no_error(
    scene: Scene, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an archive; then nothing is kept, since nobody knew what it is of."""
    monkeypatch.setattr(openvino_engine.openvino_graph, "__file__", "/no/such/file.py")
    scene.open(BY_OPENVINO, keep=True)
    assert len(compilations) == 1
    assert compiled_files(scene) == []


@pytest.mark.parametrize(
    "changed",
    [
        (openvino_engine.ov, "__version__", "2099.1"),
        (openvino_engine, "_KEPT_KERNELS", 77),
        (engine_choice, "_digest_of_features", lambda _: "others"),
        (engine_choice, "read_processor", lambda: replace(read_processor(), name="another")),
        (openvino_engine.openvino_graph, "__file__", __file__),
        (openvino_engine, "__file__", __file__),
    ],
)
def test_other_circumstances_compile_anew(
    scene: Scene, compilations: list[str], monkeypatch: pytest.MonkeyPatch, changed: tuple[Any, str, Any]
) -> None:
    """A new version, setting or processor; a change that is taken back finds its own again."""
    scene.open(BY_OPENVINO, keep=True)
    with monkeypatch.context() as other:
        other.setattr(*changed)
        scene.open(BY_OPENVINO, keep=True)
    assert len(compilations) == 2
    scene.open(BY_OPENVINO, keep=True)
    assert len(compilations) == 2


def test_threads_streams_and_precision_are_circumstances() -> None:
    """A model is compiled for them."""
    of = openvino_engine.export_circumstances
    as_it_is = of(threads=2, streams=1, precision="float32")
    assert as_it_is == of(threads=2, streams=1, precision="float32")
    assert as_it_is != of(threads=1, streams=1, precision="float32")
    assert as_it_is != of(threads=2, streams=2, precision="float32")
    assert as_it_is != of(threads=2, streams=1, precision="bfloat16")


def test_nothing_is_kept_of_several_streams(bundle: Bundle, tmp_path: Path) -> None:
    """Their two forms share weights only if they are compiled together. Needs two cores, as streams do."""
    chooser = EngineChooser(BY_OPENVINO, threads=2, streams=2, folder=tmp_path)
    chooser.open(bundle, Tokenizer.from_bundle(bundle), keep_compiled=True)
    assert not list(tmp_path.glob("*.compiled"))


# -- streams that are changed while the engine serves -----------------------------------------------------


def open_changing(bundle: Bundle, folder: Path | None) -> tuple[Engine, StreamChanges]:
    """An engine, and what changes its streams. Needs two cores, as streams do."""
    chooser = EngineChooser(BY_OPENVINO, threads=2, streams=None, folder=folder)
    engine, choice = chooser.open(bundle, Tokenizer.from_bundle(bundle), keep_compiled=True)
    changes = chooser.stream_changes(bundle, engine, choice)
    assert changes is not None
    return engine, changes


@pytest.mark.parametrize("kept", [True, False])
def test_a_change_is_compiled_once_where_it_is_kept(
    bundle: Bundle, tmp_path: Path, compilations: list[str], kept: bool
) -> None:
    """Also by later processes; the first form comes from what the start kept."""
    folder = tmp_path / "engines" if kept else None
    engine, changes = open_changing(bundle, folder)
    assert (changes.most, changes.wanted, engine.streams) == (2, 1, 1)
    before = vectors(engine)
    counts = []
    for streams in (2, 2, 1, 2):
        changes.change(streams)
        assert (changes.wanted, engine.streams) == (streams, streams)
        np.testing.assert_array_equal(vectors(engine), before)
        counts.append(len(compilations))
    assert counts == ([2, 2, 2, 2] if kept else [2, 2, 3, 4])
    engine, changes = open_changing(bundle, folder)
    changes.change(2)
    assert len(compilations) == (2 if kept else 6)


def test_a_damaged_form_is_compiled_anew_at_a_change(
    bundle: Bundle, tmp_path: Path, compilations: list[str]
) -> None:
    """Whether its digest tells, or the engine."""
    engine, changes = open_changing(bundle, tmp_path / "engines")
    (alone,) = (tmp_path / "engines").glob("*.compiled")
    changes.change(2)
    assert set((tmp_path / "engines").glob("*.compiled")) == {alone}  # not while it has much to do
    changes.change(1)
    (form,) = set((tmp_path / "engines").glob("*.compiled")) - {alone}
    whole = form.read_bytes()
    for content in (whole[:-9], hashlib.sha256(b"no model").digest() + b"no model"):
        form.write_bytes(content)
        compilations.clear()
        changes.change(2)
        assert (engine.streams, compilations) == (2, ["tiny-embedding"])
        changes.change(1)
        assert form.read_bytes()[:32] == hashlib.sha256(form.read_bytes()[32:]).digest()


def test_what_cannot_be_kept_is_not_tried_again_and_again(
    bundle: Bundle, tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change would have the interpreter stand still, and a line in the log."""
    engine, changes = open_changing(bundle, tmp_path / "engines")
    asked: list[object] = []

    def takes(*arguments: object) -> bool:
        asked.append(arguments)
        return False

    monkeypatch.setattr(compiled_models.CompiledModels, "takes", takes)
    for streams in (2, 1, 2, 1):
        changes.change(streams)
    assert len(asked) == 1
    assert engine.export() is None  # the first form was kept by the start, and is loaded from that
    assert len(compilations) == 3


def test_no_more_streams_are_wanted_than_there_turn_out_to_be(bundle: Bundle) -> None:
    """OpenVINO makes no more of them than there are cores, however many threads it is told to have."""
    engine, changes = open_changing(bundle, None)
    set_streams = engine.set_streams  # type: ignore[attr-defined]
    engine.set_streams = lambda _, *arguments: set_streams(1, *arguments)  # type: ignore[attr-defined]
    changes.change(2)
    assert (changes.most, engine.streams) == (1, 1)


def test_a_bundle_that_was_replaced_is_not_compiled(bundle: Bundle) -> None:
    """Half of the answers would be another model's."""
    engine, changes = open_changing(bundle, None)
    before = vectors(engine)
    write_tiny_embedding_bundle(bundle.path, seed=5)
    with pytest.raises(BundleError, match="another bundle than the one that is served"):
        changes.change(2)
    assert (changes.wanted, engine.streams) == (2, 1)
    np.testing.assert_array_equal(vectors(engine), before)
    changes.change(1)


@pytest.mark.parametrize(
    ("wishes", "threads", "streams"),
    [
        (BY_OPENVINO, 2, 1),
        (BY_OPENVINO, 2, 2),
        (BY_OPENVINO, 1, None),
        (BY_OPENVINO, 3, None),
        (EngineWishes("onnxruntime"), 2, None),
    ],
)
def test_streams_that_are_set_or_cannot_be_otherwise_do_not_change(
    bundle: Bundle, wishes: EngineWishes, threads: int, streams: int | None
) -> None:
    """What the operator sets holds; ONNX Runtime has both ways in one session."""
    chooser = EngineChooser(wishes, threads=threads, streams=streams)
    engine, choice = chooser.open(bundle, Tokenizer.from_bundle(bundle))
    assert chooser.stream_changes(bundle, engine, choice) is None

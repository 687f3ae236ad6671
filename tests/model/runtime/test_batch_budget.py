"""The fewest tokens of a batch from which on more are no quicker."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.runtime import batch_budget
from model.runtime.batch_budget import DEFAULT_BATCH_TOKENS, BatchBudget, BudgetTuner, measure_budget
from model.runtime.bundle import Bundle
from model.runtime.engine import TokenBatch
from model.runtime.engine_choice import network_key
from tests.bundles import write_tiny_embedding_bundle

Clocked = Callable[[Mapping[int, float]], "TimedEngine"]


class TimedEngine:
    """Runs nothing, and moves the clock by what a batch should take; the curve is microseconds a token."""

    name = "timed 1"
    precision = "float32"
    streams = 1

    def __init__(self, curve: Mapping[int, float], clock: list[float]) -> None:
        self.runs: list[int] = []
        self._curve = curve
        self._clock = clock

    def run(self, batch: TokenBatch, outputs: list[str]) -> dict[str, Any]:
        """Give nothing."""
        del outputs
        tokens = batch.input_ids.size
        self.runs.append(tokens)
        self._clock[0] += tokens * self._curve[tokens] / 1e6
        return {}


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    """Engines on a clock that only they move; what lies between two runs is left out."""
    clock = [0.0]
    monkeypatch.setattr("model.runtime.run_times.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(batch_budget, "_BETWEEN_RUNS_S", 0.0)
    return lambda curve: TimedEngine(curve, clock)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """The tiny one, as if its texts might have 64 tokens or more."""
    bundle = Bundle.load(write_tiny_embedding_bundle(tmp_path / "tiny"))
    return replace(bundle, manifest=bundle.manifest.model_copy(update={"max_tokens": 512}))


@pytest.mark.parametrize(
    ("curve", "tokens", "tried"),
    [
        pytest.param({512: 100, 1024: 99, 2048: 90}, 512, [512, 1024], id="flat from the first"),
        pytest.param({512: 100, 1024: 93, 2048: 80}, 512, [512, 1024], id="not quicker by a tenth"),
        pytest.param({512: 100, 1024: 90, 2048: 89}, 1024, [512, 1024, 2048], id="flat from the second"),
        pytest.param({512: 100, 1024: 90, 2048: 80}, 2048, [512, 1024, 2048], id="falling to the last"),
        pytest.param({512: 100, 1024: 120, 2048: 80}, 512, [512, 1024], id="too large for the caches"),
    ],
)
def test_takes_the_fewest_tokens_that_are_as_quick_as_more(
    clocked: Clocked, bundle: Bundle, curve: Mapping[int, float], tokens: int, tried: list[int]
) -> None:
    """And measures no larger batch than that takes."""
    engine = clocked(curve)
    assert measure_budget(bundle, engine, 0) == BatchBudget(  # type: ignore[arg-type]
        tokens, "measured", {size: float(curve[size]) for size in tried}
    )
    assert sorted(set(engine.runs)) == tried


def test_streams_are_measured_together(clocked: Clocked, bundle: Bundle) -> None:
    """One by itself would have cores that it has not when many wait; a token's time is that of all."""
    engine = clocked({512: 100, 1024: 99})
    engine.streams = 2
    measured = measure_budget(bundle, engine, 0)  # type: ignore[arg-type]
    assert measured is not None
    assert measured.microseconds == {512: 100.0, 1024: 99.0}  # the clock moves for each
    # Five turns of two streams each, and the smallest once before.
    assert (engine.runs.count(512), engine.runs.count(1024)) == (12, 10)


def test_a_model_of_short_texts_is_measured_with_batches_as_large(clocked: Clocked, bundle: Bundle) -> None:
    """More rows, as its texts have fewer tokens."""
    short = replace(bundle, manifest=bundle.manifest.model_copy(update={"max_tokens": 16}))
    engine = clocked({512: 100, 1024: 99})
    assert measure_budget(short, engine, 0).tokens == 512  # type: ignore[arg-type, union-attr]
    assert sorted(set(engine.runs)) == [512, 1024]


def test_a_start_that_has_no_time_measures_no_further(
    clocked: Clocked, bundle: Bundle, tmp_path: Path
) -> None:
    """A second for the smallest batch: the default runs, and the next start may measure."""
    engine = clocked({512: 2000})
    tuner = BudgetTuner(None, threads=1, folder=tmp_path / "kept")
    assert tuner.budget(bundle, engine, 0) == BatchBudget(DEFAULT_BATCH_TOKENS, "unmeasured")  # type: ignore[arg-type]
    assert engine.runs == [512]
    assert not (tmp_path / "kept").exists()


def test_times_that_do_not_agree_are_kept_for_now(
    clocked: Clocked,
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A machine that is busy during the first start would have the wrong batches for good."""

    class Disturbed(dict[int, float]):
        """Larger batches are slower by a third, or quicker, as it comes."""

        runs = 0

        def __getitem__(self, tokens: int) -> float:
            self.runs += 1
            return 100 if tokens == 512 else (133, 67)[self.runs // 2 % 2]

    folder = tmp_path / "kept"
    tuner = BudgetTuner(None, threads=1, folder=folder)
    other = replace(bundle, digest="of another one")
    with caplog.at_level(logging.WARNING):
        for each in (bundle, other):
            assert tuner.budget(each, clocked(Disturbed()), 0).how == "unsettled"  # type: ignore[arg-type]
    assert caplog.text.count("so a start in 10 minutes or later measures again") == 1
    for each in (bundle, other):
        # The other workers of this start do the same; a later one measures.
        assert not BudgetTuner(None, threads=1, folder=folder).is_to_measure(each)
    now = time.time()
    monkeypatch.setattr("model.runtime.records.time.time", lambda: now + 601)
    assert BudgetTuner(None, threads=1, folder=folder).is_to_measure(bundle)
    steady = BudgetTuner(None, threads=1, folder=folder).budget(bundle, clocked({512: 100, 1024: 99}), 0)  # type: ignore[arg-type]
    assert steady == BatchBudget(512, "measured", {512: 100.0, 1024: 99.0})


def test_what_was_kept_is_better_than_what_contradicts_itself(
    clocked: Clocked, bundle: Bundle, tmp_path: Path
) -> None:
    """Another model of the network may have been read first, while the machine was busy."""
    steady = clocked({512: 100, 1024: 80, 2048: 80})
    BudgetTuner(None, threads=1, folder=tmp_path).budget(bundle, steady, 0)  # type: ignore[arg-type]
    tuner = BudgetTuner(None, threads=1, folder=tmp_path)
    key = f"{network_key(bundle.manifest)} {steady.name} {steady.precision}"
    tuner._measured[key] = BatchBudget(512, "unsettled")
    kept = tuner.budget(bundle, steady, 0)  # type: ignore[arg-type]
    assert (kept.tokens, kept.how) == (1024, "remembered")


def test_a_machine_that_slows_down_meanwhile_takes_no_smaller_batches(
    clocked: Clocked, bundle: Bundle
) -> None:
    """Sizes take turns, so that both are slowed, and the curve is that of one pace."""

    class Slowing(dict[int, float]):
        """Larger batches are quicker; everything takes twice as long from one run on."""

        def __init__(self, slow_from: int) -> None:
            super().__init__({512: 150, 1024: 100, 2048: 80})
            self.left = slow_from

        def __getitem__(self, tokens: int) -> float:
            self.left -= 1
            return super().__getitem__(tokens) * (2 if self.left < 0 else 1)

    amid_the_first_pair, between_the_pairs = Slowing(8), Slowing(13)
    assert measure_budget(bundle, clocked(amid_the_first_pair), 0).tokens == 2048  # type: ignore[arg-type, union-attr]
    measured = measure_budget(bundle, clocked(between_the_pairs), 0)  # type: ignore[arg-type]
    assert measured == BatchBudget(2048, "measured", {512: 150.0, 1024: 100.0, 2048: 80.0})


def test_a_size_that_is_contradicted_is_the_last_one(clocked: Clocked, bundle: Bundle) -> None:
    """It has taken all of the time, and a start in ten minutes measures again."""

    class Disturbed(dict[int, float]):
        """Larger batches are quicker by a third, but not in one round of three."""

        runs = 0

        def __getitem__(self, tokens: int) -> float:
            self.runs += tokens == 1024
            return 150 if tokens == 512 else (200, 100, 100)[self.runs % 3]

    measured = measure_budget(bundle, clocked(Disturbed()), 0)  # type: ignore[arg-type]
    assert measured == BatchBudget(1024, "unsettled", {512: 150.0, 1024: 100.0})


def test_a_slow_machine_tries_no_further_than_there_is_time(clocked: Clocked, bundle: Bundle) -> None:
    """Somebody waits for the start: two rounds of the first pair took three seconds."""
    measured = measure_budget(bundle, clocked({512: 1500, 1024: 1000, 2048: 800}), 0)  # type: ignore[arg-type]
    assert measured == BatchBudget(1024, "measured", {512: 1500.0, 1024: 1000.0})


def test_what_was_set_is_not_measured(clocked: Clocked, bundle: Bundle) -> None:
    """The operator knows best."""
    engine = clocked({})
    assert BudgetTuner(100, threads=1).budget(bundle, engine, 0) == BatchBudget(100, "set")  # type: ignore[arg-type]


def test_a_later_start_and_another_bundle_of_the_network_take_over_what_was_measured(
    clocked: Clocked, bundle: Bundle, tmp_path: Path
) -> None:
    """With other threads it is measured again."""
    engine = clocked({512: 100, 1024: 90, 2048: 89})
    folder = tmp_path / "kept"
    tuner = BudgetTuner(None, threads=1, folder=folder)
    first = tuner.budget(bundle, engine, 0)  # type: ignore[arg-type]
    runs = len(engine.runs)
    assert tuner.budget(bundle, engine, 0) == first  # type: ignore[arg-type]
    later = BudgetTuner(None, threads=1, folder=folder).budget(bundle, engine, 0)  # type: ignore[arg-type]
    assert later == BatchBudget(1024, "remembered", first.microseconds)
    assert len(engine.runs) == runs
    BudgetTuner(None, threads=2, folder=folder).budget(bundle, engine, 0)  # type: ignore[arg-type]
    assert len(engine.runs) == 2 * runs


def test_what_is_to_be_measured_is_known_before(
    clocked: Clocked, bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is about to have other things computed can wait."""
    engine = clocked({512: 100, 1024: 99})
    tuner = BudgetTuner(None, threads=1, folder=tmp_path)
    assert not BudgetTuner(100, threads=1).is_to_measure(bundle)
    assert BudgetTuner(None, threads=1).is_to_measure(bundle)
    assert tuner.is_to_measure(bundle)
    tuner.budget(bundle, engine, 0)  # type: ignore[arg-type]
    assert not tuner.is_to_measure(replace(bundle, digest="of another one"))
    assert not BudgetTuner(None, threads=1, folder=tmp_path).is_to_measure(bundle)
    assert BudgetTuner(None, threads=2, folder=tmp_path).is_to_measure(bundle)
    assert caplog.records == []


def test_what_was_taken_over_is_known_at_the_next_start(
    clocked: Clocked, bundle: Bundle, tmp_path: Path
) -> None:
    """Models are read ahead where nothing is to be measured, and none has been read yet then."""
    engine = clocked({512: 100, 1024: 99})
    tuner = BudgetTuner(None, threads=1, folder=tmp_path)
    other = replace(bundle, digest="of another one")
    for each in (bundle, other):
        tuner.budget(each, engine, 0)  # type: ignore[arg-type]
    assert not BudgetTuner(None, threads=1, folder=tmp_path).is_to_measure(other)


@pytest.mark.parametrize("damage", ["", "[]", '{"circumstances": {}}', "no JSON"])
def test_a_record_that_cannot_be_read_is_made_anew(
    clocked: Clocked, bundle: Bundle, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no reason not to start."""
    engine = clocked({512: 100, 1024: 99})
    BudgetTuner(None, threads=1, folder=tmp_path).budget(bundle, engine, 0)  # type: ignore[arg-type]
    [path] = tmp_path.glob("*.batches.json")
    path.write_text(damage, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        BudgetTuner(None, threads=1, folder=tmp_path).budget(bundle, engine, 0)  # type: ignore[arg-type]
    record, *_ = json.loads(path.read_text(encoding="utf-8"))
    assert record["tokens"] == 512

"""Whose turn it is, what a run that goes on with another one repeats, and what happens to those who fail."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from comparison.contestants import Contestant, Job, Result
from comparison.processes import NotRunningError
from comparison.run import Measurements, Run, turns
from comparison.workloads import MANY, ONE, OVERLOAD, Texts
from numpy.typing import NDArray

ENTRANTS = {"one": ["a", "b", "c"], "many": ["a", "b"]}


class FakeProcess:
    """Something to hold still."""

    def __init__(self) -> None:
        self.running = True

    def pause(self) -> None:
        """Hold still."""
        self.running = False

    def resume(self) -> None:
        """Go on."""
        self.running = True

    def rss_mib(self) -> float:
        """A number."""
        return 1.0

    def stop(self) -> None:
        """End."""
        self.running = False


class FakeContestant(Contestant):
    """Answers at once with fixed rates, in turn; remembers what it was asked."""

    def __init__(
        self,
        name: str,
        vector: Sequence[float] = (1.0, 0.0),
        *,
        breaks: bool = False,
        rates: Sequence[float] = (64.0,),
    ) -> None:
        super().__init__(name, "fake")
        self.jobs: list[Job] = []
        self._rates = itertools.cycle(rates)
        self._vector = vector
        self._breaks = breaks

    def _start(self) -> tuple[FakeProcess, float]:  # type: ignore[override]
        return FakeProcess(), 1.5

    def time(self, job: Job) -> Result:
        """Answer."""
        assert self.process is not None
        assert self.process.running
        self.jobs.append(job)
        if self._breaks:
            raise NotRunningError("broken")
        return Result(texts_per_s=next(self._rates), tokens_per_s=640.0, requests=1, seconds=job.seconds)

    def vectors(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The same for all."""
        return np.array([self._vector] * len(texts), dtype=np.float32)


class FakeTexts(Texts):
    """Ten texts."""

    def __init__(self) -> None:
        super().__init__({})

    def of(self, workload: object) -> tuple[list[str], list[int]]:
        """Ten."""
        del workload
        return ["text"] * 10, [3] * 10


def make_run(path: Path, *contestants: Contestant, until: float = float("inf"), resume: bool = False) -> Run:
    """A run of these."""
    return Run(
        contestants={one.name: one for one in contestants},
        texts=FakeTexts(),
        measurements=Measurements(path, resume=resume),
        seconds=2.0,
        lead=1.0,
        until=until,
        say=lambda _: None,
    )


def test_rounds_go_through_everything_and_begin_with_another_contestant() -> None:
    """Nobody always follows the same one; a run that is cut off has something of everything."""
    workloads = [replace(workload, early=False) for workload in (ONE, MANY)]
    plan = [(turn.round, turn.workload.name, turn.contestant) for turn in turns(workloads, ENTRANTS, 2)]
    assert plan == [
        *[(0, "one", name) for name in "abc"],
        *[(0, "many", name) for name in "ab"],
        *[(1, "one", name) for name in "bca"],
        *[(1, "many", name) for name in "ba"],
    ]


def test_early_workloads_have_three_rounds_before_others_have_one() -> None:
    """What is quoted has a median even if the run is out of time after that."""
    workloads = [ONE, replace(MANY, early=False)]
    plan = [(turn.workload.name, turn.round) for turn in turns(workloads, {"one": ["a"], "many": ["a"]}, 4)]
    assert plan[:4] == [("one", 0), ("one", 1), ("one", 2), ("many", 0)]
    assert sorted(plan) == [(name, number) for name in ("many", "one") for number in range(4)]


def test_a_workload_may_have_fewer_rounds() -> None:
    """The bulk client takes long."""
    plan = list(turns([replace(ONE, rounds=1), MANY], ENTRANTS, 2))
    assert [turn.round for turn in plan if turn.workload.name == "one"] == [0, 0, 0]


def test_contestants_are_started_once_warmed_up_once_and_held_still(tmp_path: Path) -> None:
    """A first go is not counted; while others are measured nobody runs."""
    one = FakeContestant("a", rates=[1.0, 64.0, 65.0])
    run = make_run(tmp_path / "m.jsonl", one)
    run.take(list(turns([replace(MANY, early=False)], {"many": ["a"]}, 2)))
    assert [(job.clients, job.seconds) for job in one.jobs] == [(1, 0.3), (32, 2.0), (32, 2.0)]
    assert [line["texts_per_s"] for line in run.measurements.lines] == [64.0, 65.0]
    assert [line["round"] for line in run.measurements.lines] == [0, 1]
    assert run.starts == {"a": 1.5}
    assert one.process is not None
    assert not one.process.running  # type: ignore[attr-defined]


def test_what_is_quoted_has_time_to_settle_in_each_turn(tmp_path: Path) -> None:
    """A server that changes with the load was stopped as another load had left it."""
    one = FakeContestant("a", rates=[1.0, 64.0, 2.0, 65.0])
    run = make_run(tmp_path / "m.jsonl", one)
    run.take(list(turns([MANY], {"many": ["a"]}, 2)))
    assert [(job.clients, job.seconds) for job in one.jobs] == 2 * [(32, 1.0), (32, 2.0)]
    assert [line["texts_per_s"] for line in run.measurements.lines] == [64.0, 65.0]


def test_a_run_goes_on_where_another_stopped(tmp_path: Path) -> None:
    """What is in the file is not measured again; without being told to, a run begins anew."""
    path = tmp_path / "m.jsonl"
    plan = list(turns([ONE, MANY], {"one": ["a"], "many": ["a"]}, 1))
    make_run(path, FakeContestant("a")).take(plan[:1])
    second = FakeContestant("a")
    run = make_run(path, second, resume=True)
    run.take(plan)
    assert {job.clients for job in second.jobs} == {32}
    assert [line["workload"] for line in run.measurements.lines] == ["one", "many"]
    assert len(second.jobs) == 2  # one of them is not counted
    assert make_run(path, FakeContestant("a")).measurements.lines == []


def test_when_time_is_over_every_workload_has_had_its_first_round(tmp_path: Path) -> None:
    """Later rounds are left out."""
    run = make_run(tmp_path / "m.jsonl", FakeContestant("a"), until=0.0)
    run.take(list(turns([ONE, MANY], {"one": ["a"], "many": ["a"]}, 3)))
    assert [(line["workload"], line["round"]) for line in run.measurements.lines] == [("one", 0), ("many", 0)]
    assert run.out_of_time


def test_other_vectors_are_not_the_same_model(tmp_path: Path) -> None:
    """Who computes something else is not measured, and it is said."""
    run = make_run(tmp_path / "m.jsonl", FakeContestant("a"), FakeContestant("b", (0.9, 0.5)))
    run.take(list(turns([ONE], {"one": ["a", "b"]}, 1)))
    [ours, theirs] = run.measurements.lines
    assert ours["texts_per_s"] == 64.0
    assert "cosine" in theirs["error"]
    assert run.cosines["b"] == pytest.approx(0.9 / np.hypot(0.9, 0.5))


def test_a_failure_is_written_down_and_the_others_go_on(tmp_path: Path) -> None:
    """Never a made-up figure."""
    run = make_run(tmp_path / "m.jsonl", FakeContestant("a", breaks=True), FakeContestant("b"))
    run.take(list(turns([ONE], {"one": ["a", "b"]}, 1)))
    assert [line.get("error") for line in run.measurements.lines] == ["broken", None]


def test_overload_is_ten_times_what_was_answered_before(tmp_path: Path) -> None:
    """64 texts a second in requests of 32 are two requests a second, so twenty."""
    one = FakeContestant("a", rates=[1.0, 64.0, 45.0, 36.0])
    run = make_run(tmp_path / "m.jsonl", one)
    run.take(list(turns([OVERLOAD], {"overload": ["a"]}, 1)))
    assert [job.rate for job in one.jobs[-3:]] == [None, 20.0, None]


def test_what_an_overload_keeps_is_of_the_peaks_right_before_and_after_it(tmp_path: Path) -> None:
    """The machine may have become slower since an earlier workload; a first go is not counted."""
    run = make_run(tmp_path / "m.jsonl", FakeContestant("a", rates=[1.0, 64.0, 45.0, 36.0]))
    run.take(list(turns([OVERLOAD], {"overload": ["a"]}, 1)))
    [line] = run.measurements.lines
    assert line["texts_per_s"] == 45.0
    assert line["kept"] == pytest.approx(0.9)

"""Times that a choice can rely upon, on a machine where others compute as well."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle

import pytest

from model.runtime.run_times import compared_times


class Clock:
    """Moves only by what runs take."""

    def __init__(self) -> None:
        """At nought, with nothing run."""
        self.now = 0.0
        self.runs: list[str] = []

    def timer(self, name: str, seconds: Iterator[float]) -> Callable[[], float]:
        """Run for as long as comes next, and note it."""

        def run() -> float:
            taken = next(seconds)
            self.runs.append(name)
            self.now += taken
            return taken

        return run

    def timers(self, **seconds: Sequence[float]) -> dict[str, Callable[[], float]]:
        """By name, each with its times, over and over."""
        return {name: self.timer(name, cycle(times)) for name, times in seconds.items()}


def quickest(times: Mapping[str, float]) -> str:
    """The choice of who has no other reasons."""
    return min(times, key=times.__getitem__)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The one that is asked."""
    clock = Clock()
    monkeypatch.setattr("model.runtime.run_times.time.perf_counter", lambda: clock.now)
    return clock


def test_takes_turns_five_times_and_once_before(clock: Clock) -> None:
    """What slows the machine meanwhile slows all that are compared."""
    times, plain = compared_times(clock.timers(a=[0.02], b=[0.01]), quickest, most_seconds=10)
    assert times == pytest.approx({"a": 0.02, "b": 0.01})
    assert plain
    assert clock.runs == ["a", "b"] * 6


def test_three_times_are_enough_where_runs_are_long(clock: Clock) -> None:
    """Somebody waits for the start."""
    times, plain = compared_times(clock.timers(a=[0.4], b=[0.2]), quickest, most_seconds=10)
    assert times == pytest.approx({"a": 0.4, "b": 0.2})
    assert plain
    assert clock.runs == ["a", "b"] * 4


def test_the_first_run_does_not_count(clock: Clock) -> None:
    """It waits for kernels to be made, and for a library to be read."""
    slow_at_first = clock.timer("b", iter([9.0, *[0.01] * 5]))
    timers = {**clock.timers(a=[0.02]), "b": slow_at_first}
    assert compared_times(timers, quickest, most_seconds=60)[0] == pytest.approx({"a": 0.02, "b": 0.01})


def test_a_pace_that_moves_moves_all(clock: Clock) -> None:
    """Rounds of half the machine's pace say as much about which is quicker."""
    paces = [1, 1, 2, 2, 2, 1, 3]
    timers = clock.timers(a=[0.010 * pace for pace in paces], b=[0.009 * pace for pace in paces])
    times, plain = compared_times(timers, quickest, most_seconds=60)
    assert times["b"] / times["a"] == pytest.approx(0.9)
    assert plain
    assert len(clock.runs) == 12


def test_a_lucky_run_and_a_disturbed_one_are_no_matter(clock: Clock) -> None:
    """As ONNX Runtime has a quick one now and then, and any a slow one."""
    times, plain = compared_times(
        clock.timers(a=[0.02, 0.02, 0.013, 0.02, 0.02, 0.02], b=[0.015, 0.015, 0.015, 0.06, 0.015, 0.015]),
        quickest,
        most_seconds=60,
    )
    assert times == pytest.approx({"a": 0.02, "b": 0.015})
    assert plain


def test_goes_on_while_rounds_contradict_the_whole(clock: Clock) -> None:
    """Here the first rounds were those of a machine on which others began to compute."""
    timers = {**clock.timers(a=[0.02]), "b": clock.timer("b", iter([0.03] * 4 + [0.01] * 30))}
    times, plain = compared_times(timers, quickest, most_seconds=60)
    assert times == pytest.approx({"a": 0.02, "b": 0.01})
    assert plain
    # After the first one, three of 0.03 are less than a quarter of 13.
    assert len(clock.runs) == 2 * 14


def test_times_that_never_agree_are_told_as_such(clock: Clock) -> None:
    """A start has to end; so does one on a machine that is slow only."""
    assert not compared_times(clock.timers(a=[0.02], b=[0.03, 0.01]), quickest, most_seconds=0.5)[1]
    assert 0.5 <= clock.now < 0.6
    clock.now, clock.runs = 0.0, []
    assert compared_times(clock.timers(a=[20], b=[10]), quickest, most_seconds=5) == (
        {"a": 20.0, "b": 10.0},
        True,
    )
    assert clock.runs == ["a", "b"] * 2


def test_what_contradicts_the_choice_matters_and_not_what_contradicts_the_quickest(clock: Clock) -> None:
    """Another has to be quicker by more than a little to be taken: the chosen one may be the slower."""
    seconds = {"a": [0.02], "b": [0.0195, 0.0195, 0.0158]}
    assert compared_times(clock.timers(**seconds), quickest, most_seconds=0.5)[1]
    assert not compared_times(clock.timers(**seconds), lambda _: "a", most_seconds=0.5)[1]

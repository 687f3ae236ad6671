"""Times that a choice can rely upon, on a machine where others compute as well."""

from collections.abc import Callable, Iterator

import pytest

from model.runtime.run_times import least_times


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The one that is asked."""
    clock = Clock()
    monkeypatch.setattr("model.runtime.run_times.time.perf_counter", lambda: clock.now)
    return clock


def test_three_rounds_in_turns_where_nothing_disturbs(clock: Clock) -> None:
    """What slows the machine meanwhile slows all that are compared."""
    timers = {name: clock.timer(name, iter([seconds] * 3)) for name, seconds in (("a", 0.2), ("b", 0.1))}
    assert least_times(timers, most_seconds=10) == ({"a": 0.2, "b": 0.1}, True)
    assert clock.runs == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("seconds", "least"),
    [
        pytest.param([9.0, 1.0, 1.05], 1.0, id="the first waits for kernels"),
        pytest.param([3.0, 2.0, 1.5, 1.0, 1.3, 1.09], 1.0, id="others stop computing by and by"),
        pytest.param([1.0, 3.0, 3.0, 3.0, 1.1], 1.0, id="one was lucky"),
    ],
)
def test_goes_on_until_the_two_least_agree(clock: Clock, seconds: list[float], least: float) -> None:
    """And no further, be the others ever so steady."""
    steady = [0.5] * len(seconds)
    timers = {"a": clock.timer("a", iter(steady)), "b": clock.timer("b", iter(seconds))}
    assert least_times(timers, most_seconds=60) == ({"a": 0.5, "b": least}, True)
    assert clock.runs == ["a", "b"] * len(seconds)


def test_times_that_never_agree_are_told_as_such(clock: Clock) -> None:
    """A start has to end."""
    halved = clock.timer("a", iter([2.0**-step for step in range(20)]))
    times, agreed = least_times({"a": halved}, most_seconds=1.9)
    assert not agreed
    # After 1 + 1/2 + 1/4 + 1/8 + 1/16 the time is over.
    assert times == {"a": 0.0625}


@pytest.mark.parametrize(("seconds", "agreed"), [([5.0, 5.0], False), ([5.0, 4.0], False)])
def test_a_slow_machine_runs_each_twice(clock: Clock, seconds: list[float], agreed: bool) -> None:
    """The first of them made the kernels; two alike are fewer than a comparison wants."""
    assert least_times({"a": clock.timer("a", iter(seconds))}, most_seconds=1) == (
        {"a": min(seconds)},
        agreed,
    )

"""service.cli.awake_clock: time in which nothing could run is no time."""

from service.cli.awake_clock import AwakeClock


def test_it_goes_as_the_clock_underneath_while_it_is_looked_at() -> None:
    """Whatever that began with."""
    told = [1e6, 1e6 + 0.5, 1e6 + 0.5, 1e6 + 1.5]
    clock = AwakeClock(iter(told).__next__)
    assert [clock.now() for _ in told[1:]] == [0.5, 0.5, 1.5]


def test_a_stretch_without_a_look_counts_as_a_second() -> None:
    """However long it was: a laptop sleeps for a night."""
    clock = AwakeClock(iter([0.0, 0.5, 36_000.5, 36_001.0]).__next__)
    assert [clock.now() for _ in range(3)] == [0.5, 1.5, 2.0]

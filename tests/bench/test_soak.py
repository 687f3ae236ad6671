"""bench/soak.py: what counts as a leak, and the picture."""

from xml.etree import ElementTree as ET

import pytest
import soak


def samples(**grows: float) -> list[soak.Sample]:
    """Thirty, five seconds apart, of a process that stays as it is but for what ``grows`` by each."""
    steady = {"rss_mib": 600.0, "threads": 20.0, "files": 30.0, "tasks": 8.0, "disk_mib": 3.0}
    return [
        soak.Sample(
            at_s=5.0 * n, **{name: value + n * grows.get(name, 0.0) for name, value in steady.items()}
        )  # type: ignore[arg-type]
        for n in range(30)
    ]


@pytest.mark.parametrize("name", ["rss_mib", "threads", "files", "tasks", "disk_mib"])
def test_steady_growth_is_a_leak_and_is_named(name: str) -> None:
    """Each by itself; the rest stays quiet."""
    (found,) = soak.leaks(samples(**{name: 3.0}))
    assert found.startswith(f"{name} grew from ")


def test_growth_at_the_beginning_is_none() -> None:
    """Caches fill, and allocators keep what they had once."""
    early = samples(rss_mib=20.0)[:10]
    late = [soak.Sample(50.0 + 5 * n, 790.0, 20, 30, 8, 3.0) for n in range(20)]
    assert soak.leaks(early + late) == []
    assert soak.leaks(late[:5]) == ["too few samples to tell"]


def test_slopes_are_those_of_the_last_two_thirds() -> None:
    """By the hour."""
    at = [float(n) for n in range(0, 3600, 60)]
    assert soak.slope_per_hour(at, [at_s / 3600 * 7 for at_s in at]) == pytest.approx(7)
    assert soak.slope_per_hour(at, [1000.0] * 20 + [5.0] * 40) == pytest.approx(0)


def test_windows_are_whole_minutes_with_their_quantiles() -> None:
    """The last one is left out: it may hold a single answer."""
    times = [(second, 10.0) for second in range(60)] + [(60.0 + second, 20.0) for second in range(30)]
    assert soak.windows(times) == [soak.Window(0.0, 60, 10.0, 10.0)]


def test_the_picture_is_well_formed_and_has_a_line_for_each_series() -> None:
    """It is committed as it is written."""
    text = soak.picture(samples(), [soak.Window(0.0, 60, 10.0, 20.0), soak.Window(60.0, 50, 11.0, 21.0)])
    root = ET.fromstring(text)
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 7

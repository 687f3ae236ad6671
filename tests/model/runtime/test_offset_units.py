"""Places in the unit that the caller's language counts in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from model.runtime.offset_units import places_in

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(TEXTS)
def test_places_count_the_units_before_them(text: str) -> None:
    """Against encoding what stands before."""
    for place in range(len(text) + 1):
        assert places_in(text, "code-points")(place) == place
        assert places_in(text, "utf-16")(place) == len(text[:place].encode("utf-16-le")) // 2
        assert places_in(text, "bytes")(place) == len(text[:place].encode())


def test_the_emoji_before_a_name_counts_one_two_or_four() -> None:
    """🙂 北京 of other servers' bug reports: 2..4, 3..5 and 5..11."""
    text = "🙂 北京"
    found = {
        unit: (places_in(text, unit)(2), places_in(text, unit)(4))
        for unit in ("code-points", "utf-16", "bytes")
    }  # type: ignore[arg-type]
    assert found == {"code-points": (2, 4), "utf-16": (3, 5), "bytes": (5, 11)}

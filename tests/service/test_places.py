"""service.places: who is let in, as a rule of numbers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.places import Places


@given(limit=st.integers(1, 1000), wishes=st.lists(st.integers(0, 2000), max_size=40))
@settings(max_examples=300, deadline=None)
def test_large_requests_never_take_the_last_eighth(limit: int, wishes: list[int]) -> None:
    """In any order and number: the limit is kept, and a small request finds room beside large ones."""
    places, small = Places(limit), max(1, limit // 8)
    only_large = True
    for wanted in wishes:
        share = places.share(wanted)
        if share is not None:
            assert 0 <= share <= wanted
            only_large = only_large and wanted > small
            places.taken += share
        assert places.taken <= limit
        if only_large and limit >= 2:
            assert places.share(small) == small


@given(limit=st.integers(1, 1000), wanted=st.integers(1, 10**6))
@settings(max_examples=200, deadline=None)
def test_an_empty_queue_takes_anything(limit: int, wanted: int) -> None:
    """A refusal there would be for ever."""
    share = Places(limit).share(wanted)
    assert share is not None
    assert 1 <= share <= max(1, limit // 2, limit // 8)


def test_large_requests_get_half_of_what_is_free() -> None:
    """Each leaves as much as it takes; below an eighth there is no point in letting one in."""
    places = Places(8192)
    shares = []
    for _ in range(4):
        share = places.share(100_000)
        shares.append(share)
        places.taken += share or 0
    assert shares == [4096, 2048, 1024, None]


def test_a_small_request_is_let_in_whole_or_not_at_all() -> None:
    """It is what the last places are for."""
    places = Places(80)
    places.taken = 72
    assert (places.share(8), places.share(9), places.share(0)) == (8, None, 0)
    places.taken = 73
    assert (places.share(8), places.share(7)) == (None, 7)


def test_a_lowered_limit_keeps_others_out_until_there_is_room() -> None:
    """What is in stays; a request that wants nothing needs no room."""
    places = Places(80)
    places.taken = 60
    places.limit = 40
    assert (places.share(1), places.share(100), places.share(0)) == (None, None, 0)
    places.taken = 39
    assert places.share(1) == 1


@given(
    limit=st.integers(1, 1000),
    taken=st.integers(0, 1200),
    wanted=st.integers(0, 2000),
    more=st.integers(0, 999),
)
@settings(max_examples=500, deadline=None)
def test_what_is_said_to_lack_room_would_be_refused(limit: int, taken: int, wanted: int, more: int) -> None:
    """And so would more; of small requests it is said of all that would be."""
    places, small = Places(limit), max(1, limit // 8)
    places.taken = taken
    if places.lack(wanted):
        assert places.share(min(wanted, small)) is None
        assert places.share(min(wanted, small) + more) is None
    elif wanted <= small:
        assert places.share(wanted) is not None or taken == 0

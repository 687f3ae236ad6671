"""service.token_estimate: what texts come to at least."""

import pytest

from service.token_estimate import TokenEstimate, utf8_sizes


def test_nothing_is_expected_of_the_first_request() -> None:
    """What the model makes of characters is not known."""
    assert TokenEstimate().at_least([1000]) == 0


def test_an_estimate_is_never_above_what_was_just_seen() -> None:
    """Too high, it would refuse what has room; it falls at once, and rises slowly."""
    estimate = TokenEstimate()
    estimate.note(1000, 400)
    assert estimate.at_least([100, 50]) == 60
    estimate.note(1000, 200)
    assert estimate.at_least([100]) == 20
    for _ in range(50):
        estimate.note(1000, 400)
    assert 20 < estimate.at_least([100]) < 25
    for _ in range(5000):
        estimate.note(1000, 400)
    assert estimate.at_least([1000]) == pytest.approx(400, abs=5)


def test_short_texts_do_not_make_long_ones_seem_longer() -> None:
    """Two letters with a prompt and special tokens are five tokens; a page is not two for each letter."""
    estimate = TokenEstimate()
    estimate.note(8000, 2000)
    for _ in range(1000):
        estimate.note(2, 5)
    assert estimate.at_least([8000]) <= 2100
    only_short = TokenEstimate()
    only_short.note(2, 5)
    assert only_short.at_least([100]) == 50


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        (["abc", "", "é"], [3, 0, 2]),
        (["怎么退货", "half \ud83d"], [12, 8]),
        ([("ab", "退"), "a"], [5, 1]),
    ],
)
def test_sizes_are_bytes(texts: list[str | tuple[str, str]], sizes: list[int]) -> None:
    """Of pairs too; half of a surrogate pair is refused elsewhere, with its place."""
    assert utf8_sizes(texts) == sizes


def test_a_text_comes_to_no_more_than_the_model_reads() -> None:
    """Of a text that is cut the rest does not count; the others are not cut for its sake."""
    estimate = TokenEstimate()
    estimate.note(100, 25)
    assert estimate.at_least([10_000, 20], most=512) == 517
    assert estimate.at_least([10_000, 20]) == 2505


def test_requests_without_characters_teach_nothing() -> None:
    """A text may be empty where empty ones are read."""
    estimate = TokenEstimate()
    estimate.note(0, 2)
    assert estimate.at_least([10]) == 0

"""Batches: every text once, budgets kept, padding as counted by hand."""

import random

import pytest
from comparison.packing import in_arrival_order, length_grouped, padded_tokens, padding_ratio
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=60)


def test_arrival_order_by_hand() -> None:
    """Eight texts at most, and the token budget with padding."""
    assert in_arrival_order([5, 5, 5, 5, 5], most_texts=2, most_tokens=100) == [[0, 1], [2, 3], [4]]
    # 3 rows of 10 would be 30 tokens with padding.
    assert in_arrival_order([2, 2, 10, 10], most_texts=8, most_tokens=20) == [[0, 1], [2, 3]]


def test_length_grouped_by_hand() -> None:
    """Shortest first; a text longer than the budget runs alone."""
    assert length_grouped([9, 1, 50, 2, 8], most_tokens=20) == [[1, 3], [4, 0], [2]]


@given(lengths=LENGTHS, most_texts=st.integers(1, 10), most_tokens=st.integers(1, 600))
def test_each_text_once_and_budgets_kept(lengths: list[int], most_texts: int, most_tokens: int) -> None:
    """Whatever the lengths."""
    for batches in (
        in_arrival_order(lengths, most_texts=most_texts, most_tokens=most_tokens),
        length_grouped(lengths, most_tokens=most_tokens),
    ):
        assert sorted(text for batch in batches for text in batch) == list(range(len(lengths)))
        assert all(len(batch) == 1 or padded_tokens([batch], lengths) <= most_tokens for batch in batches)
    arrival = in_arrival_order(lengths, most_texts=most_texts, most_tokens=most_tokens)
    assert max(map(len, arrival)) <= most_texts
    assert [text for batch in arrival for text in batch] == list(range(len(lengths)))


def test_padding_is_rows_times_the_longest_over_tokens() -> None:
    """Two rows of 10 for 12 tokens, and one row of 4."""
    assert padding_ratio([[0, 1], [2]], [2, 10, 4]) == 24 / 16
    with pytest.raises(ValueError, match="no batches"):
        padding_ratio([], [1])


def test_grouping_by_length_pads_less() -> None:
    """On lengths as uneven as real ones, which is what the comparison is about."""
    lengths = [min(256, 2 + int(random.Random(seed).expovariate(1 / 30))) for seed in range(2048)]
    assert padding_ratio(length_grouped(lengths, most_tokens=2048), lengths) < 1.07
    assert padding_ratio(in_arrival_order(lengths, most_texts=8, most_tokens=16_384), lengths) > 2

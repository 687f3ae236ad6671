"""The schedule of TEI on an engine whose runs take what the test says."""

import pytest
from comparison.tei_schedule import MOST_TOKENS, closed_loop


def test_texts_run_by_eight_in_the_order_of_arrival() -> None:
    """The ninth waits, however short it is."""
    batches: list[list[int]] = []

    def run(batch: list[int]) -> float:
        batches.append(batch)
        return 1.0

    outcome = closed_loop([7] * 100, run, clients=9, per_request=1, seconds=0.5)
    assert batches == [[0, 1, 2, 3, 4, 5, 6, 7], [8]]
    assert outcome.latencies == [1.0] * 8 + [2.0]
    assert (outcome.texts, outcome.tokens, outcome.seconds) == (9, 63, 2.0)


def test_requests_share_batches_and_end_with_their_last_text() -> None:
    """Two requests of six: the second's first two texts run with the first's."""
    batches: list[list[int]] = []

    def run(batch: list[int]) -> float:
        batches.append(batch)
        return 2.0

    outcome = closed_loop([3] * 12, run, clients=2, per_request=6, seconds=1.0)
    assert batches == [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11]]
    assert outcome.latencies == [2.0, 4.0]


def test_a_client_sends_again_when_it_has_its_answer() -> None:
    """One client, one text: batches of one, back to back, until the time is over."""
    outcome = closed_loop([5, 9], lambda batch: 0.25 * len(batch), clients=1, per_request=1, seconds=1.0)
    assert outcome.latencies == [0.25] * 4
    assert outcome.seconds == 1.0
    assert outcome.computed_tokens == outcome.tokens == 28


def test_a_slow_engine_still_answers_the_least_number() -> None:
    """Else a contestant that takes longer than a round would have no figure."""
    outcome = closed_loop([5], lambda _: 10.0, clients=1, per_request=1, seconds=1.0, least_requests=3)
    assert len(outcome.latencies) == 3


def test_padding_counts_and_the_token_budget_holds() -> None:
    """Texts of 5,000 tokens: three fit into the budget with padding, four do not."""
    sizes: list[int] = []

    def run(batch: list[int]) -> float:
        sizes.append(len(batch))
        return 1.0

    lengths = [5000, 4000, 10, 5000]
    outcome = closed_loop(lengths, run, clients=1, per_request=4, seconds=0.5)
    assert sizes == [3, 1]
    assert 5000 * 4 > MOST_TOKENS >= 5000 * 3
    assert outcome.computed_tokens == 3 * 5000 + 5000
    assert outcome.computed_tokens / outcome.tokens == pytest.approx(20_000 / 14_010)

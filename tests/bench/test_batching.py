"""The simulation of batching, and with it what the service's own rules come to under load."""

import math
import random
from dataclasses import replace

import batching
import pytest

from service.waiting_room import BatchingLimits


def _lengths(count: int) -> list[int]:
    """Tokens of texts such as those that are measured: median about 28, few long ones, 256 at most."""
    chance = random.Random(0)
    return [min(256, max(3, round(math.exp(chance.gauss(3.33, 0.65))))) for _ in range(count)]


def test_equal_texts_cost_their_tokens_and_the_runs() -> None:
    """By hand: two clients of one text, 10 tokens each, and 5 for a run: alone at first, then in turn."""
    limits = BatchingLimits(max_batch_tokens=20)

    course = batching.simulate([10], limits, clients=2, per_request=1, fixed=5, answers=2)

    assert course == batching.Course(padding=1, rows=2, tokens=20, work=1.25, p50=25, p99=25)


@pytest.mark.parametrize(("clients", "texts"), [(8, 32), (1, 2048)])
def test_batches_have_little_padding_at_saturation(clients: int, texts: int) -> None:
    """Mixed lengths, many waiting: a twentieth of the work at most goes into padding."""
    course = batching.simulate(
        _lengths(2048), BatchingLimits(), clients=clients, per_request=texts, fixed=20, answers=2048 // texts
    )

    assert course.padding <= 1.05
    assert course.rows >= 8


def test_the_defaults_are_near_the_best_whatever_a_run_costs() -> None:
    """Be a run as dear as 10 tokens or as 60: between slow processors and quick, no setting is needed."""
    lengths = _lengths(2048)
    for fixed in (10, 20, 60):
        work = {
            free: batching.simulate(
                lengths,
                replace(BatchingLimits(), free_padding_tokens=free),
                clients=8,
                per_request=32,
                fixed=fixed,
                answers=30,
            ).work
            for free in (0, BatchingLimits().free_padding_tokens, 64)
        }
        assert work[BatchingLimits().free_padding_tokens] <= 1.03 * min(work.values())

"""Averages of weights, against the same sums by hand."""

import pytest
import torch

from model.training.averaging import LastEpochs, MovingAverage, average_for, copy_into, lent
from model.training.options import TrainingOptions


def weights(value: float) -> dict[str, torch.Tensor]:
    """One parameter."""
    return {"a": torch.full((2,), value)}


def test_the_moving_average_forgets_its_start() -> None:
    """Early steps weigh (1 + t) / (10 + t), later ones what was asked for."""
    average = MovingAverage(0.5)
    expected = 0.0
    for step, value in enumerate([0.0, 8.0, 4.0, 2.0, 6.0], start=1):
        average.after_step(weights(value))
        kept = min(0.5, (1 + step) / (10 + step))
        expected = value if step == 1 else kept * expected + (1 - kept) * value
    found = average.weights()
    assert found is not None
    assert found["a"].tolist() == pytest.approx([expected] * 2, rel=1e-6)


def test_the_last_epochs_are_averaged_alike() -> None:
    """Older ones are gone; the caller's tensors may change afterwards."""
    average = LastEpochs(2)
    moving = weights(1.0)
    for value in (1.0, 3.0, 5.0):
        moving["a"].fill_(value)
        average.after_epoch(moving)
    found = average.weights()
    assert found is not None
    assert found["a"].tolist() == [4.0, 4.0]


@pytest.mark.parametrize("averaging", ["none", "ema", "last"])
def test_a_saved_average_goes_on_as_if_never_stopped(averaging: str) -> None:
    """It is part of a checkpoint."""
    options = TrainingOptions(averaging=averaging, ema_decay=0.9, average_last=3)  # type: ignore[arg-type]
    whole, first, second = (average_for(options) for _ in range(3))
    for value in range(6):
        for average in (whole, first) if value < 3 else (whole, second):
            average.after_step(weights(float(value)))
            average.after_epoch(weights(float(value)))
        if value == 2:
            second.load_state_dict(first.state_dict())
    one, other = whole.weights(), second.weights()
    assert (one is None) == (other is None) == (averaging == "none")
    if one is not None and other is not None:
        assert torch.equal(one["a"], other["a"])


def test_lent_weights_are_given_back() -> None:
    """Also when what they were lent for fails."""
    own = weights(1.0)
    with lent(own, weights(2.0)):
        assert own["a"].tolist() == [2.0, 2.0]
    with pytest.raises(KeyError), lent(own, weights(2.0)):
        raise KeyError
    assert own["a"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="other names"):
        copy_into(own, {"b": torch.zeros(2)})

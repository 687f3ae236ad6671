"""The loss of tokens, by hand."""

import math

import pytest
import torch

from model.training.losses import balanced_weights, disagreement, token_loss
from model.training.spans import IGNORED_LABEL


def test_plain_cross_entropy_leaves_out_unlabelled_tokens() -> None:
    """Special tokens and padding have no label."""
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [9.0, -9.0]]])
    labels = torch.tensor([[0, 1, IGNORED_LABEL]])
    expected = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
    assert token_loss(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_labels_has_no_loss_and_no_nan() -> None:
    """A window may hold nothing but special tokens."""
    logits = torch.randn(1, 2, 3, requires_grad=True)
    loss = token_loss(logits, torch.full((1, 2), IGNORED_LABEL))
    assert loss.item() == 0.0
    loss.backward()


def test_rare_labels_weigh_more_up_to_a_bound() -> None:
    """Mean weight over all tokens 1; 10 tokens outweigh 100,000 by a hundred to one, not by 10,000."""
    counts = [100_000, 100, 10, 0]
    weights = balanced_weights(counts)
    tokens = torch.tensor([100_000, 100, 10, 1])
    assert (weights * tokens).sum().item() == pytest.approx(tokens.sum().item(), rel=1e-5)
    assert weights[2] / weights[0] == pytest.approx(100.5, rel=0.01)
    assert weights[1] / weights[0] == pytest.approx(10.5, rel=0.01)
    assert torch.isfinite(weights).all()


def test_weights_enter_as_a_weighted_mean() -> None:
    """As torch's own weights do."""
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 4, 3), torch.randint(0, 3, (2, 4))
    weights = torch.tensor([0.5, 1.0, 4.0])
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weights)
    torch.testing.assert_close(token_loss(logits, labels, class_weights=weights), expected)


def test_focal_loss_scales_each_token_by_its_doubt() -> None:
    """(1 - p)^gamma: a token at p = 0.9 counts a hundredth, at gamma 2."""
    logits = torch.tensor([[[math.log(9.0), 0.0]]])
    labels = torch.tensor([[0]])
    expected = -math.log(0.9) * 0.01
    assert token_loss(logits, labels, focal_gamma=2.0).item() == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_punishes_certainty() -> None:
    """Being sure costs something even where it is right."""
    logits, labels = torch.tensor([[[20.0, 0.0]]]), torch.tensor([[0]])
    assert token_loss(logits, labels).item() == pytest.approx(0.0, abs=1e-6)
    assert token_loss(logits, labels, label_smoothing=0.1).item() == pytest.approx(1.0, abs=0.01)


def test_disagreement_is_the_mean_of_both_divergences() -> None:
    """By hand for p = (0.9, 0.1) and q = (0.5, 0.5); a token without a label does not count."""
    one = torch.tensor([[[math.log(9.0), 0.0], [50.0, 0.0]]])
    other = torch.tensor([[[0.0, 0.0], [0.0, 50.0]]])
    forth = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    back = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    labelled = torch.tensor([[True, False]])
    expected = pytest.approx((forth + back) / 2, rel=1e-5)
    assert disagreement(one, other, labelled).item() == expected
    assert disagreement(other, one, labelled).item() == expected
    assert disagreement(one, one, labelled).item() == 0.0


def test_a_batch_without_labels_has_nothing_to_disagree_on() -> None:
    """And still a gradient, of zero."""
    logits = torch.randn(1, 2, 3, requires_grad=True)
    apart = disagreement(logits, logits.detach(), torch.zeros(1, 2, dtype=torch.bool))
    apart.backward()
    assert apart.item() == 0.0

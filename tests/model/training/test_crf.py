"""The CRF layer against sums over every sequence, written out."""

import itertools

import pytest
import torch

from model.runtime.decoding import SequenceDecoder
from model.runtime.label_schemes import LabelScheme
from model.training.crf import CrfLayer
from model.training.spans import bio_labels

SCHEME = LabelScheme.from_labels(bio_labels(["PER", "LOC"]))
LABELS = len(SCHEME.labels)


def random_layer(seed: int) -> CrfLayer:
    """With scores of every sign."""
    torch.manual_seed(seed)
    layer = CrfLayer(SCHEME).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def allowed_sequences(length: int) -> list[tuple[int, ...]]:
    """All that the scheme lets through."""
    return [
        sequence
        for sequence in itertools.product(range(LABELS), repeat=length)
        if SCHEME.may_start[sequence[0]]
        and all(SCHEME.may_follow[a, b] for a, b in itertools.pairwise(sequence))
    ]


def score(layer: CrfLayer, emissions: torch.Tensor, sequence: tuple[int, ...]) -> torch.Tensor:
    """One sequence's score, term by term."""
    terms = [layer.start[sequence[0]], layer.end[sequence[-1]]]
    terms += [emissions[index, label] for index, label in enumerate(sequence)]
    terms += [layer.transitions[a, b] for a, b in itertools.pairwise(sequence)]
    return torch.stack(terms).sum()


@pytest.mark.parametrize("length", [1, 2, 5])
def test_the_likelihood_is_that_of_brute_force(length: int) -> None:
    """The sum over all sequences comes from a recursion; here it is taken one by one."""
    layer = random_layer(length)
    emissions = torch.randn(length, LABELS, dtype=torch.float64)
    sequences = allowed_sequences(length)
    scores = torch.stack([score(layer, emissions, sequence) for sequence in sequences])
    for number in (0, len(sequences) // 2, len(sequences) - 1):
        found = layer.negative_log_likelihood(
            emissions[None], torch.tensor([sequences[number]]), torch.ones(1, length, dtype=torch.bool)
        )
        expected = scores.logsumexp(0) - scores[number]
        torch.testing.assert_close(found, expected[None], rtol=1e-9, atol=1e-9)


def test_probabilities_of_all_allowed_sequences_sum_to_one() -> None:
    """So nothing is given to sequences that decoding never chooses."""
    layer = random_layer(3)
    emissions = torch.randn(1, 4, LABELS, dtype=torch.float64)
    sequences = torch.tensor(allowed_sequences(4))
    surprise = layer.negative_log_likelihood(
        emissions.expand(len(sequences), -1, -1), sequences, torch.ones(sequences.shape, dtype=torch.bool)
    )
    assert surprise.neg().exp().sum().item() == pytest.approx(1.0, abs=1e-9)


def test_padding_changes_nothing_and_an_empty_row_costs_nothing() -> None:
    """Rows of a batch have different lengths; whatever stands at padding, labels included, is not read."""
    layer = random_layer(5)
    emissions = torch.randn(2, 6, LABELS, dtype=torch.float64)
    labels = torch.full((2, 6), 4)
    labels[0, :3] = torch.tensor([0, 1, 2])
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[0, :3] = True
    alone = layer.negative_log_likelihood(emissions[:1, :3], labels[:1, :3], mask[:1, :3])
    padded = layer.negative_log_likelihood(emissions, labels, mask)
    torch.testing.assert_close(padded[:1], alone)
    assert padded[1].item() == 0.0


def test_gradients_are_finite_and_forbidden_steps_get_none() -> None:
    """A step from O to I-PER is never scored, so nothing is learned about it."""
    layer = random_layer(7)
    emissions = torch.randn(3, 5, LABELS, dtype=torch.float64, requires_grad=True)
    layer.negative_log_likelihood(
        emissions, torch.zeros(3, 5, dtype=torch.int64), torch.ones(3, 5, dtype=torch.bool)
    ).sum().backward()
    for gradient in (emissions.grad, layer.start.grad, layer.end.grad, layer.transitions.grad):
        assert gradient is not None
        assert torch.isfinite(gradient).all()
    assert layer.transitions.grad is not None
    assert layer.transitions.grad[0, 2].item() == 0.0
    assert layer.transitions.grad[1, 2].item() != 0.0


def test_decoding_finds_the_sequence_that_is_most_likely_here() -> None:
    """What is trained is what a bundle's decoder uses."""
    layer = random_layer(11)
    emissions = torch.randn(4, LABELS, dtype=torch.float64)
    sequences = allowed_sequences(4)
    best = max(sequences, key=lambda sequence: score(layer, emissions, sequence).item())
    assert SequenceDecoder(SCHEME, layer.learned()).decode(emissions.numpy())[0] == list(best)

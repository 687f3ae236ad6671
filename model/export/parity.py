"""The graph against PyTorch, over a grid of batch sizes and lengths, padded and not.

The reference is the PyTorch module that holds the weights as the bundle stores them, so what is measured is
the graph alone; what rounding the weights costs is measured apart, by ``golden.fidelity``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from model.export.graph import GraphModule

Feeds = Mapping[str, NDArray[np.int64]]
Run = Callable[[Feeds], Mapping[str, NDArray[np.float32]]]

BATCHES: Final = (1, 2, 5, 16)
SEQUENCES: Final = (1, 2, 3, 17, 64, 128, 512)
# Attention scores of one layer, rows x tokens^2 x heads, that a batch may have: sixteen rows of 512 tokens
# with sixteen heads, 256 MiB in float32. Sixteen rows of 8,192 tokens would be 69 GB.
MOST_SCORES: Final = 2**26
# Largest absolute difference allowed. Unit vectors have components around 0.05, logits and hidden states
# around 1 to 10; float32 keeps seven digits, and a dozen layers lose one or two of them.
TOLERANCES: Final = {
    "last_hidden_state": 1e-4,
    "embeddings_cls": 1e-4,
    "embeddings_mean": 1e-4,
    "embeddings_cls_normalized": 1e-5,
    "embeddings_mean_normalized": 1e-5,
    "logits": 1e-4,
    "sequence_logits": 1e-4,
}
_PER_TOKEN: Final = frozenset({"last_hidden_state", "logits"})


class ParityError(RuntimeError):
    """The graph does not compute what the module computes."""


@dataclass(frozen=True, slots=True)
class ParityCase:
    """One batch.

    Attributes:
        batch: Rows.
        sequence: Length of the longest row, in tokens.
        padded: Whether the others are shorter.
        differences: Largest absolute difference over real positions, by output.
    """

    batch: int
    sequence: int
    padded: bool
    differences: dict[str, float]


@dataclass(frozen=True, slots=True)
class ParityReport:
    """All cases, and what they were held against."""

    cases: tuple[ParityCase, ...]
    tolerances: dict[str, float]

    def worst(self) -> dict[str, float]:
        """Largest difference over all cases, by output."""
        # NumPy's maximum: Python's passes over a NaN that is not the first.
        return {
            name: float(np.max([case.differences[name] for case in self.cases])) for name in self.tolerances
        }

    def raise_if_missed(self) -> None:
        """Refuse a graph that is off.

        Raises:
            ParityError: Names, for each output that is beyond its tolerance, the worst case.
        """
        missed = []
        for name, tolerance in self.tolerances.items():
            # Not "greater than": NaN must miss.
            beyond = [case for case in self.cases if not case.differences[name] <= tolerance]
            if beyond:
                worst = max(beyond, key=lambda case: np.nan_to_num(case.differences[name], nan=np.inf))
                missed.append(
                    f"{name} differs by {worst.differences[name]:.3g}, more than {tolerance:g}, at batch "
                    f"{worst.batch}, length {worst.sequence}, {'padded' if worst.padded else 'not padded'} "
                    f"(and in {len(beyond) - 1} of {len(self.cases) - 1} other cases)"
                )
        if missed:
            raise ParityError("the graph does not match PyTorch: " + "; ".join(missed))

    def as_json(self) -> dict[str, Any]:
        """Return what ``parity.json`` holds."""
        return {
            "reference": "PyTorch, float32, with the weights as stored",
            "measure": "largest absolute difference over real positions",
            "tolerances": self.tolerances,
            "worst": self.worst(),
            "cases": [
                {
                    "batch": case.batch,
                    "sequence": case.sequence,
                    "padded": case.padded,
                    "differences": case.differences,
                }
                for case in self.cases
            ],
        }


def grid(max_tokens: int, heads: int) -> list[tuple[int, int, bool]]:
    """List the (batch, sequence, padded) to compare.

    Args:
        max_tokens: A model's longest input, which is always among them, one row at least.
        heads: Of the model's attention; where a batch would have more than ``MOST_SCORES``, it gets fewer
            rows.
    """
    sequences = sorted({length for length in SEQUENCES if length < max_tokens} | {max_tokens})
    cases = [
        (min(batch, max(1, MOST_SCORES // (sequence**2 * heads))), sequence, padded)
        for batch, sequence, padded in product(BATCHES, sequences, (False, True))
        if not (padded and sequence == 1)
    ]
    return list(dict.fromkeys(cases))


def measure_parity(
    reference: GraphModule,
    run: Run,
    *,
    cases: Sequence[tuple[int, int, bool]],
    tolerances: Mapping[str, float] = TOLERANCES,
    progress: Callable[[], None] = lambda: None,
) -> ParityReport:
    """Run both sides on random tokens and compare every output.

    Args:
        reference: The PyTorch side.
        run: The graph: inputs by name, [B, S] int64, to outputs by name.
        cases: (batch, sequence, padded), as ``grid`` gives them.
        tolerances: By output.
        progress: Called after each case.

    Returns:
        The differences; nothing is refused here.
    """
    generator = np.random.default_rng(20170612)
    measured: list[ParityCase] = []
    for batch, sequence, padded in cases:
        feeds = _random_batch(generator, reference, batch, sequence, padded=padded)
        expected, actual = reference.run(feeds), run(feeds)
        real = feeds["attention_mask"].astype(bool)
        differences = {
            name: _difference(expected[name], actual[name], real if name in _PER_TOKEN else None)
            for name in reference.outputs
        }
        measured.append(ParityCase(batch, sequence, padded, differences))
        progress()
    return ParityReport(tuple(measured), {name: tolerances[name] for name in reference.outputs})


def _random_batch(
    generator: np.random.Generator, reference: GraphModule, batch: int, sequence: int, *, padded: bool
) -> dict[str, NDArray[np.int64]]:
    input_ids = generator.integers(0, reference.vocab_size, (batch, sequence))
    lengths = np.full(batch, sequence)
    if padded:
        # Alone, a padded row is shorter than the batch is long; among others, the first one fills it.
        lengths = generator.integers(1, sequence, batch)
        lengths[0] = sequence if batch > 1 else lengths[0]
    attention_mask = (np.arange(sequence) < lengths[:, None]).astype(np.int64)
    token_type_ids = np.zeros_like(input_ids)
    if reference.token_types > 1:
        token_type_ids = generator.integers(0, reference.token_types, (batch, sequence)) * attention_mask
    return {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}


def _difference(
    expected: NDArray[np.float32], actual: NDArray[np.float32], real: NDArray[np.bool_] | None
) -> float:
    if expected.shape != actual.shape:
        raise ParityError(f"the graph gives shape {actual.shape}, PyTorch {expected.shape}")
    if real is not None:
        expected, actual = expected[real], actual[real]
    return float(np.abs(expected - actual).max())

"""The graph against PyTorch, over a grid of batch sizes and lengths, padded and not.

The reference is the PyTorch module that holds the weights as the bundle stores them, so what is measured is
the graph alone; what rounding the weights costs is measured apart, by ``golden.fidelity``.

Now and then a row of random tokens has a position where float32 has few digits left: there PyTorch is as far
from the right value as the graph is, and they differ by both errors. So where they differ by more than the
tolerance, the batch is computed in float64 as well, and the graph is held against that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
# Where float32 itself misses the tolerance, a graph may be so many times as far from float64 as PyTorch is:
# the largest error of each is that of one position, and chance makes it several times smaller or larger.
_FLOAT32_ERRORS_ALLOWED: Final = 4
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
        differences: Largest absolute difference over real positions, by output; from PyTorch in float32, or
            from float64 where ``float32_errors`` has the output.
        float32_errors: How far PyTorch in float32 is from float64, for outputs that were off by more than the
            tolerance.
    """

    batch: int
    sequence: int
    padded: bool
    differences: dict[str, float]
    float32_errors: dict[str, float] = field(default_factory=dict)

    def allows(self, name: str, tolerance: float) -> bool:
        """Whether output ``name`` is off by no more than ``tolerance``, or than float32 can help."""
        allowed = max(tolerance, _FLOAT32_ERRORS_ALLOWED * self.float32_errors.get(name, 0.0))
        return self.differences[name] <= allowed  # not "greater than": NaN must miss


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
            beyond = [case for case in self.cases if not case.allows(name, tolerance)]
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
            "measure": "largest absolute difference over real positions; where it would be beyond the "
            "tolerance, that from float64, beside PyTorch's own",
            "tolerances": self.tolerances,
            "worst": self.worst(),
            "cases": [
                {
                    "batch": case.batch,
                    "sequence": case.sequence,
                    "padded": case.padded,
                    "differences": case.differences,
                    **({"float32_errors": case.float32_errors} if case.float32_errors else {}),
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
        rows = {name: real if name in _PER_TOKEN else None for name in reference.outputs}
        differences = {name: _difference(expected[name], actual[name], rows[name]) for name in rows}
        beyond = [name for name in rows if not differences[name] <= tolerances[name]]
        float32_errors = {}
        if beyond:
            exact = reference.run_in_float64(feeds)
            for name in beyond:
                differences[name] = _difference(exact[name], actual[name], rows[name])
                float32_errors[name] = _difference(exact[name], expected[name], rows[name])
        measured.append(ParityCase(batch, sequence, padded, differences, float32_errors))
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
    expected: NDArray[np.floating], actual: NDArray[np.floating], real: NDArray[np.bool_] | None
) -> float:
    if expected.shape != actual.shape:
        raise ParityError(f"the graph gives shape {actual.shape}, PyTorch {expected.shape}")
    if real is not None:
        expected, actual = expected[real], actual[real]
    return float(np.abs(expected - actual).max())

"""The grid covers what is served, and no difference slips through."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.export.graph import GraphModule
from model.export.parity import (
    MOST_SCORES,
    Feeds,
    ParityCase,
    ParityError,
    ParityReport,
    grid,
    measure_parity,
)
from tests.model.export.models import MAX_TOKENS, encoder


def test_the_grid_reaches_from_one_token_to_the_longest_input() -> None:
    """Lengths 1, 3, 17, 128 and the limit itself, with every batch; one token cannot be padded."""
    cases = grid(512, 12)
    for batch in (1, 2, 5, 16):
        for sequence in (1, 3, 17, 128, 512):
            assert (batch, sequence, False) in cases
            assert ((batch, sequence, True) in cases) == (sequence > 1)
    assert max(sequence for _, sequence, _ in grid(100, 12)) == 100


def test_a_large_model_gets_fewer_rows_where_attention_would_fill_the_memory() -> None:
    """Sixteen rows of 8,192 tokens have 69 GB of scores a layer; the longest input is still compared."""
    cases = grid(8192, 16)
    assert max(batch for batch, sequence, _ in cases if sequence == 8192) == 1
    assert {(1, 8192, False), (1, 8192, True), (16, 512, True)} <= set(cases)
    assert all(batch == 1 or batch * sequence**2 * 16 <= MOST_SCORES for batch, sequence, _ in cases)
    assert {batch for batch, sequence, _ in grid(1024, 16) if sequence == 1024} == {1, 2, 4}
    assert len(cases) == len(set(cases))


@pytest.fixture(scope="module")
def reference() -> GraphModule:
    """A small encoder with its pooling."""
    return GraphModule.of(encoder())


def test_a_module_equals_itself(reference: GraphModule) -> None:
    """Zero differences, which also means that padding positions, of no meaning, are left out."""
    cases = [case for case in grid(MAX_TOKENS, 4) if case[0] < 16]
    report = measure_parity(reference, reference.run, cases=cases)
    assert set(report.worst().values()) == {0.0}
    report.raise_if_missed()


def test_a_graph_that_ignores_the_mask_is_caught(reference: GraphModule) -> None:
    """The likeliest fault of an export, invisible without padding."""

    def without_mask(feeds: Feeds) -> Mapping[str, NDArray[np.float32]]:
        return reference.run({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})

    measure_parity(reference, without_mask, cases=[(5, 17, False)]).raise_if_missed()
    with pytest.raises(ParityError, match="padded"):
        measure_parity(reference, without_mask, cases=[(5, 17, True)]).raise_if_missed()


def test_padding_positions_do_not_count(reference: GraphModule) -> None:
    """Hidden states there are meaningless, and engines may fill them with anything."""

    def garbage_at_padding(feeds: Feeds) -> Mapping[str, NDArray[np.float32]]:
        outputs = reference.run(feeds)
        hidden = outputs["last_hidden_state"].copy()
        hidden[feeds["attention_mask"] == 0] = 1e6
        return {**outputs, "last_hidden_state": hidden}

    measure_parity(reference, garbage_at_padding, cases=[(5, 17, True)]).raise_if_missed()


class Rough(GraphModule):
    """A module that float32 cannot compute: off by 3e-4 there."""

    def run(self, feeds: Feeds) -> dict[str, NDArray[np.float32]]:
        """Be right in float64 only."""
        outputs = super().run(feeds)
        if next(self.module.parameters()).dtype == torch.float32:
            outputs["last_hidden_state"] = outputs["last_hidden_state"] + np.float32(3e-4)
        return outputs


@pytest.mark.parametrize(("error", "accepted"), [(0.0, True), (6e-4, True), (2e-3, False)])
def test_a_graph_need_not_be_nearer_than_float32_can_be(
    reference: GraphModule, error: float, accepted: bool
) -> None:
    """PyTorch is no measure where float32 fails it; float64 is, and a wrong graph still misses."""
    rough = Rough(reference.module, reference.outputs, reference.vocab_size)

    def graph(feeds: Feeds) -> Mapping[str, NDArray[np.float32]]:
        outputs = reference.run(feeds)
        return {**outputs, "last_hidden_state": outputs["last_hidden_state"] - np.float32(error)}

    report = measure_parity(rough, graph, cases=[(2, 3, False)])
    assert report.cases[0].float32_errors == {"last_hidden_state": pytest.approx(3e-4, rel=0.1)}
    assert report.cases[0].differences["last_hidden_state"] == pytest.approx(error, rel=0.1, abs=1e-5)
    if accepted:
        report.raise_if_missed()
    else:
        with pytest.raises(ParityError, match=r"last_hidden_state differs by 0\.002"):
            report.raise_if_missed()


def test_nan_misses_every_tolerance() -> None:
    """NaN is not greater than anything, and would pass a careless comparison."""
    cases = tuple(
        ParityCase(1, 1, padded=False, differences={"logits": difference})
        for difference in (0.0, np.nan, 1e-5)
    )
    report = ParityReport(cases, {"logits": 1e-4})
    with pytest.raises(ParityError, match="logits differs by nan"):
        report.raise_if_missed()
    assert np.isnan(report.worst()["logits"])


def test_a_wrong_shape_is_named(reference: GraphModule) -> None:
    """Broadcasting would hide a missing axis."""

    def flattened(feeds: Feeds) -> Mapping[str, NDArray[np.float32]]:
        return {name: array[:1] for name, array in reference.run(feeds).items()}

    with pytest.raises(ParityError, match="shape"):
        measure_parity(reference, flattened, cases=[(2, 3, False)])

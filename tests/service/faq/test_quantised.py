"""Rows in eight bits: how far their products are off, and that nothing else about them matters."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.faq import quantised
from service.faq.quantised import QuantisedRows


def unit(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Bring rows to length one; those of zeros stay."""
    lengths = np.linalg.norm(numbers, axis=1, keepdims=True)
    lengths[lengths == 0] = 1
    scaled: NDArray[np.float32] = (numbers / lengths).astype(np.float32)
    return scaled


@st.composite
def vectors(draw: st.DrawFn, dimensions: int) -> NDArray[np.float32]:
    """A few vectors up to length one, from evenly spread to all in one number, and zeros."""
    count = draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers = random.standard_normal((count, dimensions)) ** draw(st.sampled_from([0, 1, 3, 15]))
    numbers[random.random(count) < 0.2] = 0
    return unit(numbers) * np.float32(draw(st.sampled_from([1.0, 0.5, 1e-3])))


@settings(deadline=None)
@given(st.data(), st.sampled_from([1, 3, 24, 384, 1000]))
def test_products_are_off_by_no_more_than_the_bound(data: st.DataObject, dimensions: int) -> None:
    """A bound that is once too small loses a hit without a word."""
    rows, queries = data.draw(vectors(dimensions)), data.draw(vectors(dimensions))
    with pytest.MonkeyPatch.context() as patch:
        # As a large collection would have it: several sessions, several strips.
        patch.setattr("service.faq.quantised._BLOCK", data.draw(st.sampled_from([2, 100])))
        patch.setattr("service.faq.quantised._STRIP", data.draw(st.sampled_from([1, 100])))
        made = QuantisedRows(rows)
    products, bounds = made.products(queries)
    exact = queries.astype(np.float64) @ rows.astype(np.float64).T
    assert products.shape == exact.shape
    assert (np.abs(products - exact).max(axis=1) <= bounds).all()
    for row, query in enumerate(queries):
        # To the last bit, or a query's hits would depend on which others were asked with it.
        alone, bound = made.products(query[None])
        np.testing.assert_array_equal(alone[0], products[row])
        assert bound[0] == bounds[row]


def test_the_bound_is_small_enough_to_rule_out_most() -> None:
    """Vectors as models make them: 384 numbers of about the same size; cosines differ by tenths."""
    random = np.random.default_rng(1)
    rows = unit(random.standard_normal((1_000, 384)))
    products, bounds = QuantisedRows(rows).products(rows[:5])
    assert bounds.max() < 0.015
    assert np.abs(products - rows[:5] @ rows.T).max() < 0.004


@pytest.mark.parametrize("sign", [1, -1])
def test_sums_of_the_largest_codes_are_exact(sign: int) -> None:
    """Byte instructions of older processors hold pairs of products in 16 bits, and cut off what is more."""
    rows = np.full((200, 384), sign / np.sqrt(384), dtype=np.float32)
    products, _ = QuantisedRows(rows).products(rows[:2] * sign)
    np.testing.assert_allclose(products, sign, atol=2e-6)


def test_the_graph_is_what_onnx_takes_for_one() -> None:
    """Written by hand, it has to be read by every later version of ONNX Runtime as well."""
    codes = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    model = onnx.load_from_string(quantised._graph(codes))
    onnx.checker.check_model(model, full_check=True)
    weights, zero = model.graph.initializer
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weights), codes)
    assert (onnx.numpy_helper.to_array(zero), zero.name) == (64, "zero")
    assert [node.op_type for node in model.graph.node] == ["MatMulInteger"]


def test_codes_take_a_byte_a_number() -> None:
    """And four for each row's scale."""
    assert QuantisedRows(np.ones((10, 24), dtype=np.float32)).nbytes() == 10 * (24 + 4)

"""Rounding with what a layer reads in mind."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from model.export.rounding import input_products, round_for_inputs
from model.export.storage import encode
from tests.model.export.models import tagger


def layer(out: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Weights of which a few are large, and inputs that move together: [out, in] and [tokens, in]."""
    generator = np.random.default_rng(3)
    weights = generator.normal(size=(out, width)).astype(np.float32)
    weights[:, ::50] *= 8
    causes = max(1, width // 16)
    inputs = generator.normal(size=(400, causes)) @ generator.normal(size=(causes, width))
    return weights, inputs + 0.1 * generator.normal(size=inputs.shape)


@pytest.mark.parametrize("width", [160, 384, 12])
def test_the_outputs_move_less_than_with_each_weight_at_its_nearest(width: int) -> None:
    """That is what it is for; 160 and 12 are cut into blocks of other sizes than 128."""
    weights, inputs = layer(40, width)
    nearest = encode("w", weights, "int8_block").decode()
    fitted = round_for_inputs(weights, inputs.T @ inputs)
    errors = [float(np.square(inputs @ (rounded - weights).T).mean()) for rounded in (fitted, nearest)]
    assert errors[0] < 0.5 * errors[1]


def test_storing_what_was_rounded_changes_nothing() -> None:
    """Scales and largest codes are those of the encoding; a block of zeros stays one."""
    weights, inputs = layer(8, 384)
    weights[3, 128:256] = 0.0
    fitted = round_for_inputs(weights, inputs.T @ inputs)
    np.testing.assert_array_equal(encode("w", fitted, "int8_block").decode(), fitted)
    assert not fitted[3, 128:256].any()


def test_inputs_that_are_never_read_do_no_harm() -> None:
    """A column of zeros makes the products singular; then rounding is to the nearest there."""
    weights, inputs = layer(8, 128)
    inputs[:, 5:] = 0.0
    fitted = round_for_inputs(weights, inputs.T @ inputs)
    assert np.isfinite(fitted).all()
    nearest = encode("w", weights, "int8_block").decode()
    np.testing.assert_allclose(fitted[:, 5:], nearest[:, 5:], atol=float(np.abs(weights).max()) / 100)
    with pytest.raises(ValueError, match=r"\(128, 128\) inputs for weights of \(8, 64\)"):
        round_for_inputs(weights[:, :64], inputs.T @ inputs)


def test_products_are_of_what_each_linear_layer_reads() -> None:
    """By the names of a bundle, for the encoder's layers only, summed over the texts."""
    model = tagger()
    rows = [torch.tensor([2, 5, 6, 3]), torch.tensor([2, 7, 3])]
    products = input_products(model, rows)
    matrices = {
        name.removeprefix("encoder."): parameter
        for name, parameter in model.named_parameters()
        if ".layers." in name and parameter.ndim == 2
    }
    assert products.keys() == matrices.keys()
    assert all(products[name].shape == (weights.shape[1],) * 2 for name, weights in matrices.items())
    read = [model.encoder.embeddings(row[None], torch.zeros_like(row[None]))[0].double() for row in rows]
    wanted = sum(each.T @ each for each in read)
    query = next(name for name in products if name.startswith("layers.0.") and "query" in name)
    np.testing.assert_allclose(products[query], wanted.detach().numpy(), rtol=1e-4, atol=1e-4)

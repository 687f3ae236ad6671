"""Rounding that looks at what a layer reads: the errors of one weight are made up for by its neighbours.

Each weight rounded to the nearest code by itself gives errors that add up where a layer's inputs move
together. Going through the inputs one after the other and letting the weights still to come take up what
rounding has moved gives the layer's outputs, not its weights, back as they were; in the default tagger that
halves the error of the logits. Source: Frantar et al. 2022 ("GPTQ"), arXiv:2210.17323, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from model.export.storage import int8_block_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_DAMPING: Final = 0.01  # of the mean of the products' diagonal, as the source has it
_TOGETHER: Final = 128  # inputs whose corrections reach the later ones in one product
_LARGEST_CODE: Final = 127


def input_products(network: nn.Module, rows: Iterable[Tensor]) -> dict[str, NDArray[np.float64]]:
    """What the linear layers of an encoder read.

    Args:
        network: (input_ids, attention_mask), [B, S] int64 each; it is in evaluation mode afterwards.
        rows: Token ids of texts, [S] int64 each.

    Returns:
        By name of each weight of an encoder's layer, without ``encoder.`` before it: the sum of x xT over
        all tokens, [in, in].
    """
    sums: dict[str, Tensor] = {}
    hooks = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in f".{name}":
            products = torch.zeros(module.in_features, module.in_features)
            sums[f"{name.removeprefix('encoder.')}.weight"] = products

            def add(_: nn.Module, inputs: tuple[Tensor, ...], __: Any, products: Tensor = products) -> None:
                read = inputs[0].reshape(-1, inputs[0].shape[-1])
                products.addmm_(read.T, read)

            hooks.append(module.register_forward_hook(add))
    network.eval()
    try:
        with torch.inference_mode():
            for row in rows:
                network(row[None], torch.ones_like(row[None]))
    finally:
        for hook in hooks:
            hook.remove()
    return {name: products.double().numpy() for name, products in sums.items()}


def round_for_inputs(weights: NDArray[np.float32], products: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round a linear layer's weights to what ``int8_block`` can hold, with its outputs in mind.

    Scales are those of ``encode``, and so is the code of each block's largest weight: encoding the result
    gives it back, to the bit.

    Args:
        weights: [out, in], finite.
        products: [in, in], see ``input_products``.

    Returns:
        [out, in].

    Raises:
        ValueError: The products are not those of inputs of that width.
    """
    out, width = weights.shape
    if products.shape != (width, width):
        raise ValueError(f"products of {products.shape} inputs for weights of {weights.shape}")
    size = int8_block_size(width)
    blocks = weights.reshape(out, -1, size)
    farthest = np.abs(blocks).argmax(axis=2)
    signs = np.sign(np.take_along_axis(blocks, farthest[..., None], axis=2)[..., 0])
    scales = (np.abs(blocks).max(axis=2) / np.float32(_LARGEST_CODE)).astype(np.float16).astype(np.float64)
    damped = products + _DAMPING * max(float(np.diag(products).mean()), 1e-12) * np.eye(width)
    # Row i says how the error of input i is best spread over those behind it.
    spread = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = weights.astype(np.float64)
    rounded = np.empty_like(left)
    for first in range(0, width, _TOGETHER):
        end = min(first + _TOGETHER, width)
        errors = np.empty((out, end - first))
        for i in range(first, end):
            scale = scales[:, i // size]
            codes = np.rint(np.divide(left[:, i], scale, out=np.zeros(out), where=scale != 0))
            codes = np.clip(codes, -_LARGEST_CODE, _LARGEST_CODE)
            largest = farthest[:, i // size] == i % size
            codes[largest] = _LARGEST_CODE * signs[largest, i // size]
            rounded[:, i] = codes * scale
            errors[:, i - first] = (left[:, i] - rounded[:, i]) / spread[i, i]
            left[:, i + 1 : end] -= np.outer(errors[:, i - first], spread[i, i + 1 : end])
        left[:, end:] -= errors @ spread[first:end, end:]
    return rounded.astype(np.float32)

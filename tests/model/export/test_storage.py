"""Weights go into files and come back as the graph will see them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from safetensors import safe_open

from model.export.storage import (
    CODES,
    SCALES,
    EncodedTensor,
    StorageError,
    encode,
    int8_block_size,
    read_header,
    read_tensors,
    write_safetensors,
)
from model.runtime.bundle import STORAGES, Storage

WEIGHTS = arrays(
    np.float32,
    st.tuples(st.integers(1, 4), st.sampled_from([32, 64, 96, 256])),
    elements=st.floats(-8, 8, width=32, allow_subnormal=False),
)


def slowly_decoded(tensor: EncodedTensor) -> NDArray[np.float32]:
    """The documented formula, one weight at a time."""
    codes, scales = tensor.arrays[CODES], tensor.arrays[SCALES].astype(np.float32)
    rows, columns = tensor.shape
    out = np.empty((rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            if tensor.encoding == "int8_row":
                out[row, column] = np.float32(codes[row, column]) * scales[row]
                continue
            if tensor.encoding == "int8_block":
                size = columns // scales.shape[1]
                out[row, column] = np.float32(codes[row, column]) * scales[row, column // size]
                continue
            if tensor.gathered:
                byte, high = codes[row, column % (columns // 2)], column >= columns // 2
            else:
                byte, high = codes[row, column // 2], column % 2 == 1
            code = byte >> 4 if high else byte & 15
            out[row, column] = (np.float32(code) - 8) * scales[row, column // 32]
    return out


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("encoding", ["int8_row", "int8_block", "q4_block32"])
@given(weights=WEIGHTS)
@settings(max_examples=30, deadline=None)
def test_decoding_is_the_documented_formula(
    encoding: Storage, gathered: bool, weights: NDArray[np.float32]
) -> None:
    """Other programs read these files by the formula in the module's docstring."""
    encoded = encode("w", weights, encoding, gathered=gathered)
    np.testing.assert_array_equal(encoded.decode(), slowly_decoded(encoded))


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("encoding", STORAGES)
@given(weights=WEIGHTS)
@settings(max_examples=50, deadline=None)
def test_encoding_twice_changes_nothing(
    encoding: Storage, gathered: bool, weights: NDArray[np.float32]
) -> None:
    """A 4-bit model passes through float32, fine-tuning's frozen tables too, without a second loss."""
    once = encode("w", weights, encoding, gathered=gathered).decode()
    np.testing.assert_array_equal(encode("w", once, encoding, gathered=gathered).decode(), once)


@given(weights=WEIGHTS)
@settings(max_examples=50, deadline=None)
def test_rounding_is_to_the_nearest_code(weights: NDArray[np.float32]) -> None:
    """No weight is off by more than half a step, apart from the clipped end of the 4-bit range."""
    rows = np.abs(weights).max(axis=1, keepdims=True)
    by_row = encode("w", weights, "int8_row").decode()
    # 6e-8 is the least that a float16 scale can be: rows below it are stored as zero.
    assert (np.abs(by_row - weights) <= rows / 127 * 0.51 + 1e-5).all()
    size = int8_block_size(weights.shape[1])
    blocks = weights.reshape(len(weights), -1, size)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    by_block = encode("w", weights, "int8_block").decode().reshape(blocks.shape)
    assert (np.abs(by_block - blocks) <= largest / 127 * 0.51 + 1e-5).all()
    blocks = weights.reshape(len(weights), -1, 32)
    steps = np.abs(blocks).max(axis=2, keepdims=True) / 8
    by_block = encode("w", weights, "q4_block32").decode().reshape(blocks.shape)
    assert (np.abs(by_block - blocks) <= steps * 1.01 + 1e-5).all()


@pytest.mark.parametrize(("width", "size"), [(384, 128), (1536, 128), (312, 104), (64, 64), (129, 43)])
def test_a_block_is_as_long_as_divides_the_row(width: int, size: int) -> None:
    """So that rows of any length can be stored."""
    assert int8_block_size(width) == size
    assert encode("w", np.ones((2, width), np.float32), "int8_block").arrays[SCALES].shape == (
        2,
        width // size,
    )


def test_one_large_weight_coarsens_its_block_only() -> None:
    """The reason for blocks."""
    weights = np.full((1, 384), 0.01, np.float32)
    weights[0, 0] = 10
    by_row, by_block = (encode("w", weights, storage).decode() for storage in ("int8_row", "int8_block"))
    assert (by_row[0, 1:] == 0).all()
    np.testing.assert_allclose(by_block[0, 128:], 0.01, rtol=1e-3)


def test_a_row_of_zeros_stays_zero() -> None:
    """Padding's word vector is one; its scale is 0 and must divide nothing."""
    weights = np.zeros((2, 32), np.float32)
    weights[1] = np.linspace(-1, 1, 32)
    for encoding in STORAGES:
        assert not encode("w", weights, encoding).decode()[0].any()


@pytest.mark.parametrize(
    ("weights", "encoding", "message"),
    [
        (np.full((1, 32), np.nan, np.float32), "float32", "not finite"),
        (np.full((1, 32), 1e5, np.float32), "float16", "more than float16 holds"),
        (np.full((1, 32), 1e8, np.float32), "int8_row", "more than float16 holds"),
        (np.ones(32, np.float32), "int8_row", "two dimensions"),
        (np.ones((1, 48), np.float32), "q4_block32", "not a multiple of 32"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    weights: NDArray[np.float32], encoding: Storage, message: str
) -> None:
    """A weight that overflows would be infinite in the graph, and every vector NaN."""
    with pytest.raises(StorageError, match=message) as caught:
        encode("layers.0.w", weights, encoding)
    assert "layers.0.w" in str(caught.value)


def written(path: Path) -> list[EncodedTensor]:
    """A file with one tensor of each kind, odd shapes among them."""
    generator = np.random.default_rng(5)
    tensors = [
        encode(
            f"t.{encoding}.{gathered}",
            generator.normal(size=(3, 64)).astype(np.float32),
            encoding,
            gathered=gathered,
        )
        for encoding in STORAGES
        for gathered in (False, True)
    ]
    tensors.append(encode("bias", generator.normal(size=7).astype(np.float32), "float32"))
    write_safetensors(path, tensors)
    return tensors


def test_a_file_gives_back_what_went_in(tmp_path: Path) -> None:
    """Training starts from a bundle, so the file alone must say how to decode it."""
    path = tmp_path / "w.safetensors"
    tensors = {tensor.name: tensor for tensor in written(path)}
    read = {tensor.name: tensor for tensor in read_tensors(path)}
    assert read.keys() == tensors.keys()
    for name, tensor in read.items():
        assert (tensor.encoding, tensor.shape) == (tensors[name].encoding, tensors[name].shape)
        np.testing.assert_array_equal(tensor.decode(), tensors[name].decode())


def test_the_library_reads_the_same_arrays(tmp_path: Path) -> None:
    """It is a plain safetensors file for everybody else."""
    path = tmp_path / "w.safetensors"
    tensors = written(path)
    with safe_open(path, framework="numpy") as file:
        for tensor in tensors:
            for suffix, array in tensor.arrays.items():
                np.testing.assert_array_equal(file.get_tensor(tensor.name + suffix), array)


def test_offsets_point_at_the_bytes(tmp_path: Path) -> None:
    """ONNX finds tensors by offset, and engines like them aligned."""
    path = tmp_path / "w.safetensors"
    tensors = written(path)
    data = path.read_bytes()
    stored, _ = read_header(path)
    for tensor in tensors:
        for suffix, array in tensor.arrays.items():
            place = stored[tensor.name + suffix]
            assert data[place.offset : place.offset + place.nbytes] == array.tobytes()
            assert place.offset % array.itemsize == 0
    assert min(place.offset for place in stored.values()) % 64 == 0


@pytest.mark.parametrize("size", [0, 5, 40, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, size: int) -> None:
    """An interrupted copy must not load as weights."""
    path = tmp_path / "w.safetensors"
    written(path)
    data = path.read_bytes()
    path.write_bytes(data[:size])
    with pytest.raises(StorageError):
        read_tensors(path)

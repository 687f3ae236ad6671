"""How a bundle keeps weights: encodings of arrays, and the safetensors files that hold them.

Five encodings, all of which the graph turns back into float32:

==============  ===========================================================  ==========================
encoding        stored                                                       value
==============  ===========================================================  ==========================
``float32``     the array                                                    as it is
``float16``     the array, rounded                                           as it is
``int8_row``    ``.codes`` int8 [out, in], ``.scales`` float16 [out]         code * scale
``int8_block``  ``.codes`` int8 [out, in], ``.scales`` float16 [out, in/B]   code * scale
``q4_block32``  ``.codes`` 4-bit, ``.scales`` float16 [out, in / 32]         (code - 8) * scale
==============  ===========================================================  ==========================

B is the largest divisor of ``in`` up to 128. A few weights of a trained layer are many times larger than the
rest of their row; a scale a block keeps what they coarsen to their block. In the default tagger that makes
the error of its logits twenty times smaller than a scale a row, for 1.5 % more bytes.

The products are exact in float32 (an 11-bit significand times at most 8 bits), so whoever decodes, NumPy
here or the engine, gets the same weights. The low-precision encodings are idempotent: encoding what was
decoded gives the same codes back, so a 4-bit model passes through float32 without loss.

4-bit codes are packed two to a byte. For a linear layer, neighbours share a byte, the even element in the
low nibble: the layout of ONNX UINT4. For a table whose rows are gathered, byte ``j`` holds element ``j`` low
and element ``j + in / 2`` high, so that a gathered row unpacks into two contiguous halves.

The file format is safetensors: eight bytes of header length, a JSON header, the data. Written here rather
than by the library because ONNX refers to tensors by offset: the data begins on a multiple of 64 bytes, and
large tensors come first, so that nearly all of them begin on one too.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from model.runtime.bundle import STORAGES, Storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK_SIZE = 32
LONGEST_INT8_BLOCK = 128
CODES, SCALES = ".codes", ".scales"
_ALIGNMENT = 64
_SAFETENSORS_NAMES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint8": "U8"}
_NUMPY_NAMES = {stored: name for name, stored in _SAFETENSORS_NAMES.items()}


class StorageError(ValueError):
    """A tensor cannot be encoded as asked, or a file is not what its header says."""


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """One parameter as the bundle stores it.

    Attributes:
        name: The parameter's name.
        encoding: How it is stored.
        shape: Of the decoded parameter.
        gathered: Whether its rows are looked up one by one, which decides how 4-bit codes are packed.
        arrays: What goes to the file, by the suffix that each array's name gets.
    """

    name: str
    encoding: Storage
    shape: tuple[int, ...]
    gathered: bool = False
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(array.nbytes for array in self.arrays.values())

    def decode(self) -> NDArray[np.float32]:
        """Return the float32 parameter, exactly as the graph sees it."""
        if self.encoding in {"float32", "float16"}:
            return self.arrays[""].astype(np.float32)
        codes, scales = self.arrays[CODES], self.arrays[SCALES].astype(np.float32)
        if self.encoding == "int8_row":
            return codes.astype(np.float32) * scales[:, None]
        if self.encoding == "int8_block":
            integers = codes.astype(np.float32).reshape(*scales.shape, -1)
            return (integers * scales[..., None]).reshape(self.shape)
        unpacked = _unpack_halves(codes) if self.gathered else _unpack_neighbours(codes)
        blocks = unpacked.astype(np.float32).reshape(*scales.shape, BLOCK_SIZE) - 8
        return (blocks * scales[..., None]).reshape(self.shape)


def encode(
    name: str, weights: NDArray[np.float32], encoding: Storage, *, gathered: bool = False
) -> EncodedTensor:
    """Encode one parameter, each weight rounded to the nearest code.

    Args:
        name: For the messages and the file.
        weights: float32, of any shape for the float encodings, [out, in] for the others.
        encoding: One of ``STORAGES``.
        gathered: Rows are looked up one by one, as in an embedding table.

    Returns:
        The encoded parameter.

    Raises:
        StorageError: A weight is not finite or too large for float16, or the shape does not fit.
    """
    if not np.isfinite(weights).all():
        raise StorageError(f"{name} holds weights that are not finite")
    if encoding == "float32":
        arrays: dict[str, NDArray[Any]] = {"": np.ascontiguousarray(weights, np.float32)}
    elif encoding == "float16":
        arrays = {"": _to_float16(name, weights)}
    elif weights.ndim != 2:
        raise StorageError(f"{name} has shape {weights.shape}; {encoding} needs two dimensions")
    elif encoding == "int8_row":
        arrays = _encode_rows(name, weights)
    elif encoding == "int8_block":
        blocks = _encode_rows(name, weights.reshape(-1, int8_block_size(weights.shape[1])))
        arrays = {
            CODES: blocks[CODES].reshape(weights.shape),
            SCALES: blocks[SCALES].reshape(len(weights), -1),
        }
    else:
        arrays = _encode_blocks(name, weights, gathered=gathered)
    return EncodedTensor(name, encoding, weights.shape, gathered, arrays)


def int8_block_size(width: int) -> int:
    """Weights that share a scale in ``int8_block``, of rows of ``width``."""
    return max(size for size in range(1, min(width, LONGEST_INT8_BLOCK) + 1) if width % size == 0)


def _to_float16(name: str, values: NDArray[np.float32]) -> NDArray[np.float16]:
    largest = float(np.abs(values).max(initial=0.0))
    if largest > float(np.finfo(np.float16).max):
        raise StorageError(f"{name} reaches {largest:g}, more than float16 holds")
    return values.astype(np.float16)


def _encode_rows(name: str, weights: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    scales = _to_float16(name, np.abs(weights).max(axis=1) / np.float32(127))
    codes = np.rint(_divide(weights, scales[:, None]))
    return {CODES: np.clip(codes, -127, 127).astype(np.int8), SCALES: scales}


def _encode_blocks(name: str, weights: NDArray[np.float32], *, gathered: bool) -> dict[str, NDArray[Any]]:
    out_features, in_features = weights.shape
    if in_features % BLOCK_SIZE:
        raise StorageError(f"{name} has rows of {in_features}, not a multiple of {BLOCK_SIZE}")
    blocks = weights.reshape(out_features, -1, BLOCK_SIZE)
    # The codes reach from -8 to 7, so the weight farthest from zero becomes -8, whatever its sign.
    farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    scales = _to_float16(name, farthest / np.float32(-8))
    codes = np.clip(np.rint(_divide(blocks, scales)) + 8, 0, 15).astype(np.uint8)
    flat = codes.reshape(out_features, in_features)
    packed = _pack_halves(flat) if gathered else _pack_neighbours(flat)
    return {CODES: packed, SCALES: scales[..., 0]}


def _divide(values: NDArray[np.float32], scales: NDArray[np.float16]) -> NDArray[np.float32]:
    """Divide by scales of which some may be zero: those rows are zero, or too small for float16."""
    divisors = scales.astype(np.float32)
    return np.divide(values, divisors, out=np.zeros_like(values), where=divisors != 0)


def _pack_neighbours(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    packed: NDArray[np.uint8] = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    return packed


def _unpack_neighbours(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _pack_halves(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    half = codes.shape[1] // 2
    packed: NDArray[np.uint8] = codes[:, :half] | codes[:, half:] << np.uint8(4)
    return packed


def _unpack_halves(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.concatenate([packed & 15, packed >> 4], axis=1)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Where one array lies in a safetensors file.

    Attributes:
        dtype: NumPy's name of it.
        shape: As written in the header.
        offset: Of its first byte, from the start of the file.
        nbytes: Its length.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def write_safetensors(
    path: Path, tensors: list[EncodedTensor], metadata: Mapping[str, str] | None = None
) -> dict[str, StoredArray]:
    """Write tensors to a safetensors file.

    How each is encoded goes into the header's metadata, so that the file can be decoded without the
    graph.

    Args:
        path: Of the new file.
        tensors: With names of their own.
        metadata: Further text for the header.

    Returns:
        Where each array lies, by name.
    """
    arrays = {
        tensor.name + suffix: np.ascontiguousarray(array)
        for tensor in tensors
        for suffix, array in tensor.arrays.items()
    }
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, -arrays[name].nbytes, name))
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "pt",
            **{tensor.name: _describe(tensor) for tensor in tensors if tensor.encoding != "float32"},
            **(metadata or {}),
        }
    }
    position = 0
    for name in order:
        array = arrays[name]
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [position, position + array.nbytes],
        }
        position += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(arrays[name].tobytes())
    return read_header(path)[0]


def _describe(tensor: EncodedTensor) -> str:
    return f"{tensor.encoding}{' gathered' if tensor.gathered else ''} {'x'.join(map(str, tensor.shape))}"


def read_header(path: Path) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Read where the arrays of a safetensors file lie, and its metadata.

    Raises:
        StorageError: The header is cut short, is not JSON, or points outside the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise StorageError(f"{path.name} ends inside its header")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise StorageError(f"{path.name} has a header that is not JSON") from error
    metadata = header.pop("__metadata__", {})
    arrays: dict[str, StoredArray] = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if entry["dtype"] not in _NUMPY_NAMES:
            raise StorageError(f"{path.name}: {name} is of type {entry['dtype']}")
        if not 0 <= start <= end <= size - 8 - length:
            raise StorageError(f"{path.name}: {name} lies outside the file")
        arrays[name] = StoredArray(
            _NUMPY_NAMES[entry["dtype"]], tuple(entry["shape"]), 8 + length + start, end - start
        )
    return arrays, metadata


def read_tensors(path: Path) -> list[EncodedTensor]:
    """Read the parameters of a file that ``write_safetensors`` wrote.

    Raises:
        StorageError: The file is cut short or of another make.
    """
    stored, metadata = read_header(path)
    data = np.fromfile(path, np.uint8)
    arrays = {
        name: data[entry.offset : entry.offset + entry.nbytes].view(entry.dtype).reshape(entry.shape)
        for name, entry in stored.items()
    }
    tensors: list[EncodedTensor] = []
    for name, array in arrays.items():
        if name.endswith(SCALES):
            continue
        parameter = name.removesuffix(CODES)
        encoding, gathered, shape = _parse(metadata.get(parameter, ""), array.shape)
        parts = {name.removeprefix(parameter): array}
        if name != parameter and parameter + SCALES in arrays:
            parts[SCALES] = arrays[parameter + SCALES]
        if set(parts) != ({""} if encoding in {"float32", "float16"} else {CODES, SCALES}):
            raise StorageError(f"{path.name}: {parameter} is not stored as {encoding} should be")
        tensors.append(EncodedTensor(parameter, encoding, shape, gathered, parts))
    return tensors


def _parse(description: str, stored_shape: tuple[int, ...]) -> tuple[Storage, bool, tuple[int, ...]]:
    if not description:
        return "float32", False, stored_shape
    words = description.split()
    encoding = next((known for known in STORAGES if known == words[0]), None)
    if encoding is None:
        raise StorageError(f"encoding {words[0]} is not known")
    return encoding, "gathered" in words, tuple(map(int, words[-1].split("x")))

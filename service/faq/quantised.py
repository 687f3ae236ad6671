"""Rows in eight bits: their products with a query for a quarter of the memory that float32 has to be read.

A row is ``scale * codes + rest`` with whole numbers from -127 to 127 for codes; a query is taken apart the
same way, into two digits. Products of codes are exact, so what is unknown of a product is what the rests add
to it, and by Cauchy and Schwarz that is at most the product of their lengths. Whoever looks again, in full,
at all that is within that bound has lost nothing.

ONNX Runtime multiplies: NumPy has no fast product of bytes, and the library is installed anyhow.
"""

from typing import Final

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

ort.disable_telemetry_events()  # some builds report usage to their maker; this service reports to nobody

# Rows a session holds: 50 MB at 384 dimensions, copied a few times while it is made.
_BLOCK: Final = 131_072
# Rows quantised at a time, so that what is worked on stays in the processor's cache.
_STRIP: Final = 1_024

_MOST_CODE: Final = 127
# A query's digits have seven bits: two products with codes then fit in 16 bits, which is all that the
# byte instructions of processors without VNNI have room for; beyond it they are silently wrong.
_MOST_DIGIT: Final = 63
_ZERO: Final = 64
# What half a step of the first digit is in steps of the second.
_FINER: Final = 2 * _MOST_DIGIT

# Above what float32 loses of a product near 1 on the way.
_ROUNDING: Final = 2e-6


class QuantisedRows:
    """The codes of some rows, in the order in which they are multiplied.

    Shapes: N rows, d dimensions, Q queries.

    Args:
        rows: [N, d], length 1 at most; not kept.
    """

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self._scales = np.empty(len(rows), dtype=np.float32)
        self._dimensions = int(rows.shape[1])
        self._sessions: list[ort.InferenceSession] = []
        longest_rest = longest_coded = 0.0
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            codes = np.empty((block.shape[1], len(block)), dtype=np.int8)
            for first in range(0, len(block), _STRIP):
                strip = block[first : first + _STRIP]
                scales = np.abs(strip).max(axis=1) / np.float32(_MOST_CODE)
                scales[scales == 0] = 1
                steps = np.rint(strip / scales[:, None])
                coded = steps * scales[:, None]
                longest_rest = max(longest_rest, _longest(strip - coded))
                longest_coded = max(longest_coded, _longest(coded))
                self._scales[start + first : start + first + len(strip)] = scales
                codes[:, first : first + len(strip)] = steps.T
            self._sessions.append(_session(codes))
        self._longest_rest = longest_rest
        self._longest_coded = longest_coded

    def products(self, vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return [Q, N], of each query's vector with each row, and [Q], how far they are off at most.

        Args:
            vectors: [Q, d].
        """
        digits, steps, unread = _digits(vectors)
        bounds = (
            np.linalg.norm(vectors.astype(np.float64), axis=1) * self._longest_rest
            + unread * self._longest_coded
            + _ROUNDING
        )
        products = np.empty((len(vectors), len(self._scales)), dtype=np.float32)
        end = 0
        for session in self._sessions:
            [sums] = session.run(None, {"digits": digits})  # [2 Q, rows of the session]
            part = products[:, end : end + sums.shape[1]]
            np.multiply(sums[1::2], np.float32(1 / _FINER), out=part)
            # float32 holds sums of up to 2,000 products of a digit and a code to the last bit.
            part += sums[::2]
            part *= self._scales[end : end + sums.shape[1]]
            end += sums.shape[1]
        products *= steps[:, None]
        return products, bounds

    def nbytes(self) -> int:
        """Return the bytes of codes and scales."""
        return len(self._scales) * (self._dimensions + 4)


def _longest(rows: NDArray[np.float32]) -> float:
    """Return an upper bound of the rows' lengths."""
    # float32 sums of 384 squares are right to within a few millionths.
    return float(np.sqrt(np.vecdot(rows, rows).max())) * (1 + 1e-5)


def _digits(
    vectors: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float64]]:
    """Take queries apart into [2 Q, d] digits, [Q] the worth of the first's steps, [Q] the rests' lengths."""
    steps = np.abs(vectors).max(axis=1) / np.float32(_MOST_DIGIT)
    steps[steps == 0] = 1
    scaled = vectors.astype(np.float64) / steps[:, None]
    first = np.rint(scaled)
    second = np.rint((scaled - first) * _FINER)
    rests = (scaled - first - second / _FINER) * steps[:, None]
    digits = (np.stack([first, second], axis=1) + _ZERO).astype(np.uint8)
    return digits.reshape(-1, vectors.shape[1]), steps, np.linalg.norm(rests, axis=1)


def _session(codes: NDArray[np.int8]) -> ort.InferenceSession:
    options = ort.SessionOptions()
    # In the thread that searches: memory sets the pace, and other cores have the encoder to run.
    options.intra_op_num_threads = 1
    # It would round the little that a session holds up to twice as much.
    options.enable_cpu_mem_arena = False
    session = ort.InferenceSession(_graph(codes), options, providers=["CPUExecutionProvider"])
    # Kept by the Python class in case the providers are to be changed: all codes a second time.
    session._model_bytes = b""  # noqa: SLF001
    return session


def _graph(codes: NDArray[np.int8]) -> bytes:
    """Write the ONNX model of one product, digits [M, d] by codes [d, N].

    The codes are a constant of the model, and not an input: ONNX Runtime then brings them into the order in
    which they are read once, and one query takes a third of the time. By hand, since the onnx package is not
    there where the service runs; numbers of fields are those of onnx.proto, of which nothing ever changes.
    """
    dimensions, count = codes.shape
    weights = (
        _number(1, dimensions) + _number(1, count) + _number(2, _INT8) + _text(8, "codes")
        + _field(9, codes.tobytes())
    )  # fmt: skip
    zero = _number(2, _UINT8) + _text(8, "zero") + _field(9, bytes([_ZERO]))
    node = b"".join(_text(1, name) for name in ("digits", "codes", "zero"))
    node += _text(2, "sums") + _text(4, "MatMulInteger")
    graph = (
        _field(1, node) + _text(2, "products") + _field(5, weights) + _field(5, zero)
        + _field(11, _value("digits", _UINT8, dimensions)) + _field(12, _value("sums", _INT32, count))
    )  # fmt: skip
    return _number(1, _IR_VERSION) + _field(8, _number(2, _OPSET)) + _field(7, graph)


# Both older than any ONNX Runtime that is supported; MatMulInteger is of opset 10.
_IR_VERSION: Final = 8
_OPSET: Final = 17
# TensorProto.DataType.
_UINT8: Final = 2
_INT8: Final = 3
_INT32: Final = 6


def _value(name: str, element: int, columns: int) -> bytes:
    """Describe an input or output of any number of rows."""
    shape = _field(1, _text(2, "rows")) + _field(1, _number(1, columns))
    return _text(1, name) + _field(2, _field(1, _number(1, element) + _field(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _field(field, value.encode())


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

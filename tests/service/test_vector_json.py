"""Vectors survive JSON bit for bit, whatever their size."""

import json

import numpy as np
import pytest

from service.vector_json import _PIECE_NUMBERS, encode_vectors


@pytest.mark.parametrize("rows", [1, 3, 700])
async def test_numbers_read_back_as_the_same_float32(rows: int) -> None:
    """Clients that parse doubles and round to float32 get exactly what the model computed."""
    bits = np.random.default_rng(1).integers(0, 2**32, size=(rows, 384), dtype=np.uint64).astype(np.uint32)
    vectors = np.nan_to_num(bits.view(np.float32), nan=0.1, posinf=-0.0, neginf=1e-45)
    read = np.array(json.loads(await encode_vectors(vectors)), dtype=np.float64).astype(np.float32)
    assert np.array_equal(read.view(np.uint32), vectors.view(np.uint32))


async def test_numbers_take_their_shortest_form() -> None:
    """0.1 is not sent as 0.10000000149011612."""
    vectors = np.array([[0.1, -2.0], [1e-10, 0.33333334]], dtype=np.float32)
    assert await encode_vectors(vectors) == b"[[0.1,-2.0],[1e-10,0.33333334]]"


async def test_a_view_with_gaps_is_encoded_as_what_it_shows() -> None:
    """Cut to fewer dimensions, an array is not contiguous."""
    wide = np.arange(_PIECE_NUMBERS * 4, dtype=np.float32).reshape(-1, 4)
    assert json.loads(await encode_vectors(wide[:, :2])) == wide[:, :2].tolist()
    assert json.loads(await encode_vectors(wide[:3, :2])) == wide[:3, :2].tolist()

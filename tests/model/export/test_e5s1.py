"""The packed 4-bit file is read to the bit, or refused."""

import struct

import numpy as np
import pytest

from model.export.e5s1 import E5S1Error, decode_blocks, read_e5s1
from model.export.storage import CODES, SCALES, encode
from tests.model.export.e5s1_files import HIDDEN, PIECES, e5s1_file


def test_a_block_holds_sixteen_low_and_sixteen_high_nibbles() -> None:
    """Weight j lies low in byte j and weight j + 16 high: read otherwise, every row is shuffled."""
    nibbles = np.array([[low | (15 - low) << 4 for low in range(16)]], np.uint8)
    weights = decode_blocks(np.array([0.5], np.float16), nibbles)
    assert weights[0, :16].tolist() == [(code - 8) * 0.5 for code in range(16)]
    assert weights[0, 16:].tolist() == [(15 - code - 8) * 0.5 for code in range(16)]


def test_the_whole_model_is_read() -> None:
    """Pieces, special ids and every tensor of a BERT checkpoint are there."""
    model = read_e5s1(e5s1_file())
    assert [piece for piece, _ in model.pieces] == PIECES
    assert model.pieces[5][1] == -1.25
    assert model.special == {"bos": 0, "eos": 2, "pad": 1, "unk": 3}
    assert model.config["layer_norm_eps"] == 1e-12
    assert len(model.tensors) == 5 + 2 * 16
    assert model.tensors["encoder.layer.1.output.dense.weight"].shape == (HIDDEN, 96)


def test_storing_it_again_keeps_codes_and_scales() -> None:
    """The default bundle claims to hold the published weights, unchanged."""
    word = read_e5s1(e5s1_file()).tensors["embeddings.word_embeddings.weight"]
    stored = encode("word", word, "q4_block32", gathered=True)
    np.testing.assert_array_equal(stored.decode(), word)
    assert set(stored.arrays) == {CODES, SCALES}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF" + bytes(100), "not an E5S1 file"),
        (b"", "ends at byte 0"),
        (e5s1_file(version=2), "version 2"),
        (e5s1_file(block_size=64), "blocks of 64"),
        (e5s1_file()[:-1], "tensor l1.oln.b"),
        (e5s1_file()[:200], "the file ends at byte 200"),
        (e5s1_file().replace(b"l0.q.w", b"l0.z.w"), "l0.q.w is absent"),
        (
            e5s1_file().replace(struct.pack("<BI", 1, HIDDEN * HIDDEN), struct.pack("<BI", 1, 32)),
            "32 elements",
        ),
    ],
)
def test_what_is_not_understood_is_refused(data: bytes, message: str) -> None:
    """A guess at the layout would give weights that look like weights."""
    with pytest.raises(E5S1Error, match=message):
        read_e5s1(data)

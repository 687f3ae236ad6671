"""Writes small E5S1 files, by the layout that the reader documents."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECES = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    *"▁好的退货abcdefgh123",
    "▁hello",
    "▁return",
    "été",
    "ми",
    "<mask>",
]
HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 64, 2, 4, 96, 48


def packed(weights: NDArray[np.float32]) -> bytes:
    """Blocks of 32: float16 scale, then sixteen bytes, weight j low and weight j + 16 high."""
    blocks = weights.reshape(-1, 32)
    farthest = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    scales = (farthest / -8).astype(np.float16)
    codes = np.clip(np.rint(blocks / scales.astype(np.float32)[:, None]) + 8, 0, 15).astype(np.uint8)
    return b"".join(
        scale.tobytes() + (row[:16] | row[16:] << np.uint8(4)).tobytes()
        for scale, row in zip(scales, codes, strict=True)
    )


def e5s1_file(**changes: Any) -> bytes:
    """A whole file of a seeded random model; ``changes`` are ``version`` and ``block_size``."""
    generator = np.random.default_rng(11)
    vocabulary = len(PIECES) + 3  # as in the real file: rows that no piece has
    matrices = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "ao": (HIDDEN, HIDDEN)}
    matrices |= {"fi": (INTERMEDIATE, HIDDEN), "fo": (HIDDEN, INTERMEDIATE)}
    tensors: list[tuple[str, int, tuple[int, ...]]] = [
        ("emb.word", 1, (vocabulary, HIDDEN)),
        ("emb.pos", 0, (POSITIONS, HIDDEN)),
        ("emb.type", 0, (2, HIDDEN)),
        ("emb.ln.w", 0, (HIDDEN,)),
        ("emb.ln.b", 0, (HIDDEN,)),
    ]
    for layer in range(LAYERS):
        for short, shape in matrices.items():
            tensors += [(f"l{layer}.{short}.w", 1, shape), (f"l{layer}.{short}.b", 0, shape[:1])]
        tensors += [(f"l{layer}.{norm}.{part}", 0, (HIDDEN,)) for norm in ("aln", "oln") for part in "wb"]

    head = b"E5S1" + struct.pack("<I", changes.get("version", 1))
    head += struct.pack("<7i", HIDDEN, LAYERS, HEADS, INTERMEDIATE, vocabulary, POSITIONS, 2)
    head += struct.pack("<fi", 1e-12, changes.get("block_size", 32))
    texts = [piece.encode() for piece in PIECES]
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, texts)))
    head += np.cumsum([0, *map(len, texts)]).astype("<u4").tobytes()
    head += np.array([-float(index) / 4 for index in range(len(PIECES))], "<f4").tobytes()
    head += b"".join(texts)
    rule = struct.pack("<IB", ord("Ａ"), 1) + struct.pack("<I", ord("A"))
    head += struct.pack("<iI", 1, len(rule)) + rule
    head += struct.pack("<i", len(tensors))

    entry_bytes = sum(2 + len(name) + struct.calcsize("<BIQQ") for name, _, _ in tensors)
    directory, data, start = b"", b"", len(head) + entry_bytes
    for name, kind, shape in tensors:
        weights = generator.normal(scale=0.3, size=shape).astype(np.float32)
        content = packed(weights) if kind else weights.astype("<f4").tobytes()
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", kind, weights.size, start + len(data), len(content))
        data += content
    return head + directory + data

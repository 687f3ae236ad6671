"""Cutting a multilingual vocabulary down to the languages that a model is to serve.

Most of a multilingual model is its word table. Dropping pieces of other languages cannot change how a text is
cut whose best segmentation does not use them, so a text made of kept pieces keeps exactly its embedding.
"""

from __future__ import annotations

import json
import lzma
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

_WORD_START: Final = "\u2581"  # how SentencePiece writes a blank
# Blocks of Han characters: CJK unified with extension A, the compatibility block, planes 2 and 3.
_HAN: Final = ((0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))


def is_chinese_or_neutral(piece: str) -> bool:
    """Whether a piece has only Han characters, digits, punctuation, symbols and blanks."""
    return all(
        character == _WORD_START
        or any(first <= ord(character) <= last for first, last in _HAN)
        or unicodedata.category(character)[0] in "PSZN"
        for character in piece
    )


def is_single_latin(piece: str) -> bool:
    """Whether a piece is one ASCII or Latin character, so that any Latin-script word can be spelt."""
    core = piece.replace(_WORD_START, "")
    return len(core) == 1 and (core.isascii() or unicodedata.name(core, "").startswith("LATIN"))


def pieces_for_chinese_and_english(
    pieces: Sequence[str], special: Collection[str], seen: Collection[int]
) -> list[int]:
    """Choose the pieces that Chinese and English text needs.

    Args:
        pieces: The whole vocabulary, in id order.
        special: Pieces that are always kept.
        seen: Ids that a corpus of the two languages uses.

    Returns:
        Ids to keep, ascending.
    """
    counted = set(seen)
    return [
        index
        for index, piece in enumerate(pieces)
        if piece in special or index in counted or is_chinese_or_neutral(piece) or is_single_latin(piece)
    ]


def write_kept_pieces(path: Path, kept: Sequence[int], vocabulary: int) -> None:
    """Write a choice of pieces as one bit for each piece, compressed.

    Args:
        path: Of the new file.
        kept: Ids, ascending.
        vocabulary: Number of pieces to choose from.
    """
    bits = np.zeros(vocabulary, bool)
    bits[list(kept)] = True
    path.write_bytes(lzma.compress(np.packbits(bits).tobytes(), preset=9 | lzma.PRESET_EXTREME))


def read_kept_pieces(data: bytes, vocabulary: int) -> list[int]:
    """Read the bytes that ``write_kept_pieces`` wrote.

    Raises:
        ValueError: The choice was made from a vocabulary of another size.
    """
    bits = np.frombuffer(lzma.decompress(data), np.uint8)
    if len(bits) != (vocabulary + 7) // 8:
        raise ValueError(f"the choice is out of {len(bits) * 8 - 7} to {len(bits) * 8} pieces")
    return [int(index) for index in np.flatnonzero(np.unpackbits(bits, count=vocabulary))]


def cut_unigram_tokenizer(tokenizer: str, kept: Sequence[int]) -> str:
    """Leave only some pieces in a Unigram tokenizer.

    Args:
        tokenizer: ``tokenizer.json``.
        kept: Ids to keep, ascending; the unknown piece and all special ones must be among them.

    Returns:
        The new ``tokenizer.json``; ids are positions in ``kept``.

    Raises:
        ValueError: It is not a Unigram tokenizer, or a special piece would go.
    """
    content: dict[str, Any] = json.loads(tokenizer)
    model = content["model"]
    if model["type"] != "Unigram":
        raise ValueError(f"only Unigram vocabularies can be cut, this one is {model['type']}")
    new_ids = {old: new for new, old in enumerate(kept)}
    special = {added["content"]: added["id"] for added in content["added_tokens"]}
    if lost := [piece for piece, old in special.items() if old not in new_ids]:
        raise ValueError(f"special pieces must be kept: {', '.join(lost)}")
    model["vocab"] = [model["vocab"][old] for old in kept]
    model["unk_id"] = new_ids[model["unk_id"]]
    for added in content["added_tokens"]:
        added["id"] = new_ids[added["id"]]
    for token in content["post_processor"]["special_tokens"].values():
        token["ids"] = [new_ids[old] for old in token["ids"]]
    return json.dumps(content, ensure_ascii=False)

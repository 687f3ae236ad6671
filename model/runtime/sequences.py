"""Texts, and pairs of texts, as the rows that a classifier of whole texts reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from model.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    import tokenizers

TextOrPair = str | tuple[str, str]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One text or pair as tokens; S tokens, special ones included.

    Attributes:
        input_ids: [S] int64.
        token_type_ids: [S] int64; 1 = token of the second text, and the special ones that go with it, if the
            model tells them apart.
        sequence_ids: [S] int64; 0 = token of the first text, 1 = of the second, -1 = special.
        empty: places, in the pair, of texts that hold nothing a model reads.
        truncated_tokens: how many tokens were cut off, of both texts together.
    """

    input_ids: NDArray[np.int64]
    token_type_ids: NDArray[np.int64]
    sequence_ids: NDArray[np.int64]
    empty: tuple[int, ...] = ()
    truncated_tokens: int = 0

    def __len__(self) -> int:
        """Tokens, special ones included."""
        return len(self.input_ids)


def read_sequences(
    tokenizer: Tokenizer, items: Sequence[TextOrPair], *, token_types: bool
) -> list[TokenSequence]:
    """Tokenise each text or pair whole, special tokens added.

    Args:
        tokenizer: of the bundle.
        items: texts, pairs, or both.
        token_types: whether the model tells the texts of a pair apart by token types, as the tokenizer's
            template gives them; otherwise all are 0, whatever it gives.

    Raises:
        NotTextError: a text holds half of a surrogate pair; its index is that of the item.
    """
    return [
        _from_encoding(encoding, 1 if isinstance(item, str) else 2, token_types=token_types)
        for item, encoding in zip(items, tokenizer.encode_batch(items), strict=True)
    ]


def truncate_sequence(sequence: TokenSequence, max_tokens: int, *, from_start: bool = False) -> TokenSequence:
    """Cut to ``max_tokens``; special tokens stay.

    A pair loses tokens from its longer text until both are equally long, then from both alike, and the second
    keeps the odd one: transformers' and tokenizers' "longest_first", which cross-encoders are trained with.

    Args:
        sequence: returned as it is if short enough.
        max_tokens: special tokens included.
        from_start: cut the beginning of each text instead of its end.

    Raises:
        ValueError: no room for a token of each text between the special ones.
    """
    excess = len(sequence) - max_tokens
    if excess <= 0:
        return sequence
    lengths = [int((sequence.sequence_ids == place).sum()) for place in (0, 1)]
    room = sum(lengths) - excess
    texts = sum(1 for length in lengths if length)
    if room < texts:
        raise ValueError(f"max_tokens {max_tokens} leaves no room beside the special tokens")
    keep = np.ones(len(sequence), dtype=np.bool_)
    for place, kept in enumerate(_shares(lengths, room)):
        own = np.flatnonzero(sequence.sequence_ids == place)
        keep[own[: len(own) - kept] if from_start else own[kept:]] = False
    return TokenSequence(
        input_ids=sequence.input_ids[keep],
        token_type_ids=sequence.token_type_ids[keep],
        sequence_ids=sequence.sequence_ids[keep],
        empty=sequence.empty,
        truncated_tokens=sequence.truncated_tokens + excess,
    )


def _shares(lengths: Sequence[int], room: int) -> tuple[int, int]:
    """How many tokens of each text fit into ``room``."""
    first, second = lengths
    half = room // 2
    if min(first, second) <= half:  # the shorter one stays whole
        return (first, room - first) if first <= second else (room - second, second)
    # The odd token goes to the longer one, or the second of equals.
    return (room - half, half) if first > second else (half, room - half)


def _from_encoding(encoding: tokenizers.Encoding, texts: int, *, token_types: bool) -> TokenSequence:
    special = np.array(encoding.special_tokens_mask, dtype=np.bool_)
    places = np.array([-1 if place is None else place for place in encoding.sequence_ids], dtype=np.int64)
    places[special] = -1
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    readable = set(places[offsets[:, 1] > offsets[:, 0]].tolist())
    types = np.array(encoding.type_ids, dtype=np.int64)
    return TokenSequence(
        input_ids=np.array(encoding.ids, dtype=np.int64),
        token_type_ids=types if token_types else np.zeros_like(types),
        sequence_ids=places,
        empty=tuple(place for place in range(texts) if place not in readable),
    )

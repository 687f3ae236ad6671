"""Texts as the tokens of an embedding model, and ids as text: what /tokenize and /decode answer with."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson
from tokenizers import Encoding

from model.runtime.tokenization import NotTextError, UnknownIdError
from service.admission import AnswerTooLargeError
from service.errors import InvalidTextError
from service.inference import Embedder
from service.token_ids import TokenIdsError


@dataclass(frozen=True, slots=True)
class TokenLists:
    """The tokens of texts.

    Attributes:
        encoded: JSON list of them, per text, as ``tei_schemas.Token``.
        tokens: how many, per text.
        empty: places of texts of which no token is a part.
    """

    encoded: bytes
    tokens: list[int]
    empty: list[int]


async def tokens_of(
    embedder: Embedder,
    texts: Sequence[str],
    *,
    prefix: str,
    add_special_tokens: bool,
    param: str,
    max_bytes: int,
) -> TokenLists:
    """The tokens of each text; made in the tokenising threads.

    Args:
        embedder: whose tokenizer it is.
        texts: as the caller sent them; offsets count in their UTF-8 bytes.
        prefix: put before each text; its tokens have no offsets.
        add_special_tokens: those around a text too.
        param: the request field that holds the texts.
        max_bytes: of the list.

    Raises:
        AnswerTooLargeError: it comes to more; no more is written than one text beyond.
        InvalidTextError: a text holds half of a surrogate pair.
        UnavailableError: the tokenising threads hang.
    """
    written = 0

    def work(first: int, piece: Sequence[str]) -> list[tuple[bytes, int, bool]]:
        try:
            encodings = embedder.tokenizer.encode_batch(
                [prefix + text for text in piece], add_special_tokens=add_special_tokens
            )
        except NotTextError as error:
            index = first + (error.index or 0)
            raise InvalidTextError(
                f"{param}[{index}] holds half of a surrogate pair at character "
                f"{error.character - len(prefix)}",
                index=index,
                param=param,
            ) from error
        nonlocal written
        found = []
        for encoding, text in zip(encodings, piece, strict=True):
            encoded, empty = _encode(encoding, text, len(prefix))
            found.append((encoded, len(encoding), empty))
            written += len(encoded) + 1
            if written > max_bytes:
                raise AnswerTooLargeError(max_bytes)
        return found

    found = await embedder.in_tokenizing_thread(texts, work, [len(text) for text in texts])
    return TokenLists(
        b"[" + b",".join(encoded for encoded, _, _ in found) + b"]",
        [count for _, count, _ in found],
        [place for place, (_, _, empty) in enumerate(found) if empty],
    )


async def decode_ids(
    embedder: Embedder, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool, param: str
) -> list[str]:
    """The text of each sequence of ids, made in the tokenising threads.

    Raises:
        TokenIdsError: an id that the vocabulary lacks.
        UnavailableError: the tokenising threads hang.
    """

    def work(first: int, piece: Sequence[Sequence[int]]) -> list[str]:
        try:
            return embedder.tokenizer.decode_batch(piece, skip_special_tokens=skip_special_tokens)
        except UnknownIdError as error:
            index = first + error.index
            raise TokenIdsError(
                f"{param}[{index}] holds at {error.position} an id that {embedder.model_id} lacks; its ids "
                f"end at {embedder.tokenizer.vocab_size - 1}",
                index=index,
                param=param,
            ) from error

    return await embedder.in_tokenizing_thread(ids, work, [len(sequence) for sequence in ids])


def _encode(encoding: Encoding, text: str, prefix_length: int) -> tuple[bytes, bool]:
    """JSON list of a text's tokens, and whether none of them is a part of it."""
    # [n + 1]: the byte at which each code point starts.
    starts = [0, *accumulate(len(character.encode()) for character in text)]
    tokens = []
    empty = True
    for token_id, name, special, (first, last) in zip(
        encoding.ids, encoding.tokens, encoding.special_tokens_mask, encoding.offsets, strict=True
    ):
        start, stop = max(first - prefix_length, 0), last - prefix_length
        own = not special and stop > 0
        empty = empty and not (own and text[start:stop].strip())
        tokens.append(
            {
                "id": token_id,
                "text": text[start:stop] if own else name,
                "special": bool(special),
                "start": starts[start] if own else None,
                "stop": starts[stop] if own else None,
            }
        )
    return orjson.dumps(tokens), empty

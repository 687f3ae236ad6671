"""Token ids in place of texts: refused, or turned back into the text they stand for, as the operator chose.

OpenAI's interface takes either, and some of its clients send ids of *OpenAI's* vocabulary by default. Fed to
another model they would give a vector that looks like any other and means nothing, so nothing is embedded
unless it is certain which text is meant.
"""

import asyncio
import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from model.runtime.tokenization import Tokenizer, UnknownIdError
from service.admission import TextLimits
from service.errors import EmptyInputError, InvalidInputError

InputIds = Literal["refuse", "model_vocab", "cl100k"]
Inputs = list[str] | list[list[int]]

# The vocabulary that OpenAI publishes as cl100k_base.tiktoken.
_CL100K_SHA256: Final = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"


class TokenIdsError(InvalidInputError):
    """Token ids were sent where text is wanted, or ids that stand for no text."""

    code = "token_ids_refused"


class VocabularyFileError(Exception):
    """The file of the cl100k vocabulary cannot be used; the message says why."""


class Cl100kVocabulary:
    """What each id of OpenAI's vocabulary ``cl100k_base`` spells, in bytes; for reading ids only.

    Source: the file format of tiktoken (``load.py``): a line for each token, its bytes in base64 and its id.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read ``cl100k_base.tiktoken``.

        Raises:
            VocabularyFileError: it cannot be read, or is another file: with other tokens every text would
                be read wrongly, and nobody would notice.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise VocabularyFileError(f"{path}: {error.strerror}") from error
        digest = hashlib.sha256(content).hexdigest()
        if digest != _CL100K_SHA256:
            raise VocabularyFileError(
                f"{path} is not cl100k_base.tiktoken: its sha256 is {digest}, not {_CL100K_SHA256}"
            )
        return cls.from_bytes(content)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read the lines of such a file.

        Raises:
            VocabularyFileError: a line cannot be read, or the ids are not 0, 1, 2 and so on.
        """
        tokens: list[bytes] = []
        for number, line in enumerate(content.splitlines()):
            spelt, _, rank = line.partition(b" ")
            try:
                if int(rank) != number:
                    raise VocabularyFileError(f"line {number + 1} has not the id {number}")
                tokens.append(base64.b64decode(spelt, validate=True))
            except (ValueError, binascii.Error) as error:
                raise VocabularyFileError(f"line {number + 1} cannot be read") from error
        return cls(tokens)

    def text(self, ids: Sequence[int]) -> str:
        """The text that ids spell. A client that cuts a long text may cut through a character: its part goes.

        Raises:
            IndexError: an id that is not in the vocabulary; OpenAI's special tokens are not.
            UnicodeDecodeError: bytes inside are not UTF-8.
        """
        if any(token_id < 0 for token_id in ids):
            raise IndexError
        spelt = b"".join(self._tokens[token_id] for token_id in ids)
        return _whole_characters(spelt).decode()


@dataclass(frozen=True, slots=True)
class InputReader:
    """Makes admitted texts of what a request brings.

    Attributes:
        limits: on texts; ids count as characters before they are texts.
        input_ids: what becomes of ids.
        cl100k: the vocabulary; needed if ids are of it.
    """

    limits: TextLimits
    input_ids: InputIds
    cl100k: Cl100kVocabulary | None = None

    async def read(self, inputs: Inputs, tokenizer: Tokenizer, *, param: str) -> list[str]:
        """The texts, in order.

        Args:
            inputs: texts, or lists of token ids.
            tokenizer: of the model that will read them.
            param: the request field that holds them.

        Raises:
            TokenIdsError: ids are not taken, or these stand for no text.
            as `TextLimits.admit`.
        """
        if not inputs or isinstance(inputs[0], str):
            texts = [text for text in inputs if isinstance(text, str)]
        else:
            ids = [sequence for sequence in inputs if not isinstance(sequence, str)]
            self._admit_ids(ids, param)
            texts = await asyncio.to_thread(self._texts, ids, tokenizer, param)
        self.limits.admit(texts, param=param)
        return texts

    def _admit_ids(self, ids: Sequence[Sequence[int]], param: str) -> None:
        if self.input_ids == "refuse":
            raise TokenIdsError(
                f"{param} holds token ids, and this server takes text: ids of another model's vocabulary "
                "would give a vector without meaning. In LangChain's OpenAIEmbeddings set "
                "check_embedding_ctx_length=False. An operator can allow ids with setting "
                "CONCHE_INPUT_IDS=cl100k (what OpenAI's clients send) or model_vocab (this model's own)",
                param=param,
            )
        self.limits.admit_sizes([len(sequence) for sequence in ids], param=param, unit="token ids")
        for index, sequence in enumerate(ids):
            if not sequence and not self.limits.read_empty:
                raise EmptyInputError(f"{param}[{index}] is empty", index=index, param=param)

    def _texts(self, ids: Sequence[Sequence[int]], tokenizer: Tokenizer, param: str) -> list[str]:
        if self.input_ids == "cl100k":
            return [self._from_cl100k(sequence, index, param) for index, sequence in enumerate(ids)]
        return _from_own_vocabulary(ids, tokenizer, param)

    def _from_cl100k(self, ids: Sequence[int], index: int, param: str) -> str:
        if self.cl100k is None:
            raise AssertionError("the settings are checked at the start")
        try:
            return self.cl100k.text(ids)
        except (IndexError, UnicodeDecodeError):
            raise TokenIdsError(
                f"{param}[{index}] holds ids that are not text in cl100k_base, the vocabulary that setting "
                "CONCHE_INPUT_IDS names",
                index=index,
                param=param,
            ) from None


def _from_own_vocabulary(ids: Sequence[Sequence[int]], tokenizer: Tokenizer, param: str) -> list[str]:
    try:
        texts = tokenizer.decode_batch(ids)
    except UnknownIdError as error:
        raise TokenIdsError(
            f"{param}[{error.index}] holds at {error.position} an id that this model's vocabulary lacks; its "
            f"ids end at {tokenizer.vocab_size - 1}",
            index=error.index,
            param=param,
        ) from error
    # Ids of another vocabulary are in range more often than not. Those of this one are what its tokenizer
    # makes of the text that they spell, with special tokens around it or without, and nothing else is.
    whole, bare = (tokenizer.encode_batch(texts, add_special_tokens=special) for special in (True, False))
    for index, (sequence, *encodings) in enumerate(zip(ids, whole, bare, strict=True)):
        if list(sequence) not in [encoding.ids for encoding in encodings]:
            raise TokenIdsError(
                f"{param}[{index}] holds ids that this model's tokenizer makes of no text; were they made "
                "with another one?",
                index=index,
                param=param,
            )
    return texts


def _whole_characters(spelt: bytes) -> bytes:
    """Leave out the bytes of a character at either end that is not all there."""
    start = 0
    while start < min(3, len(spelt)) and spelt[start] & 0xC0 == 0x80:
        start += 1
    for back in range(1, min(4, len(spelt) - start) + 1):
        first = spelt[-back]
        if first & 0xC0 == 0x80:
            continue
        needed = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
        return spelt[start:] if needed <= back else spelt[start:-back]
    return spelt[start:]

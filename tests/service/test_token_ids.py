"""Ids of OpenAI's vocabulary become the text they spell, or are refused."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.runtime.tokenization import Tokenizer
from service.admission import TextLimits
from service.errors import EmptyInputError, TooManyInputsError
from service.token_ids import (
    Cl100kVocabulary,
    InputReader,
    TokenIdsError,
    VocabularyFileError,
    _whole_characters,
)
from tests.bundles import tiny_tokenizer

# A vocabulary of all bytes, and one longer token; the format is that of the real one.
BYTES = Cl100kVocabulary.from_bytes(
    b"\n".join(
        b"%b %d" % (base64.b64encode(token), number)
        for number, token in enumerate([*(bytes([byte]) for byte in range(256)), b" refund"])
    )
)
LIMITS = TextLimits(max_inputs=3, max_text_characters=100, max_total_characters=150)


@pytest.fixture
def reader() -> InputReader:
    """Reads ids of ``BYTES``."""
    return InputReader(LIMITS, "cl100k", BYTES)


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Plays no part."""
    return Tokenizer(tiny_tokenizer())


async def test_ids_are_read_as_the_text_they_spell(reader: InputReader, tokenizer: Tokenizer) -> None:
    """Characters of several bytes too."""
    ids = [list("怎么退货".encode()), [*b"my", 256]]
    assert await reader.read(ids, tokenizer, param="input") == ["怎么退货", "my refund"]
    assert await reader.read(["as it is"], tokenizer, param="input") == ["as it is"]


@pytest.mark.parametrize("wrong", [[-1], [257], [65, 0xC3, 65], [100257]])
async def test_ids_that_spell_no_text_are_refused(
    reader: InputReader, tokenizer: Tokenizer, wrong: list[int]
) -> None:
    """Special tokens and other vocabularies' ids are not guessed at."""
    with pytest.raises(TokenIdsError, match=r"input\[1\].*CONCHE_INPUT_IDS") as refused:
        await reader.read([[65], wrong], tokenizer, param="input")
    assert refused.value.index == 1


async def test_what_is_empty_or_too_much_is_refused_as_texts_are(
    reader: InputReader, tokenizer: Tokenizer
) -> None:
    """Before ids are read, and after."""
    with pytest.raises(EmptyInputError, match=r"input\[1\]"):
        await reader.read([[65], []], tokenizer, param="input")
    with pytest.raises(EmptyInputError, match=r"input\[0\]"):
        await reader.read([[32, 32]], tokenizer, param="input")
    with pytest.raises(TooManyInputsError, match="MAX_INPUTS"):
        await reader.read([[65]] * 4, tokenizer, param="input")


async def test_no_ids_are_an_empty_text_where_such_are_read(tokenizer: Tokenizer) -> None:
    """What LangChain sends for an empty document is told apart from none by nothing else."""
    reader = InputReader(replace(LIMITS, read_empty=True), "cl100k", BYTES)
    assert await reader.read([[65], [], [32]], tokenizer, param="input") == ["A", "", " "]
    with pytest.raises(EmptyInputError, match="empty list"):
        await reader.read([], tokenizer, param="input")


@given(st.text(min_size=1).map(str.encode), st.data())
def test_a_cut_through_a_character_loses_that_character_only(spelt: bytes, data: st.DataObject) -> None:
    """Clients cut long texts by tokens, and a character may be of several."""
    start = data.draw(st.integers(0, len(spelt)))
    stop = data.draw(st.integers(start, len(spelt)))
    whole = _whole_characters(spelt[start:stop]).decode()
    expected = spelt[start:stop].decode(errors="ignore")
    assert whole == expected


def test_another_file_is_refused(tmp_path: Path) -> None:
    """A vocabulary of the same format with other tokens would misread every text."""
    other = tmp_path / "p50k_base.tiktoken"
    other.write_bytes(b"IQ== 0\n")
    with pytest.raises(VocabularyFileError, match="not cl100k_base"):
        Cl100kVocabulary.from_file(other)
    with pytest.raises(VocabularyFileError, match="No such file"):
        Cl100kVocabulary.from_file(tmp_path / "none")


@pytest.mark.parametrize("lines", [b"IQ== 1", b"IQ==", b"!! 0", b"IQ== x"])
def test_a_broken_line_is_named(lines: bytes) -> None:
    """It says which."""
    with pytest.raises(VocabularyFileError, match="line 1"):
        Cl100kVocabulary.from_bytes(lines)

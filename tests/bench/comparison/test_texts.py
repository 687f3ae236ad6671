"""Texts: everybody is asked for the same mix, of the lengths that the workload's name says."""

import pytest
from comparison.texts import cut, dealt, of_length, read_texts


def letters(texts: list[str]) -> list[list[int]]:
    """A tokenizer whose tokens are characters."""
    return [list(range(1, len(text) + 1)) for text in texts]


def test_any_stretch_has_the_lengths_of_the_whole() -> None:
    """So a slow contestant, which sees the first texts only, is asked for no other mix than a quick one."""
    texts = ["x" * length for length in range(1, 257)]
    lengths = [len(text) for text in texts]
    order = dealt(texts, lengths, hand=32)
    assert sorted(map(len, order)) == lengths
    sums = [sum(map(len, order[first : first + 32])) for first in range(0, 256, 32)]
    # One of each stretch of eight like lengths: at most 7 apart for each of the 32.
    assert max(sums) - min(sums) <= 7 * 32
    assert order != sorted(order, key=len)


def test_dealing_is_the_same_every_time_and_leaves_out_what_fills_no_hand() -> None:
    """Two runs are compared with each other, too."""
    texts = [f"{'y' * (number % 50)}{number}" for number in range(300)]
    lengths = [len(text) for text in texts]
    assert dealt(texts, lengths, hand=128) == dealt(texts, lengths, hand=128)
    assert len(dealt(texts, lengths, hand=128)) == 256
    assert dealt(texts[:10], lengths[:10], hand=128) == texts[:10]


@pytest.mark.parametrize("tokens", [3, 16, 256])
def test_made_texts_have_that_many_tokens(tokens: int) -> None:
    """Two of them are the special ones."""
    made = of_length([chr(97 + number) * (3 + number) for number in range(7)], letters, tokens, 5)
    assert [len(text) + 2 for text in made] == [tokens] * 5
    assert len(set(made)) > 1


def test_long_texts_are_cut_and_short_ones_stay() -> None:
    """Cut to what is read, special tokens included."""
    assert cut(["abcdefgh", "abc"], letters, 6) == ["abcd", "abc"]


@pytest.mark.parametrize(("kind", "language", "count"), [("text", "en", 2048), ("text", "zh", 512)])
def test_the_texts_are_there(kind: str, language: str, count: int) -> None:
    """As many as the bulk client sends; none is empty, Chinese is Chinese."""
    texts = read_texts(kind, language)
    assert len(texts) == count
    assert all(text.strip() for text in texts)
    assert all(text.isascii() for text in texts[:3]) == (language == "en")


def test_documents_are_long_but_no_longer_than_peers_read() -> None:
    """Peers read 512 tokens; a Han character is one."""
    assert all(len(text) <= 900 for text in read_texts("document", "en"))
    assert all(200 < len(text) <= 320 for text in read_texts("document", "zh"))

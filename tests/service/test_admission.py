"""Which texts are taken, and that a refusal names index, limit and setting."""

from dataclasses import replace

import pytest

from service.admission import TextLimits, TooManyCharactersError
from service.errors import EmptyInputError, InvalidInputError, TooManyInputsError

LIMITS = TextLimits(max_inputs=3, max_text_characters=10, max_total_characters=15)


@pytest.mark.parametrize(
    ("texts", "kind", "index", "said"),
    [
        ([], EmptyInputError, None, "empty list"),
        (["a", ""], EmptyInputError, 1, r"inputs\[1\]"),
        (["a", " \n\t\u3000"], EmptyInputError, 1, r"inputs\[1\]"),
        (["a"] * 4, TooManyInputsError, None, "4 texts, at most 3 .*CONCHE_LIMITS__MAX_INPUTS"),
        (["a", "x" * 11], TooManyCharactersError, 1, "11 characters, at most 10 .*MAX_TEXT_CHARACTERS"),
        (["x" * 10, "x" * 10], TooManyCharactersError, 1, "more than 15 .*MAX_TOTAL_CHARACTERS"),
    ],
)
def test_a_refusal_names_the_item_and_the_limit(
    texts: list[str], kind: type[InvalidInputError], index: int | None, said: str
) -> None:
    """So that the caller can drop one text instead of guessing among 2,000."""
    with pytest.raises(kind, match=said) as caught:
        LIMITS.admit(texts, param="inputs")
    assert (caught.value.index, caught.value.param) == (index, "inputs")


def test_empty_texts_pass_where_they_are_read_unless_one_is_needed() -> None:
    """Nothing can be compared with a query of nothing; and no texts at all are a mistake in any case."""
    reading = replace(LIMITS, read_empty=True)
    reading.admit(["a", "", " \n"], param="inputs")
    with pytest.raises(EmptyInputError, match=r"query\[0\]"):
        reading.admit([" "], param="query", needed=True)
    with pytest.raises(EmptyInputError, match="empty list"):
        reading.admit([], param="inputs")


def test_ordinary_texts_pass() -> None:
    """Emoji, NUL and right-to-left marks are text."""
    LIMITS.admit(["😀", "a\x00b", "\u200f退货"], param="inputs")

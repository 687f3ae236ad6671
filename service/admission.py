"""Which texts a request may bring: checked before anything is tokenised, the offending index named."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.errors import EmptyInputError, InvalidInputError, TooManyInputsError

# U+FDFA, an Arabic ligature, is 18 characters under NFKC; no character is more.
_MOST_PER_CHARACTER: Final = 18


class TooManyCharactersError(InvalidInputError):
    """A text, or all texts of the request together, are longer than is taken."""

    code = "too_many_characters"


class AnswerTooLargeError(InvalidInputError):
    """The answer would be larger than is sent; ask for less at a time."""

    code = "answer_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the answer comes to more than {limit} bytes; ask for less at a time, or raise setting "
            "CONCHE_LIMITS__MAX_ANSWER_BYTES"
        )


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits of one request.

    Attributes:
        max_inputs: texts.
        max_text_characters: code points of one text.
        max_total_characters: code points of all texts together.
        read_empty: an empty or blank text in a list is read like any other, instead of refused.
    """

    max_inputs: int
    max_text_characters: int
    max_total_characters: int
    read_empty: bool = False

    def admit(self, texts: Sequence[str | tuple[str, str]], *, param: str, needed: bool = False) -> None:
        """Check the texts, or pairs of texts, of request field ``param``; a pair counts as one text.

        Args:
            texts: of the field.
            param: its name, for messages.
            needed: an empty one is refused however the server is set: it is what all others are compared
                with, or is kept.

        Raises:
            EmptyInputError: no texts, or one that is empty or blank and must not be: it has no meaning to
                embed, and a vector for it looks like any other.
            TooManyInputsError: more than ``max_inputs``.
            TooManyCharactersError: one text or all together have too many characters.
        """
        sizes = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
        self.admit_sizes(sizes, param=param)
        if max(sizes) * _MOST_PER_CHARACTER > self.max_text_characters:  # else they are the same
            self.admit_sizes(
                [sum(map(self._normalised_length, _parts(text))) for text in texts],
                param=param,
                unit="characters, normalised,",
            )
        if self.read_empty and not needed:
            return
        for index, text in enumerate(texts):
            parts = _parts(text)
            for place, part in enumerate(parts):
                if not part or part.isspace():
                    which = f"the {('first', 'second')[place]} text of " if len(parts) > 1 else ""
                    raise EmptyInputError(f"{which}{param}[{index}] is empty", index=index, param=param)

    def _normalised_length(self, text: str) -> int:
        """Code points that a tokenizer may come to see; a few characters stand for up to 18."""
        if len(text) * _MOST_PER_CHARACTER <= self.max_text_characters:
            return len(text)
        return len(unicodedata.normalize("NFKC", text))

    def admit_sizes(self, sizes: Sequence[int], *, param: str, unit: str = "characters") -> None:
        """Check how many texts there are and how long each is, in ``unit``; raises as `admit`."""
        if not sizes:
            raise EmptyInputError(f"{param} is an empty list", param=param)
        if len(sizes) > self.max_inputs:
            raise TooManyInputsError(
                f"{param} has {len(sizes)} texts, at most {self.max_inputs} are taken; "
                "setting CONCHE_LIMITS__MAX_INPUTS",
                count=len(sizes),
                limit=self.max_inputs,
                setting="CONCHE_LIMITS__MAX_INPUTS",
                param=param,
            )
        if max(sizes) <= self.max_text_characters and sum(sizes) <= self.max_total_characters:
            return
        total = 0
        for index, size in enumerate(sizes):
            total += size
            if size > self.max_text_characters:
                raise TooManyCharactersError(
                    f"{param}[{index}] has {size} {unit}, at most {self.max_text_characters} are taken; "
                    "setting CONCHE_LIMITS__MAX_TEXT_CHARACTERS",
                    index=index,
                    param=param,
                )
            if total > self.max_total_characters:
                raise TooManyCharactersError(
                    f"{param} comes to more than {self.max_total_characters} {unit} at item {index}; "
                    "send fewer at a time, or raise setting CONCHE_LIMITS__MAX_TOTAL_CHARACTERS",
                    index=index,
                    param=param,
                )


def _parts(text: str | tuple[str, str]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text

"""Which texts a request may bring: checked before anything is tokenised, the offending index named."""

from collections.abc import Sequence
from dataclasses import dataclass

from service.errors import EmptyInputError, InvalidInputError, TooManyInputsError


class TooManyCharactersError(InvalidInputError):
    """A text, or all texts of the request together, are longer than is taken."""

    code = "too_many_characters"


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits of one request.

    Attributes:
        max_inputs: texts.
        max_text_characters: code points of one text.
        max_total_characters: code points of all texts together.
    """

    max_inputs: int
    max_text_characters: int
    max_total_characters: int

    def admit(self, texts: Sequence[str], *, param: str) -> None:
        """Check the texts of request field ``param``.

        Raises:
            EmptyInputError: no texts, or one that is empty or blank: it has no meaning to embed, and a vector
                for it would look like any other.
            TooManyInputsError: more than ``max_inputs``.
            TooManyCharactersError: one text or all together have too many characters.
        """
        if not texts:
            raise EmptyInputError(f"{param} is an empty list", param=param)
        if len(texts) > self.max_inputs:
            raise TooManyInputsError(
                f"{param} has {len(texts)} texts, at most {self.max_inputs} are taken; "
                "setting CONCHE_LIMITS__MAX_INPUTS",
                count=len(texts),
                limit=self.max_inputs,
                setting="CONCHE_LIMITS__MAX_INPUTS",
                param=param,
            )
        total = 0
        for index, text in enumerate(texts):
            total += len(text)
            self._admit_one(text, index, total, param)

    def _admit_one(self, text: str, index: int, total: int, param: str) -> None:
        if len(text) > self.max_text_characters:
            raise TooManyCharactersError(
                f"{param}[{index}] has {len(text)} characters, at most {self.max_text_characters} are taken; "
                "setting CONCHE_LIMITS__MAX_TEXT_CHARACTERS",
                index=index,
                param=param,
            )
        if total > self.max_total_characters:
            raise TooManyCharactersError(
                f"{param} comes to more than {self.max_total_characters} characters at item {index}; "
                "send fewer at a time, or raise setting CONCHE_LIMITS__MAX_TOTAL_CHARACTERS",
                index=index,
                param=param,
            )
        if not text or text.isspace():
            raise EmptyInputError(f"{param}[{index}] is empty", index=index, param=param)

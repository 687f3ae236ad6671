"""FAQ entries: the record, and its limits. `service.faq.entry_files` reads and writes files of them."""

import hashlib
import json
import unicodedata
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

MAX_ID_CHARS: Final = 200
MAX_QUESTION_CHARS: Final = 2_000
MAX_ANSWER_CHARS: Final = 32_768
MAX_ALTERNATES: Final = 200
MAX_TAGS: Final = 100
MAX_TAG_CHARS: Final = 200
MAX_METADATA_KEYS: Final = 100
MAX_METADATA_CHARS: Final = 2_000


def _number_as_text(value: object) -> object:
    """Take a whole number for an id: spreadsheets and JSON writers turn ``7`` into one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def _text(value: str) -> str:
    """Strip, and refuse what no client could send back: a lone surrogate or a control character."""
    for char in value:
        if "\ud800" <= char <= "\udfff":
            raise ValueError("not text: bytes that are not UTF-8, or half of a surrogate pair")
        if char < " " and char not in "\t\n\r":
            raise ValueError(f"control character U+{ord(char):04X}")
    return value.strip()


def _filled(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


def _few_keys(value: object) -> object:
    """Count before looking at each: a fault noted for each of a million values takes seconds."""
    if isinstance(value, dict) and len(value) > MAX_METADATA_KEYS:
        raise ValueError(f"{len(value)} keys; at most {MAX_METADATA_KEYS} are taken")
    return value


Text = Annotated[str, AfterValidator(_text)]
FilledText = Annotated[Text, AfterValidator(_filled)]
# JSON readers keep 64 bits; a larger whole number becomes a float at once, not on its first round trip.
WholeNumber = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MetadataValue = bool | WholeNumber | float | Annotated[Text, Field(max_length=MAX_METADATA_CHARS)]


class FaqEntry(BaseModel):
    """One question with its answer.

    Attributes:
        id: unique within a collection; a whole number is taken as its decimal text.
        question: the standard wording.
        answer: may be "" where a client only wants to know which entry a query means.
        alternates: other wordings of the question; repeats, and the question itself, are left out.
        language: a BCP 47 tag such as "zh" or "en"; None if not said. Informative: search crosses languages.
        tags: labels, each once, in the order given.
        metadata: further fields, by name.
        enabled: a disabled entry is kept and never found.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: Annotated[FilledText, BeforeValidator(_number_as_text), Field(max_length=MAX_ID_CHARS)]
    question: Annotated[FilledText, Field(max_length=MAX_QUESTION_CHARS)]
    answer: Annotated[Text, Field(max_length=MAX_ANSWER_CHARS)]
    alternates: Annotated[
        tuple[Annotated[FilledText, Field(max_length=MAX_QUESTION_CHARS)], ...],
        FailFast(),
        Field(max_length=MAX_ALTERNATES),
    ] = ()
    language: Annotated[Text, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$")] | None = None
    tags: Annotated[
        tuple[Annotated[FilledText, Field(max_length=MAX_TAG_CHARS)], ...],
        FailFast(),
        Field(max_length=MAX_TAGS),
    ] = ()
    metadata: Annotated[
        dict[Annotated[FilledText, Field(max_length=MAX_TAG_CHARS)], MetadataValue],
        BeforeValidator(_few_keys),
        Field(max_length=MAX_METADATA_KEYS),
    ] = Field(default_factory=dict)
    enabled: Annotated[bool, Field(strict=True)] = True

    @model_validator(mode="after")
    def _each_wording_once(self) -> Self:
        alternates = tuple(text for text in dict.fromkeys(self.alternates) if text != self.question)
        # The class is frozen for its users; a validator is still building the instance.
        object.__setattr__(self, "alternates", alternates)
        object.__setattr__(self, "tags", tuple(dict.fromkeys(self.tags)))
        return self

    @property
    def phrasings(self) -> tuple[str, ...]:
        """The question, then its alternates: all that a query may match."""
        return (self.question, *self.alternates)


def are_same(one: FaqEntry, other: FaqEntry) -> bool:
    """Whether nothing differs but the order of metadata, which files in tables do not keep."""
    # As JSON: Python takes True for 1, and 7 for 7.0.
    if one.model_dump_json() == other.model_dump_json():
        return True
    sorted_ = (json.dumps(entry.model_dump(), sort_keys=True) for entry in (one, other))
    return next(sorted_) == next(sorted_)


def id_from_question(question: str) -> str:
    """Make an id that is the same for the same question, whatever its width, case and spacing."""
    folded = " ".join(unicodedata.normalize("NFKC", question).casefold().split())
    return "q-" + hashlib.sha256(folded.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]

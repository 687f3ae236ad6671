"""Bodies of the FAQ's routes, with their limits and their examples.

Null means "not said", as in ``schemas``; but a field of an entry that we do not know is refused, since
ignoring it would lose what somebody wrote.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    model_validator,
)

from service.errors import InvalidFilterError, InvalidInputError
from service.faq.entries import (
    MAX_ALTERNATES,
    MAX_ANSWER_CHARS,
    MAX_ID_CHARS,
    MAX_METADATA_KEYS,
    MAX_QUESTION_CHARS,
    MAX_TAGS,
    FaqEntry,
    FilledText,
    Text,
    id_from_question,
)
from service.faq.evaluation import DEFAULT_PRECISION
from service.faq.filters import MAX_FILTER_CHARS, Filter, parse_filter
from service.faq.queries import LabelledQuery, labelled_query
from service.faq.snapshots import SNAPSHOT_NAME
from service.lenient_body import LenientRequest

MAX_PAGE: Final = 1_000
MAX_DELETED_IDS: Final = 10_000

OnDuplicate = Literal["replace", "skip", "error"]

ON_DUPLICATE_MEANING: Final = (
    "What happens to an entry whose id is there: it replaces the old one, it is skipped and reported, or "
    "nothing is written and the answer is 409."
)


class EntryBody(LenientRequest):
    """One question with its answer."""

    id: Annotated[str, Field(max_length=MAX_ID_CHARS)] = Field(
        default="",
        description="Unique within the collection; made from the question if not said. "
        "A whole number is taken as its decimal text.",
    )
    question: Annotated[str, Field(max_length=MAX_QUESTION_CHARS)] = Field(
        description="The standard wording."
    )
    answer: Annotated[str, Field(max_length=MAX_ANSWER_CHARS)] = Field(description="May be empty.")
    alternates: Annotated[list[str], Field(max_length=MAX_ALTERNATES)] = Field(
        default=[], description="Other wordings of the question; a query may match any of them."
    )
    language: str | None = Field(
        default=None, description="A BCP 47 tag such as `zh` or `en`; search crosses languages."
    )
    tags: Annotated[list[str], Field(max_length=MAX_TAGS)] = Field(default=[], description="Labels.")
    metadata: Annotated[dict[str, bool | int | float | str], Field(max_length=MAX_METADATA_KEYS)] = Field(
        default={}, description="Further fields, for filters."
    )
    enabled: bool = Field(default=True, description="A disabled entry is kept and never found.")


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: field for name, field in value.items() if field is not None}
    return value


def _complete(value: object) -> object:
    """Leave out what is null and make the id if there is none."""
    record = _without_nulls(value)
    if isinstance(record, dict) and "id" not in record and isinstance(record.get("question"), str):
        return {**record, "id": id_from_question(record["question"])}
    return record


EntryIn = Annotated[FaqEntry, BeforeValidator(_complete, json_schema_input_type=EntryBody)]


class EntriesRequest(LenientRequest):
    """Entries to add or replace, all of them or none."""

    entries: Annotated[list[EntryIn], FailFast(), Field(description="Each id once.")]
    on_duplicate: OnDuplicate = Field(default="replace", description=ON_DUPLICATE_MEANING)


class EntryPatch(BaseModel):
    """Fields of an entry to change; the others stay.

    As in RFC 7396, null takes a field back to its default, and `metadata` is changed key by key.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: Annotated[str, Field(max_length=MAX_QUESTION_CHARS)] | None = None
    answer: Annotated[str, Field(max_length=MAX_ANSWER_CHARS)] | None = None
    alternates: Annotated[list[str], Field(max_length=MAX_ALTERNATES)] | None = Field(
        default=None, description="All of them anew."
    )
    language: str | None = None
    tags: Annotated[list[str], Field(max_length=MAX_TAGS)] | None = Field(
        default=None, description="All of them anew."
    )
    metadata: Annotated[dict[str, Any], Field(max_length=MAX_METADATA_KEYS)] | None = None
    enabled: bool | None = None

    def changes(self) -> dict[str, object]:
        """The fields that were sent.

        Raises:
            InvalidInputError: none was.
        """
        if not self.model_fields_set:
            raise InvalidInputError(f"nothing to change; the fields are {', '.join(type(self).model_fields)}")
        return {name: getattr(self, name) for name in sorted(self.model_fields_set)}


class CollectionRequest(LenientRequest):
    """A collection's settings; one that is not said is taken away."""

    default_answer: Annotated[Text, Field(max_length=MAX_ANSWER_CHARS)] | None = Field(
        default=None, description="Answers a query that no entry answers."
    )
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        strict=True,
        allow_inf_nan=False,
        description="Hits of a lower score are no answers, unless a search says otherwise.",
    )


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class DeleteRequest(LenientRequest):
    """Which entries to delete: by id, or by filter."""

    ids: Annotated[
        list[Annotated[FilledText, BeforeValidator(_as_text, json_schema_input_type=str | int)]],
        FailFast(),
        Field(min_length=1, max_length=MAX_DELETED_IDS),
    ] = Field(default=[], description="Those that are not there are no error.")
    filter: dict[str, Any] | None = Field(
        default=None, description="As for searching: a condition, or `and`, `or`, `not`."
    )

    @model_validator(mode="after")
    def _one_way(self) -> "DeleteRequest":
        if (not self.ids) == (self.filter is None):
            raise ValueError(
                "say either ids or filter; DELETE of the collection itself takes all of its entries"
            )
        return self

    def parsed_filter(self) -> Filter | None:
        """The filter, if that is the way; raises InvalidFilterError."""
        return None if self.filter is None else parse_filter(self.filter)


class LabelledQueryBody(BaseModel):
    """A query and its right answers."""

    query: Annotated[str, Field(max_length=MAX_QUESTION_CHARS)]
    faq_id: str | list[str] | None = Field(
        description="The entry that answers it, or several as good as each other; null or empty = none does."
    )


class EvaluateRequest(LenientRequest):
    """Labelled queries to judge the search by."""

    queries: Annotated[
        list[
            Annotated[LabelledQuery, PlainValidator(labelled_query, json_schema_input_type=LabelledQueryBody)]
        ],
        FailFast(),
        Field(min_length=1),
    ]
    wanted_precision: float = Field(
        default=DEFAULT_PRECISION,
        gt=0,
        le=1,
        strict=True,
        allow_inf_nan=False,
        description="Of the answers shown, the share to be right; a threshold is proposed for it.",
    )


class SnapshotRequest(LenientRequest):
    """A snapshot to write."""

    name: Annotated[str, Field(pattern=f"^{SNAPSHOT_NAME.pattern}$")] | None = Field(
        default=None, description="Without ending or folder; made from the time if not said."
    )


class CollectionBody(BaseModel):
    """A collection, without its entries."""

    name: str
    entries: int = Field(description="Disabled ones included.")
    default_answer: str | None
    min_score: float | None
    model: str | None = Field(description="The model that made its vectors; null before the first entry.")
    dimensions: int | None
    revision: int = Field(description="Rises with every write.")
    created_at: str
    updated_at: str
    reindexing: bool = Field(description="Vectors of another model are being made.")


class CollectionsResponse(BaseModel):
    """All collections, by name."""

    collections: list[CollectionBody]


class WriteResponse(BaseModel):
    """What a write came to; whoever searches from now on finds it."""

    revision: int
    added: int
    replaced: int
    unchanged: int = Field(description="Entries that were there just so.")
    skipped: list[str] = Field(description="Ids that were there and were left as they are.")


class BadLineBody(BaseModel):
    """A line of a file that was left out."""

    line: int = Field(description="Counted from 1, the header included.")
    reason: str


class ImportResponse(WriteResponse):
    """What an import came to."""

    bad_lines: list[BadLineBody] = Field(description="Everything that was left out.")
    metadata_columns: list[str] = Field(
        description="Columns of a table that are no field of an entry, kept as metadata."
    )


class EntriesResponse(BaseModel):
    """A page of entries, in the order in which they were first added."""

    entries: list[EntryBody]
    next: str | None = Field(description="Send it as `after` for the next page; null = there are no more.")


class CountResponse(BaseModel):
    """How many entries there are."""

    count: int


class DeletedResponse(BaseModel):
    """How many were deleted."""

    deleted: int


class ReindexResponse(BaseModel):
    """How far a reindex has come."""

    state: str = Field(description="`none` if there was none since the service started.")
    done: int = Field(description="Texts embedded.")
    total: int = Field(description="Texts to embed.")
    error: str | None


class SnapshotResponse(BaseModel):
    """A snapshot that is kept."""

    name: str = Field(description="By which it is deleted.")
    file: str = Field(description="In the folder `snapshots` of the data folder.")
    bytes: int
    created_at: str


class SnapshotsResponse(BaseModel):
    """All snapshots, oldest first."""

    snapshots: list[SnapshotResponse]
    limit: int = Field(description="How many are kept.")


def filter_of_query(text: str | None) -> Filter | None:
    """A filter from a URL's query, where it is JSON.

    Raises:
        InvalidFilterError: it is no JSON, or no filter.
    """
    if text is None:
        return None
    if len(text) > MAX_FILTER_CHARS:
        raise InvalidFilterError(
            f"the filter has {len(text)} characters; {MAX_FILTER_CHARS} are taken", param="filter"
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidFilterError(f"filter: not JSON: {error}", param="filter") from error
    return parse_filter(value)


def entry_in_its_place(entry: FaqEntry, identifier: str) -> FaqEntry:
    """The entry under the id of the path it was sent to.

    Raises:
        InvalidInputError: it says another id.
    """
    if entry.id not in (identifier, id_from_question(entry.question)):
        raise InvalidInputError("the id in the body is not the one in the path", param="id")
    return entry.model_copy(update={"id": identifier})


Examples = Mapping[str, Any]

_ENTRY: Final = {
    "id": "invoice",
    "question": "可以开发票吗？",
    "answer": "可以，下单时填写抬头即可。",
    "alternates": ["怎么开发票", "Can I get an invoice?"],
    "language": "zh",
    "tags": ["billing"],
    "metadata": {"shop": "north", "priority": 2},
}
ENTRIES_EXAMPLES: dict[str, Any] = {
    "two entries": {
        "value": {
            "entries": [
                _ENTRY,
                {
                    "id": "delivery",
                    "question": "How long does delivery take?",
                    "answer": "Two to four working days.",
                    "alternates": ["When will my parcel arrive?"],
                    "tags": ["shipping"],
                },
            ]
        }
    },
    "only if new": {
        "value": {
            "entries": [{"id": "returns", "question": "怎么退货？", "answer": "七天内，用原包装。"}],
            "on_duplicate": "skip",
        }
    },
}
ENTRY_EXAMPLES: dict[str, Any] = {
    "whole entry": {"value": {"question": "可以开发票吗？", "answer": "可以，请联系客服。"}},
}
PATCH_EXAMPLES: dict[str, Any] = {
    "another answer": {"value": {"answer": "可以，确认收货后开具。"}},
    "switched off": {"value": {"enabled": False}},
}
COLLECTION_EXAMPLES: dict[str, Any] = {
    "as it comes": {"value": {}},
    "says when it does not know": {"value": {"default_answer": "这个问题请联系人工客服。", "min_score": 0.5}},
}
DELETE_EXAMPLES: dict[str, Any] = {
    "by id": {"value": {"ids": ["delivery"]}},
    "by filter": {
        "value": {
            "filter": {
                "and": [
                    {"field": "tags", "in": ["shipping", "returns"]},
                    {"not": {"field": "language", "equals": "zh"}},
                ]
            }
        }
    },
}
EVALUATE_EXAMPLES: dict[str, Any] = {
    "answerable and not": {
        "value": {
            "queries": [
                {"query": "发票怎么开", "faq_id": "invoice"},
                {"query": "when does my order arrive", "faq_id": ["delivery"]},
                {"query": "Do you sell aeroplanes?", "faq_id": ""},
            ],
            "wanted_precision": 0.9,
        }
    },
}
SNAPSHOT_EXAMPLES: dict[str, Any] = {"named by the time": {"value": {}}}
CSV_EXAMPLE: Final = "id,question,answer,alternates\n7,可以开发票吗？,可以。,怎么开发票|发票\n"
JSONL_EXAMPLE: Final = '{"id": "7", "question": "可以开发票吗？", "answer": "可以。"}\n'

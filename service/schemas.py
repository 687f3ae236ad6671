"""Request and response bodies.

Fields we do not know are ignored, and null means "not said": clients of other services send both. Limits that
an operator sets are not here but in ``admission``.
"""

from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    JsonValue,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from model.runtime.aggregation import PipelineStrategy
from model.runtime.bundle import Manifest
from model.runtime.entities import EntityOptions, Strategy
from model.runtime.offset_units import OffsetUnit
from service.errors import InvalidInputError
from service.faq.filters import Filter, parse_filter
from service.faq.index import Mode
from service.inference import EmbeddingOptions
from service.lenient_body import LenientRequest
from service.prompts import prompt_of
from service.token_ids import Inputs

MAX_INT = 2**31 - 1


def _as_list(value: object) -> object:
    """One text is a list of one; pydantic then names the position of whatever is no string."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[
    list[str],
    FailFast(),  # only the first fault is told; collecting one for each of a million numbers takes seconds
    BeforeValidator(_as_list, json_schema_input_type=str | list[str]),
    Field(description="One text, or several."),
]


_OFFSET_UNITS: Final[dict[str, OffsetUnit]] = {
    **dict.fromkeys(["codepoint", "codepoints", "utf32"], "code-points"),
    "utf16": "utf-16",
    **dict.fromkeys(["byte", "bytes", "utf8"], "bytes"),
}


def _offset_unit(value: object) -> object:
    """Other spellings of a unit are taken too."""
    if not isinstance(value, str):
        return value
    return _OFFSET_UNITS.get(value.lower().replace("-", "").replace("_", ""), value)


def _texts_or_ids(value: object, info: ValidationInfo) -> object:
    """Texts, or ids, as a list of one kind; not by pydantic's unions, which complain once for each number."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError("a text, a list of texts, or a list of token ids is wanted")
    if set(map(type, value)) == {str}:  # as nearly always; below each is looked at
        return value
    if value and all(is_id(one) for one in value):
        return [value]
    wanted = list if value and isinstance(value[0], list) else str
    for index, one in enumerate(value):
        if isinstance(one, wanted) and (wanted is str or all(is_id(each) for each in one)):
            continue
        kind = "a text" if wanted is str else "a list of token ids"
        raise InvalidInputError(
            f"{info.field_name}[{index}] is not {kind}, as the first is or should be",
            index=index,
            param=info.field_name,
        )
    return value


def is_id(value: object) -> bool:
    """Whether a value of JSON is a whole number; true and false are none."""
    return type(value) is int


TextsOrIds = Annotated[
    Inputs,
    PlainValidator(_texts_or_ids, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    Field(description="One text, or several. Lists of token ids are taken if the server is set so."),
]
ModelName = Annotated[
    str | None,
    Field(
        default=None,
        max_length=300,
        description="Which model; /v1/models lists them. `NAME:PROMPT` names one of its prompts as well. "
        "The server's first, if not said.",
    ),
]


Truncate = Annotated[
    bool | None,
    Field(
        default=None,
        strict=True,
        description="Cut a text that is too long, and say so in x-conche-truncated; false refuses it. "
        "As the server is set, if not said.",
    ),
]
TruncationDirection = Annotated[
    Literal["left", "right", "Left", "Right"],
    Field(default="right", description="Which end of a text is cut."),
]
PromptName = Annotated[
    str | None,
    Field(
        default=None,
        max_length=200,
        description="Which of the model's prompts is put before each text; /info lists them. "
        "`none` for none; the model's default prompt, if not said.",
    ),
]


class ReadingRequest(LenientRequest):
    """Texts that an embedding model reads, and how it reads them."""

    inputs: TextsOrIds
    model: ModelName
    prompt_name: PromptName
    input_type: str | None = Field(
        default=None, max_length=200, description="The same as `prompt_name`: `query` or `passage`."
    )
    truncate: Truncate
    truncation_direction: TruncationDirection

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (
            self.prompt_name is not None
            and self.input_type is not None
            and self.prompt_name != self.input_type
        ):
            raise ValueError("prompt_name and input_type mean the same and must not differ")
        return self

    def reading(
        self,
        manifest: Manifest,
        *,
        model_prompt: str | None,
        truncate_unless_said: bool,
        read_empty: bool = False,
    ) -> EmbeddingOptions:
        """How the model at hand reads the texts.

        Args:
            manifest: the model's.
            model_prompt: the prompt that ``model`` names; the request's own field goes first.
            truncate_unless_said: what the server is set to.
            read_empty: likewise, see `EmbeddingOptions`.

        Raises:
            InvalidInputError: the model has no such prompt.
        """
        named = self.input_type if self.prompt_name is None else self.prompt_name
        param = "input_type" if self.prompt_name is None else "prompt_name"
        return EmbeddingOptions(
            prompt=prompt_of(
                manifest,
                model_prompt if named is None else named,
                param="model" if named is None and model_prompt is not None else param,
            ),
            truncate=truncate_unless_said if self.truncate is None else self.truncate,
            truncate_from_start=self.truncation_direction.lower() == "left",
            read_empty=read_empty,
        )


class EmbedRequest(ReadingRequest):
    """Texts to embed, and how."""

    pooling: Literal["cls", "mean"] | None = Field(
        default=None, description="How token vectors become one; as the model was trained, if not said."
    )
    normalize: bool = Field(default=True, strict=True, description="Whether vectors get unit length.")
    dimensions: int | None = Field(
        default=None,
        ge=1,
        le=MAX_INT,
        strict=True,
        description="Keep this many numbers of each vector (normalised after the cut).",
    )

    def options(
        self,
        manifest: Manifest,
        *,
        model_prompt: str | None,
        truncate_unless_said: bool,
        read_empty: bool = False,
    ) -> EmbeddingOptions:
        """How to embed, for the model at hand; as `reading`."""
        reading = self.reading(
            manifest,
            model_prompt=model_prompt,
            truncate_unless_said=truncate_unless_said,
            read_empty=read_empty,
        )
        return replace(reading, pooling=self.pooling, normalize=self.normalize, dimensions=self.dimensions)


class SearchRequest(LenientRequest):
    """Questions to look up in the FAQ."""

    query: Texts
    top_k: int = Field(default=5, ge=1, le=MAX_INT, strict=True, description="Hits per query, at most.")
    min_score: float | None = Field(
        default=None,
        ge=0,
        le=1,
        strict=True,
        allow_inf_nan=False,
        description="Leave out hits that score less; what the collection says, if not said; 0 for none.",
    )
    collection: str = Field(
        default="default", min_length=1, max_length=64, description="Which collection is searched."
    )
    mode: Mode = Field(
        default="hybrid",
        description="What decides the order: meaning and words together, meaning alone (`dense`) or words "
        "alone (`lexical`). The score is made of both in every mode, so none does without the vectors.",
    )
    filter: dict[str, JsonValue] | None = Field(
        default=None,
        description="Which entries are searched, such as "
        '`{"field": "language", "equals": "zh"}`; `and`, `or` and `not` combine filters.',
    )

    def entry_filter(self) -> Filter | None:
        """The filter, read; None for all entries.

        Raises:
            InvalidFilterError: it is none.
        """
        return None if self.filter is None else parse_filter(self.filter)

    def admit_top_k(self, limit: int) -> None:
        """Check ``top_k`` against the operator's limit.

        Raises:
            InvalidInputError: it asks for more.
        """
        if self.top_k > limit:
            raise InvalidInputError(
                f"top_k is {self.top_k}, at most {limit} is taken; setting CONCHE_LIMITS__MAX_TOP_K",
                param="top_k",
            )


class PipelineParameters(LenientRequest):
    """What clients of Hugging Face's inference API send beside the text."""

    aggregation_strategy: PipelineStrategy = Field(
        default="simple", description="As above; `viterbi` is not among those that these clients know."
    )
    ignore_labels: list[Annotated[str, Field(max_length=200)]] = Field(
        default=[], max_length=1000, description="Labels, as they stand in the answer, that are left out."
    )


class NerRequest(LenientRequest):
    """Texts to find entities in."""

    inputs: Texts
    model: ModelName
    parameters: PipelineParameters | None = Field(
        default=None,
        description="If there, even if empty, the answer has the shape of Hugging Face's inference API: "
        "`word`, `entity_group` (or `entity`), and a single text's entities in no list of lists.",
    )
    threshold: float = Field(
        default=0.0,
        ge=0,
        le=1,
        strict=True,
        allow_inf_nan=False,
        description="Leave out entities that score less; the spans of the others do not change.",
    )
    labels: list[Annotated[str, Field(max_length=200)]] | None = Field(
        default=None,
        max_length=1000,
        description="Keep entities of these types only, such as `PER`; /info lists the model's labels. "
        "All, if not said.",
    )
    offset_unit: Annotated[
        OffsetUnit,
        BeforeValidator(_offset_unit),
        Field(
            description="What `start` and `end` count: `code-points` of the text (Python), `utf-16` units "
            "(JavaScript, Java, C#) or `bytes` of its UTF-8 form (Go, Rust).",
        ),
    ] = "code-points"
    aggregation_strategy: Strategy = Field(
        default="viterbi",
        description="How the labels of tokens become entities. `viterbi`: the best sequence over whole words "
        "that the label scheme allows. `first`, `average`, `max`, `simple` and `none` are those of the "
        "Hugging Face pipeline: a word's label is that of its first token, of the mean of its tokens, or of "
        "the surest one; `simple` joins tokens whatever the words; `none` gives each token by itself under "
        "the model's own label, such as `B-PER`; a character that several tokens share (a Chinese one and "
        "the word-start mark before it) is in each. `viterbi` differs from `first` in that no label can "
        "stand out of place and in its scores, which may be calibrated; theirs are raw.",
    )

    def options(self) -> EntityOptions:
        """Which entities are wanted."""
        return EntityOptions(
            threshold=self.threshold,
            labels=None if self.labels is None else frozenset(self.labels),
            strategy=self.aggregation_strategy
            if self.parameters is None
            else self.parameters.aggregation_strategy,
        )


class ExplainBody(BaseModel):
    """Why an entry was found."""

    dense: float = Field(ge=-1, le=1, description="Cosine of the query with the entry.")
    lexical: float = Field(ge=0, description="BM25 of the query's words in the entry; no upper bound.")
    dense_rank: int = Field(ge=1, description="Place by `dense` among the entries searched.")
    lexical_rank: int | None = Field(
        description="Place by `lexical`; null if the entry has no word of the query."
    )
    matched: str = Field(description="The question or alternate wording closest to the query.")
    relevance: float = Field(
        ge=0, le=1, description="What the order is by; unlike the score it does not look at the other hits."
    )


class HighlightsBody(BaseModel):
    """Where the entry has words of the query: [start, end) in code points."""

    question: list[tuple[int, int]]
    answer: list[tuple[int, int]]


class HitBody(BaseModel):
    """One FAQ entry found."""

    id: str
    question: str
    answer: str
    score: float = Field(
        ge=0, le=1, description="How sure it is that the entry answers the query: a probability."
    )
    explain: ExplainBody
    highlights: HighlightsBody


class QueryResult(BaseModel):
    """What one query found."""

    hits: list[HitBody] = Field(description="Best first.")
    default_answer: str | None = Field(
        description="The collection's answer where there are no hits; null if there are, or if it has none."
    )


class SearchResponse(BaseModel):
    """One result per query, in the order sent."""

    results: list[QueryResult]


class EntityBody(BaseModel):
    """One named entity."""

    start: int = Field(ge=0, description="Where it begins in the text sent, in `offset_unit`.")
    end: int = Field(ge=1, description="Where it ends: the index behind its last unit.")
    text: str = Field(description="Exactly the text from start to end.")
    label: str
    score: float = Field(
        ge=0,
        le=1,
        description="How sure the model is; for a bundle with a calibration, the share of such entities that "
        "are right.",
    )


class PipelineEntityBody(BaseModel):
    """One named entity, as the inference API has it; of the two labels the one that the strategy gives."""

    entity_group: str | None = Field(default=None, description="The entity's type.")
    entity: str | None = Field(default=None, description="The token's own label; of strategy `none`.")
    score: float = Field(ge=0, le=1)
    word: str = Field(description="Exactly the text from start to end.")
    start: int = Field(ge=0)
    end: int = Field(ge=1)


class ReadinessBody(BaseModel):
    """Whether requests will be served, and if not, why."""

    status: Literal["ready", "not ready"]
    reasons: list[str] = Field(description="Empty when ready.")
    worker: int | None = Field(default=None, description="Of several, the one that answers, for itself.")


class LivenessBody(BaseModel):
    """The process runs and its event loop turns."""

    status: Literal["alive"] = "alive"


class EngineBody(BaseModel):
    """What runs a bundle, and why."""

    name: str = Field(description="With its version.")
    precision: str = Field(description="What it computes in.")
    choice: Literal["only", "measured", "remembered", "unsettled", "unmeasured"] = Field(
        description="It is the only one there is of what was asked for, or was the fastest, at this start or "
        "at an earlier one, or was the fastest for now, by times that contradict each other, which a start "
        "in ten minutes or later measures again, or this start had no time to measure, and the next one does."
    )
    milliseconds: dict[str, float] = Field(
        description="What was measured: one short text by itself, and two dozen together, in batches as the "
        "engine gets them; geometric mean, by candidate."
    )
    refused: dict[str, str] = Field(
        description="Candidates that failed one of the bundle's checks, and which one."
    )


class BatchesBody(BaseModel):
    """How large a model's batches are, and why."""

    max_tokens: int = Field(description="Rows times longest row.")
    choice: Literal["set", "measured", "remembered", "unsettled", "unmeasured"] = Field(
        description="It is what was set, or was measured, at this start or at an earlier one, or is for now, "
        "told by times that contradict each other, which a start in ten minutes or later measures again, or "
        "this start had no time to measure, and the next one does."
    )
    microseconds: dict[int, float] = Field(
        description="What was measured: the time of one token, by tokens of the batch."
    )


class ModelBody(BaseModel):
    """One loaded bundle."""

    id: str
    task: str
    licence: str
    languages: list[str]
    max_tokens: int = Field(description="Tokens of one text, special ones and the prompt included.")
    parameters: int
    dimensions: int | None
    pooling: str | None
    prompts: dict[str, str]
    default_prompt_name: str | None
    labels: list[str]
    label_activation: str | None = Field(
        description="What makes scores of the logits of a whole text: `softmax`, `sigmoid` or `none`."
    )
    source: str
    revision: str | None
    quality: dict[str, JsonValue]
    engine: EngineBody
    batches: BatchesBody


class FaqBody(BaseModel):
    """The FAQ behind /search."""

    entries: int | None = Field(
        description="Of all collections, disabled ones included; null while the store does not answer, and "
        "`unavailable` then says why."
    )
    collections: int | None = Field(description="How many there are; null likewise.")
    source: str = Field(description="What fills the collection `default` at the start.")
    left_out: int = Field(description="Lines of that file that hold no usable entry; the log names each.")


class InfoResponse(BaseModel):
    """What this server is and takes."""

    name: Literal["conche"] = "conche"
    version: str
    embedding: ModelBody | None
    ner: ModelBody | None
    classifier: ModelBody | None
    reranker: ModelBody | None = Field(
        description="The cross-encoder behind /rerank; null: the embedding model ranks."
    )
    faq: FaqBody | None
    unavailable: dict[str, str] = Field(description="Routes that cannot be served now, and why.")
    models: list[str] = Field(description="Names of all models that requests can name.")
    model_id: str | None = Field(
        description="The default embedding model, as text-embeddings-inference has it; where there is none, "
        "the classifier, else the cross-encoder."
    )
    model_type: dict[str, dict[str, str | dict[str, str | int]]] = Field(
        description="Its kind; how it pools, or its labels; the same."
    )
    max_input_length: int | None = Field(description="Tokens that it reads of one text; the same.")
    max_client_batch_size: int = Field(description="Texts of one request; the same.")
    auto_truncate: bool = Field(description="As `truncate`; the same.")
    limits: dict[str, int | float]
    truncate: bool = Field(description="Whether /embed cuts over-long texts when the request does not say.")
    threads: int = Field(description="That run models.")
    streams: int = Field(description="Runs at a time, now, which share the threads.")
    workers: int = Field(description="Processes that share the port.")
    worker: int = Field(description="The one that answers, from 1.")


EMBED_EXAMPLES: dict[str, Any] = {
    "Chinese and English": {"value": {"inputs": ["怎么申请退款？", "How do I get a refund?"]}},
    "documents to be found": {
        "value": {"inputs": "Refunds take three working days.", "input_type": "passage", "truncate": True}
    },
}
SEARCH_EXAMPLES: dict[str, Any] = {
    "Chinese": {"value": {"query": "怎么退货？", "top_k": 3}},
    "several queries": {
        "value": {"query": ["How long does delivery take?", "可以开发票吗？"], "min_score": 0.2}
    },
    "entries of one language": {
        "value": {"query": "refund", "filter": {"field": "language", "equals": "en"}}
    },
}
NER_EXAMPLES: dict[str, Any] = {
    "English": {"value": {"inputs": "Tim Cook met Angela Merkel in Berlin."}},
    "Chinese": {
        "value": {"inputs": ["张三昨天从上海飞往巴黎。", "小米公司的总部在北京。"], "threshold": 0.5}
    },
    "places only, for JavaScript": {
        "value": {
            "inputs": "🙂 Angela Merkel flew from Berlin to Paris.",
            "labels": ["LOC"],
            "offset_unit": "utf-16",
        }
    },
    "as Hugging Face's inference API": {
        "value": {"inputs": "Tim Cook met Angela Merkel in Berlin.", "parameters": {}}
    },
    "as the Hugging Face pipeline": {
        "value": {"inputs": "Tim Cook met Angela Merkel in Berlin.", "aggregation_strategy": "simple"}
    },
}

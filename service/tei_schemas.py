"""Bodies of the interface of Hugging Face's text-embeddings-inference, beyond /embed.

Source: text-embeddings-inference, router/src/http/types.rs.
"""

from typing import Annotated, Any

from pydantic import BaseModel, FailFast, Field, PlainValidator

from service.errors import InvalidInputError
from service.lenient_body import LenientRequest
from service.schemas import (
    ModelName,
    PromptName,
    ReadingRequest,
    Texts,
    Truncate,
    TruncationDirection,
    is_id,
)


class EmbedAllRequest(ReadingRequest):
    """Texts whose tokens are embedded."""


class _Sentences(LenientRequest):
    source_sentence: str = Field(description="What the others are compared with.")
    sentences: Annotated[list[str], FailFast(), Field(description="Texts to compare with it.")]


class _SimilarityParameters(LenientRequest):
    truncate: Truncate
    truncation_direction: TruncationDirection
    prompt_name: PromptName


def _no_parameters() -> _SimilarityParameters:
    return _SimilarityParameters.model_validate({})


class SimilarityRequest(LenientRequest):
    """A sentence, and others to compare with it."""

    inputs: _Sentences
    parameters: _SimilarityParameters = Field(default_factory=_no_parameters)
    model: ModelName


class RankRequest(LenientRequest):
    """A query, and texts to be put in order."""

    query: str
    texts: Annotated[list[str], FailFast()]
    model: ModelName
    truncate: Truncate
    truncation_direction: TruncationDirection
    raw_scores: bool = Field(
        default=False,
        strict=True,
        description="The cosine itself, -1 to 1, or a cross-encoder's logit, instead of a score of 0 to 1.",
    )
    return_text: bool = Field(default=False, strict=True, description="Send each text back with its score.")


class Rank(BaseModel):
    """A text's place in the request, and its score."""

    index: int
    score: float = Field(description="0 to 1, unless `raw_scores` was asked for.")
    text: str | None = None


class TokenizeRequest(LenientRequest):
    """Texts to cut into tokens."""

    inputs: Texts
    model: ModelName
    add_special_tokens: bool = Field(
        default=True, strict=True, description="Those that the model reads around a text."
    )
    prompt_name: PromptName


class Token(BaseModel):
    """One token."""

    id: int
    text: str = Field(description="Its slice of the text; of a special token or a prompt's, its own name.")
    special: bool
    start: int | None = Field(
        description="Where it starts, in bytes of the text's UTF-8; null for special tokens and a prompt's."
    )
    stop: int | None = Field(description="Where it ends.")


def _sequences(value: object) -> object:
    if isinstance(value, list) and value and all(is_id(one) for one in value):
        return [value]
    if not isinstance(value, list):
        raise ValueError("a list of ids is wanted, or a list of such lists")
    for index, one in enumerate(value):
        if not isinstance(one, list) or not all(is_id(each) for each in one):
            raise InvalidInputError(f"ids[{index}] is not a list of token ids", index=index, param="ids")
    return value


class DecodeRequest(LenientRequest):
    """Token ids to make text of."""

    ids: Annotated[
        list[list[int]], PlainValidator(_sequences, json_schema_input_type=list[int] | list[list[int]])
    ]
    model: ModelName
    skip_special_tokens: bool = Field(default=True, strict=True, description="Leave special tokens out.")


EMBED_ALL_EXAMPLES: dict[str, Any] = {"one text": {"value": {"inputs": "退款"}}}
SIMILARITY_EXAMPLES: dict[str, Any] = {
    "Chinese and English": {
        "value": {
            "inputs": {
                "source_sentence": "怎么申请退款？",
                "sentences": ["How do I get a refund?", "今天天气很好"],
            }
        }
    }
}
RANK_EXAMPLES: dict[str, Any] = {
    "two texts": {
        "value": {
            "query": "退款要多久？",
            "texts": ["周日也送货。", "退款三个工作日到账。"],
            "return_text": True,
        }
    }
}
TOKENIZE_EXAMPLES: dict[str, Any] = {"one text": {"value": {"inputs": "Hello, 世界"}}}
DECODE_EXAMPLES: dict[str, Any] = {"one sequence": {"value": {"ids": [10, 11, 12]}}}

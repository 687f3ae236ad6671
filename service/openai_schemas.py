"""Bodies of the interface that OpenAI's clients speak.

Source: OpenAI's API reference, "Embeddings" and "Models".
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field

from service.lenient_body import LenientRequest
from service.schemas import MAX_INT, ModelName, PromptName, TextsOrIds, Truncate


class EmbeddingsRequest(LenientRequest):
    """Texts to embed."""

    input: TextsOrIds
    model: ModelName
    encoding_format: Literal["float", "base64"] = Field(
        default="float",
        description="Numbers, or base64 of little-endian float32: a third of the size.",
    )
    dimensions: Annotated[
        int | None,
        Field(
            default=None,
            ge=1,
            le=MAX_INT,
            strict=True,
            description="Keep this many numbers of each vector (normalised after the cut).",
        ),
    ]
    user: Any = Field(default=None, description="Ignored.")
    input_type: PromptName
    truncate: Truncate


class EmbeddingObject(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(ge=0, description="Position of the text in the request.")
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens read, special ones and prompts included."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """One vector per text, in the order sent."""

    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: Usage


class ModelObject(BaseModel):
    """A model that requests can name."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="When its bundle was made; seconds since 1970.")
    owned_by: str
    task: str = Field(description="`embedding`, `token-classification` or `sequence-classification`.")


class ModelsResponse(BaseModel):
    """The models that requests can name."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class RerankRequest(LenientRequest):
    """A query and the documents to be put in order, as Cohere and Jina have it."""

    query: str
    documents: Annotated[
        list[str | dict[str, Any]],
        FailFast(),
        Field(description="Texts, or objects with a field `text`."),
    ]
    model: ModelName
    top_n: int | None = Field(default=None, ge=1, le=MAX_INT, strict=True)
    return_documents: bool = Field(default=False, strict=True)
    truncate: Truncate


class RerankedDocument(BaseModel):
    """A document, sent back."""

    text: str


class RerankResult(BaseModel):
    """A document's place in the request, and its score."""

    index: int
    relevance_score: float = Field(ge=0, le=1)
    document: RerankedDocument | None = None


class RerankResponse(BaseModel):
    """Best first."""

    object: Literal["rerank"] = "rerank"
    results: list[RerankResult]
    model: str
    usage: Usage


EMBEDDINGS_EXAMPLES: dict[str, Any] = {
    "one text": {"value": {"input": "怎么申请退款？"}},
    "several, in base64": {
        "value": {"input": ["How do I get a refund?", "怎么申请退款？"], "encoding_format": "base64"}
    },
    "documents to be found": {
        "value": {"input": ["Refunds take three working days."], "input_type": "passage", "dimensions": 16}
    },
}
RERANK_V1_EXAMPLES: dict[str, Any] = {
    "two documents": {
        "value": {
            "query": "How long does a refund take?",
            "documents": ["We deliver on Sundays.", "Refunds take three working days."],
            "top_n": 1,
            "return_documents": True,
        }
    },
}

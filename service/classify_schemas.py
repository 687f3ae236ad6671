"""Bodies of the routes that label whole texts: /predict of text-embeddings-inference, /classify of Infinity.

Source: text-embeddings-inference, router/src/http/types.rs; Infinity, fastapi_schemas/pymodels.py.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, Field, PlainValidator

from model.runtime.sequences import TextOrPair
from service.errors import InvalidInputError
from service.lenient_body import LenientRequest
from service.openai_schemas import Usage
from service.schemas import MAX_INT, ModelName, Texts, Truncate, TruncationDirection


@dataclass(frozen=True, slots=True)
class PredictInputs:
    """What /predict was sent.

    Attributes:
        items: texts and pairs.
        single: one item in no list of items, and so is its answer.
    """

    items: list[TextOrPair]
    single: bool


def _predict_inputs(value: object) -> PredictInputs:
    if isinstance(value, str):
        return PredictInputs([value], single=True)
    if not isinstance(value, list):
        raise ValueError("a text, a pair of texts, or a list of lists of one or two texts is wanted")
    if value and isinstance(value[0], str):
        if len(value) > 2 or not all(isinstance(text, str) for text in value):
            raise ValueError(
                "two strings are a pair of texts; several texts are sent as [[text], [text], ...]"
            )
        return PredictInputs([_item(value)], single=True)
    for index, one in enumerate(value):
        if (
            not isinstance(one, list)
            or len(one) not in {1, 2}
            or not all(isinstance(text, str) for text in one)
        ):
            raise InvalidInputError(
                f"inputs[{index}] is not a list of one or two texts", index=index, param="inputs"
            )
    return PredictInputs([_item(one) for one in value], single=False)


def _item(texts: list[str]) -> TextOrPair:
    return texts[0] if len(texts) == 1 else (texts[0], texts[1])


_OneOrTwo = Annotated[list[str], Field(min_length=1, max_length=2)]

RawScores = Annotated[
    bool,
    Field(
        default=False,
        strict=True,
        description="The logits as they are, instead of scores by the model's own function.",
    ),
]


class ClassificationParameters(LenientRequest):
    """What clients of Hugging Face's inference API send beside the text."""

    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = Field(
        default=None, description="What makes scores of the logits; the model's own function, if not said."
    )
    top_k: int | None = Field(
        default=None,
        ge=1,
        le=MAX_INT,
        strict=True,
        description="So many labels of each text; all, if not said.",
    )


class PredictRequest(LenientRequest):
    """Texts, or pairs of texts, to label."""

    inputs: Annotated[
        PredictInputs,
        PlainValidator(_predict_inputs, json_schema_input_type=str | _OneOrTwo | list[_OneOrTwo]),
        Field(
            description="One text, or one pair as a list of two; several of them as a list of lists of one "
            "or two texts."
        ),
    ]
    model: ModelName
    truncate: Truncate
    truncation_direction: TruncationDirection
    raw_scores: RawScores
    parameters: ClassificationParameters | None = Field(
        default=None,
        description="If there, even if empty, the answer has the shape of Hugging Face's inference API: a "
        "list for each text, of a single one as well.",
    )


class ClassifyRequest(LenientRequest):
    """Texts to label."""

    input: Annotated[Texts, Field(validation_alias=AliasChoices("input", "inputs"))]
    model: ModelName
    truncate: Truncate
    truncation_direction: TruncationDirection
    raw_scores: RawScores


class Prediction(BaseModel):
    """A label, and its score."""

    score: float = Field(
        description="0 to 1 by softmax or sigmoid, as /info says of the model; a logit, where those were "
        "asked for or the model does regression."
    )
    label: str


class ClassifyResponse(BaseModel):
    """Per text, in the order sent, its labels, best first."""

    object: Literal["classify"] = "classify"
    data: list[list[Prediction]]
    model: str
    usage: Usage
    id: str
    created: int = Field(description="Seconds since 1970.")


PREDICT_EXAMPLES: dict[str, Any] = {
    "one text": {"value": {"inputs": "How do I get a refund?"}},
    "a pair of texts": {"value": {"inputs": ["How long does a refund take?", "Three working days."]}},
    "several": {
        "value": {
            "inputs": [["怎么申请退款？"], ["How long does a refund take?", "Three working days."]],
            "raw_scores": True,
        }
    },
    "as Hugging Face's inference API": {
        "value": {"inputs": "How do I get a refund?", "parameters": {"top_k": 1}}
    },
}
CLASSIFY_EXAMPLES: dict[str, Any] = {
    "two texts": {"value": {"input": ["怎么申请退款？", "How do I get a refund?"]}},
}

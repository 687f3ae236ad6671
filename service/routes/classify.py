"""``POST /predict`` and ``POST /classify``: whole texts, and pairs of them, to labels."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Body, Request, Response

from model.runtime.bundle import LabelActivation
from model.runtime.label_scores import label_scores
from service.admission import AnswerTooLargeError
from service.classify_schemas import (
    CLASSIFY_EXAMPLES,
    PREDICT_EXAMPLES,
    ClassifyRequest,
    ClassifyResponse,
    Prediction,
    PredictRequest,
)
from service.dependencies import LimitsDep, ServicesDep, SettingsDep
from service.errors import InputTooLongError, ServiceError, UnknownModelError
from service.http_errors import TEXT_ERRORS, documented, request_id_of
from service.inference import Classification, Classifier
from service.json_body import StrictJsonRoute
from service.response_headers import documented_headers, reading_headers
from service.result_json import encode_results

router = APIRouter(route_class=StrictJsonRoute, tags=["texts"])

HEADERS = documented_headers(
    "x-conche-model",
    "x-conche-tokens",
    "x-conche-tokens-by-input",
    "x-conche-truncated",
    "x-conche-empty",
)
RESPONSES = {
    **documented(*TEXT_ERRORS, InputTooLongError, AnswerTooLargeError, UnknownModelError),
    200: {"headers": HEADERS},
}


@router.post(
    "/predict",
    response_model=list[Prediction] | list[list[Prediction]],
    response_description="Labels, best first; of several items a list of such lists, in the order sent.",
    responses=RESPONSES,
)
async def predict(
    body: Annotated[PredictRequest, Body(openapi_examples=PREDICT_EXAMPLES)],
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Label texts, or pairs of texts that are read together, as text-embeddings-inference does.

    Two strings in a list are a pair. What is too long is refused, or cut if `truncate` says so: a pair loses
    tokens from its longer text until both are equally long, then from both.
    """
    classifier = services.classifier_named(body.model, route="/predict")
    items, parameters = body.inputs.items, body.parameters
    with _called_as_sent(single=body.inputs.single):
        limits.admit(items, param="inputs")
        result = await classifier.classify(
            items,
            truncate=settings.truncate if body.truncate is None else body.truncate,
            truncate_from_start=body.truncation_direction.lower() == "left",
            read_empty=limits.read_empty,
        )
    wanted = None if parameters is None else parameters.function_to_apply
    encoded = await _encode(
        classifier,
        result,
        "none" if body.raw_scores else wanted or classifier.activation,
        top_k=None if parameters is None else parameters.top_k,
        max_bytes=settings.limits.max_answer_bytes,
    )
    return Response(
        encoded[1:-1] if body.inputs.single and parameters is None else encoded,
        media_type="application/json",
        headers=reading_headers(classifier.model_id, result.tokens, result.truncated, result.empty),
    )


@router.post("/classify", response_model=ClassifyResponse, responses=RESPONSES)
async def classify(
    body: Annotated[ClassifyRequest, Body(openapi_examples=CLASSIFY_EXAMPLES)],
    request: Request,
    services: ServicesDep,
    limits: LimitsDep,
    settings: SettingsDep,
) -> Response:
    """Label texts, as Infinity does; `inputs` is read as `input` is."""
    param = "input" if request.scope["conche.body"].get("input") is not None else "inputs"
    classifier = services.classifier_named(body.model, route="/classify")
    limits.admit(body.input, param=param)
    result = await classifier.classify(
        body.input,
        truncate=settings.truncate if body.truncate is None else body.truncate,
        truncate_from_start=body.truncation_direction.lower() == "left",
        read_empty=limits.read_empty,
        param=param,
    )
    encoded = await _encode(
        classifier,
        result,
        "none" if body.raw_scores else classifier.activation,
        top_k=None,
        max_bytes=settings.limits.max_answer_bytes,
    )
    tokens = sum(result.tokens)
    rest = {
        "model": classifier.model_id,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "id": f"classify-{request_id_of(request.scope)}",
        "created": int(time.time()),
    }
    return Response(
        b'{"object":"classify","data":' + encoded + b"," + orjson.dumps(rest)[1:],
        media_type="application/json",
        headers=reading_headers(classifier.model_id, result.tokens, result.truncated, result.empty),
    )


async def _encode(
    classifier: Classifier,
    result: Classification,
    activation: LabelActivation,
    *,
    top_k: int | None,
    max_bytes: int,
) -> bytes:
    """JSON list of the labels of each item, best first; equals in the order of the model's labels."""
    scores = label_scores(result.logits, activation)
    places = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    ordered = np.take_along_axis(scores, places, axis=1)
    found = [list(zip(*pair, strict=True)) for pair in zip(places.tolist(), ordered.tolist(), strict=True)]

    def shape(one: tuple[int, float]) -> dict[str, Any]:
        return {"score": one[1], "label": classifier.labels[one[0]]}

    return await encode_results(found, shape, max_bytes=max_bytes)


@contextmanager
def _called_as_sent(*, single: bool) -> Iterator[None]:
    """Call the only item by the field's name, where it was sent in no list of items."""
    try:
        yield
    except ServiceError as error:
        if single and error.index == 0:
            error.call_item("inputs", index=None)
        raise

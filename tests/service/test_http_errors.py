"""One table from error to status, for answers and documentation alike."""

import json

import pytest

from service import errors
from service.absence import FaqFailedError, ModelFailedError, NoFaqError, NoModelError
from service.admission import TooManyCharactersError
from service.http_errors import (
    STATUS,
    TEXT_ERRORS,
    MalformedBodyError,
    documented,
    error_response,
    status_of,
)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.EmptyInputError, 422),
        (errors.InputTooLongError, 422),
        (MalformedBodyError, 400),
        (NoModelError, 404),
        (ModelFailedError, 503),
        (errors.ModelMismatchError, 409),
        (errors.UnknownEntryError, 404),
        (errors.PayloadTooLargeError, 413),
        (TooManyCharactersError, 413),
        (errors.OverloadedError, 429),
        (errors.UnavailableError, 503),
        (errors.StorageError, 500),
        (errors.StorageFullError, 507),
        (errors.ReadOnlyStoreError, 403),
        (errors.UnauthorizedError, 401),
        (errors.ForbiddenError, 403),
        (errors.RateLimitedError, 429),
        (NoFaqError, 404),
        (FaqFailedError, 503),
        (errors.InferenceError, 500),
        (errors.ServiceError, 500),
    ],
)
def test_the_nearest_entry_along_the_mro_decides(kind: type[errors.ServiceError], status: int) -> None:
    """A new kind of invalid input needs no entry of its own."""
    assert status_of(kind) == status


def test_both_ways_of_having_no_model_share_one_code() -> None:
    """Clients ask for one word; the status says whether waiting may help."""
    assert NoModelError.code == ModelFailedError.code == "no_model"


def test_the_body_has_all_fields_and_nothing_else() -> None:
    """Clients can rely on the keys being there; those of text-embeddings-inference read the first two."""
    error = errors.EmptyInputError("inputs[3] is empty", index=3, param="inputs")
    assert json.loads(error_response(error, "r-1", "/embed").body) == {
        "error": "inputs[3] is empty",
        "error_type": "Empty",
        "code": "empty_input",
        "index": 3,
        "param": "inputs",
        "request_id": "r-1",
    }


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/v1/nothing"])
def test_the_openai_interface_nests_its_errors(path: str) -> None:
    """Its clients look for message, type, param and code below `error`, on unknown paths too."""
    error = errors.OverloadedError("full", retry_after_s=1)
    assert json.loads(error_response(error, "r-1", path).body) == {
        "error": {
            "message": "full",
            "type": "rate_limit_error",
            "param": None,
            "code": "overloaded",
            "index": None,
        },
        "request_id": "r-1",
    }


@pytest.mark.parametrize("kind", list(STATUS))
def test_every_kind_of_error_has_a_type_in_both_interfaces(kind: type[errors.ServiceError]) -> None:
    """A new branch of the tree falls back on its parent's."""
    error = kind.__new__(kind)
    errors.ServiceError.__init__(error, "said")
    flat = json.loads(error_response(error, "r", "/embed").body)
    nested = json.loads(error_response(error, "r", "/v1/embeddings").body)
    assert flat["error_type"] in {
        "Backend",
        "Conflict",
        "Empty",
        "Forbidden",
        "NotFound",
        "Overloaded",
        "Unauthorized",
        "Unhealthy",
        "Validation",
    }
    assert nested["error"]["type"].endswith("_error")
    assert flat["code"] == nested["error"]["code"] == kind.code


def test_a_retry_hint_is_given_in_whole_seconds_and_in_milliseconds() -> None:
    """Proxies read the one, SDKs the other; the seconds are rounded up, never to 0."""
    headers = error_response(errors.OverloadedError("full", retry_after_s=0.25), "r", "/embed").headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "250")
    headers = error_response(errors.OverloadedError("full", retry_after_s=2.1), "r", "/embed").headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2100")
    assert "retry-after" not in error_response(errors.EmptyInputError("x"), "r", "/embed").headers


def test_documentation_comes_from_the_same_table() -> None:
    """Each kind under the status that its answer has, each code named."""
    responses = documented(*TEXT_ERRORS)
    assert set(responses) == {int(status_of(kind)) for kind in TEXT_ERRORS}
    for kind in TEXT_ERRORS:
        assert f"`{kind.code}`" in responses[int(status_of(kind))]["description"]


def test_every_kind_in_the_tree_has_a_status() -> None:
    """The root is in the table, so nothing can fall through."""
    assert errors.ServiceError in STATUS

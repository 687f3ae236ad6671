"""One table from error to status, for answers and documentation alike."""

import json

import pytest

from service import errors
from service.absence import ModelFailedError, NoModelError
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
        (errors.OverloadedError, 429),
        (errors.UnavailableError, 503),
        (errors.StorageError, 500),
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
    """Clients can rely on the keys being there."""
    response = error_response(errors.EmptyInputError("inputs[3] is empty", index=3, param="inputs"), "r-1")
    assert json.loads(response.body) == {
        "error": {"code": "empty_input", "message": "inputs[3] is empty", "index": 3, "param": "inputs"},
        "request_id": "r-1",
    }


def test_a_retry_hint_is_given_in_whole_seconds_and_in_milliseconds() -> None:
    """Proxies read the one, SDKs the other; the seconds are rounded up, never to 0."""
    headers = error_response(errors.OverloadedError("full", retry_after_s=0.25), "r").headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("1", "250")
    headers = error_response(errors.OverloadedError("full", retry_after_s=2.1), "r").headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("3", "2100")
    assert "retry-after" not in error_response(errors.EmptyInputError("x"), "r").headers


def test_documentation_comes_from_the_same_table() -> None:
    """Each kind under the status that its answer has, each code named."""
    responses = documented(*TEXT_ERRORS)
    assert set(responses) == {int(status_of(kind)) for kind in TEXT_ERRORS}
    for kind in TEXT_ERRORS:
        assert f"`{kind.code}`" in responses[int(status_of(kind))]["description"]


def test_every_kind_in_the_tree_has_a_status() -> None:
    """The root is in the table, so nothing can fall through."""
    assert errors.ServiceError in STATUS

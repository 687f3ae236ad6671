"""service.errors: the tree that every other module raises from."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import errors
from service.errors import (
    EmptyInputError,
    InferenceError,
    InputTooLongError,
    InvalidInputError,
    InvalidTextError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    ServiceError,
    TooManyInputsError,
    UnavailableError,
)


def _tree(root: type[ServiceError]) -> Iterator[type[ServiceError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def test_codes_are_the_published_ones() -> None:
    """Clients and dashboards rely on the codes: renaming one is a breaking change and must be seen here."""
    codes = {cls.__name__: cls.code for cls in _tree(ServiceError) if cls.__module__ == "service.errors"}
    assert codes == {
        "ServiceError": "internal",
        "InvalidInputError": "invalid_input",
        "EmptyInputError": "empty_input",
        "InvalidTextError": "invalid_text",
        "InputTooLongError": "input_too_long",
        "TooManyInputsError": "too_many_inputs",
        "InvalidFilterError": "invalid_filter",
        "NotFoundError": "not_found",
        "UnknownModelError": "unknown_model",
        "UnknownCollectionError": "unknown_collection",
        "UnknownEntryError": "unknown_entry",
        "ConflictError": "conflict",
        "CollectionExistsError": "collection_exists",
        "DuplicateEntryError": "duplicate_entry",
        "EntryChangedError": "entry_changed",
        "ModelMismatchError": "model_mismatch",
        "UnauthorizedError": "unauthorized",
        "ForbiddenError": "forbidden",
        "PayloadTooLargeError": "payload_too_large",
        "OverloadedError": "overloaded",
        "RateLimitedError": "rate_limited",
        "TooManyConcurrentError": "too_many_concurrent",
        "UnavailableError": "unavailable",
        "StorageError": "storage_failed",
        "StorageFullError": "storage_full",
        "ReadOnlyStoreError": "storage_read_only",
        "InferenceError": "inference_failed",
    }


def test_every_class_is_in_the_drawn_tree() -> None:
    """The drawing in the module docstring is the first thing a reader sees; it must not go stale."""
    drawn = errors.__doc__ or ""
    for cls in _tree(ServiceError):
        if cls.__module__ == "service.errors":
            assert cls.__name__ in drawn


@pytest.mark.parametrize("cls", [EmptyInputError, InvalidTextError, InputTooLongError, TooManyInputsError])
def test_faults_of_the_request_share_one_parent(cls: type[ServiceError]) -> None:
    """One line in the status table covers them all."""
    assert issubclass(cls, InvalidInputError)


def test_the_offending_item_and_field_are_carried() -> None:
    """A batch of a thousand with one bad item is only repairable if the answer says which."""
    error = EmptyInputError("inputs[3] is empty", index=3, param="inputs")
    assert (error.index, error.param, error.message, str(error)) == (
        3,
        "inputs",
        "inputs[3] is empty",
        error.message,
    )
    assert error.retry_after_s is None


def test_a_long_input_carries_the_numbers_and_the_way_out() -> None:
    """'Too long' alone sends people to the source; the limit and its setting save the trip."""
    error = InputTooLongError("m", tokens=600, limit=512, setting="truncate", index=0, param="inputs")
    assert (error.tokens, error.limit, error.setting) == (600, 512, "truncate")


def test_limits_are_carried_by_the_counting_errors() -> None:
    """Both name the limit and the setting that moves it."""
    many = TooManyInputsError("m", count=3000, limit=2048, setting="CONCHE_MAX_INPUTS", param="inputs")
    large = PayloadTooLargeError("m", limit=1, setting="CONCHE_MAX_BODY_BYTES")
    assert (many.count, many.limit, many.setting) == (3000, 2048, "CONCHE_MAX_INPUTS")
    assert (large.limit, large.setting) == (1, "CONCHE_MAX_BODY_BYTES")


def test_only_what_a_retry_can_mend_says_when_to_retry() -> None:
    """A Retry-After on a bad request would make clients send it for ever."""
    assert OverloadedError("m", retry_after_s=2.5).retry_after_s == 2.5
    assert UnavailableError("m").retry_after_s is not None
    assert NotFoundError("m").retry_after_s is None
    assert InferenceError("m").retry_after_s is None


def test_the_module_imports_the_standard_library_only() -> None:
    """Every layer may raise these, so they may depend on none."""
    tree = ast.parse(Path(errors.__file__).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names

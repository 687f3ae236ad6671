"""What bodies mean beyond their types."""

from pathlib import Path

import pytest

from model.runtime.bundle import Bundle
from service.errors import InvalidInputError
from service.schemas import EmbedRequest, NerRequest, SearchRequest


def test_one_text_is_a_list_of_one() -> None:
    """Routes see lists only."""
    assert EmbedRequest.model_validate({"inputs": "a"}).inputs == ["a"]
    assert NerRequest.model_validate({"inputs": ["a", "b"]}).inputs == ["a", "b"]
    assert SearchRequest.model_validate({"query": "a"}).query == ["a"]


def test_null_takes_the_default() -> None:
    """Also where null would not be a value."""
    body = EmbedRequest.model_validate({"inputs": "a", "normalize": None, "truncate": None, "x": None})
    assert (body.normalize, body.truncate) == (True, None)
    assert SearchRequest.model_validate({"query": "a", "top_k": None}).top_k == 5


@pytest.mark.parametrize("field", ["prompt_name", "input_type"])
def test_an_empty_prompt_name_is_no_prompt_of_the_model(field: str, models_folder: Path) -> None:
    """Whoever wants the default leaves the field out."""
    manifest = Bundle.load(models_folder / "tiny-embedding").manifest
    with pytest.raises(InvalidInputError, match="no such prompt; it has: query, passage, none") as caught:
        EmbedRequest.model_validate({"inputs": "a", field: ""}).options(
            manifest, model_prompt=None, truncate_unless_said=False
        )
    assert caught.value.param == field


def test_a_request_cannot_be_changed() -> None:
    """What was validated is what is used."""
    with pytest.raises(ValueError, match="frozen"):
        SearchRequest(query=["a"]).top_k = 7  # type: ignore[misc]


def test_top_k_above_the_operators_limit_names_the_setting() -> None:
    """The limit itself is allowed."""
    SearchRequest(query=["a"], top_k=100).admit_top_k(100)
    with pytest.raises(InvalidInputError, match="CONCHE_LIMITS__MAX_TOP_K"):
        SearchRequest(query=["a"], top_k=101).admit_top_k(100)

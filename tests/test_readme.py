"""What the README says is what happens, and its Chinese twin says the same."""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.errors import ServiceError
from service.settings import Settings

REPOSITORY = Path(__file__).parents[1]
ENGLISH = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHINESE = (REPOSITORY / "README.zh-CN.md").read_text(encoding="utf-8")
# Other processors round float32 sums otherwise; what a reader would notice is larger.
TOLERANCE = 1e-3


def code_blocks(text: str) -> list[str]:
    """The fenced blocks, in order."""
    return re.findall(r"^```\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)


def assert_alike(actual: Any, written: Any) -> None:
    """Same JSON, numbers within the tolerance."""
    if isinstance(written, dict):
        assert actual.keys() == written.keys()
        for name, value in written.items():
            if name != "request_id":
                assert_alike(actual[name], value)
    elif isinstance(written, list):
        assert len(actual) == len(written)
        for one, other in zip(actual, written, strict=True):
            assert_alike(one, other)
    elif isinstance(written, float):
        assert actual == pytest.approx(written, abs=TOLERANCE)
    else:
        assert actual == written


def test_the_requests_get_the_answers_that_are_written(tmp_path: Path) -> None:
    """Each curl line is sent to the real service with the default models."""
    blocks = code_blocks(ENGLISH)
    asked = [(block, answer) for block, answer in itertools.pairwise(blocks) if block.startswith("curl")]
    assert len(asked) == 6
    settings = Settings.model_validate(
        {
            "models_dir": REPOSITORY / "models",
            "data_dir": tmp_path,
            # Measurements would choose now this one, now that, and take their time.
            "engine": "onnxruntime",
            "batching": {"max_batch_tokens": 2048},
        }
    )
    with TestClient(create_app(settings)) as client:
        for command, answer in asked:
            words = shlex.split(command.replace("\\\n", " "))
            url, body = words[2], words[words.index("-d") + 1]
            response = client.post(
                url.removeprefix("http://127.0.0.1:8080"),
                content=body.encode(),
                headers={"content-type": "application/json"},
            )
            assert_alike(response.json(), json.loads(answer))


def test_both_languages_show_the_same_code_and_tables() -> None:
    """The twin is kept in step: commands, answers, settings, error codes."""
    assert code_blocks(CHINESE) == code_blocks(ENGLISH)
    settings = r"<!-- settings:begin -->.*<!-- settings:end -->"
    english, chinese = (re.search(settings, text, re.DOTALL) for text in (ENGLISH, CHINESE))
    assert english
    assert chinese
    assert english.group() == chinese.group()
    assert error_codes(CHINESE) == error_codes(ENGLISH)


def error_codes(readme: str) -> set[str]:
    """Codes in the second column of the table of errors."""
    rows = re.findall(r"^\| \d{3}[^|]*\| ([^|]*) \|", readme, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", " ".join(rows)))


def test_every_error_code_is_listed() -> None:
    """A client author can rely on the table."""

    def codes(kind: type[ServiceError]) -> set[str]:
        return {kind.code}.union(*(codes(child) for child in kind.__subclasses__()))

    # not_found is the parent of the two that occur.
    assert error_codes(ENGLISH) == {
        code for code in codes(ServiceError) if code != "not_found" and not code.startswith("test")
    }

"""docs/errors.md says of every error what the service says of it."""

import difflib
import re
from pathlib import Path

import pytest

import service.app  # noqa: F401 - every kind of error is defined once it is imported
from service.http_errors import status_of
from tests.service.error_page import ADVICE, MADE, PAGE, PROVOKED, kinds_by_code, written
from tests.service.fakes_http import write_bundles


async def test_the_page_is_what_a_running_service_answers(tmp_path: Path) -> None:
    """Each example that can be provoked is, and the body is that of the page, to the letter."""
    made = await written(write_bundles(tmp_path))
    committed = PAGE.read_text(encoding="utf-8")
    if committed != made:
        lines = difflib.unified_diff(
            committed.splitlines(), made.splitlines(), "docs/errors.md", "the service", lineterm="", n=2
        )
        pytest.fail("run `make errors`, and read the diff:\n" + "\n".join(list(lines)[:60]), pytrace=False)


def test_each_code_has_its_section_once_with_its_status() -> None:
    """Read from the page itself: a code is looked up there by people who have nothing else."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| ([\d, ]+) \|", page, re.MULTILINE)
    assert re.findall(r"^## (\w+)$", page, re.MULTILINE) == [code for code, _ in rows]
    assert dict(rows) == {
        code: ", ".join(str(int(status_of(kind))) for kind in kinds)
        for code, kinds in kinds_by_code().items()
    }
    assert len(rows) == len(dict(rows))


def test_a_new_code_needs_advice_and_an_example() -> None:
    """Whoever adds a kind of error says here what its receiver is to do."""
    assert ADVICE.keys() == kinds_by_code().keys()
    provoked = [asked.code for asked in PROVOKED]
    assert sorted([*provoked, *MADE]) == sorted(ADVICE)

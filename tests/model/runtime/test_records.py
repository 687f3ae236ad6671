"""Which record of a file is read, and what is kept of it."""

import json
import logging
import operator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model.runtime import records
from model.runtime.records import FOR_NOW_SECONDS, read_record, write_record


def write(path: Path, machine: str, value: int, *, for_now: bool = False) -> None:
    """Keep a value for a machine."""
    write_record(path, "value", {"machine": machine}, {"value": value}, for_now=for_now)


def read(path: Path, machine: str) -> Any:
    """What is kept for a machine."""
    return read_record(path, "value", {"machine": machine}, operator.itemgetter("value"))


def test_who_comes_back_finds_what_was_kept(tmp_path: Path) -> None:
    """A setting that is tried and put back costs no second measurement."""
    path = tmp_path / "folder" / "file.json"
    write(path, "a", 1)
    write(path, "b", 2)
    assert [read(path, machine) for machine in ("a", "b", "c")] == [1, 2, None]


def test_a_record_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    """Of the same circumstances there is one."""
    path = tmp_path / "file.json"
    for value in range(3):
        write(path, "a", value)
    assert read(path, "a") == 2
    assert len(json.loads(path.read_bytes())) == 1


def test_the_oldest_of_many_go(tmp_path: Path) -> None:
    """A folder that moves through a fleet does not grow."""
    path = tmp_path / "file.json"
    for value in range(12):
        write(path, str(value), value)
    assert [read(path, str(value)) for value in range(12)] == [None] * 4 + list(range(4, 12))


def test_what_is_for_now_is_over_some_time_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes from the file at the next writing."""
    path = tmp_path / "file.json"
    write(path, "a", 1, for_now=True)
    assert read(path, "a") == 1
    later = records.time.time() + FOR_NOW_SECONDS + 1
    monkeypatch.setattr(records.time, "time", lambda: later)
    assert read(path, "a") is None
    write(path, "b", 2)
    assert len(json.loads(path.read_bytes())) == 1


def test_a_part_of_the_circumstances_is_enough_to_ask(tmp_path: Path) -> None:
    """Before an engine is chosen nobody knows which it will be; values need not be hashable."""
    path = tmp_path / "file.json"
    write_record(path, "value", {"machine": "a", "versions": {"x": [1]}}, {"value": 1})
    assert read(path, "a") == 1
    for other in ({"machine": "a", "versions": {"x": [2]}}, {"machine": "a", "streams": 1}):
        assert read_record(path, "value", other, operator.itemgetter("value")) is None


def test_a_file_of_one_record_is_read(tmp_path: Path) -> None:
    """As they were written before there were several."""
    path = tmp_path / "file.json"
    path.write_text('{"circumstances": {"machine": "a"}, "value": 7}', encoding="utf-8")
    assert read(path, "a") == 7
    write(path, "b", 8)
    assert read(path, "a") == 7


@pytest.mark.parametrize("content", ["", "1", "[1]", "{}", '[{"circumstances": {"machine": "a"}}]', "\x00"])
def test_what_cannot_be_read_is_said_and_made_anew(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no reason not to start."""
    path = tmp_path / "file.json"
    path.write_text(content, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert read(path, "a") is None
    assert "is made anew" in caplog.text
    write(path, "a", 1)
    assert read(path, "a") == 1


def test_nothing_is_kept_without_a_path() -> None:
    """Nor asked for."""
    write_record(None, "value", {}, {})
    assert read_record(None, "value", {}, partial(pytest.fail, "read")) is None

"""What is kept of compiled models is whole, bounded, and never in the way."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from model.runtime import compiled_models
from model.runtime.compiled_models import CompiledModels


@pytest.fixture
def models(tmp_path: Path) -> CompiledModels:
    """In a folder that is not there yet."""
    return CompiledModels(tmp_path / "engines")


@pytest.fixture
def free_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say how much there is."""
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_each_bundle_and_circumstance_has_its_own(models: CompiledModels) -> None:
    """The order in which circumstances are told means nothing."""
    assert models.read("a", {"x": 1, "y": 2}) is None
    models.write("a", {"x": 1, "y": 2}, b"one")
    models.write("a", {"x": 2, "y": 2}, b"two")
    models.write("b", {"x": 1, "y": 2}, b"three")
    assert models.read("a", {"y": 2, "x": 1}) == b"one"
    assert models.read("a", {"x": 2, "y": 2}) == b"two"
    assert models.read("b", {"x": 1, "y": 2}) == b"three"
    models.forget("a", {"x": 1, "y": 2})
    models.forget("a", {"x": 1, "y": 2})
    assert models.read("a", {"x": 1, "y": 2}) is None


def test_what_is_damaged_is_deleted(models: CompiledModels, tmp_path: Path) -> None:
    """It would be read in vain at each start."""
    models.write("a", {}, b"content")
    (path,) = (tmp_path / "engines").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert models.read("a", {}) is None
    assert not path.exists()


def test_what_was_not_used_for_longest_makes_room(
    models: CompiledModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models that are gone and older versions would fill the disk."""
    monkeypatch.setattr(compiled_models, "_MOST_BYTES", 400)
    for age, name in enumerate("abc"):
        models.write(name, {}, bytes(100))
        (path,) = (tmp_path / "engines").glob(f"{name}-*")
        os.utime(path, (1000 + age, 1000 + age))
    later = CompiledModels(tmp_path / "engines")
    assert later.read("a", {}) is not None  # and so is the one used last
    later.write("d", {}, bytes(100))
    assert [name for name in "abcd" if models.read(name, {}) is not None] == ["a", "c", "d"]


def test_what_is_in_use_stays_where_not_all_fit(
    models: CompiledModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models come in the same order at each start: the first would make room for the last, and so on."""
    monkeypatch.setattr(compiled_models, "_MOST_BYTES", 300)

    def start() -> list[str]:
        now, found = CompiledModels(tmp_path / "engines"), []
        for name in "abc":
            if now.read(name, {}) is not None:
                found.append(name)
            else:
                now.write(name, {}, bytes(100))
        return found

    assert [start(), start(), start()] == [[], ["a", "b"], ["a", "b"]]


def test_a_file_in_place_of_another_takes_the_others_room_only(
    models: CompiledModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two workers write the same."""
    monkeypatch.setattr(compiled_models, "_MOST_BYTES", 300)
    for name in "abb":
        models.write(name, {}, bytes(100))
    assert models.read("a", {}) is not None
    assert models.read("b", {}) is not None


def test_what_may_be_read_but_not_touched_is_read(
    models: CompiledModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's, or in an image."""
    models.write("a", {}, b"content")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refuse)
    assert models.read("a", {}) == b"content"


def test_files_that_others_delete_meanwhile_are_no_error(
    models: CompiledModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker's partial becomes whole, say."""
    models.write("a", {}, b"content")
    real = Path.glob

    def glob(folder: Path, pattern: str) -> list[Path]:
        return [*real(folder, pattern), tmp_path / "engines" / "gone"]

    monkeypatch.setattr(Path, "glob", glob)
    models.write("b", {}, b"other")
    assert models.read("b", {}) == b"other"


def test_what_is_larger_than_all_that_may_be_kept_is_not(
    models: CompiledModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it cost the others their place."""
    monkeypatch.setattr(compiled_models, "_MOST_BYTES", 400)
    models.write("a", {}, bytes(100))
    models.write("b", {}, bytes(401))
    assert models.read("a", {}) is not None
    assert models.read("b", {}) is None


def test_a_disk_with_little_room_is_left_alone(
    models: CompiledModels, free_disk: Callable[[int], None]
) -> None:
    """What cannot be made again may need it."""
    free_disk(999)
    models.write("a", {}, bytes(100))
    assert models.read("a", {}) is None
    free_disk(1000)
    models.write("a", {}, bytes(100))
    assert models.read("a", {}) is not None


def test_nothing_half_written_stays(
    models: CompiledModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after an error nor, for long, after a kill."""
    models.write("a", {}, b"whole")
    killed = tmp_path / "engines" / ".b-0.compiled.17.partial"
    at_work = tmp_path / "engines" / ".c-0.compiled.18.partial"
    for left in (killed, at_work):
        left.write_bytes(b"half")
    os.utime(killed, (time.time() - 3600,) * 2)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "replace", full)
        disk.setattr(compiled_models, "_MOST_BYTES", 50)
        later = CompiledModels(tmp_path / "engines")
        later.write("d", {}, b"content")
    assert models.read("d", {}) is None  # and nothing has made room for it
    assert models.read("a", {}) == b"whole"
    assert [path.name for path in (tmp_path / "engines").glob(".*")] == [at_work.name]

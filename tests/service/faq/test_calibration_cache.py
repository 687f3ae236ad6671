"""A model is measured once: what is kept of it is right, or not there."""

import json
from pathlib import Path

import pytest

from service.faq import calibration_cache
from service.faq.calibration import Calibration
from service.faq.calibration_cache import CalibrationCache

MEASURED = Calibration(0.5, (1.0, 2.0, 3.0, -4.0), (1.5, 2.5, 3.5, -4.5))


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    """Of that model, and of no other."""
    cache = CalibrationCache(tmp_path / "calibrations")
    assert cache.load("print") is None
    cache.save("print", MEASURED)
    assert CalibrationCache(tmp_path / "calibrations").load("print") == MEASURED
    assert cache.load("other") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"made_by": 1}'])
def test_a_damaged_file_is_made_anew(tmp_path: Path, content: bytes) -> None:
    """It can be, so it is no reason not to start."""
    (tmp_path / "print.json").write_bytes(content)
    cache = CalibrationCache(tmp_path)
    assert cache.load("print") is None
    cache.save("print", MEASURED)
    assert cache.load("print") == MEASURED


def test_numbers_that_cannot_be_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A negative weight would call the farther entry the surer one."""
    cache = CalibrationCache(tmp_path)
    cache.save("print", MEASURED)
    path = tmp_path / "print.json"
    record = json.loads(path.read_bytes())
    record["calibration"]["weights"][0] = -1
    path.write_text(json.dumps(record))
    assert cache.load("print") is None
    assert "damaged" in caplog.text


def test_a_calibration_of_another_procedure_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer Conche fits otherwise, or on other examples; the folder outlives it."""
    cache = CalibrationCache(tmp_path)
    cache.save("print", MEASURED)
    monkeypatch.setattr(calibration_cache, "_PROCEDURE", -1)
    assert cache.load("print") is None


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_is_cut_short_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The old file or the new one, never a piece; a service that cannot write still starts."""
    cache = CalibrationCache(tmp_path)
    cache.save("print", MEASURED)

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(
        "service.faq.json_files.os.fsync" if step == "fsync" else "pathlib.Path.replace", fail
    )
    cache.save("print", Calibration(0.1, (1, 1, 1, 1), (1, 1, 1, 1)))
    monkeypatch.undo()
    assert cache.load("print") == MEASURED
    assert [path.name for path in tmp_path.iterdir()] == ["print.json"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The service is slower to start the next time, and says so."""
    (tmp_path / "file").write_text("x")
    CalibrationCache(tmp_path / "file" / "calibrations").save("print", MEASURED)
    assert "cannot be kept" in caplog.text

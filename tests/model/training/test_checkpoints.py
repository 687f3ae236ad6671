"""The work folder of a run: whole files, the right run, gone at the end."""

from pathlib import Path

import pytest
import torch

from model.training.checkpoints import OtherRunError, WorkFolder


def test_it_lies_hidden_beside_the_output(tmp_path: Path) -> None:
    """A models folder passes over hidden folders, so nothing tries to serve it."""
    work = WorkFolder.beside(tmp_path / "tagger")
    assert work.path == tmp_path / ".tagger.training"
    assert work.left() == "nothing"
    work.open({"seed": 1})
    assert work.left() == "unsaved"
    assert work.load_state() is None
    with pytest.raises(FileNotFoundError):
        work.load_best()
    work.save_state({"x": torch.ones(2), "losses": [0.5]})
    assert work.left() == "saved"
    state = work.load_state()
    assert state is not None
    assert state["losses"] == [0.5]
    assert not list(work.path.glob("*.partial"))
    work.remove()
    assert not work.path.exists()


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    """Going on with other data or options would give a model that nothing describes."""
    work = WorkFolder(tmp_path / "w")
    work.open({"epochs": 4, "data": "a" * 64, "options": (1, 2)})
    work.open({"epochs": 4, "data": "a" * 64, "options": (1, 2)})
    with pytest.raises(OtherRunError, match=r"other data, epochs \(4 then, 5 now\);"):
        work.open({"epochs": 5, "data": "b" * 64, "options": (1, 2)})
    work.save_state({"x": torch.ones(1)})
    work.open({"epochs": 5, "data": "b" * 64}, restart=True)
    assert work.load_state() is None


def test_a_kill_while_saving_leaves_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file takes its name only when it is whole."""
    work = WorkFolder(tmp_path / "w")
    work.open({})
    work.save_state({"step": 1})

    def half_written(content: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(KeyboardInterrupt):
        work.save_state({"step": 2})
    assert work.load_state() == {"step": 1}

"""Environments of peers, without an index: made once, made anew when need be, and told when they cannot."""

import json
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from comparison import environments
from comparison.environments import NotInstalledError, environment
from comparison.infinity_server import mend


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would be run; nothing is installed. The peer is called "peer"."""
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "peer.txt").write_text("# why\npeer==1.0\ntorch==2.0\n", encoding="utf-8")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path / "peers")
    monkeypatch.setattr(venv.EnvBuilder, "create", lambda _, folder: Path(folder).mkdir(exist_ok=True))
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    found: list[list[str]] = []

    def run(command: Sequence[str]) -> str:
        found.append(list(command))
        return json.dumps([{"name": "peer", "version": "1.0"}])

    monkeypatch.setattr(environments, "_run", run)
    return found


def test_an_environment_is_made_once(tmp_path: Path, commands: list[list[str]]) -> None:
    """Until what it is made from changes; versions are kept with it."""
    told: list[str] = []
    first = environment("peer", tmp_path, told.append)
    assert first.versions == {"peer": "1.0"}
    assert len(told) == 1
    before = len(commands)
    assert environment("peer", tmp_path, told.append) == first
    assert len(commands) == before
    (tmp_path / "peers" / "peer.txt").write_text("peer==2.0\n", encoding="utf-8")
    environment("peer", tmp_path, told.append)
    assert len(commands) > before


def test_torch_can_come_from_another_index(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First and by itself: everything else stays where it is."""
    monkeypatch.setenv("TORCH_INDEX", "https://cpu.example")
    environment("peer", tmp_path, lambda _: None)
    assert commands[0][-3:] == ["--index-url", "https://cpu.example", "torch==2.0"]
    assert "--index-url" not in commands[1]


@pytest.mark.usefixtures("commands")
def test_what_cannot_be_installed_is_tried_again_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-made environment is never taken for a whole one."""

    def fail(_: Sequence[str]) -> str:
        raise NotInstalledError("ERROR: no such package")

    with monkeypatch.context() as patched:
        patched.setattr(environments, "_run", fail)
        with pytest.raises(NotInstalledError, match="no such package"):
            environment("peer", tmp_path, lambda _: None)
    assert environment("peer", tmp_path, lambda _: None).versions == {"peer": "1.0"}


def test_the_words_of_a_failed_command_are_kept() -> None:
    """They say what is missing; warnings beside them do not."""
    script = "import sys; print('WARNING: x\\nERROR: nothing fits', file=sys.stderr); sys.exit(1)"
    with pytest.raises(NotInstalledError, match=r"^ERROR: nothing fits$"):
        environments._run([sys.executable, "-c", script])


def test_only_what_is_missing_is_put_back() -> None:
    """Of the module that Infinity's engine imports from; what it still has is not touched."""
    module, moved_to = SimpleNamespace(kept=1), SimpleNamespace(kept=2, moved=3)
    mend(module, moved_to)
    assert (module.kept, module.moved) == (1, 3)

"""`conche keys`: made, listed, removed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from service.api_keys import KeyRing, read_keys
from service.cli import main


def run(*arguments: str, file: Path | None) -> Result:
    """`conche keys ARGUMENTS`."""
    environment = {"CONCHE_API_KEYS_FILE": str(file or "")}
    return CliRunner().invoke(main, ["keys", *arguments], env=environment)


def test_a_key_is_printed_once_works_and_is_removed(tmp_path: Path) -> None:
    """The list shows what it may do, never the key."""
    file = tmp_path / "keys.json"
    limits = ("--requests-per-minute", "60", "--concurrent-requests", "4")
    made = run("add", "shop", "--scope", "read", "--scope", "write", *limits, file=file)
    assert made.exit_code == 0, made.output
    key = made.output.strip()
    found = KeyRing(file).find(key.encode())
    assert found is not None
    assert found.key.scopes == {"read", "write"}
    assert run("add", "ops", "--scope", "admin", file=file).exit_code == 0
    listed = run("list", file=file).output
    assert "shop  read+write  60 a minute, 4 at once" in listed
    assert "ops  admin  no limits" in listed
    assert key not in listed
    assert run("remove", "shop", file=file).exit_code == 0
    assert [record.name for record in read_keys(file).keys] == ["ops"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "shop", "--scope", "read"), "there is a key called shop"),
        (("add", "a b", "--scope", "read"), "name"),
        (("add", "new"), "--scope"),
        (("add", "new", "--scope", "root"), "root"),
        (("remove", "nobody"), "no key called nobody"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """And leaves the file as it was."""
    file = tmp_path / "keys.json"
    run("add", "shop", "--scope", "read", file=file)
    before = file.read_bytes()
    result = run(*arguments, file=file)
    assert result.exit_code in {1, 2}
    assert said in result.output
    assert "Traceback" not in result.output
    assert file.read_bytes() == before


def test_a_file_has_to_be_named() -> None:
    """There is no default place."""
    result = run("list", file=None)
    assert result.exit_code == 1
    assert "CONCHE_API_KEYS_FILE" in result.output


def test_keys_made_and_removed_at_once_are_none_lost(tmp_path: Path) -> None:
    """Real processes: each reads the file, changes it and puts it back, and none undoes another's change."""
    file = tmp_path / "keys.json"
    run("add", "old", "--scope", "read", file=file)
    commands = [["remove", "old"], *(["add", f"new-{n}", "--scope", "read"] for n in range(3))]
    environment = {**os.environ, "CONCHE_API_KEYS_FILE": str(file)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from service.cli import main; main()", "keys", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command in commands
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, printed
    assert {record.name for record in read_keys(file).keys} == {"new-0", "new-1", "new-2"}
    ring = KeyRing(file)
    assert all(ring.find(key.encode()) is not None for key in printed[1:])

"""The disk of the data folder is full, fails, or cannot be written."""

import resource
import subprocess
from pathlib import Path

import pytest

from tests.chaos.served import Served, serving

ENTRY = {"id": "one", "question": "return my order", "answer": "yes"}


def _mount_namespace() -> list[str]:
    """A command that runs another where mounts are its own; skips the test where none can be had."""
    for command in (["unshare", "-m"], ["unshare", "-Urm"]):
        try:
            tried = subprocess.run([*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False)
        except FileNotFoundError:
            break
        if tried.returncode == 0:
            return command
    pytest.skip("no mount namespace can be made here (needs root, or user namespaces)")


def _searched(served: Served) -> bool:
    found = served.ask("POST", "/search", {"query": "return my order", "collection": "shop"})
    return found.status == 200 and found.json()["results"][0]["hits"][0]["id"] == "one"


def test_a_full_disk_refuses_writes_keeps_what_is_there_and_heals(folder: Path) -> None:
    """507 and nothing half written; with room again it goes on without a restart."""
    data = folder / "data"
    data.mkdir()
    script = f'mount -t tmpfs -o size=64m tmpfs "{data}" && exec "$@"'
    with serving(folder, within=[*_mount_namespace(), "sh", "-c", script, "sh"]) as served:
        assert served.write(ENTRY).status == 200
        # The mount is seen through the process only.
        filler = Path(f"/proc/{served.process.pid}/root{data}/filler")
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 27))
        answer = served.write({**ENTRY, "id": "two"})
        assert (answer.status, answer.json()["code"]) == (507, "storage_full")
        assert _searched(served)
        assert served.ids() == {"one"}
        assert served.ask("GET", "/readyz").status == 200
        filler.unlink()
        assert served.write({**ENTRY, "id": "two"}).status == 200
        assert served.ids() == {"one", "two"}


def test_a_disk_that_fails_while_entries_are_written_leaves_all_or_nothing(folder: Path) -> None:
    """The limit on the size of a file makes writing fail in the middle, as a failing disk does."""
    many = [{"id": f"m{n}", "question": f"hello {n}", "answer": "a" * 500} for n in range(2000)]
    with serving(folder) as served:
        assert served.write(ENTRY).status == 200
        largest = max(path.stat().st_size for path in (folder / "data").rglob("*") if path.is_file())
        soft, hard = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (largest + 200_000, hard))
        answer = served.write(*many)
        assert answer.status in {500, 507}
        assert answer.json()["code"] in {"storage_failed", "storage_full"}
        assert served.ids() == {"one"}
        assert _searched(served)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
        assert served.write(*many).status == 200
        assert len(served.ids()) == 2001
        assert served.stop() == 0
    with serving(folder) as served:
        assert len(served.ids()) == 2001


def test_a_read_only_folder_is_searched_and_refuses_writes(folder: Path) -> None:
    """With a code of its own, and the service stays ready for what it can do."""
    data = folder / "data"
    with serving(folder) as served:
        assert served.write(ENTRY).status == 200
        assert served.stop() == 0
    script = f'mount --bind "{data}" "{data}" && mount -o remount,bind,ro "{data}" && exec "$@"'
    with serving(folder, within=[*_mount_namespace(), "sh", "-c", script, "sh"]) as served:
        answer = served.write({**ENTRY, "id": "two"})
        assert (answer.status, answer.json()["code"]) == (403, "storage_read_only")
        assert _searched(served)
        assert served.ask("GET", "/readyz").status == 200
    (data / "outside").touch()  # the mount was the served process's alone; raises if it was not

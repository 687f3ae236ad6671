"""service.faq.file_claim: one at a time, of any process, and nobody is kept out by a dead one."""

import subprocess
import sys
from pathlib import Path

import pytest

from service.faq.file_claim import claim

HOLDER = """
import sys, time
from pathlib import Path
from service.faq.file_claim import claim
print(claim(Path(sys.argv[1])) is not None, flush=True)
time.sleep(3600)
"""


def test_a_claim_is_one_s_own_until_it_is_let_go(tmp_path: Path) -> None:
    """And leaves no file."""
    path = tmp_path / "claim"
    assert claim(tmp_path / "another") is not None
    for _ in range(2):
        let_go = claim(path)
        assert let_go is not None
        assert claim(path) is None
        let_go()
        assert not path.exists()


def test_a_process_that_was_killed_is_in_nobody_s_way(tmp_path: Path) -> None:
    """It cannot let go, and what it left lies there."""
    path = tmp_path / "claim"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert claim(path) is None
    finally:
        holder.kill()
        holder.communicate()
    assert path.exists()
    assert claim(path) is not None


def test_a_file_that_was_removed_when_its_lock_came_is_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would lock a file of its own, and both would think that they are alone."""
    path = tmp_path / "claim"
    path.touch()
    removed = [path]
    lock = claim.__globals__["fcntl"].flock

    def flock(descriptor: int, how: int) -> None:
        while removed:
            removed.pop().unlink()
        lock(descriptor, how)

    monkeypatch.setattr("service.faq.file_claim.fcntl.flock", flock)
    assert claim(path) is not None
    assert path.exists()
    assert claim(path) is None


def test_a_folder_that_takes_no_files_says_so(tmp_path: Path) -> None:
    """It is for the caller to decide what that means."""
    with pytest.raises(OSError, match="No such file"):
        claim(tmp_path / "nowhere" / "claim")

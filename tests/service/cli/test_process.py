"""Ending a process around a thread that cannot be stopped."""

import subprocess
import sys

import pytest

STUCK = """
import logging, sys, threading
from service.cli.process import end
stuck = threading.Event()
threading.Thread(target={work}, daemon=True).start()
sys.stdout.write("said")
end(7)
"""


@pytest.mark.parametrize("work", ["stuck.wait", "print"])
def test_the_exit_code_and_what_was_printed_survive_a_stuck_thread(work: str) -> None:
    """Native code in a daemon thread aborts an interpreter that is torn down around it."""
    program = [sys.executable, "-c", STUCK.format(work=work)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    assert done.stdout.strip() == "said"
    assert done.stderr == ""

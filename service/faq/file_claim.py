"""What one process of a machine does at a time: whoever holds a file's lock does it.

The lock goes with whoever holds it, however that process ends: nothing of a dead one is in the way.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


def claim(path: Path) -> Callable[[], None] | None:
    """Take a claim, without waiting; two of one process get in each other's way, too.

    Args:
        path: of a file in a folder that is there; it is made, and removed when the claim is let go.

    Returns:
        What lets go of it; None = another has it.

    Raises:
        OSError: the folder takes no file, or no locks.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, descriptor):
                return partial(_let_go, path, descriptor)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had it removed the file in between


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _let_go(path: Path, descriptor: int) -> None:
    with suppress(OSError):  # left lying, it is in nobody's way
        path.unlink()
    os.close(descriptor)

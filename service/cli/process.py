"""How a command ends whose threads cannot be stopped.

A model run takes place in native code in a thread of its own; an interpreter that is torn down around it
aborts the process. So what is still at work at the end is left behind with ``os._exit``.
"""

import contextlib
import logging
import os
import sys
import threading
from typing import Final, NoReturn

LOST_MODEL: Final = 70
"""Exit code after a model, or the event loop, that hung or broke; sysexits.h: an internal software error."""

_THREAD_END_S: Final = 0.5


def leave(code: int) -> NoReturn:
    """End the process at once, whatever its threads are doing; nothing logged or printed is lost."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # closed, or interrupted while writing
            stream.flush()
    os._exit(code)


def end(code: int) -> NoReturn:
    """End the process after its server has: as usual if nothing is at work any more, else at once.

    Raises:
        SystemExit: with ``code``.
    """
    for thread in threading.enumerate():
        if thread.daemon:
            thread.join(_THREAD_END_S)
            if thread.is_alive():
                leave(code)
    raise SystemExit(code)

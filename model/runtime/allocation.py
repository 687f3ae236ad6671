"""The C library's allocator, where it is glibc's: what is free goes back to the system; elsewhere nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Final

# Numbers of mallopt (glibc's malloc.h).
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
# Left to itself, glibc has arenas by the dozen, and keeps freed blocks of up to 32 MiB in them once one of
# that size was freed. So two arenas for all threads, and a fixed size from which on a block is mapped by
# itself, and unmapped when it is freed. Figures: bench/README.md.
_BOUNDS: Final = {_ARENA_MAX: 2, _MMAP_THRESHOLD: 512 * 1024, _TRIM_THRESHOLD: 512 * 1024}
_SET_BY_OPERATOR: Final = ("MALLOC_", "GLIBC_TUNABLES")


def bound_free_memory() -> bool:
    """Have the allocator keep little of what is free; to be called before there are threads.

    Returns:
        False: nothing was set, since the environment sets it, or the library has no ``mallopt``.
    """
    if any(name.startswith(_SET_BY_OPERATOR) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return [mallopt(number, value) for number, value in _BOUNDS.items()] == [1] * len(_BOUNDS)


def return_freed_memory() -> None:
    """Hand back what was freed: glibc would keep 100 MB after a graph was loaded or a huge text read."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

"""What is free goes back to the system, unless the operator has said what the allocator is to do."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from model.runtime.allocation import _SET_BY_OPERATOR

KEPT = """
import ctypes
import os
from pathlib import Path
from model.runtime.allocation import bound_free_memory

was_bound = bound_free_memory() if {bound} else None
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]

def used(size):
    block = library.malloc(size)
    ctypes.memset(block, 1, size)
    return block

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

library.free(used(30 << 20))  # from here on glibc keeps blocks of this size, left to itself
before = resident()
large, small = used(20 << 20), used(4096)
library.free(large)
print(was_bound, resident() - before)
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is about glibc's allocator")


def kept(*, bound: bool, **environment: str) -> tuple[str, int]:
    """Whether a process took the bounds, and the MiB that it kept of 20 that were freed."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_OPERATOR)}
    done = subprocess.run(
        [sys.executable, "-c", KEPT.format(bound=bound)],
        capture_output=True,
        text=True,
        check=True,
        env=variables | environment,
        timeout=60,
    )
    was_bound, mib = done.stdout.split()
    return was_bound, int(mib)


@glibc
def test_a_large_block_goes_back_although_a_small_one_came_after_it() -> None:
    """It is mapped by itself; left to itself, glibc has it in a heap that ends with the small one."""
    assert kept(bound=False)[1] >= 19
    was_bound, mib = kept(bound=True)
    assert was_bound == "True"
    assert mib <= 1


@glibc
@pytest.mark.parametrize("variable", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_operator_sets_holds(variable: str) -> None:
    """Who knows of these variables has measured, perhaps."""
    value = {"MALLOC_ARENA_MAX": "4", "GLIBC_TUNABLES": "glibc.malloc.arena_max=4"}[variable]
    assert kept(bound=True, **{variable: value})[0] == "False"

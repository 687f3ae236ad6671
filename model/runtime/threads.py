"""How many CPUs this process may use, whatever the host has.

A container is usually given a share of a large host. Threads sized by the host's cores then wait for each
other inside a small quota, many times slower than a few would be.

Sources: cgroups(7); kernel documentation "CFS Bandwidth Control" (v1) and "Control Group v2", cpu.max.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path, PurePosixPath

_PROC_SELF = Path("/proc/self")
# What is added to the niceness of threads that run models.
_MODEL_NICENESS = 10


def give_way() -> None:
    """Let this thread, and those it starts from now on, wait for others of the process that want a core.

    Running a model takes all cores for milliseconds at a time; reading requests, tokenising and looking up
    take a fraction of that, and somebody waits for each. Costs the model nothing while cores are idle. Linux
    only, where threads have a niceness of their own; elsewhere nothing happens. A second call changes
    nothing: a thread that gave way twice gets almost no time beside one that did so once.
    """
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it; it is no more than a preference
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _MODEL_NICENESS  # the main thread's
            os.setpriority(os.PRIO_PROCESS, thread, min(19, niceness))


def available_cpus(proc_self: Path = _PROC_SELF) -> float:
    """CPUs this process may use: its affinity, or its cgroups' quota where that is less. At least above 0.

    Args:
        proc_self: where this process's ``cgroup`` and ``mountinfo`` files are.
    """
    quota = cgroup_quota(proc_self)
    affinity = float(_affinity())
    return affinity if quota is None else min(affinity, quota)


def thread_count(cpus: float | None = None) -> int:
    """Compute threads for ``cpus`` (this process's by default): the whole CPUs, one at least.

    Rounded down: with a quota of 1.5 two busy threads would be stopped for a quarter of each period, both of
    them, at a moment nobody chooses; the half that is left over serves the event loop and the tokeniser.
    """
    available = available_cpus() if cpus is None else cpus
    return max(1, math.floor(available))


def cgroup_quota(proc_self: Path = _PROC_SELF) -> float | None:
    """The CPU quota of this process's cgroups, in CPUs; None if there is none or no cgroups are mounted.

    A quota on any ancestor binds too, so the least on the way up counts. Version 1 and 2 hierarchies are both
    read, because systems that mount both exist.
    """
    quotas = []
    for controllers, path in _memberships(proc_self):
        for kind, root, mount_point in _cgroup_mounts(proc_self):
            if (kind == "cgroup2" and controllers == set()) or (kind == "cpu" and "cpu" in controllers):
                quotas += _quotas_upwards(_below_mount(path, root, mount_point), mount_point, kind)
    return min(quotas, default=None)


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memberships(proc_self: Path) -> list[tuple[set[str], PurePosixPath]]:
    """(controllers, cgroup path) of each hierarchy; no controllers = version 2."""
    memberships = []
    for line in _lines(proc_self / "cgroup"):
        parts = line.split(":", 2)  # hierarchy-id:controllers:path
        if len(parts) == 3:
            controllers = set(parts[1].split(",")) if parts[1] else set()
            memberships.append((controllers, PurePosixPath(parts[2])))
    return memberships


def _cgroup_mounts(proc_self: Path) -> list[tuple[str, PurePosixPath, Path]]:
    """("cgroup2" or "cpu", root of the mount inside the hierarchy, mount point) of what bears CPU quotas."""
    mounts = []
    for line in _lines(proc_self / "mountinfo"):
        fields, separator, tail = line.partition(" - ")
        before, after = fields.split(), tail.split()
        if not separator or len(before) < 5 or len(after) < 3:
            continue
        kind = after[0]
        if kind == "cgroup" and "cpu" in after[2].split(","):
            kind = "cpu"
        if kind in {"cgroup2", "cpu"}:
            mounts.append((kind, PurePosixPath(_unescape(before[3])), Path(_unescape(before[4]))))
    return mounts


def _below_mount(path: PurePosixPath, root: PurePosixPath, mount_point: Path) -> Path:
    """Folder of cgroup ``path`` in a mount that shows the hierarchy from ``root`` down.

    With a private cgroup namespace the path may lie outside of what is mounted ("/../.."); the mount point is
    then the nearest group that can be seen.
    """
    if ".." in path.parts or not path.is_relative_to(root):
        return mount_point
    return mount_point / path.relative_to(root)


def _quotas_upwards(folder: Path, mount_point: Path, kind: str) -> list[float]:
    levels = [folder, *folder.parents]
    visible = [level for level in levels if level.is_relative_to(mount_point)]
    quotas = (_quota_v2(level) if kind == "cgroup2" else _quota_v1(level) for level in visible)
    return [quota for quota in quotas if quota is not None]


def _quota_v2(folder: Path) -> float | None:
    words = " ".join(_lines(folder / "cpu.max")).split()  # "max 100000" or "150000 100000"
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    quota = _lines(folder / "cpu.cfs_quota_us")  # -1 = none
    period = _lines(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    try:
        microseconds, per = int(quota), int(period)
    except ValueError:  # "max"
        return None
    return microseconds / per if microseconds > 0 and per > 0 else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux, or hidden from this process: no limit can be seen there
        return []


def _unescape(field: str) -> str:
    """Mountinfo writes space, tab, newline and backslash as octal escapes."""
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(escape, character)
    return field

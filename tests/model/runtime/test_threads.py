"""Threads follow the quota that really binds, on every layout of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from model.runtime import threads


class Machine:
    """A made-up ``/proc/self`` and the cgroup mounts that it speaks of."""

    def __init__(self, root: Path) -> None:
        """Nothing is mounted yet."""
        self.proc_self = root / "proc"
        self.proc_self.mkdir()
        self.sys = root / "sys fs"  # with a space, which mountinfo escapes
        self.sys.mkdir()
        self._mounts: list[str] = ["21 1 0:19 / /proc rw shared:4 - proc proc rw"]
        self._groups: list[str] = []

    def mount(self, name: str, kind: str, options: str, root: str = "/") -> Path:
        """Mount a hierarchy at ``sys/name``."""
        point = self.sys / name
        point.mkdir()
        escaped = str(point).replace(" ", "\\040")
        self._mounts.append(f"32 31 0:29 {root} {escaped} rw,relatime shared:9 - {kind} cgroup {options}")
        (self.proc_self / "mountinfo").write_text("\n".join(self._mounts), encoding="utf-8")
        return point

    def join(self, line: str) -> None:
        """Add a line to ``/proc/self/cgroup``."""
        self._groups.append(line)
        (self.proc_self / "cgroup").write_text("\n".join(self._groups), encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Without cgroups so far."""
    return Machine(tmp_path)


def put(folder: Path, **files: str) -> None:
    """Write control files, dots spelt ``__``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content + "\n", encoding="ascii")


def test_version_2_quota_of_the_own_group(machine: Machine) -> None:
    """Inside a container with its own namespace the path is the root."""
    point = machine.mount("unified", "cgroup2", "rw,nsdelegate")
    machine.join("0::/")
    put(point, cpu__max="150000 100000")
    assert threads.cgroup_quota(machine.proc_self) == 1.5


def test_the_least_quota_on_the_way_up_binds(machine: Machine) -> None:
    """A pod's limit binds its containers, whether or not they have one."""
    point = machine.mount("unified", "cgroup2", "rw")
    machine.join("0::/pod/container")
    put(point / "pod" / "container", cpu__max="400000 100000")
    put(point / "pod", cpu__max="200000 100000")
    put(point, cpu__max="max 100000")
    assert threads.cgroup_quota(machine.proc_self) == 2.0


def test_no_limit_is_none(machine: Machine) -> None:
    """The usual value is "max"."""
    point = machine.mount("unified", "cgroup2", "rw")
    machine.join("0::/")
    put(point, cpu__max="max 100000")
    assert threads.cgroup_quota(machine.proc_self) is None


def test_version_1_quota(machine: Machine) -> None:
    """Older hosts; cpu and cpuacct usually share a mount."""
    point = machine.mount("cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
    machine.join("4:cpu,cpuacct:/user")
    put(point / "user", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    put(point, cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert threads.cgroup_quota(machine.proc_self) == 0.5


def test_a_mount_that_shows_a_part_of_the_hierarchy(machine: Machine) -> None:
    """Containers on version 1 see their own group mounted, under the host's path."""
    point = machine.mount("cpu", "cgroup", "rw,cpu", root="/docker/abc")
    machine.join("3:cpu:/docker/abc/inner")
    put(point / "inner", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    assert threads.cgroup_quota(machine.proc_self) == 3.0


def test_a_path_outside_of_the_mount_falls_back_to_the_mount(machine: Machine) -> None:
    """Seen when a process is moved after its namespace was made."""
    point = machine.mount("unified", "cgroup2", "rw")
    machine.join("0::/../sibling")
    put(point, cpu__max="100000 100000")
    put(point.parent / "sibling", cpu__max="1000 100000")  # no control file, whatever it looks like
    assert threads.cgroup_quota(machine.proc_self) == 1.0


def test_both_versions_mounted_the_cpu_controller_counts(machine: Machine) -> None:
    """Hybrid systems mount version 2 for service tracking only."""
    machine.mount("unified", "cgroup2", "rw")
    point = machine.mount("cpu", "cgroup", "rw,cpu")
    machine.mount("memory", "cgroup", "rw,memory")
    machine.join("8:memory:/other")
    machine.join("1:cpu:/")
    machine.join("0::/")
    put(point, cpu__cfs_quota_us="250000", cpu__cfs_period_us="100000")
    assert threads.cgroup_quota(machine.proc_self) == 2.5


@pytest.mark.parametrize("content", ["", "nonsense", "0 100000", "100000", "100000 0", "1 2 3"])
def test_control_files_out_of_shape_set_no_limit(machine: Machine, content: str) -> None:
    """Better all CPUs than no service."""
    point = machine.mount("unified", "cgroup2", "rw")
    machine.join("0::/")
    put(point, cpu__max=content)
    assert threads.cgroup_quota(machine.proc_self) is None


def test_no_cgroups_leave_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems, and hidden /proc."""
    monkeypatch.setattr(threads, "_affinity", lambda: 6)
    assert threads.available_cpus(tmp_path / "missing") == 6.0


def test_the_smaller_of_affinity_and_quota_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """`taskset` and cpusets limit as well as quotas do."""
    monkeypatch.setattr(threads, "_affinity", lambda: 2)
    point = machine.mount("unified", "cgroup2", "rw")
    machine.join("0::/")
    put(point, cpu__max="400000 100000")
    assert threads.available_cpus(machine.proc_self) == 2.0
    put(point, cpu__max="120000 100000")
    assert threads.available_cpus(machine.proc_self) == 1.2


@pytest.mark.parametrize(("cpus", "expected"), [(0.1, 1), (1.0, 1), (1.9, 1), (2.0, 2), (63.5, 63)])
def test_threads_are_whole_cpus_and_never_none(cpus: float, expected: int) -> None:
    """Rounding up would have the quota stop all threads in every period."""
    assert threads.thread_count(cpus) == expected


def test_this_machine_gives_a_sensible_answer() -> None:
    """Read from the real files, whatever they are here."""
    assert threads.thread_count() >= 1
    assert threads.available_cpus() > 0

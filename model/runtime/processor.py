"""What the processor is and offers, as far as choosing an engine goes."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# What the lines of /proc/cpuinfo are called on x86, and on Arm.
_NAMES = ("model name", "CPU part")
_FEATURES = ("flags", "Features")


@dataclass(frozen=True, slots=True)
class Processor:
    """The processor of this machine.

    Attributes:
        name: as it calls itself; on Arm the number of its part. "unknown" where the system does not tell.
        system: "Linux", "Darwin" and so on.
        machine: "x86_64", "aarch64" and so on.
        features: names of instruction sets in the kernel's spelling; empty where it does not tell.
    """

    name: str
    system: str
    machine: str
    features: frozenset[str]


def read_processor(cpuinfo: Path = _CPUINFO) -> Processor:
    """Read what the kernel tells of the first processor.

    Args:
        cpuinfo: the file to read; one that is not there tells nothing.
    """
    fields: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = next((fields[key] for key in _NAMES if fields.get(key)), platform.processor() or "unknown")
    features = next((fields[key] for key in _FEATURES if key in fields), "")
    return Processor(name, platform.system(), platform.machine(), frozenset(features.split()))

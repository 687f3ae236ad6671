"""The lock files: complete, hashed, the same everywhere, and free of what serving must not have."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = ("build", "serve", "milvus", "openvino", "dev", "chart", "helm")


def pins(name: str) -> dict[str, set[str]]:
    """Versions of each package pinned in a lock file; several where they differ by Python version."""
    found: dict[str, set[str]] = {}
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    for package, version in re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


def normalised(requirement: str) -> str:
    """The package's name in a requirement, spelt as lock files spell it."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_hashes(name: str) -> None:
    """Installing refuses a file where one is missing, but only on the user's machine."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_no_host(name: str) -> None:
    """Where packages come from is the user's choice, and not the choice of whoever wrote the lock."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert re.findall(r"\w+://\S+|--(?:extra-)?index-url|--find-links|--trusted-host", text) == []


@pytest.mark.parametrize("name", ["serve", "milvus"])
def test_what_is_served_is_whole_but_for_the_hubs_client(name: str) -> None:
    """They are installed without their dependencies, so that nobody else tells what is missing."""
    locked = pins(name).keys()
    wanted = {
        normalised(requirement.name)
        for package in locked
        if _installed_here(package)
        for requirement in map(Requirement, metadata.requires(package) or [])
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert "huggingface-hub" in wanted
    assert wanted - locked == {"huggingface-hub"}


def _installed_here(package: str) -> bool:
    """Locks are for other systems and other versions of Python too."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.parametrize("package", ["torch", "transformers", "onnx", "safetensors", "pytest"])
def test_serving_needs_no_training_package(package: str) -> None:
    """The promise of a small image, and of a set-up in a minute."""
    assert package not in pins("serve")


def test_torch_is_in_its_own_file_only() -> None:
    """Which build of it is right differs per machine, so no lock can hold its hash."""
    assert all("torch" not in pins(name) for name in LOCKS)
    assert pins("torch").keys() == {"torch"}


def test_development_runs_what_serving_runs() -> None:
    """Tests that pass with other versions than those served prove little."""
    dev = pins("dev")
    for name in ("serve", "milvus", "openvino"):
        served = pins(name)
        assert {package: versions for package, versions in served.items() if dev[package] != versions} == {}
    assert pins("serve").items() <= pins("milvus").items()


def test_locks_cover_pyproject() -> None:
    """A dependency added to pyproject.toml without `make lock` would stop a fresh clone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    serving = {normalised(line) for line in project["project"]["dependencies"]}
    development = {normalised(line) for line in project["project"]["optional-dependencies"]["train"]}
    development |= {normalised(line) for line in project["dependency-groups"]["dev"]}
    assert serving - pins("serve").keys() == set()
    extra = {normalised(line) for line in project["project"]["optional-dependencies"]["milvus"]}
    assert extra <= pins("milvus").keys()
    assert pins("openvino").keys() == {
        normalised(line) for line in project["project"]["optional-dependencies"]["openvino"]
    }
    assert development - pins("dev").keys() == {"torch"}
    assert {normalised(line) for line in project["build-system"]["requires"]} <= pins("build").keys()

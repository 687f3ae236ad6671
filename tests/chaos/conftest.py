"""Fixtures of the chaos suite."""

import shutil
from pathlib import Path

import pytest

from tests.bundles import write_tiny_embedding_bundle


@pytest.fixture(scope="session")
def _bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    write_tiny_embedding_bundle(folder / "tiny-embedding")
    return folder


@pytest.fixture
def folder(_bundles: Path, tmp_path: Path) -> Path:
    """For one service: bundles of its own, which a test may spoil, and room for its data."""
    shutil.copytree(_bundles, tmp_path / "models")
    return tmp_path

"""Fixtures of the service's tests: tiny bundles on disk, and a client of the app over them."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.service.fakes_http import running, tiny_settings, write_bundles


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles and a FAQ file, for reading only."""
    return write_bundles(tmp_path_factory.mktemp("models"))


@pytest.fixture
async def client(models_folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running app."""
    async with running(tiny_settings(models_folder)) as client:
        yield client

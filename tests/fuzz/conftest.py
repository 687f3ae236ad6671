"""What the generated requests are sent to."""

from pathlib import Path

import pytest

from tests.service.fakes_http import write_bundles


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny bundles and a FAQ of three entries."""
    return write_bundles(tmp_path_factory.mktemp("models"))

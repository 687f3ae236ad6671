"""bench/workers.py: what it says of a service that does not start."""

from pathlib import Path

import pytest
import workers


def test_a_service_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    """Whether a package is missing or a setting is wrong, only its own words tell."""
    with pytest.raises(SystemExit, match=r"did not start \(exit code [12]\)[\s\S]*(?i:streams)"):
        workers.Server(1, 1, "none", tmp_path)

"""Requests generated from the OpenAPI document, with all of schemathesis' checks, against a real server.

A few for each operation here; `make fuzz` sends more than ten thousand.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.service.cli.test_serve import HANG_S, Running, _start

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = os.environ.get("FUZZ_CASES", "4")  # of each operation and kind of data


def test_no_generated_request_finds_a_fault(models_folder: Path, tmp_path: Path) -> None:
    """No 5xx, no answer that the document does not have, nothing taken that it forbids."""
    process = _start(
        models_folder, "--admin", "true", "--classifier-bundle", "tiny-classifier", "--log-level", "error"
    )
    try:
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli"),
                *("--config-file", str(HERE / "schemathesis.toml")),
                *("run", f"{Running(process).url}/openapi.json"),
                *("--max-examples", CASES, "--no-color", "--continue-on-failure", "--warnings", "off"),
            ],
            cwd=tmp_path,  # where it keeps a cache
            env=os.environ | {"SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr
    tally = re.search(r"(\d+) generated", ran.stdout)
    assert tally
    assert int(tally.group(1)) > 500
    sys.stdout.write(f"{tally.group()} requests\n")

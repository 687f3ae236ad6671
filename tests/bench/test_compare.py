"""bench/compare.py: what it does without torch, as in the environment that `make serve` makes."""

import subprocess
import sys
from pathlib import Path

import pytest

COMPARE = Path(__file__).parents[2] / "bench" / "compare.py"
# None in sys.modules is how Python says that there is no such package.
WITHOUT_TORCH = """
import runpy, sys

for name in ("torch", "safetensors", "transformers", "onnx"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("option", "status", "said"),
    [("--help", 0, "usage: "), ("--set-up", 2, "needs torch")],
    ids=["help", "measuring"],
)
def test_without_torch_it_says_what_it_is_and_what_it_lacks(option: str, status: int, said: str) -> None:
    """A traceback is no answer to whoever takes the wrong one of the two environments."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, COMPARE, option], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr

"""A program that asks scripts for their help, each in a fork of one process.

usage: script_help.py SCRIPT ...

What takes long to import is imported once, and not for every script. It prints one JSON object: for each
script its exit status and what it wrote.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import click  # noqa: F401 - for the scripts
import onnx  # noqa: F401
import torch  # noqa: F401
from transformers import AutoModel, AutoTokenizer  # noqa: F401 - lazy, by itself

import service.lifespan  # noqa: F401


def _run(script: str) -> int:
    sys.argv = [script, "--help"]
    sys.path[0] = str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 - shown, and told by the status
        traceback.print_exc()
        return 1
    return 0


def help_of(script: str) -> tuple[int, str]:
    """The exit status of a script that is asked for its help, and what it writes."""
    with tempfile.TemporaryFile() as written:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for stream in (1, 2):
                    os.dup2(written.fileno(), stream)
                status = _run(script)
                sys.stdout.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        written.seek(0)
        return status, written.read().decode(errors="replace")


if __name__ == "__main__":
    print(json.dumps({script: help_of(script) for script in sys.argv[1:]}))  # noqa: T201 - its answer

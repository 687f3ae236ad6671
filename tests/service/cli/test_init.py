"""The command group: all names at once, no module before its command."""

import os
import subprocess
import sys

from click.testing import CliRunner

from service.cli import COMMANDS, main


def test_every_command_is_listed_with_its_help() -> None:
    """One place to look."""
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, command in COMMANDS.items():
        assert name in result.output
        assert command.help in result.output


def test_every_command_can_be_imported() -> None:
    """A name in the table that leads nowhere would be found by users only."""
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, (name, result.output)


def test_the_list_imports_no_command() -> None:
    """`conche --help` is instant, and works where torch is missing."""
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom service.cli import main\n"
        "CliRunner().invoke(main, ['--help'])\n"
        "loaded = [name for name in sys.modules if name.startswith(('service.cli.', 'torch', 'fastapi'))]\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_command_is_refused() -> None:
    """With the usual message."""
    result = CliRunner().invoke(main, ["sevre"])
    assert result.exit_code == 2
    assert "sevre" in result.output


def test_the_matrix_library_keeps_to_the_quota() -> None:
    """It would start a thread per core of the host, and reads its setting once: when NumPy is imported."""
    program = (
        "import ctypes, re\nfrom pathlib import Path\nfrom model.runtime import threads\n"
        "threads.cgroup_quota = lambda *_: 1.5\n"
        "from click.testing import CliRunner\nfrom service.cli import main\n"
        "assert CliRunner().invoke(main, ['embed', '--help']).exit_code == 0\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "(path,) = set(re.findall(r'/\\S*openblas\\S*', maps))\n"
        "library = ctypes.CDLL(path)\n"
        "names = ('scipy_openblas_get_num_threads64_', 'scipy_openblas_get_num_threads',"
        " 'openblas_get_num_threads64_', 'openblas_get_num_threads')\n"
        "count = next(getattr(library, name) for name in names if hasattr(library, name))()\n"
        "assert count == 1, count\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr

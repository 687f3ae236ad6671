"""The wheel that the image is built from."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("conche_client", "model", "service")


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(tmp_path: Path) -> None:
    """A checkout finds its data files anyway; an installed copy has only what the wheel was told to hold."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source / name)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    # A folder that resembles a package's name, as the bundles' does.
    (source / "models" / "bundle").mkdir(parents=True)
    (source / "models" / "bundle" / "stray.py").touch()
    expected = {
        path.relative_to(source).as_posix()
        for name in PACKAGES
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--wheel-dir", tmp_path, source], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected

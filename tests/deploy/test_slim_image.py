"""What is left out of the image, and that a library whose end is cut off loads as before."""

import importlib.util
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slim_image.py"
SLIM = runpy.run_path(str(SCRIPT))


def library_of(module: str) -> Path:
    """The shared library that an installed module is."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


@pytest.mark.parametrize("module", ["uvloop.loop", "tokenizers.tokenizers", "orjson.orjson"])
def test_a_cut_library_loads(module: str, tmp_path: Path) -> None:
    """What the loader reads is there, bit for bit; its package runs with it."""
    original = library_of(module)
    package = tmp_path / original.parent.name
    shutil.copytree(original.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    library = package / original.name
    cut = SLIM["cut_library"](library)
    whole, kept = original.read_bytes(), library.read_bytes()
    assert 0 < cut == len(whole) - len(kept)
    assert kept[64:] == whole[64 : len(kept)]
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module} as it; print(it.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(library)
    assert SLIM["cut_library"](library) == 0


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"INPUT (libm.so.6)"])
def test_what_is_no_library_stays(content: bytes, tmp_path: Path) -> None:
    """A linker's script is called .so too, and other machines have other formats."""
    path = tmp_path / "libthing.so.1"
    path.write_bytes(content)
    assert SLIM["cut_library"](path) == 0
    assert path.read_bytes() == content


def test_only_what_the_lists_name_goes(tmp_path: Path) -> None:
    """In their packages; a folder of the same name elsewhere is another one's."""
    gone = {
        "numpy/ma/tests/test_core.py",
        "numpy/testing/__init__.py",
        "onnxruntime/tools/check.py",
        "onnxruntime/capi/libonnxruntime.so.1.32.0",
        "openvino/libs/libopenvino_intel_gpu_plugin.so",
        "openvino/frontend/pytorch/__init__.py",
        "pydantic/main.pyi",
    }
    kept = {
        "numpy/ma/core.py",
        "onnxruntime/capi/onnxruntime_pybind11_state.cpython-311-x86_64-linux-gnu.so",
        "openvino/libs/libopenvino.so.2641",
        "openvino/libs/libopenvino_intel_cpu_plugin.so",
        "openvino/libs/libtbb.so.12",
        "openvino/frontend/__init__.py",
        "openvino/frontend/frontend.py",
        "openvino/frontend/onnx/__init__.py",
        "other/tests/__init__.py",
    }
    for name in gone | kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    ran = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=True)
    assert "MB before" in ran.stdout
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_the_patterns_match_what_is_installed() -> None:
    """A package that moved its files would be shipped whole again, without a word."""
    site_packages = library_of("numpy").parents[1]
    patterns = [pattern for pattern in SLIM["UNUSED"] if not list(site_packages.glob(pattern))]
    assert patterns == []
    libraries = site_packages / "openvino" / "libs"
    missing = [pattern for pattern in SLIM["OPENVINO_LIBRARIES"] if not list(libraries.glob(pattern))]
    assert missing == []

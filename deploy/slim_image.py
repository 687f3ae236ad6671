# ruff: noqa: INP001 - a script
"""Takes out of an environment what serving never loads: ``python slim_image.py SITE_PACKAGES`` (Dockerfile).

Everything was fetched by hash before; what stays is as its maker built it, byte for byte, but for the end of
some libraries.
"""

import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Patterns of files and folders, relative to site-packages.
UNUSED: Final = (
    # NumPy's tests, and what it has for building programs of C and Fortran.
    "numpy/**/tests",
    "numpy/testing",
    "numpy/_core/_multiarray_tests.*",
    "numpy/_core/_simd.*",  # what its tests know the processor by
    "numpy/distutils",
    "numpy/f2py",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/**/*.pxd",
    # ONNX Runtime's tools for making and changing graphs, and all of it once more, as a library for other
    # languages: Python's module has it in itself.
    "onnxruntime/datasets",
    "onnxruntime/quantization",
    "onnxruntime/tools",
    "onnxruntime/transformers",
    "onnxruntime/capi/libonnxruntime.so.*",
    # OpenVINO's headers and converters; of its formats only ONNX is read.
    "openvino/cmake",
    "openvino/include",
    "openvino/tools",
    "openvino/torch",
    "openvino/frontend/[!o_]*/",
    # Types, for those who check a program.
    "**/*.pyi",
)
# Of OpenVINO's libraries, which are for many devices and formats, those that stay.
OPENVINO_LIBRARIES: Final = (
    "libopenvino.so.*",
    "libopenvino_intel_cpu_plugin.so",
    "libopenvino_ir_frontend.so.*",
    "libopenvino_onnx_frontend.so.*",
    "libhwloc*",
    "libtbb*",
)

_ELF_64_LITTLE_ENDIAN: Final = b"\x7fELF\x02\x01"
_SECTIONS: Final = slice(40, 48)  # e_shoff
_SECTION_COUNTS: Final = slice(58, 64)  # e_shentsize, e_shnum, e_shstrndx


def loaded_bytes(library: bytes) -> int:
    """How many bytes from its start a library needs to be loaded, `len(library)` for what is no ELF-64 file.

    The loader reads the header, the program headers and the segments that those name. Symbols and debugging
    information for other tools come after them (System V ABI, "Program Loading"); uvloop has 12 MB of them.
    """
    if not library.startswith(_ELF_64_LITTLE_ENDIAN):
        return len(library)
    (headers,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    end: int = headers + size * count
    for number in range(count):
        offset, _, _, length = struct.unpack_from("<QQQQ", library, headers + number * size + 8)
        end = max(end, offset + length)
    return end


def cut_library(path: Path) -> int:
    """Cut off what no loader reads, and return how many bytes that were."""
    library = bytearray(path.read_bytes())
    end = loaded_bytes(library)
    cut = len(library) - end
    if cut > 0:
        # The table of sections was behind the end; zeros say that there is none.
        library[_SECTIONS] = bytes(8)
        library[_SECTION_COUNTS] = bytes(6)
        path.write_bytes(library[:end])
    return cut


def unused(site_packages: Path) -> Iterator[Path]:
    """What is there and matches UNUSED, or is a library of OpenVINO that need not stay."""
    for pattern in UNUSED:
        yield from site_packages.glob(pattern)
    for library in site_packages.glob("openvino/libs/*"):
        if not any(library.match(kept) for kept in OPENVINO_LIBRARIES):
            yield library


def main(site_packages: Path) -> None:
    """Slim it, and say by how much."""

    def size() -> int:
        return sum(path.lstat().st_size for path in site_packages.rglob("*") if path.is_file())

    before = size()
    for path in list(unused(site_packages)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # its folder may have gone before
    for library in site_packages.rglob("*.so*"):
        cut_library(library)
    after = size()
    print(f"{site_packages}: {before / 1e6:.0f} MB before, {after / 1e6:.0f} MB now")  # noqa: T201 - a build's log


if __name__ == "__main__":
    main(Path(sys.argv[1]))

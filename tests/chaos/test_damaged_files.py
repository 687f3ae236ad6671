"""A bundle or the index was damaged while nobody served it."""

import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.served import HANG_S, Served, serving


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _refusal(folder: Path) -> str:
    """Start it; the one line that it ends with, having listened to nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = Served(folder, port=port)
    served.launch()
    try:
        _, errors = served.process.communicate(timeout=HANG_S)
    finally:
        served.kill()
    assert served.process.returncode == 1, errors
    assert '"ready"' not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith("Error: ")]
    with socket.socket() as connection:
        assert connection.connect_ex(("127.0.0.1", port)) != 0
    return line


@pytest.mark.parametrize("name", ["graph.onnx", "embeddings.safetensors", "tokenizer.json"])
def test_a_damaged_bundle_is_refused_by_its_name_and_never_served(folder: Path, name: str) -> None:
    """One byte is enough; the message names bundle, check and file."""
    _flip(folder / "models" / "tiny-embedding" / name)
    line = _refusal(folder)
    assert re.search(rf"tiny-embedding is refused, check .*{re.escape(name)}", line), line


def test_a_damaged_index_is_refused_and_left_as_it_is(folder: Path) -> None:
    """The message says what to do; nothing is thrown away, and the file put back is served again."""
    database = folder / "data" / "faq.sqlite"
    with serving(folder) as served:
        entries = [{"id": f"e{n}", "question": f"hello {n}", "answer": "a" * 300} for n in range(300)]
        assert served.write(*entries).status == 200
        assert served.stop() == 0
    whole = database.read_bytes()
    damages: list[Callable[[Path], None]] = [_cut, _empty]
    for damage in damages:
        database.write_bytes(whole)
        damage(database)
        damaged = database.read_bytes()
        line = _refusal(folder)
        assert re.search(r"/search: .*faq\.sqlite.* is damaged.*restore a snapshot", line), line
        assert database.read_bytes() == damaged
    database.write_bytes(whole)
    with serving(folder) as served:
        assert len(served.ids()) == 300

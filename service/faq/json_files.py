"""Small JSON files that are whole or not there, whenever the process or the machine stops."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_json(path: Path, record: object) -> None:
    """Write ``record`` in place of what is there, in one step; makes the folder.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(partial).unlink()
        raise

"""Small JSON files that keep what was measured; any of them can be made again, so none is worth an error."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Kept = TypeVar("Kept")


def read_record(path: Path | None, what: str, read: Callable[[Any], Kept | None]) -> Kept | None:
    """What ``read`` makes of the file's JSON; None if there is none, or it cannot be read.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        read: may raise ValueError, TypeError, KeyError or AttributeError at what it does not understand.
    """
    if path is None:
        return None
    try:
        return read(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s %s cannot be read and is made anew: %s", what, path, error)
        return None


def write_record(path: Path | None, what: str, record: Mapping[str, Any]) -> None:
    """Write the file, whole or not at all. A folder that takes none is no error.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        record: becomes JSON.
    """
    if path is None:
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.warning("%s %s cannot be kept and is made anew next time: %s", what, path, error)

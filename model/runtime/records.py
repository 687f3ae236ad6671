"""Small JSON files that keep what was measured; any of them can be made again, so none is worth an error."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

Kept = TypeVar("Kept")

# How long what is not to be relied upon is kept: as long as the workers of one start take to come up, so that
# they all do the same.
FOR_NOW_SECONDS: Final = 600.0
_KEPT_UNTIL: Final = "kept_until"


def read_record(path: Path | None, what: str, read: Callable[[Any], Kept | None]) -> Kept | None:
    """What ``read`` makes of the file's JSON; None if there is none, its time is over, or it cannot be read.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        read: may raise ValueError, TypeError, KeyError or AttributeError at what it does not understand.
    """
    if path is None:
        return None
    try:
        record = json.loads(path.read_bytes())
        if record.get(_KEPT_UNTIL, math.inf) < time.time():
            return None
        return read(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s %s cannot be read and is made anew: %s", what, path, error)
        return None


def write_record(path: Path | None, what: str, record: Mapping[str, Any], *, for_now: bool = False) -> None:
    """Write the file, whole or not at all. A folder that takes none is no error.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        record: becomes JSON.
        for_now: to be read for ``FOR_NOW_SECONDS`` only.
    """
    if path is None:
        return
    if for_now:
        record = {**record, _KEPT_UNTIL: time.time() + FOR_NOW_SECONDS}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.warning("%s %s cannot be kept and is made anew next time: %s", what, path, error)

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

# Kept of a file: a machine, a version or a setting that comes back finds its own again.
_MOST_RECORDS: Final = 8
# How long what is not to be relied upon is kept: as long as the workers of one start take to come up, so that
# they all do the same.
FOR_NOW_SECONDS: Final = 600.0
_KEPT_UNTIL: Final = "kept_until"
_CIRCUMSTANCES: Final = "circumstances"


def read_record(
    path: Path | None, what: str, circumstances: Mapping[str, Any], read: Callable[[Any], Kept | None]
) -> Kept | None:
    """What ``read`` makes of the newest record of the file that fits, or of the next one if that is None.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        circumstances: of now; a record fits that was written under these, and maybe more.
        read: gets the record; may raise ValueError, TypeError, KeyError or AttributeError at what it does not
            understand.

    Returns:
        None: there is no such record, its time is over, or it cannot be read.
    """
    if path is None:
        return None
    try:
        for record in _records(path):
            fits = record[_CIRCUMSTANCES].items() >= circumstances.items()
            if fits and (kept := read(record)) is not None:
                return kept
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s %s cannot be read and is made anew: %s", what, path, error)
    return None


def write_record(
    path: Path | None,
    what: str,
    circumstances: Mapping[str, Any],
    record: Mapping[str, Any],
    *,
    for_now: bool = False,
) -> None:
    """Put a record into the file, in place of one of the same circumstances; the whole file or not at all.

    The newest ``_MOST_RECORDS`` are kept. Of two processes that write at once, one may be lost. A folder that
    takes none is no error.

    Args:
        path: of the file; None = nothing is kept.
        what: it is called in the log.
        circumstances: under which it holds; become JSON.
        record: becomes JSON.
        for_now: to be read for ``FOR_NOW_SECONDS`` only.
    """
    if path is None:
        return
    record = {_CIRCUMSTANCES: circumstances, **record}
    if for_now:
        record[_KEPT_UNTIL] = time.time() + FOR_NOW_SECONDS
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        others = [one for one in _records_if_any(path) if one.get(_CIRCUMSTANCES) != circumstances]
        partial.write_text(json.dumps([record, *others][:_MOST_RECORDS], indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.warning("%s %s cannot be kept and is made anew next time: %s", what, path, error)


def _records(path: Path) -> list[dict[str, Any]]:
    """Those whose time is not over, newest first.

    Raises:
        OSError, ValueError, AttributeError: there are none, or it is no file of them.
    """
    content = json.loads(path.read_bytes())
    # A file of before there were several holds one.
    records = content if isinstance(content, list) else [content]
    return [record for record in records if record.get(_KEPT_UNTIL, math.inf) >= time.time()]


def _records_if_any(path: Path) -> list[dict[str, Any]]:
    try:
        return _records(path)
    except (OSError, ValueError, TypeError, AttributeError):  # whoever reads it has said so
        return []

"""What engines made of graphs, kept for the next start, which need not make it again.

Any of it can be made again, so that nothing that goes wrong here is worth an error.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

# Of all that is kept. What was not used for longest makes room: a model that is gone, an older version.
_MOST_BYTES: Final = 512 * 2**20
# A disk with less free than so many times what is to be kept is left to what cannot be made again.
_TIMES_FREE: Final = 10
_SUFFIX: Final = ".compiled"
_PARTIAL: Final = ".partial"
# What a killed process left half written; nobody writes for so long.
_SECONDS_TO_WRITE: Final = 600.0
_DIGEST_BYTES: Final = 32


class CompiledModels:
    """Files of a folder, one for each bundle and its circumstances.

    A file begins with the SHA-256 of the rest, since engines crash at one that is damaged.

    Args:
        folder: made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, bundle_digest: str, circumstances: Mapping[str, Any]) -> bytes | None:
        """What was kept of a bundle under these circumstances.

        Args:
            bundle_digest: see ``Bundle.digest``.
            circumstances: all that it depends on beside the bundle; become JSON.

        Returns:
            None: there is none, or it is damaged, and gone now.
        """
        path = self._path(bundle_digest, circumstances)
        try:
            with path.open("rb") as file:
                digest = file.read(_DIGEST_BYTES)
                content = file.read()
            if hashlib.sha256(content).digest() == digest:
                os.utime(path)
                return content
            logger.warning("compiled model %s is damaged and is made anew", path)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("compiled model %s cannot be read and is made anew: %s", path, error)
        return None

    def write(self, bundle_digest: str, circumstances: Mapping[str, Any], content: bytes) -> None:
        """Keep it, the whole file or nothing; not where the disk has little room.

        Args:
            bundle_digest: as for ``read``.
            circumstances: as for ``read``.
            content: what to keep.
        """
        path = self._path(bundle_digest, circumstances)
        partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not self._make_room(len(content)):
                return
            try:
                with partial.open("wb") as file:
                    file.write(hashlib.sha256(content).digest())
                    file.write(content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("compiled model %s cannot be kept and is made anew next time: %s", path, error)

    def forget(self, bundle_digest: str, circumstances: Mapping[str, Any]) -> None:
        """Keep it no longer."""
        path = self._path(bundle_digest, circumstances)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("compiled model %s cannot be deleted: %s", path, error)

    def _path(self, bundle_digest: str, circumstances: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{bundle_digest}-{key[:16]}{_SUFFIX}"

    def _make_room(self, size: int) -> bool:
        """Delete what was not used for longest; False: so much is not to be kept here.

        Raises:
            OSError: the folder cannot be read.
        """
        for left in self._folder.glob(f".*{_SUFFIX}.*{_PARTIAL}"):
            if time.time() - left.stat().st_mtime > _SECONDS_TO_WRITE:
                left.unlink(missing_ok=True)
        free = shutil.disk_usage(self._folder).free
        if size > _MOST_BYTES or free < _TIMES_FREE * size:
            logger.info(
                "what was compiled of a model, %d MB, is not kept for the next start: at most %d MB are, and "
                "at most a tenth of what is free, %d MB",
                size // 10**6,
                _MOST_BYTES // 10**6,
                free // 10**6,
            )
            return False
        newest_first = sorted(
            ((found, found.stat()) for found in self._folder.glob(f"*{_SUFFIX}")),
            key=lambda one: one[1].st_mtime_ns,
            reverse=True,
        )
        total = size
        for found, status in newest_first:
            total += status.st_size
            if total > _MOST_BYTES:
                found.unlink(missing_ok=True)
        return True

"""What engines made of graphs, kept for the next start and for changes at work, which need not make it again.

Any of it can be made again, so that nothing that goes wrong here is worth an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from model.runtime.allocation import return_freed_memory
from model.runtime.bundle import Bundle
from model.runtime.engine import GRAPH_NAME, Engine, weight_files

logger = logging.getLogger(__name__)

# Of all that is kept. What this process has no use for, and was used longest ago, makes room: a model that is
# gone, an older version.
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
        self._in_use: set[Path] = set()

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
                self._in_use.add(path)
                with contextlib.suppress(OSError):  # another user's, or on a disk that is read only
                    os.utime(path)
                return content
            logger.warning("compiled model %s is damaged and is made anew", path)
            path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("compiled model %s cannot be read and is made anew: %s", path, error)
        return None

    def takes(self, bundle_digest: str, circumstances: Mapping[str, Any], size: int) -> bool:
        """Whether ``write`` would keep so many bytes, as far as can be told; the log says why not.

        Args:
            bundle_digest: as for ``read``.
            circumstances: as for ``read``.
            size: of the content.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._folder).free
        except OSError as error:
            logger.warning("what was compiled of a model cannot be kept: %s", error)
            return False
        others = self._others(self._path(bundle_digest, circumstances))
        in_use = sum(status.st_size for path, status in others if path in self._in_use)
        room = min(_MOST_BYTES - in_use, free // _TIMES_FREE)
        if not os.access(self._folder, os.W_OK) or size > room:
            logger.info(
                "what was compiled of a model, %d MB, is not kept: %s has room for %d MB",
                size // 10**6,
                self._folder,
                max(0, room) // 10**6,
            )
            return False
        return True

    def write(self, bundle_digest: str, circumstances: Mapping[str, Any], content: bytes) -> None:
        """Keep it, the whole file or nothing, if it ``takes`` so much.

        Args:
            bundle_digest: as for ``read``.
            circumstances: as for ``read``.
            content: what to keep.
        """
        if not self.takes(bundle_digest, circumstances, len(content)):
            return
        path = self._path(bundle_digest, circumstances)
        partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
        try:
            self._delete_partials()
            try:
                with partial.open("wb") as file:
                    file.write(hashlib.sha256(content).digest())
                    file.write(content)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            self._in_use.add(path)
            self._make_room(path, len(content))
        except OSError as error:
            logger.warning("compiled model %s cannot be kept and is made anew next time: %s", path, error)

    def keep(self, bundle: Bundle, circumstances: Mapping[str, Any], engine: Engine) -> bool:
        """Write what ``engine`` made of ``bundle``, unless it was loaded from that.

        The interpreter may stand still meanwhile, 2 to 5 ms for each MB.

        Returns:
            Whether trying again is worth it.
        """
        # What is compiled is about as large as what it is made of.
        size = sum(bundle.manifest.files[name].size for name in (GRAPH_NAME, *weight_files(bundle)))
        if not self.takes(bundle.digest, circumstances, size):
            return False
        if (exported := engine.export()) is not None:
            self.write(bundle.digest, circumstances, exported)
            del exported
            return_freed_memory()
        return True

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

    def _others(self, path: Path) -> list[tuple[Path, os.stat_result]]:
        """The files beside ``path``, that used last first."""
        found = []
        for other in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):  # another process deletes as well
                found.append((other, other.stat()))
        found.sort(key=lambda one: one[1].st_mtime_ns, reverse=True)
        return [one for one in found if one[0] != path]

    def _make_room(self, path: Path, size: int) -> None:
        """Delete what is too much beside ``path``.

        Raises:
            OSError: that cannot be done.
        """
        others = self._others(path)
        total = size + sum(status.st_size for other, status in others if other in self._in_use)
        for other, status in others:
            if other in self._in_use:
                continue
            total += status.st_size
            if total > _MOST_BYTES:
                other.unlink(missing_ok=True)

    def _delete_partials(self) -> None:
        """Of processes that were killed."""
        for left in self._folder.glob(f".*{_SUFFIX}.*{_PARTIAL}"):
            with contextlib.suppress(FileNotFoundError):  # its writer is done
                if time.time() - left.stat().st_mtime > _SECONDS_TO_WRITE:
                    left.unlink()

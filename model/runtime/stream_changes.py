"""Changes for how many runs at a time a served model is compiled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from model.runtime.bundle import Bundle, BundleError
from model.runtime.compiled_models import CompiledModels
from model.runtime.engine import ChangingEngine

logger = logging.getLogger(__name__)


class StreamChanges:
    """Of one engine, from what was compiled before where that was kept.

    Args:
        bundle: the engine's own.
        engine: which changes.
        most: streams that it may have, from 2.
        compiled: where what was compiled is kept; None = nowhere.
        circumstances: what that depends on, beside the bundle, for a number of streams; None = unknown.

    Attributes:
        most: as above; fewer once the engine turned out to have fewer cores.
        wanted: streams that were asked for last, 1 at first; what the engine has may be fewer.
    """

    def __init__(
        self,
        bundle: Bundle,
        engine: ChangingEngine,
        *,
        most: int,
        compiled: CompiledModels | None,
        circumstances: Callable[[int], Mapping[str, Any] | None],
    ) -> None:
        self.most = most
        self.wanted = 1
        self._bundle = bundle
        self._engine = engine
        self._compiled = compiled
        self._circumstances = circumstances
        self._may_keep = compiled is not None

    def change(self, streams: int) -> None:
        """Have the engine run so many batches at a time from now on, which takes up to seconds of a core.

        Runs go on meanwhile. What had to be compiled is kept for the next time, but not while many runs are
        wanted: keeping it has the interpreter stand still for a moment.

        Args:
            streams: 1 to ``most``.

        Raises:
            BundleError: it cannot be compiled, or the bundle's folder holds another one by now. The engine
                is as before.
            RuntimeError: the engine is closed.
        """
        self.wanted = streams
        had = self._engine.streams
        if had == streams:
            return
        if streams < had:
            self._keep(had)
        self._set(streams)
        if streams < had:
            self._keep(streams)
        elif self._engine.streams < streams:
            self.most = self._engine.streams  # there are no more cores, which nobody knew before

    def _set(self, streams: int) -> None:
        on = self._circumstances(streams)
        if self._compiled is not None and on is not None:
            exported = self._compiled.read(self._bundle.digest, on)
            if exported is not None:
                try:
                    self._engine.set_streams(streams, self._bundle, exported)
                except BundleError as error:
                    logger.warning("what was compiled before is made anew: %s", error)
                    self._compiled.forget(self._bundle.digest, on)
                else:
                    return
                del exported
        self._engine.set_streams(streams, self._checked_again())

    def _keep(self, streams: int) -> None:
        """Keep what the engine has compiled for so many; once that is in vain, do so no more."""
        on = self._circumstances(streams)
        if self._compiled is not None and on is not None and self._may_keep:
            self._may_keep = self._compiled.keep(self._bundle, on, self._engine)

    def _checked_again(self) -> Bundle:
        bundle = Bundle.load(self._bundle.path)
        if bundle.digest != self._bundle.digest:
            raise BundleError("manifest", f"{bundle.path.name} is another bundle than the one that is served")
        return bundle

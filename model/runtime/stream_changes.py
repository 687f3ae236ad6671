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
        most: as above.
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

    def change(self, streams: int) -> None:
        """Have the engine run so many batches at a time from now on, which takes up to seconds of a core.

        Runs go on meanwhile. What had to be compiled is kept for the next time, and the interpreter may stand
        still for a tenth of a second then.

        Args:
            streams: 1 to ``most``.

        Raises:
            BundleError: it cannot be compiled, or the bundle's folder holds another one by now. The engine
                is as before.
            RuntimeError: the engine is closed.
        """
        self.wanted = streams
        if self._engine.streams == streams:
            return
        on = None if self._compiled is None else self._circumstances(streams)
        if self._compiled is None or on is None:
            self._engine.set_streams(streams, self._checked_again())
            return
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
        bundle = self._checked_again()
        self._engine.set_streams(streams, bundle)
        self._compiled.keep(bundle, on, self._engine)

    def _checked_again(self) -> Bundle:
        bundle = Bundle.load(self._bundle.path)
        if bundle.digest != self._bundle.digest:
            raise BundleError("manifest", f"{bundle.path.name} is another bundle than the one that is served")
        return bundle

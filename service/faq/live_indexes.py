"""The indexes in memory, each brought up to what the store holds before it is searched."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import UnknownCollectionError
from service.faq.filters import Filter
from service.faq.index import FaqIndex, Hit, Mode
from service.faq.store import CollectionInfo, FaqStore, model_mismatch


@dataclass(frozen=True, slots=True)
class LiveCollection:
    """A collection as it was at one revision. Immutable: whoever holds it searches that, whatever happens.

    Attributes:
        info: its settings.
        revision: of the index.
        index: its enabled entries.
    """

    info: CollectionInfo
    revision: int
    index: FaqIndex

    def __len__(self) -> int:
        """See `SearchableCollection`."""
        return len(self.index)

    def search(
        self,
        queries: Sequence[str],
        vectors: NDArray[np.float32],
        *,
        unrelated: float,
        top_k: int,
        mode: Mode,
        filter: Filter | None,
    ) -> list[list[Hit]]:
        """See `SearchableCollection.search`."""
        return self.index.search(queries, vectors, unrelated=unrelated, top_k=top_k, mode=mode, filter=filter)


class LiveIndexes:
    """`service.faq.searching.FaqSearcher` in memory: follows a store, one index a collection.

    Args:
        store: is asked for its revision each time.
        fingerprint: of the model that embeds queries; only vectors of it are indexed.
        model_id: its name.
        on_index: told the seconds that each update of an index took, reading the store included.
    """

    def __init__(
        self,
        store: FaqStore,
        *,
        fingerprint: str,
        model_id: str,
        on_index: Callable[[float], None] | None = None,
    ) -> None:
        self._store = store
        self._on_index = on_index
        self._fingerprint = fingerprint
        self._model_id = model_id
        self._live: dict[str, LiveCollection] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def current(self, name: str) -> LiveCollection:
        """See `FaqSearcher.current`."""
        try:
            revision = await asyncio.to_thread(self._store.revision, name)
        except UnknownCollectionError:
            self.forget(name)
            raise
        if (live := self._at_least(name, revision)) is not None:
            return live
        # One at a time: a hundred waiting searches need one index.
        async with self._locks[name]:
            if (live := self._at_least(name, revision)) is not None:
                return live
            live = await asyncio.to_thread(self._follow, name, self._live.get(name))
            self._live[name] = live
            return live

    async def follow(self, name: str) -> None:
        """See `FaqSearcher.follow`; a collection that was never searched stays out of memory."""
        if name in self._live:
            await self.current(name)

    def forget(self, name: str) -> None:
        """See `FaqSearcher.forget`."""
        self._live.pop(name, None)

    def _at_least(self, name: str, revision: int) -> LiveCollection | None:
        live = self._live.get(name)
        return live if live is not None and live.revision >= revision else None

    def _follow(self, name: str, live: LiveCollection | None) -> LiveCollection:
        """In a worker thread."""
        started_at = time.perf_counter()
        info = self._store.info(name)
        # Before the vectors are read, which may take seconds.
        if info.fingerprint not in {None, self._fingerprint}:
            raise model_mismatch(info, self._model_id)
        changes = self._store.changes(name, 0 if live is None else live.revision)
        if changes.fingerprint not in {None, self._fingerprint}:  # exchanged in between
            raise model_mismatch(self._store.info(name), self._model_id)
        base = FaqIndex.empty() if live is None or changes.complete else live.index
        index = base.with_changes(changes.entries, changes.deleted, changes.vectors)
        # If ``info`` is the older of the two, its settings are; read at a later moment it is the newer one.
        if info.revision != changes.revision:
            info = self._store.info(name)
        if self._on_index is not None:
            self._on_index(time.perf_counter() - started_at)
        return LiveCollection(info, changes.revision, index)

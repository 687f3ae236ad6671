"""What the catalogue asks for hits: one protocol, in memory or in a database of vectors.

Whatever is behind it, the same entries and queries give the same hits: candidates may come from anywhere,
their scores and their order come from `service.faq.index` alone.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.faq.filters import Filter
from service.faq.index import Hit, Mode
from service.faq.store import CollectionInfo


class SearchableCollection(Protocol):
    """A collection with all that was written before it was asked for; for one search or a few."""

    @property
    def info(self) -> CollectionInfo:
        """Its settings, as of the moment that is searched."""
        ...

    def __len__(self) -> int:
        """Return how many entries can be found, disabled ones not counted."""
        ...

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
        """Return each query's best entries, as `service.faq.index.FaqIndex.search`; blocks.

        Raises:
            StorageError, UnavailableError: as `service.faq.store.FaqStore`.
        """
        ...


class FaqSearcher(Protocol):
    """Searches the collections of one store with the vectors of one model."""

    async def current(self, name: str) -> SearchableCollection:
        """The collection, with all that was written before this call, by whatever process.

        Raises:
            UnknownCollectionError: there is none of that name.
            ModelMismatchError: its vectors are of another model.
            StorageError, UnavailableError: as `service.faq.store.FaqStore`.
        """
        ...

    async def follow(self, name: str) -> None:
        """Bring what is held of a collection up to date, after a write of this process.

        Raises:
            as `current`.
        """
        ...

    def forget(self, name: str) -> None:
        """Let go of what is held of a collection."""
        ...


class MakesSearcher(Protocol):
    """Makes what searches a store; `LiveIndexes`, given the store, is the usual one."""

    def __call__(self, *, fingerprint: str, model_id: str) -> FaqSearcher:
        """Make it for the vectors of that model."""
        ...

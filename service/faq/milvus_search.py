"""Searching FAQ collections where they lie in Milvus, with the answers of the index in memory.

Milvus finds candidates: the rows nearest by vector, among phrasings and among questions with their answers,
and the entries that hold the query's rarest words. Their entries and vectors are read, and
`service.faq.index` scores them exactly and puts them in order, with word statistics of the whole collection.
Then `service.faq.certificates` tells whether anything that was not looked at could belong among the hits; if
so, more is looked at, up to a bound. So the answers are the index's, as far as

* the server finds the nearest rows: an approximate index (HNSW) misses some, an exact one none;
* the bound allows: queries that it ended are counted (``on_unproven``).

Ranks of hits (`Hit.dense_rank`, `Hit.lexical_rank`) are among what was looked at: right for hits closer than
the last rows of the lists, and for holders of the words looked up; for others at least what they say.

Nothing of a collection is kept but its head and how many entries hold which word.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

import numpy as np
from numpy.typing import NDArray

from service.errors import StorageError, UnavailableError
from service.faq.filters import Filter
from service.faq.index import Hit, Mode
from service.faq.milvus_candidates import MilvusCandidates, Moment
from service.faq.milvus_entries import TornReadError
from service.faq.milvus_filters import milvus_expression
from service.faq.milvus_lookup import Facts, MilvusLookup, Wish
from service.faq.milvus_schema import Head
from service.faq.milvus_store import MilvusFaqStore
from service.faq.store import CollectionInfo, model_mismatch, unknown_collection

logger = logging.getLogger(__name__)

# Calls to the server at a time, of all searches together; most of a call is waiting.
_CALLS: Final = 16
# Contents of which facts are kept.
_FACTS_KEPT: Final = 32
# A search that is overtaken by writers so often gives up.
_TRIES: Final = 20


class MilvusSearcher:
    """`service.faq.searching.FaqSearcher` in Milvus.

    Args:
        store: of the collections.
        fingerprint: of the model that embeds queries.
        model_id: its name.
        on_unproven: told how many queries ended at the bound of what is looked at.
    """

    def __init__(
        self,
        store: MilvusFaqStore,
        *,
        fingerprint: str,
        model_id: str,
        on_unproven: Callable[[int], None] | None = None,
    ) -> None:
        self._store = store
        parts = store.parts
        self._milvus = parts.milvus
        self._heads = parts.heads
        self._bm25 = parts.bm25
        self._candidates = MilvusCandidates(parts.milvus, parts.names, parts.entries)
        self._fingerprint = fingerprint
        self._model_id = model_id
        self._on_unproven = on_unproven
        self._pool = ThreadPoolExecutor(_CALLS, thread_name_prefix="conche-milvus")
        self._lock = Lock()
        self._facts: OrderedDict[tuple[int | None, int], Facts] = OrderedDict()

    async def current(self, name: str) -> "MilvusCollection":
        """See `FaqSearcher.current`."""
        return MilvusCollection(self, await asyncio.to_thread(self.head, name))

    async def follow(self, name: str) -> None:
        """See `FaqSearcher.follow`; there is nothing in memory that could be out of date."""

    def forget(self, name: str) -> None:
        """See `FaqSearcher.forget`."""

    def head(self, name: str) -> Head:
        """The newest head of a collection.

        Raises:
            as `FaqSearcher.current`.
        """
        with self._store.in_use():
            head = self._heads.head(name)
            if head is None or head.incarnation is None:
                present = [each.name for each in self._heads.heads().values() if each.incarnation is not None]
                raise unknown_collection(name, present)
        if head.fingerprint not in {None, self._fingerprint}:
            raise model_mismatch(head.info(), self._model_id)
        return head

    def search(
        self, name: str, queries: Sequence[str], vectors: NDArray[np.float32], wish: Wish
    ) -> list[list[Hit]]:
        """Search the newest state of a collection; blocks. See `SearchableCollection.search`."""
        for _ in range(_TRIES):
            head = self.head(name)
            try:
                with self._store.in_use():
                    found, unproven = self._search(head, queries, vectors, wish)
            except TornReadError:
                if self.head(name).version == head.version:
                    raise StorageError(
                        f"collection {name} is damaged (rows are missing in Milvus); "
                        f"`conche faq reindex {name}` mends it if they are vectors"
                    ) from None
                continue
            newest = self.head(name)
            # Vectors that a reindex is making raise the version and change nothing that is searched.
            if (newest.incarnation, newest.revision) == (head.incarnation, head.revision):
                if unproven:
                    logger.debug(
                        "%d of %d queries ended at the bound of what is looked at", unproven, len(queries)
                    )
                    if self._on_unproven is not None:
                        self._on_unproven(unproven)
                return found
        raise UnavailableError(f"FAQ collection {name} is written to all the time; try again")

    def _search(
        self, head: Head, queries: Sequence[str], vectors: NDArray[np.float32], wish: Wish
    ) -> tuple[list[list[Hit]], int]:
        """Return the hits, and how many queries' hits are not proven to be the best."""
        if not head.enabled_entries or head.dimensions is None:
            return [[] for _ in queries], 0
        facts = self._known(head)
        where = None if wish.filter is None else milvus_expression(wish.filter)
        lookup = MilvusLookup(
            self._candidates,
            self._pool,
            bm25=self._bm25,
            moment=Moment(head, where),
            facts=facts,
            wish=wish,
        )
        return lookup.hits(queries, vectors)

    def _known(self, head: Head) -> Facts:
        """What is known of the content that ``head`` tells of."""
        key = (head.incarnation, head.revision)
        with self._lock:
            facts = self._facts.get(key)
            if facts is not None:
                self._facts.move_to_end(key)
                return facts
        facts = Facts(self._milvus.now())
        # Else what is counted now would soon be wrong: a moment ago something was replaced or deleted.
        if self._candidates.tidy(head, facts.at):
            with self._lock:
                self._facts[key] = facts
                while len(self._facts) > _FACTS_KEPT:
                    self._facts.popitem(last=False)
        return facts


class MilvusCollection:
    """`service.faq.searching.SearchableCollection` in Milvus.

    A search looks at what is newest when it begins, which may be newer than ``info``.
    """

    def __init__(self, searcher: MilvusSearcher, head: Head) -> None:
        self._searcher = searcher
        self._head = head

    @property
    def info(self) -> CollectionInfo:
        """See `SearchableCollection.info`."""
        return self._head.info()

    def __len__(self) -> int:
        """See `SearchableCollection`."""
        return self._head.enabled_entries

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
        wish = Wish(mode, unrelated, top_k, filter)
        return self._searcher.search(self._head.name, queries, vectors, wish)

"""Embedding collections anew, in the background: searches and writes go on, then the vectors are exchanged.

What is embedded goes into the store as it comes. So a process that ends amid it loses a batch at most, and
the next reindex with the same model goes on from there.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from service.errors import ConflictError, InvalidInputError, ServiceError
from service.faq.embedded_texts import texts_to_embed
from service.faq.embedding import Progress, TextEmbedder, UnreadableTextError, embed_texts
from service.faq.store import FaqStore, MissingVectorsError

logger = logging.getLogger(__name__)

_PAGE: Final = 500
# Texts whose vectors are written together.
_BATCH: Final = 256
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class ReindexStatus:
    """How far a reindex is.

    Attributes:
        done: texts embedded, those that an earlier attempt left included.
        total: texts to embed; grows if entries are written meanwhile. 0 = not counted yet.
        state: "running", "finished" or "failed".
        error: why it failed; None if it did not.
        began_at: as ``time.monotonic`` tells it, which all processes of a machine tell alike.
    """

    done: int
    total: int
    state: Literal["running", "finished", "failed"]
    error: str | None = None
    began_at: float = field(default=0.0, compare=False)


class Reindexing:
    """The reindexes of one process, one a collection at a time, and no other process's beside it.

    Args:
        store: of the collections.
        embedder: makes the new vectors.
        fingerprint: the model's.
    """

    def __init__(self, store: FaqStore, embedder: TextEmbedder, fingerprint: str) -> None:
        self._store = store
        self._embedder = embedder
        self._fingerprint = fingerprint
        self._status: dict[str, ReindexStatus] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._claims: dict[str, Callable[[], None]] = {}

    def status(self, collection: str) -> ReindexStatus | None:
        """The latest reindex; None = there was none."""
        return self._status.get(collection)

    def start(self, collection: str) -> bool:
        """Begin in the background, unless one runs; False = it does in another process."""
        if collection in self._tasks:
            return True
        before = self._status.get(collection)
        # First: another process that is refused the claim asks at once how far its holder is.
        self._status[collection] = _just_begun()
        if self._claim(collection):
            self._begin(collection, None)
            return True
        logger.info("collection %s: another process is at the same reindex", collection)
        del self._status[collection]
        if before is not None:
            self._status[collection] = before
        return False

    async def run(self, collection: str, progress: Progress | None = None) -> None:
        """Reindex and wait; joins one that runs, here or elsewhere. Raises as `FaqCatalogue.reindex`."""
        task = self._tasks.get(collection) or self._begin(collection, progress)
        await task

    async def close(self) -> None:
        """Stop what runs; what it embedded is kept."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _claim(self, collection: str) -> bool:
        let_go = self._store.claim_reindex(collection, fingerprint=self._fingerprint)
        if let_go is None:
            return False
        self._claims[collection] = let_go
        return True

    def _begin(self, collection: str, progress: Progress | None) -> asyncio.Task[None]:
        self._status[collection] = _just_begun()
        task = asyncio.create_task(self._work(collection, progress), name=f"reindex {collection}")
        self._tasks[collection] = task
        task.add_done_callback(lambda done: self._ended(collection, done))
        return task

    def _ended(self, collection: str, task: asyncio.Task[None]) -> None:
        del self._tasks[collection]
        if (let_go := self._claims.pop(collection, None)) is not None:
            let_go()
        error = None if task.cancelled() else task.exception()
        status = self._status[collection]
        if task.cancelled():
            self._status[collection] = replace(status, state="failed", error="the service stopped")
        elif error is None:
            self._status[collection] = replace(status, done=status.total, state="finished")
        else:
            message = error.message if isinstance(error, ServiceError) else "internal error; see the log"
            self._status[collection] = replace(status, state="failed", error=message)
            logger.error("reindex of collection %s failed: %s", collection, error, exc_info=error)

    async def _work(self, collection: str, progress: Progress | None) -> None:
        store = self._store
        if collection not in self._claims and await self._another_does_it(collection):
            return
        generation = await asyncio.to_thread(
            store.begin_reindex,
            collection,
            fingerprint=self._fingerprint,
            model_id=self._embedder.model_id,
        )
        try:
            await self._fill(collection, generation, progress)
        except ConflictError:
            if not await asyncio.to_thread(self._done_elsewhere, collection, generation):
                raise
            logger.info("collection %s: another process finished the same reindex first", collection)

    async def _another_does_it(self, collection: str) -> bool:
        """Take the claim; if another process has it, wait for it, and say whether that left nothing to do."""
        if self._claim(collection):
            return False
        before = await asyncio.to_thread(self._store.info, collection)
        logger.info("collection %s: waiting for another process that is at the same reindex", collection)
        while not self._claim(collection):  # noqa: ASYNC110 - what happens in another process
            await asyncio.sleep(_POLL_S)
        after = await asyncio.to_thread(self._store.info, collection)
        return after.fingerprint == self._fingerprint and after.generation != before.generation

    def _done_elsewhere(self, collection: str, generation: int) -> bool:
        """Whether another process made what this one was making, or something newer of the same model."""
        info = self._store.info(collection)
        return info.fingerprint == self._fingerprint and info.generation >= generation

    async def _fill(self, collection: str, generation: int, progress: Progress | None) -> None:
        """Embed what the generation lacks, and make it the live one."""
        store = self._store
        texts = await asyncio.to_thread(self._texts, collection)
        missing: Sequence[str] = await asyncio.to_thread(
            store.missing_texts, collection, texts, generation=generation
        )
        total, done = len(texts), len(texts) - len(missing)
        while True:
            self._tell(collection, done, total, progress)
            # Alike in length, as `embed_texts` would order them.
            ordered = sorted(missing, key=lambda text: (len(text), text))
            for first in range(0, len(ordered), _BATCH):
                batch = ordered[first : first + _BATCH]
                try:
                    embedded = await embed_texts(self._embedder, batch)
                except UnreadableTextError as error:
                    # Another model read it: there is no vector to give it, and no entry to leave out.
                    raise InvalidInputError(
                        f"an entry of collection {collection} has a text in which this model reads nothing; "
                        "change or disable the entry"
                    ) from error
                await asyncio.to_thread(store.add_vectors, collection, generation, embedded.vectors)
                done += len(batch)
                self._tell(collection, done, total, progress)
            try:
                await asyncio.to_thread(store.finish_reindex, collection, generation)
            except MissingVectorsError as error:  # entries were written meanwhile
                missing = error.texts
                total = done + len(missing)
                continue
            return

    def _texts(self, collection: str) -> list[str]:
        """All texts of a collection; in a worker thread."""
        texts: dict[str, None] = {}
        after: str | None = None
        while True:
            entries, after = self._store.page(collection, after=after, limit=_PAGE)
            texts.update(dict.fromkeys(texts_to_embed(entries)))
            if after is None:
                return list(texts)

    def _tell(self, collection: str, done: int, total: int, progress: Progress | None) -> None:
        self._status[collection] = replace(self._status[collection], done=done, total=total)
        if progress is not None:
            progress(done, total)


def _just_begun() -> ReindexStatus:
    return ReindexStatus(0, 0, "running", began_at=time.monotonic())

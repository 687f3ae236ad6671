"""The FAQ as the rest of the service sees it: collections that are written, searched and judged.

The store is the record, the embedder makes vectors, the searcher answers; this is where the three meet. A
write that was acknowledged is found by the next search, in this process and in any other on the same store.
Blocking work is done in threads; embedding goes through the embedder's queue, in small batches.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from service.errors import (
    DuplicateEntryError,
    EmptyInputError,
    EntryChangedError,
    InvalidInputError,
    ModelMismatchError,
    ServiceError,
    StorageError,
    TooManyInputsError,
    UnknownCollectionError,
    UnknownEntryError,
)
from service.faq.calibration import EVIDENCE_HITS, Calibration, fit_calibration, texts_to_measure
from service.faq.calibration_cache import CalibrationCache
from service.faq.embedded_texts import texts_to_embed
from service.faq.embedding import (
    Progress,
    TextEmbedder,
    UnreadableTextError,
    embed_queries,
    embed_texts,
    model_fingerprint,
)
from service.faq.entries import FaqEntry, are_same
from service.faq.evaluation import DEFAULT_PRECISION, EVALUATED_HITS, Evaluation, evaluate
from service.faq.filters import Filter
from service.faq.index import Hit, Mode
from service.faq.live_indexes import LiveIndexes
from service.faq.queries import LabelledQuery
from service.faq.reindexing import Reindexing, ReindexStatus
from service.faq.searching import MakesSearcher, SearchableCollection
from service.faq.store import (
    CollectionInfo,
    FaqStore,
    MissingVectorsError,
    Vector,
    Write,
    check_collection_name,
    check_write,
    model_mismatch,
)
from service.request_trace import stage
from service.request_work import work_of_request

logger = logging.getLogger(__name__)

OnDuplicate = Literal["replace", "skip", "error"]

# Another writer can only get in between so often before something is wrong.
_ATTEMPTS: Final = 20
_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class FoundHit:
    """An entry found, and how sure it is the answer.

    Attributes:
        hit: what was found, and why.
        confidence: 0..1, the probability that it answers the query; never rises along a query's hits.
    """

    hit: Hit
    confidence: float


@dataclass(frozen=True, slots=True)
class Found:
    """What one query found.

    Attributes:
        hits: best first.
        default_answer: the collection's, if there are no hits; None if there are, or if it has none.
        tokens: read of the query, prompt and special tokens included.
        empty: whether there was nothing to read in the query, and so nothing to find.
    """

    hits: list[FoundHit]
    default_answer: str | None
    tokens: int
    empty: bool = False


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write came to.

    Attributes:
        revision: of the collection, with the write in it.
        added: entries that were not there.
        replaced: entries that were there and are different now.
        skipped: ids that were there and were left as they are, because that was asked for.
        unchanged: entries that were there just so.
    """

    revision: int
    added: int
    replaced: int
    skipped: tuple[str, ...]
    unchanged: int


class FaqObserver(Protocol):
    """What is told about searches and writes; it may neither block nor raise."""

    def on_search(
        self, *, unanswered: int, best: Sequence[float], embed_seconds: float, seconds: float
    ) -> None:
        """Note one search.

        Args:
            unanswered: queries that got no hit.
            best: of each query, the confidence of the best entry, 0..1, whether it was sure enough or not; 0
                if there is none.
            embed_seconds: embedding the queries, their wait included.
            seconds: looking them up.
        """
        ...

    def on_write(self, *, written: int, deleted: int) -> None:
        """Note one write; entries that were there just so count as written."""
        ...

    def on_write_failure(self, code: str) -> None:
        """Note a write that failed for no fault of its own; ``code`` is the error's."""
        ...

    def on_index(self, seconds: float) -> None:
        """Note that an index in memory was brought up to what the store holds."""
        ...


@dataclass(frozen=True, slots=True)
class _Maker:
    """The model whose vectors a write is stored with."""

    fingerprint: str
    model_id: str


class FaqCatalogue:
    """All collections of a store, searched with one model.

    Attributes:
        store: where entries are kept.
        model_id: name of the model that embeds entries and queries.
        fingerprint: that model's, as `model_fingerprint` makes it; vectors of another model do not compare.

    Args:
        store: closed by `close`.
        embedder: any model; prompts are taken from its manifest.
        max_entries_per_write: of one call of `upsert`; None = any number.
        calibrations: folder in which what was measured of a model is kept; None = measured anew each time.
        observer: told about searches and writes.
        searcher: what finds entries; None = indexes in memory, which follow the store.
    """

    def __init__(
        self,
        store: FaqStore,
        embedder: TextEmbedder,
        *,
        max_entries_per_write: int | None = None,
        calibrations: Path | None = None,
        observer: FaqObserver | None = None,
        searcher: MakesSearcher | None = None,
    ) -> None:
        self.store = store
        self.model_id = embedder.model_id
        self.fingerprint = model_fingerprint(embedder.manifest)
        self._embedder = embedder
        self._max_entries = max_entries_per_write
        self._cache = None if calibrations is None else CalibrationCache(calibrations)
        self._observer = observer
        self._calibration: Calibration | None = None
        self._calibrating = asyncio.Lock()
        # Of the texts that the model was measured with: the built-in FAQ's are among them.
        self._measured_vectors: Mapping[str, Vector] = {}
        on_index = None if observer is None else observer.on_index
        make_searcher = searcher or partial(LiveIndexes, store, on_index=on_index)
        self._searcher = make_searcher(fingerprint=self.fingerprint, model_id=self.model_id)
        self._reindexing = Reindexing(store, embedder, self.fingerprint)

    async def calibrate(self, progress: Progress | None = None) -> Calibration:
        """Measure the model, or read what an earlier process measured; the first search does it otherwise.

        Raises:
            OverloadedError, UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
        """
        if self._calibration is None:
            async with self._calibrating:
                if self._calibration is None:
                    self._calibration = await self._measured(progress)
        return self._calibration

    async def load(self, collection: str) -> int:
        """Make a collection's first search as quick as the next; return how many entries can be found.

        Raises:
            as `search`.
        """
        return len(await self._searcher.current(collection))

    # Searching

    async def search(
        self,
        collection: str,
        queries: Sequence[str],
        *,
        mode: Mode = "hybrid",
        top_k: int = 5,
        min_score: float | None = None,
        filter_: Filter | None = None,
        read_empty: bool = False,
    ) -> list[Found]:
        """Return what each query finds, in the order given.

        Args:
            collection: its name.
            queries: in any language the model knows.
            mode: what decides the order.
            top_k: hits a query at most; more than there are entries gives all of them.
            min_score: leave out hits that are less sure, 0..1; None = the collection's own, 0 = none.
            filter_: which entries are searched; None for all.
            read_empty: a query without anything to read finds nothing, instead of being refused.

        Raises:
            UnknownCollectionError: there is no such collection.
            ModelMismatchError: it was embedded by another model; the message says what to do.
            InvalidInputError: ``top_k`` or ``min_score`` is out of range, or a query is not text, or empty.
            InputTooLongError: a query is longer than the model reads; it is never cut.
            OverloadedError, UnavailableError, InferenceError: as `service.inference.Embedder.embed`.
            StorageError: the store cannot be read.
        """
        if top_k < 1:
            raise InvalidInputError(f"top_k is {top_k}; it must be at least 1", param="top_k")
        if min_score is not None and not 0.0 <= min_score <= 1.0:
            raise InvalidInputError(
                f"min_score is {min_score}; it must lie within 0 and 1", param="min_score"
            )
        calibration = await self.calibrate()
        with stage("search.index"):
            live = await self._searcher.current(collection)
        if not queries:
            return []
        asked_at = time.perf_counter()
        embedded = await embed_queries(self._embedder, queries, read_empty=read_empty)
        least = live.info.min_score if min_score is None else min_score
        started_at = time.perf_counter()
        # In a thread: a large index takes milliseconds, in which the event loop must go on serving others.
        with stage("search.lookup", queries=len(queries), entries=len(live), mode=mode, top_k=top_k):
            lists = await asyncio.to_thread(
                _look_up,
                live,
                calibration,
                queries,
                embedded.vectors,
                mode=mode,
                top_k=top_k,
                filter_=filter_,
            )
        if (request := work_of_request()) is not None:
            request.add_lookup(time.perf_counter() - started_at)
        found = []
        for place in embedded.empty:
            lists[place] = []  # who asked nothing is near some entry all the same, by vectors
        for place, hits in enumerate(lists):
            sure = [one for one in hits if one.confidence >= (least or 0.0)]
            default_answer = None if sure else live.info.default_answer
            found.append(Found(sure, default_answer, embedded.tokens[place], empty=place in embedded.empty))
        if self._observer is not None:
            self._observer.on_search(
                unanswered=sum(not one.hits for one in found),
                best=[hits[0].confidence if hits else 0.0 for hits in lists],
                embed_seconds=started_at - asked_at,
                seconds=time.perf_counter() - started_at,
            )
        return found

    async def evaluate(
        self,
        collection: str,
        queries: Sequence[LabelledQuery],
        *,
        wanted_precision: float = DEFAULT_PRECISION,
    ) -> Evaluation:
        """Judge the search of a collection by labelled queries: all modes, and the confidences of hybrid.

        Raises:
            EmptyInputError: there are no queries.
            InvalidInputError: the model can read nothing in one of them, or the precision is out of range.
            as `search`.
        """
        if not queries:
            raise EmptyInputError("there are no queries", param="queries")
        if not 0 < wanted_precision <= 1:
            raise InvalidInputError(
                "wanted_precision must lie above 0 and at most at 1", param="wanted_precision"
            )
        calibration = await self.calibrate()
        live = await self._searcher.current(collection)
        texts = [query.query for query in queries]
        try:
            embedded = await embed_texts(self._embedder, list(dict.fromkeys(texts)))
        except UnreadableTextError as error:
            position = texts.index(error.text)
            raise InvalidInputError(
                f"queries[{position}] holds nothing that the model reads", index=position, param="queries"
            ) from error
        vectors = np.stack([embedded.vectors[text] for text in texts])

        def judge() -> Evaluation:
            found: dict[str, list[list[_Judged]]] = {
                mode: [
                    [_Judged(one.hit.id, one.hit.question, one.confidence) for one in hits]
                    for hits in _look_up(live, calibration, texts, vectors, mode=mode, top_k=EVALUATED_HITS)
                ]
                for mode in _MODES
            }
            return evaluate(queries, found, wanted_precision=wanted_precision)

        return await asyncio.to_thread(judge)

    # Entries

    async def upsert(
        self,
        collection: str,
        entries: Sequence[FaqEntry],
        *,
        on_duplicate: OnDuplicate = "replace",
        create: bool = True,
        progress: Progress | None = None,
    ) -> WriteReport:
        """Add entries, all of them or none; when this returns, every search finds them.

        Args:
            collection: its name.
            entries: with ids that are unique among them.
            on_duplicate: what becomes of an entry whose id is there: it replaces what is there, is left out,
                or stops the write.
            create: make the collection if it is not there.
            progress: told how many of the texts that need a vector have one.

        Raises:
            InvalidInputError: not a name for a collection, two entries have one id, or the model can read
                nothing in a text of one; it is named.
            TooManyInputsError: more entries than one write may hold.
            UnknownCollectionError: there is no such collection, and not ``create``.
            DuplicateEntryError: an id is there, and that is an error.
            ModelMismatchError: the collection was embedded by another model.
            OverloadedError, UnavailableError, InferenceError, StorageError: nothing was written.
        """
        if self._max_entries is not None and len(entries) > self._max_entries:
            raise TooManyInputsError(
                f"{len(entries)} entries, at most {self._max_entries} are taken; "
                "setting CONCHE_LIMITS__MAX_FAQ_ENTRIES",
                count=len(entries),
                limit=self._max_entries,
                setting="CONCHE_LIMITS__MAX_FAQ_ENTRIES",
                param="entries",
            )
        check_write(Write(upserts=tuple(entries)))
        if create:
            check_collection_name(collection)  # before anything is embedded; it is made with the write
        vectors: dict[str, Vector] = {}
        for _ in range(_ATTEMPTS):
            there = await self._there(collection, entries, create=create)
            _refuse_duplicates(entries, there, on_duplicate)
            skipped = tuple(there) if on_duplicate == "skip" else ()
            wanted = tuple(entry for entry in entries if entry.id not in skipped)
            try:
                revision = await self._write(
                    collection,
                    Write(upserts=wanted, replace=on_duplicate == "replace"),
                    vectors,
                    progress,
                    create=create,
                )
            except DuplicateEntryError:
                if on_duplicate == "error":
                    raise
                continue  # came in between; it is to be skipped
            except ServiceError as error:
                if error.param == "entries" and error.index is not None:  # among those that were not skipped
                    place = entries.index(wanted[error.index])
                    error.call_item(f"entries[{place}]", index=place)
                raise
            same = sum(are_same(entry, there[entry.id]) for entry in wanted if entry.id in there)
            replaced = sum(entry.id in there for entry in wanted) - same
            return WriteReport(revision, len(wanted) - replaced - same, replaced, skipped, same)
        raise EntryChangedError("others write the same entries all the time; try again", param="entries")

    async def patch(self, collection: str, id: str, changes: Mapping[str, object]) -> FaqEntry:
        """Change some fields of an entry, and lose nobody else's change; return the entry as it is then.

        Args:
            collection: its name.
            id: of the entry.
            changes: by field, as RFC 7396 has it: null gives a field its default, ``metadata`` is changed key
                by key, any other value takes the place of the old one.

        Raises:
            InvalidInputError: no such field, a value that an entry cannot have, or another id.
            UnknownEntryError: there is no such entry.
            as `upsert`.
        """
        vectors: dict[str, Vector] = {}
        for _ in range(_ATTEMPTS):
            before = await self.get(collection, id)
            after = _patched(before, changes)
            try:
                await self._write(collection, Write(upserts=(after,), unchanged=(before,)), vectors)
            except EntryChangedError:
                continue  # read it again, as it is now
            return after
        raise EntryChangedError("others change this entry all the time; try again", param="id")

    async def delete(self, collection: str, *, ids: Sequence[str] = (), filter_: Filter | None = None) -> int:
        """Delete entries; return how many there were. No search that begins afterwards finds them.

        Args:
            collection: its name.
            ids: of the entries; those that are not there are no error.
            filter_: all that match; with ``ids``, those of them that match.

        Raises:
            UnknownCollectionError: there is no such collection.
            StorageError, UnavailableError: nothing was deleted.
        """
        for _ in range(_ATTEMPTS):
            doomed = await self._matching(collection, ids, filter_)
            # What matched must still match; of ids it is enough that they go.
            unchanged = () if filter_ is None else tuple(doomed)
            write = Write(deletes=tuple(entry.id for entry in doomed), unchanged=unchanged)
            if not doomed:
                return 0
            try:
                await self._write(collection, write, {})
            except EntryChangedError:
                continue
            return len(doomed)
        raise EntryChangedError("others change these entries all the time; try again", param="filter")

    async def get(self, collection: str, id: str) -> FaqEntry:
        """One entry.

        Raises:
            UnknownCollectionError, UnknownEntryError: there is no such thing.
        """
        found = await asyncio.to_thread(self.store.get, collection, [id])
        if id not in found:
            raise UnknownEntryError(
                f"collection {collection} has no entry of this id; ids are compared letter by letter",
                param="id",
            )
        return found[id]

    async def page(
        self, collection: str, *, after: str | None = None, limit: int, filter_: Filter | None = None
    ) -> tuple[list[FaqEntry], str | None]:
        """Entries in the order in which they were added, as `FaqStore.page`."""
        return await asyncio.to_thread(self.store.page, collection, after=after, limit=limit, filter=filter_)

    async def count(self, collection: str, filter_: Filter | None = None) -> int:
        """How many entries match; disabled ones count."""
        return await asyncio.to_thread(self.store.count, collection, filter_)

    # Collections

    async def collections(self) -> list[CollectionInfo]:
        """All collections, by name."""
        return await asyncio.to_thread(self.store.collections)

    async def info(self, name: str) -> CollectionInfo:
        """One collection; UnknownCollectionError if there is none of that name."""
        return await asyncio.to_thread(self.store.info, name)

    async def drop(self, name: str) -> None:
        """Remove a collection with all that is in it."""
        with self._failures_noted():
            await asyncio.to_thread(self.store.drop, name)
        self._searcher.forget(name)

    async def configure(
        self, name: str, *, default_answer: str | None, min_score: float | None, create: bool = False
    ) -> CollectionInfo:
        """Set both, as `FaqStore.configure`; searches follow at once."""
        with self._failures_noted():
            return await asyncio.to_thread(
                self.store.configure, name, default_answer=default_answer, min_score=min_score, create=create
            )

    # Models

    def start_reindex(self, collection: str) -> bool:
        """Begin to embed a collection anew with this model, in the background; no effect while one runs.

        Searches and writes go on. `reindex_status` tells how far it is.

        Returns:
            Whether it runs in this process; False = another one is at the same.
        """
        return self._reindexing.start(collection)

    def reindex_status(self, collection: str) -> ReindexStatus | None:
        """The latest reindex that this process began; None = it began none."""
        return self._reindexing.status(collection)

    async def reindex(self, collection: str, progress: Progress | None = None) -> None:
        """Embed a collection anew with this model, and wait for it, or for who is at the same already.

        Raises:
            UnknownCollectionError: there is no such collection.
            ConflictError: another process began to embed it with another model.
            OverloadedError, UnavailableError, InferenceError, StorageError: what was embedded so far is kept,
                and the next call goes on from there.
        """
        await self._reindexing.run(collection, progress)

    async def close(self) -> None:
        """End what runs in the background and close the store. Closing twice is no error."""
        await self._reindexing.close()
        await asyncio.to_thread(self.store.close)

    # Inside

    async def _measured(self, progress: Progress | None) -> Calibration:
        if self._cache is not None:
            known = await asyncio.to_thread(self._cache.load, self.fingerprint)
            if known is not None:
                return known
        embedded = await embed_texts(self._embedder, texts_to_measure(), progress=progress)
        self._measured_vectors = embedded.vectors
        calibration = await asyncio.to_thread(fit_calibration, embedded.vectors)
        if self._cache is not None:
            await asyncio.to_thread(self._cache.save, self.fingerprint, calibration)
        return calibration

    async def _there(
        self, collection: str, entries: Sequence[FaqEntry], *, create: bool
    ) -> Mapping[str, FaqEntry]:
        """What the collection holds under the ids of ``entries``; one that is to be made holds nothing."""
        try:
            return await asyncio.to_thread(self.store.get, collection, [entry.id for entry in entries])
        except UnknownCollectionError:
            if not create:
                raise
            return {}

    async def _still_to_embed(
        self, collection: str, texts: list[str], *, create: bool
    ) -> tuple[list[str], _Maker]:
        """Those of ``texts`` that the store lacks, and whose vectors the entries are written with.

        A collection of another model takes changes that need no vector of this one: what is switched off,
        labelled or described anew.

        Raises:
            ModelMismatchError: there are some to embed, and the collection is of another model.
        """
        own = _Maker(self.fingerprint, self.model_id)
        if not texts:
            return [], own
        try:
            info = await self.info(collection)
            missing = await asyncio.to_thread(self.store.missing_texts, collection, texts)
        except UnknownCollectionError:
            if not create:
                raise
            return texts, own  # all of them, for a collection that is to be made
        if info.fingerprint is None or info.fingerprint == self.fingerprint:
            return missing, own
        if missing or info.model_id is None:
            raise model_mismatch(info, self.model_id)
        return [], _Maker(info.fingerprint, info.model_id)

    @contextmanager
    def _failures_noted(self) -> Iterator[None]:
        """Tell the observer if the store fails; what was wrong with the write itself is no failure."""
        try:
            yield
        except StorageError as error:
            if self._observer is not None:
                self._observer.on_write_failure(error.code)
            raise

    async def _write(
        self,
        collection: str,
        write: Write,
        vectors: dict[str, Vector],
        progress: Progress | None = None,
        *,
        create: bool = False,
    ) -> int:
        """Embed what is missing into ``vectors``, then apply; what is in memory follows."""
        with self._failures_noted():
            return await self._embed_and_apply(collection, write, vectors, progress, create=create)

    async def _embed_and_apply(
        self,
        collection: str,
        write: Write,
        vectors: dict[str, Vector],
        progress: Progress | None,
        *,
        create: bool,
    ) -> int:
        texts = texts_to_embed(write.upserts)
        for attempt in range(1, _ATTEMPTS + 1):
            missing, maker = await self._still_to_embed(collection, texts, create=create)
            own = maker.fingerprint == self.fingerprint
            vectors.update(
                {text: self._measured_vectors[text] for text in missing if text in self._measured_vectors}
            )
            await self._embed(
                [text for text in missing if text not in vectors], write.upserts, vectors, progress
            )
            try:
                revision = await asyncio.to_thread(
                    self.store.apply,
                    collection,
                    replace(write, vectors=vectors if own else {}),
                    fingerprint=maker.fingerprint,
                    model_id=maker.model_id,
                    create=create,
                )
            except (MissingVectorsError, ModelMismatchError) as error:
                if own and isinstance(error, ModelMismatchError):
                    raise
                if attempt == _ATTEMPTS:
                    raise EntryChangedError(
                        "others delete what this write shares with them all the time; try again"
                    ) from None
                continue  # the last entry that shared a text went a moment ago, or the model did
            break
        if self._observer is not None:
            self._observer.on_write(written=len(write.upserts), deleted=len(write.deletes))
        try:
            await self._searcher.follow(collection)
        except ModelMismatchError:
            self._searcher.forget(collection)  # it is written, and searches are refused until it is embedded
        return revision

    async def _embed(
        self,
        texts: Sequence[str],
        entries: Sequence[FaqEntry],
        vectors: dict[str, Vector],
        progress: Progress | None,
    ) -> None:
        try:
            embedded = await embed_texts(self._embedder, texts, progress=progress)
        except UnreadableTextError as error:
            position = next(
                place for place, entry in enumerate(entries) if error.text in texts_to_embed([entry])
            )
            raise InvalidInputError(
                f"entries[{position}], id {entries[position].id!r}: {error}", index=position, param="entries"
            ) from error
        vectors.update(embedded.vectors)
        if embedded.cut:
            logger.warning(
                "%d FAQ texts are longer than %s reads; only their beginning is embedded, all of it is "
                "searched by words",
                len(embedded.cut),
                self.model_id,
            )

    async def _matching(self, collection: str, ids: Sequence[str], filter_: Filter | None) -> list[FaqEntry]:
        if ids:
            found = await asyncio.to_thread(self.store.get, collection, list(dict.fromkeys(ids)))
            return [entry for entry in found.values() if filter_ is None or filter_.matches(entry)]
        if filter_ is None:
            await self.info(collection)
            return []
        matching: list[FaqEntry] = []
        after: str | None = None
        while True:
            entries, after = await self.page(collection, after=after, limit=_PAGE, filter_=filter_)
            matching += entries
            if after is None:
                return matching


_MODES: Final[tuple[Mode, ...]] = ("hybrid", "dense", "lexical")


@dataclass(frozen=True, slots=True)
class _Judged:
    """A hit with its confidence for a score."""

    id: str
    question: str
    score: float


def _look_up(
    live: SearchableCollection,
    calibration: Calibration,
    queries: Sequence[str],
    vectors: NDArray[np.float32],
    *,
    mode: Mode,
    top_k: int,
    filter_: Filter | None = None,
) -> list[list[FoundHit]]:
    lists = live.search(
        queries,
        vectors,
        unrelated=calibration.unrelated,
        top_k=max(top_k, EVIDENCE_HITS),
        mode=mode,
        filter=filter_,
    )
    return [
        [
            FoundHit(hit, confidence)
            for hit, confidence in zip(hits, calibration.confidences(query, hits), strict=True)
        ][:top_k]
        for query, hits in zip(queries, lists, strict=True)
    ]


def _refuse_duplicates(
    entries: Sequence[FaqEntry], there: Mapping[str, FaqEntry], on_duplicate: OnDuplicate
) -> None:
    """Before anything is embedded; the store has the last word."""
    if on_duplicate == "error" and there:
        position = next(place for place, entry in enumerate(entries) if entry.id in there)
        raise DuplicateEntryError(
            f"entries[{position}] has an id that is taken", index=position, param="entries"
        )


def _patched(entry: FaqEntry, changes: Mapping[str, object]) -> FaqEntry:
    record: dict[str, Any] = entry.model_dump()
    for name, value in changes.items():
        if name == "metadata" and isinstance(value, Mapping):
            merged = record[name] | value
            record[name] = {key: each for key, each in merged.items() if each is not None}
        elif value is None:
            record.pop(name, None)
        else:
            record[name] = value
    try:
        patched = FaqEntry.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        name = next((part for part in fault["loc"] if isinstance(part, str)), "entry")
        message = str(fault["msg"]).removeprefix("Value error, ")
        raise InvalidInputError(f"{name}: {message}", param=name) from error
    if patched.id != entry.id:
        raise InvalidInputError("an entry's id cannot be changed; write it anew and delete it", param="id")
    return patched

"""Copying a collection from one store to another: entries in their order, settings, and vectors as they are.

Nothing is embedded. The source may be written to meanwhile: what changed since the copy began is copied
afterwards, again and again until nothing is left, or a writer is always faster.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from service.errors import ConflictError, InvalidInputError, StorageError, UnknownCollectionError
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.store import CollectionInfo, FaqStore, Vector, Write

Present = Literal["refuse", "resume", "replace"]
"""What becomes of entries that the target's collection has already.

refuse: nothing is copied. resume: those that are as in the source stay, others are copied or deleted.
replace: all are deleted first.
"""

Progress = Callable[[int, int], None]
"""Called with the number of entries done so far, and of all."""

# Entries that are read, and written, together; some megabytes with their vectors.
_BATCH: Final = 500
# How often what changed meanwhile is copied before it is left to another run.
_CATCH_UPS: Final = 20


@dataclass(slots=True)
class Migrated:
    """What a copy came to.

    Attributes:
        name: of the collection.
        copied: entries written to the target.
        kept: entries that were there just so.
        deleted: entries of the target that the source has not.
        revision: of the source, up to which everything is in the target.
        sample: ids of the source's entries, chosen at random.
    """

    name: str
    copied: int = 0
    kept: int = 0
    deleted: int = 0
    revision: int = 0
    sample: list[str] = field(default_factory=list)


class Migration:
    """Copies collections.

    Args:
        source: only read.
        target: another store.
        chance: chooses the samples.
        sample: ids to choose, at most.
    """

    def __init__(self, source: FaqStore, target: FaqStore, *, chance: random.Random, sample: int) -> None:
        self._source = source
        self._target = target
        self._chance = chance
        self._sample = sample

    def copy(self, name: str, *, present: Present = "refuse", progress: Progress | None = None) -> Migrated:
        """Copy one collection.

        Raises:
            UnknownCollectionError: the source has no such collection.
            InvalidInputError: the target is the source.
            ConflictError: the target's has entries, and ``present`` is "refuse"; or the source was embedded
                anew meanwhile.
            ModelMismatchError: what is to be resumed is of another model.
            StorageError, UnavailableError: a store cannot be read or written; what was copied stays, and
                "resume" goes on from there.
        """
        before = self._source.info(name)
        self._prepare(before, present)
        done = Migrated(name, revision=before.revision)
        # What an interrupted run left and the source has lost since.
        if present == "resume":
            self._delete_others(done)
        seen = 0
        for entries in _pages(self._source, name):
            self._choose(done, entries, seen)
            self._put(before, done, entries)
            seen += len(entries)
            if progress is not None:
                progress(seen, max(seen, before.entries))
        self._catch_up(before, done)
        after = self._source.info(name)
        self._target.configure(name, default_answer=after.default_answer, min_score=after.min_score)
        return done

    def _prepare(self, source: CollectionInfo, present: Present) -> None:
        name = source.name
        try:
            there = self._target.info(name)
        except UnknownCollectionError:
            there = None
        # However it is called: to the millisecond and revision, no other collection is the same.
        if there == source:
            raise InvalidInputError(f"the target's collection {name} is the source's own, or its exact copy")
        if there is not None and there.entries and present == "refuse":
            raise ConflictError(
                f"the target has a collection {name} of {there.entries} entries; --resume goes on with what "
                "an interrupted migration left, --replace deletes it first",
                param="collection",
            )
        if there is not None and present == "replace":
            self._target.drop(name)
        self._target.create(name, exist_ok=True)

    def _choose(self, done: Migrated, entries: Sequence[FaqEntry], seen: int) -> None:
        """Keep each entry so far with the same chance.

        Source: Vitter 1985, "Random sampling with a reservoir", algorithm R.
        """
        for position, entry in enumerate(entries, start=seen):
            if len(done.sample) < self._sample:
                done.sample.append(entry.id)
            elif (place := self._chance.randrange(position + 1)) < self._sample:
                done.sample[place] = entry.id

    def _put(self, info: CollectionInfo, done: Migrated, entries: Sequence[FaqEntry]) -> None:
        there = self._target.get(info.name, [entry.id for entry in entries])
        wanted = [entry for entry in entries if not _same(entry, there.get(entry.id))]
        done.kept += len(entries) - len(wanted)
        vectors = self._source.vectors(info.name, texts_to_embed(wanted))
        whole = [entry for entry in wanted if vectors.keys() >= set(texts_to_embed([entry]))]
        if len(whole) < len(wanted) and self._source.revision(info.name) == info.revision:
            raise StorageError(f"collection {info.name} of the source is damaged: vectors are missing")
        # The others were changed a moment ago, and are copied with what changed.
        self._write(info, whole, (), vectors)
        done.copied += len(whole)

    def _catch_up(self, info: CollectionInfo, done: Migrated) -> None:
        """Copy what was written to the source since the copy began."""
        for _ in range(_CATCH_UPS):
            changes = self._source.changes(info.name, done.revision)
            if changes.revision == done.revision:
                return
            if changes.complete or changes.fingerprint != info.fingerprint:
                raise ConflictError(
                    f"collection {info.name} of the source was embedded anew, or changed past what can be "
                    "followed, while it was copied; run it again with --replace",
                    param="collection",
                )
            self._write(info, changes.entries, changes.deleted, dict(changes.vectors))
            done.copied += len(changes.entries)
            done.revision = changes.revision

    def _write(
        self,
        info: CollectionInfo,
        upserts: Sequence[FaqEntry],
        deletes: Sequence[str],
        vectors: dict[str, Vector],
    ) -> None:
        if upserts or deletes:
            self._target.apply(
                info.name,
                Write(upserts=tuple(upserts), deletes=tuple(deletes), vectors=vectors),
                fingerprint=info.fingerprint,
                model_id=info.model_id,
            )

    def _delete_others(self, done: Migrated) -> None:
        name = done.name
        doomed: list[str] = []
        for entries in _pages(self._target, name):
            ids = [entry.id for entry in entries]
            doomed += set(ids).difference(self._source.get(name, ids))
        for start in range(0, len(doomed), _BATCH):
            self._target.apply(name, Write(deletes=tuple(doomed[start : start + _BATCH])))
        done.deleted = len(doomed)


def _pages(store: FaqStore, name: str) -> Iterator[list[FaqEntry]]:
    after: str | None = None
    while True:
        entries, after = store.page(name, after=after, limit=_BATCH)
        if entries:
            yield entries
        if after is None:
            return


def _same(entry: FaqEntry, other: FaqEntry | None) -> bool:
    # As JSON: Python takes True for 1.
    return other is not None and entry.model_dump_json() == other.model_dump_json()

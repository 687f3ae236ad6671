"""Where FAQ entries are kept: one protocol, for one machine or many, and the values it speaks in.

A store is the system of record: entries, their vectors, and which model made them. It knows nothing of
searching; an index is built from `FaqStore.changes` and follows it. Every method blocks and may be called
from several threads; several processes may use one store at a time.

A collection's *revision* is an integer that rises with every write and never falls, not even when a
collection is dropped and made again: two equal revisions of a name mean equal content. A *generation* is a
set of vectors, all of one model; its number is never used again. One generation is live; a second one may be
under way, and takes its place in one step.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from service.errors import ConflictError, InvalidInputError, ModelMismatchError, UnknownCollectionError
from service.faq.entries import MAX_ANSWER_CHARS, FaqEntry

COLLECTION_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
# How many names an error lists before it says "and more".
_NAMES_LISTED: Final = 20
_UNIT_TOLERANCE: Final = 1e-3

Vector = NDArray[np.float32]


class EntryFilter(Protocol):
    """What a store needs of a filter: ``service.faq.filters.Filter`` is one."""

    def matches(self, entry: FaqEntry, /) -> bool:
        """Whether ``entry`` is among those asked for."""
        ...


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """A collection, without its entries.

    Attributes:
        name: as `COLLECTION_NAME` allows.
        revision: rises with every write.
        entries: how many, disabled ones included.
        fingerprint, model_id, dimensions: of the model whose vectors are live; None before the first vector.
        generation: of the live vectors.
        default_answer: for queries that nothing answers; None = none.
        min_score: 0..1, below which an entry does not count as an answer; None = not set.
        created_at, updated_at: ISO 8601, UTC.
        pending_generation: of the vectors that a reindex under way is making; None = there is none.
    """

    name: str
    revision: int
    entries: int
    fingerprint: str | None
    model_id: str | None
    generation: int
    dimensions: int | None
    default_answer: str | None
    min_score: float | None
    created_at: str
    updated_at: str
    pending_generation: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Changes that happen together or not at all.

    Attributes:
        upserts: entries to add, or to replace where the id is there; a replaced entry keeps its place.
        deletes: ids; those that are not there are no error. None of them is among the upserts.
        vectors: unit vectors by text, at least for those texts of the upserts that the store lacks
            (`FaqStore.missing_texts`). Others are ignored.
        replace: False refuses an upsert whose id is there.
        unchanged: entries as they were read; if the store holds one of them no longer just so, nothing is
            written. This is how a read-change-write loses nobody's change.
    """

    upserts: tuple[FaqEntry, ...] = ()
    deletes: tuple[str, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    replace: bool = True
    unchanged: tuple[FaqEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed in a collection, read at one moment.

    Attributes:
        revision: of that moment.
        complete: True = ``entries`` is the whole collection and what the caller has is to be thrown away.
        entries: added or changed, in the order in which they were first added.
        deleted: ids, none of them among ``entries``; empty if ``complete``. One that came and went since is
            among them, although the caller never saw it.
        vectors: by text, of all texts of ``entries``; read-only rows of one matrix.
        generation, fingerprint: of the vectors. A new generation always comes as a complete answer.
    """

    revision: int
    complete: bool
    entries: tuple[FaqEntry, ...]
    deleted: tuple[str, ...]
    vectors: Mapping[str, Vector]
    generation: int
    fingerprint: str | None


class MissingVectorsError(Exception):
    """Texts have no vector: embed them and try again.

    Also what a writer meets when another one deleted, a moment ago, the last entry that shared a text.

    Attributes:
        texts: some of the texts, at least one; not always all.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(f"{len(texts)} texts have no vector")
        self.texts = tuple(texts)


class FaqStore(Protocol):
    """Keeps collections of entries with their vectors.

    Every method that takes a collection's name raises `UnknownCollectionError` if there is none of it, unless
    it is told to ``create`` it: then the collection and what is done to it come in one step, or neither. Any
    method raises `StorageError` if what is stored cannot be read or written, and `UnavailableError` if it was
    busy for too long or is closed.
    """

    def collections(self) -> list[CollectionInfo]:
        """All collections, by name."""
        ...

    def info(self, name: str) -> CollectionInfo:
        """One collection."""
        ...

    def create(self, name: str, *, exist_ok: bool = False) -> CollectionInfo:
        """Make an empty collection.

        Raises:
            InvalidInputError: not a name for a collection.
            CollectionExistsError: it is there, and not ``exist_ok``.
        """
        ...

    def drop(self, name: str) -> None:
        """Remove a collection with all that is in it."""
        ...

    def configure(
        self, name: str, *, default_answer: str | None, min_score: float | None, create: bool = False
    ) -> CollectionInfo:
        """Set both; None takes a setting away.

        Args:
            name: of the collection.
            default_answer: as `CollectionInfo` has it.
            min_score: as `CollectionInfo` has it.
            create: make the collection if it is not there.

        Raises:
            InvalidInputError: ``min_score`` is not in 0..1, or the answer is too long; not a name for a
                collection that is to be made.
        """
        ...

    def missing_texts(self, name: str, texts: Iterable[str], *, generation: int | None = None) -> list[str]:
        """Those of ``texts`` without a vector in the generation (None = the live one), each once, in order.

        Raises:
            ConflictError: there is no such generation, or no longer.
        """
        ...

    def apply(
        self,
        name: str,
        write: Write,
        *,
        fingerprint: str | None = None,
        model_id: str | None = None,
        create: bool = False,
    ) -> int:
        """Make all of the changes, durably, or none; when this returns, everybody sees them.

        Args:
            name: of the collection.
            write: the changes.
            fingerprint: of the model that made the vectors; needed as soon as an enabled entry is written. A
                collection without any vector takes the model of the first ones.
            model_id: that model's name, for people.
            create: make the collection if it is not there; a write that is refused makes none.

        Returns:
            The collection's revision; the one it had if nothing differs from what was there.

        Raises:
            InvalidInputError: two upserts have one id, or an upsert is also deleted; not a name for a
                collection that is to be made.
            ModelMismatchError: the collection's vectors are of another model.
            DuplicateEntryError: an id is there, and the write may not replace.
            EntryChangedError: one of ``unchanged`` is not.
            MissingVectorsError: a text of an upsert has a vector neither in the write nor in the store.
            ValueError: a vector is not a finite unit vector of the collection's dimensions.
        """
        ...

    def get(self, name: str, ids: Iterable[str]) -> dict[str, FaqEntry]:
        """The entries of those ids that are there, in the order of ``ids``."""
        ...

    def page(
        self,
        name: str,
        *,
        after: str | None = None,
        limit: int,
        filter: EntryFilter | None = None,
    ) -> tuple[list[FaqEntry], str | None]:
        """Entries in the order in which they were first added, at most ``limit``.

        Args:
            name: of the collection.
            after: what the call before returned; None = from the start. Opaque.
            limit: at least 1.
            filter: only those that match.

        Returns:
            The entries, and where to go on; None = there are no more.

        Raises:
            InvalidInputError: ``after`` is not from here, or ``limit`` is below 1.
        """
        ...

    def count(self, name: str, filter: EntryFilter | None = None) -> int:
        """How many entries match; disabled ones count."""
        ...

    def revision(self, name: str) -> int:
        """The present revision; cheap enough to ask before every search."""
        ...

    def changes(self, name: str, since: int) -> Changes:
        """What happened after revision ``since``; 0 = everything."""
        ...

    def vectors(self, name: str, texts: Iterable[str]) -> dict[str, Vector]:
        """The live vectors of those of ``texts`` that have one, in order; read-only, [d] each.

        For copying a collection bit by bit, where `changes` would hold all of it at once.
        """
        ...

    def claim_reindex(self, name: str, *, fingerprint: str) -> Callable[[], None] | None:
        """Take the right to make vectors of that model for a collection, there or not; waits for nobody.

        It is let go by calling what is returned, or by the end of the process. A store that cannot tell gives
        it to anyone: two that make the same vectors come to the same end, in twice the work.

        Returns:
            What lets go of it; None = another has it, of this process or any other on this store.
        """
        ...

    def begin_reindex(self, name: str, *, fingerprint: str, model_id: str) -> int:
        """Start a generation of vectors of that model, or go on with one that was started and not finished.

        One of another model that was under way is given up.
        """
        ...

    def add_vectors(self, name: str, generation: int, vectors: Mapping[str, Vector]) -> None:
        """Add vectors to a generation under way; those of texts that no entry has are left out.

        Raises:
            ConflictError: that generation is not under way, or no longer.
            ValueError: a vector is not a finite unit vector, or of other dimensions than its generation.
        """
        ...

    def finish_reindex(self, name: str, generation: int) -> int:
        """Make that generation the live one, in one step; return the new revision.

        Raises:
            MissingVectorsError: entries were written meanwhile; embed those texts, add them, and call again.
            ConflictError: that generation is not under way, or no longer.
        """
        ...

    def abandon_reindex(self, name: str, generation: int) -> None:
        """Give up a generation under way; nothing happens if it is not."""
        ...

    def snapshot(self, target: Path) -> None:
        """Write everything, as of one moment, to a new file, while others read and write.

        Raises:
            StorageError: ``target`` is there already or cannot be written.
        """
        ...

    def close(self) -> None:
        """Let go of everything; waits for calls under way. Closing twice is no error."""
        ...


def check_collection_name(name: str) -> None:
    """Refuse what is not a collection's name.

    Raises:
        InvalidInputError: with what a name may look like.
    """
    if not COLLECTION_NAME.fullmatch(name):
        raise InvalidInputError(
            "a collection's name is 1 to 64 of a-z, 0-9, _ and -, beginning with a letter or digit",
            param="collection",
        )


def check_settings(default_answer: str | None, min_score: float | None) -> None:
    """Refuse settings that no search could follow.

    Raises:
        InvalidInputError: with the limit.
    """
    if default_answer is not None and len(default_answer) > MAX_ANSWER_CHARS:
        raise InvalidInputError(
            f"the default answer has {len(default_answer)} characters, at most {MAX_ANSWER_CHARS} are kept",
            param="default_answer",
        )
    if min_score is not None and not 0.0 <= min_score <= 1.0:  # NaN fails both
        raise InvalidInputError("min_score is not in 0..1", param="min_score")


def check_limit(limit: int) -> None:
    """Refuse a page of nothing, which would never end.

    Raises:
        InvalidInputError: it is below 1.
    """
    if limit < 1:
        raise InvalidInputError("limit is below 1", param="limit")


def place_after(cursor: str | None) -> int:
    """Read where a page is to go on: after this place in the order of insertion; 0 = from the start.

    Raises:
        InvalidInputError: it is not a number that a page returned.
    """
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise InvalidInputError("after is not what the page before returned", param="after")
    return int(cursor)


def check_write(write: Write) -> None:
    """Refuse a write that contradicts itself.

    Raises:
        InvalidInputError: two upserts have one id, or an upsert is also deleted.
    """
    position_of: dict[str, int] = {}
    for position, entry in enumerate(write.upserts):
        first = position_of.setdefault(entry.id, position)
        if first != position:
            raise InvalidInputError(
                f"entries[{position}] has the same id as entries[{first}]", index=position, param="entries"
            )
    for identifier in write.deletes:
        if identifier in position_of:
            position = position_of[identifier]
            raise InvalidInputError(
                f"entries[{position}] is to be written and deleted", index=position, param="entries"
            )


def check_vectors(vectors: Iterable[Vector], dimensions: int | None) -> int | None:
    """Refuse what is not a set of finite unit vectors of one length.

    Args:
        vectors: each [d], float32.
        dimensions: d, if it is settled; None = the first vector settles it.

    Returns:
        d; None if there are no vectors and none was given.

    Raises:
        ValueError: with what is wrong.
    """
    for vector in vectors:
        if vector.dtype != np.float32 or vector.ndim != 1 or not len(vector):
            raise ValueError(f"a vector is {vector.dtype} of shape {vector.shape}, not float32 of one axis")
        if dimensions is None:
            dimensions = len(vector)
        if len(vector) != dimensions:
            raise ValueError(f"a vector has {len(vector)} dimensions, the others have {dimensions}")
        length = float(np.sqrt(np.dot(vector, vector)))
        if not abs(length - 1.0) <= _UNIT_TOLERANCE:  # NaN and infinity fail too
            raise ValueError(f"a vector has the length {length:.4g}, not 1")
    return dimensions


def unknown_collection(name: str, present: Sequence[str]) -> UnknownCollectionError:
    """The error for a collection that is not there; it lists those that are."""
    listed = ", ".join(sorted(present)[:_NAMES_LISTED])
    if len(present) > _NAMES_LISTED:
        listed += f" and {len(present) - _NAMES_LISTED} more"
    # Only what could be a name is quoted: the message goes into logs.
    quoted = f" {name}" if COLLECTION_NAME.fullmatch(name) else " of that name"
    return UnknownCollectionError(
        f"there is no collection{quoted}; there are: {listed or 'none yet'}", param="collection"
    )


def model_mismatch(info: CollectionInfo, model_id: str | None) -> ModelMismatchError:
    """The error for vectors, of a write or a query, that are not of the collection's model."""
    return ModelMismatchError(
        f"collection {info.name} was embedded by {info.model_id} (fingerprint "
        f"{(info.fingerprint or '')[:12]}), not by {model_id or 'this model'}; "
        f"`conche faq reindex {info.name}` embeds it anew. Until then its entries can be read, deleted and "
        "changed in all but their texts; searching needs vectors of one model in every mode, for the score",
        param="collection",
    )


def not_under_way(name: str) -> ConflictError:
    """The error for a generation that is not, or no longer, being made."""
    return ConflictError(
        f"this reindex of {name} is not under way: it was finished, given up, or another model's took its "
        f"place; `conche faq reindex {name}` starts one",
        param="collection",
    )

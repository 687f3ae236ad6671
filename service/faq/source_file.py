"""Brings the collection `default` up to the FAQ file that an operator named, and spares what people changed.

Three versions of each entry meet: the one in the file now, the one that the file had when it was last brought
in, and the one in the collection. What changed in the file is written; what left the file is deleted, unless
somebody changed it in the collection since; what did not change in the file is left alone, so that changes
and deletions made over HTTP outlive a restart. An empty collection takes the whole file. Of a file with
records that cannot be read nobody knows what left it, so nothing is deleted then, but for what is left of the
built-in set, which stands in no file of anybody's.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from service.errors import ServiceError, UnknownCollectionError
from service.faq.catalogue import FaqCatalogue
from service.faq.embedding import Progress
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.json_files import write_json

logger = logging.getLogger(__name__)

DEFAULT_COLLECTION: Final = "default"
# Entries written at a time: a start that is interrupted goes on where it was.
_BATCH: Final = 250


async def bring_in(
    catalogue: FaqCatalogue,
    entries: Sequence[FaqEntry],
    memory: Path,
    *,
    only_if_empty: bool = False,
    is_whole: bool = True,
    progress: Progress | None = None,
) -> None:
    """Merge ``entries`` into the collection `default`; a collection of another model is embedded anew first.

    Args:
        catalogue: with or without that collection.
        entries: of the file, with ids that are unique.
        memory: a JSON file, in which it is kept what the file held.
        only_if_empty: leave the collection alone if it holds anything.
        is_whole: whether ``entries`` are all that the file was meant to hold; else what is missing stays.
        progress: told how many entries have been looked at.

    Raises:
        ServiceError: as `FaqCatalogue.upsert` and `FaqCatalogue.reindex`.
    """
    try:
        info = await catalogue.info(DEFAULT_COLLECTION)
    except UnknownCollectionError:
        info = None  # the first entries make it
    if info is not None and info.fingerprint not in {None, catalogue.fingerprint}:
        logger.warning(
            "FAQ collection %s was embedded by %s; embedding it anew with %s",
            info.name,
            info.model_id,
            catalogue.model_id,
        )
        await catalogue.reindex(DEFAULT_COLLECTION, progress)
    filled = info is not None and info.entries > 0
    if filled and only_if_empty:
        return
    before = await asyncio.to_thread(_remembered, memory) if filled else {}
    now = {entry.id: _digest(entry) for entry in entries}
    changed = [entry for entry in entries if before.get(entry.id) != now[entry.id]]
    for first in range(0, len(changed), _BATCH):
        try:
            await catalogue.upsert(DEFAULT_COLLECTION, changed[first : first + _BATCH])
        except ServiceError as error:
            if error.param == "entries" and error.index is not None:
                place = entries.index(changed[first + error.index])
                error.call_item(f"entries[{place}]", index=place)
            raise
        if progress is not None:
            progress(min(first + _BATCH, len(changed)), len(changed))
    left = {id_: digest for id_, digest in before.items() if id_ not in now}
    if is_whole:
        await _delete_what_left(catalogue, left)
    else:
        built_in = {_digest(entry) for entry in demo_entries()}
        await _delete_what_left(catalogue, {id_: left[id_] for id_ in left if left[id_] in built_in})
        kept = {id_: digest for id_, digest in left.items() if digest not in built_in}
        await _warn_of_what_stays(catalogue, kept)
        now |= kept  # for a start whose file can be read whole
    try:
        await asyncio.to_thread(write_json, memory, {"entries": now})
    except OSError as error:
        logger.warning("%s cannot be written, the next start reads the FAQ file anew: %s", memory, error)


async def _delete_what_left(catalogue: FaqCatalogue, left: Mapping[str, str]) -> None:
    if not left:
        return
    there = await asyncio.to_thread(catalogue.store.get, DEFAULT_COLLECTION, list(left))
    untouched = [id_ for id_, entry in there.items() if _digest(entry) == left[id_]]
    if untouched:
        await catalogue.delete(DEFAULT_COLLECTION, ids=untouched)
        logger.info("%d FAQ entries that are no longer in the file are deleted", len(untouched))


async def _warn_of_what_stays(catalogue: FaqCatalogue, left: Mapping[str, str]) -> None:
    there = await asyncio.to_thread(catalogue.store.get, DEFAULT_COLLECTION, list(left)) if left else {}
    if there:
        logger.warning(
            "%d FAQ entries that the file had before and has not now are kept: parts of it cannot be read, "
            "and they may stand there; a start with the file in order deletes those that are not in it",
            len(there),
        )


def _remembered(memory: Path) -> dict[str, str]:
    """Digests by id of what the file held; {} if nothing is remembered: then all of the file is written."""
    try:
        record: Any = json.loads(memory.read_bytes())
        return {str(id_): str(digest) for id_, digest in record["entries"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s cannot be read, the whole FAQ file is written again: %s", memory, error)
        return {}


def _digest(entry: FaqEntry) -> str:
    return hashlib.sha256(entry.model_dump_json().encode()).hexdigest()

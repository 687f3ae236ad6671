"""Whether a copied collection is what it was copied from: counts, order, entries, vectors and answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.index import Hit, Mode
from service.faq.searching import FaqSearcher
from service.faq.store import FaqStore

# Of unrelated texts, by the model; for a comparison any cosine will do, if it is the same on both sides.
_UNRELATED: Final = 0.75
_HITS: Final = 10
_TOLERANCE: Final = 1e-5
_MODES: Final[tuple[Mode, ...]] = ("hybrid", "dense", "lexical")
_IDS_A_READ: Final = 200
_TEXT_SHOWN: Final = 50


@dataclass(slots=True)
class Checked:
    """What was compared, and what is not the same.

    Attributes:
        lines: what was compared, for people.
        differences: for people; empty = no difference was found.
    """

    lines: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def check_records(source: FaqStore, target: FaqStore, name: str, sample: Sequence[str]) -> Checked:
    """Compare counts and settings, the order of the first entries, and some entries with their vectors.

    Args:
        source: what was copied.
        target: the copy.
        name: of the collection.
        sample: ids of entries; those that the source has no longer are passed over.
    """
    checked = Checked()
    entries, vectors = 0, 0
    for start in range(0, len(sample), _IDS_A_READ):
        ids = sample[start : start + _IDS_A_READ]
        there, copies = source.get(name, ids), target.get(name, ids)
        entries += len(there)
        for identifier, entry in there.items():
            copy = copies.get(identifier)
            if copy is None or entry.model_dump_json() != copy.model_dump_json():
                checked.differences.append(
                    f"entry {identifier!r} {'is not there' if copy is None else 'differs'}"
                )
        texts = texts_to_embed(there.values())
        wanted, found = source.vectors(name, texts), target.vectors(name, texts)
        vectors += len(wanted)
        for text, vector in wanted.items():
            if text not in found or not np.array_equal(vector, found[text]):
                shown = f"{text[:_TEXT_SHOWN]!r} {'differs' if text in found else 'is not there'}"
                checked.differences.append(f"the vector of {shown}")
    infos = source.info(name), target.info(name)
    # Without any vector a collection has no model that would have to be the same.
    of_model = ("fingerprint", "model_id", "dimensions") if vectors else ()
    for what in ("entries", "default_answer", "min_score", *of_model):
        one, other = (getattr(info, what) for info in infos)
        if one != other:
            checked.differences.append(f"{what}: {one!r} in the source, {other!r} in the target")
    first, copied = (
        [entry.id for entry in store.page(name, limit=max(1, len(sample)))[0]] for store in (source, target)
    )
    if first != copied:
        checked.differences.append(f"the order of the first {len(first)} entries differs")
    checked.lines += [
        f"count: {infos[1].entries} entries, settings and model",
        f"order: the first {len(first)} entries",
        f"entries: {entries} chosen at random, field by field",
        f"vectors: the {vectors} of these entries, bit for bit",
    ]
    return checked


async def check_searches(
    source: FaqSearcher, target: FaqSearcher, store: FaqStore, name: str, entries: Sequence[FaqEntry]
) -> Checked:
    """Compare what is found for the questions of some entries, in all modes.

    Args:
        source: searches what was copied.
        target: searches the copy.
        store: the source's, of which the questions' vectors are taken.
        name: of the collection.
        entries: enabled ones of it.
    """
    checked = Checked()
    vectors = store.vectors(name, [entry.question for entry in entries])
    queries = list(vectors)
    if queries:
        sides = [await searcher.current(name) for searcher in (source, target)]
        for mode in _MODES:
            one, other = [
                await asyncio.to_thread(
                    side.search,
                    queries,
                    np.stack(list(vectors.values())),
                    unrelated=_UNRELATED,
                    top_k=_HITS,
                    mode=mode,
                    filter=None,
                )
                for side in sides
            ]
            checked.differences += [
                f"{mode} search for {query[:_TEXT_SHOWN]!r} finds other entries"
                for query, hits, others in zip(queries, one, other, strict=True)
                if not _alike(hits, others)
            ]
    checked.lines.append(
        f"searches: {len(queries)} questions of these entries in {len(_MODES)} modes, the first {_HITS} hits"
    )
    return checked


def _alike(hits: Sequence[Hit], others: Sequence[Hit]) -> bool:
    """Tell whether both lists are one, but for the order of equals."""
    scores = [hit.score for hit in hits], [other.score for other in others]
    if len(hits) != len(others) or not np.allclose(*scores, rtol=0, atol=_TOLERANCE):
        return False
    # Equals of the last place may have been left out on either side.
    last = scores[0][-1] + _TOLERANCE if hits else 0.0
    found = ({hit.id for hit in side if hit.score > last} for side in (hits, others))
    return next(found) == next(found)

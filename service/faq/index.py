"""The index of a FAQ: exact, in memory. A change makes a new index and leaves the old one as it was.

A search looks at all entries twice: first at the eight-bit codes of their vectors, a quarter of the bytes,
whose products are off by no more than a known bound; then in full at those that can be among the best. What
the first look rules out by its bound could not have been found.

An index is a few segments and, for each, which of its entries are still alive. New entries come as a segment
of their own; small segments are merged as they gather, so that there are only a few of them, and an entry is
copied a few times at most however large the index grows. What is found, its scores and its order are those of
an index built afresh from the same entries, to the last bit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from service.faq.entries import FaqEntry
from service.faq.filters import Filter
from service.faq.lexical import Holders, highlights, idf, length_norms, lexical_terms, saturated
from service.faq.ranking import ANSWER_WORD, closeness, leaders, lifted
from service.faq.segments import ROUNDING, Segment

Mode = Literal["hybrid", "dense", "lexical"]

# Bounds the block of cosines held at once (queries x rows), in float32 values: 16 MiB.
_BLOCK: int = 4 * 1024 * 1024

# Segments are merged until each is at least so many times as large as the next, and the small ones into one.
_RATIO: Final = 4
_SMALL: Final = 256
# A segment is rewritten when this part of it is dead.
_MOST_DEAD: Final = 0.25

# No more than this part of the entries is looked at one by one: where most are passed over, memory is slow.
_FEW: Final = 1 / 10


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry found for a query, and why.

    Attributes:
        entry: the whole entry.
        score: 0..1, falling along the hits. hybrid: `ranking.lifted`; dense: `ranking.closeness`; lexical:
            BM25 by the highest that any entry could have for the query.
        dense: -1..1, the mean of the cosines with the matched phrasing and with question + answer.
        lexical: BM25 over all of the entry's text, from 0, without an upper bound.
        share: 0..1, how much of the query's words the entry has: by the square of their idf, words that only
            the answer has at half.
        dense_rank: 1 for the entry closest by ``dense`` of all that were searched, in Milvus of all that were
            looked at; equals share a rank.
        lexical_rank: the same by ``lexical``; None if the entry has no word of the query.
        matched_phrasing: the question or alternate closest to the query.
        terms: the query's words, characters and pairs.
    """

    entry: FaqEntry
    score: float
    dense: float
    lexical: float
    share: float
    dense_rank: int
    lexical_rank: int | None
    matched_phrasing: str
    terms: frozenset[str] = field(repr=False)

    @property
    def question_highlights(self) -> tuple[tuple[int, int], ...]:
        """Where the question holds words of the query: [start, end) in code points; worked out when asked."""
        return highlights(self.entry.question, self.terms)

    @property
    def answer_highlights(self) -> tuple[tuple[int, int], ...]:
        """The same of the answer."""
        return highlights(self.entry.answer, self.terms)

    @property
    def language(self) -> str | None:
        """The entry's language; None if it does not say."""
        return self.entry.language

    @property
    def id(self) -> str:
        """The entry's id."""
        return self.entry.id

    @property
    def question(self) -> str:
        """The entry's standard wording."""
        return self.entry.question

    @property
    def answer(self) -> str:
        """The entry's answer."""
        return self.entry.answer


@dataclass(frozen=True, slots=True)
class Part:
    """A segment and what of it is alive: [N] bool."""

    segment: Segment
    alive: NDArray[np.bool_]

    @property
    def living(self) -> int:
        """How many entries are alive."""
        return int(np.count_nonzero(self.alive))


@dataclass(frozen=True, slots=True)
class WordStatistics:
    """What BM25 weighs words by, of a whole collection.

    Attributes:
        entries: enabled ones.
        mean_length: terms of one of them, repeats counted.
        holding: by term, how many of them hold it; at least the terms that are asked for.
    """

    entries: int
    mean_length: float
    holding: Mapping[str, int]


class FaqIndex:
    """Finds the entries nearest to a query; disabled entries are never found.

    Shapes: Q queries, N enabled entries, d dimensions.

    Attributes:
        parts: the segments, oldest first, with what of them is alive.
        dimensions: of the vectors, d; None while there were none.
        statistics: of the collection of which this index holds a part; None = it holds all of it.
    """

    def __init__(
        self,
        parts: Sequence[Part] = (),
        dimensions: int | None = None,
        statistics: WordStatistics | None = None,
    ) -> None:
        """Take the parts that `empty` and `with_changes` make."""
        self.parts = tuple(parts)
        self.dimensions = dimensions
        self.statistics = statistics
        living = [part.living for part in self.parts]
        self._size = sum(living)
        if statistics is None:
            terms = sum(int(part.segment.postings.lengths[part.alive].sum()) for part in self.parts)
            mean_length = terms / self._size if self._size else 0.0
        else:
            mean_length = statistics.mean_length
        # Every entry of a segment, dead ones too, has its place among these.
        self._ends = np.cumsum([len(part.segment) for part in self.parts], dtype=np.intp)
        self._alive: NDArray[np.bool_] = (
            np.concatenate([part.alive for part in self.parts]) if self.parts else np.zeros(0, np.bool_)
        )
        self._norms = [length_norms(part.segment.postings.lengths, mean_length) for part in self.parts]
        self._whole = [count == len(part.segment) for count, part in zip(living, self.parts, strict=True)]

    @classmethod
    def empty(cls, dimensions: int | None = None, *, statistics: WordStatistics | None = None) -> Self:
        """Return an index of nothing.

        Args:
            dimensions: of the vectors to come; None = the first ones decide.
            statistics: of a collection of which it is to hold some entries only; each is then scored as in
                the index of all.
        """
        return cls(dimensions=dimensions, statistics=statistics)

    def with_changes(
        self,
        upserts: Sequence[FaqEntry],
        deleted: Iterable[str] = (),
        vectors: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> Self:
        """Return an index in which ``upserts`` stand for what had their ids, and ``deleted`` is gone.

        Args:
            upserts: ids unique; a disabled one is as good as deleted.
            deleted: ids, of which some may not be there; deleted first.
            vectors: [d] each, unit length, one for every text that `texts_to_embed` names of the upserts.

        Raises:
            ValueError: an id is there twice, a text has no vector, or a vector is not finite or not of this
                index's length.
        """
        ids = {entry.id for entry in upserts}
        if len(ids) != len(upserts):
            raise ValueError("two entries have the same id")
        parts = [_without(part, ids.union(deleted)) for part in self.parts]
        enabled = [entry for entry in upserts if entry.enabled]
        dimensions = self.dimensions
        if enabled:
            try:
                segment = Segment.of(enabled, vectors or {})
            except KeyError as error:
                raise ValueError("a text of an entry has no vector") from error
            if dimensions not in {None, segment.dimensions}:
                raise ValueError(f"vectors of {segment.dimensions} numbers in an index of {dimensions}")
            dimensions = segment.dimensions
            parts.append(Part(segment, np.ones(len(segment), dtype=np.bool_)))
        return type(self)(_merged(parts), dimensions, self.statistics)

    def __len__(self) -> int:
        """Return N."""
        return self._size

    @property
    def entries(self) -> tuple[FaqEntry, ...]:
        """The entries that can be found, in no order that means anything."""
        return tuple(
            entry
            for part in self.parts
            for entry, alive in zip(part.segment.entries, part.alive.tolist(), strict=True)
            if alive
        )

    def nbytes(self) -> int:
        """Return the bytes of vectors and postings; the entries themselves are not counted."""
        return sum(part.segment.nbytes() for part in self.parts)

    def search(
        self,
        queries: Sequence[str],
        vectors: NDArray[np.float32],
        *,
        unrelated: float,
        top_k: int,
        mode: Mode = "hybrid",
        filter: Filter | None = None,
    ) -> list[list[Hit]]:
        """Return each query's best entries, best first, at most ``top_k`` of them, each entry once.

        Args:
            queries: Q texts.
            vectors: [Q, d], theirs, unit length.
            unrelated: the model's cosine for unrelated texts, below 1.
            top_k: at least 1.
            mode: what decides the order; "lexical" finds only entries with a word of the query.
            filter: which entries are searched; None for all. Statistics of words are of all entries
                anyhow, so that a filter leaves out entries and changes nothing about the others.
        """
        allowed = self._allowed(filter)
        if not allowed.any():
            return [[] for _ in queries]
        hits: list[list[Hit]] = []
        few = np.flatnonzero(allowed) if np.count_nonzero(allowed) <= _FEW * len(allowed) else None
        step = max(1, _BLOCK // max(1, sum(len(part.segment.rows) for part in self.parts)))
        for first in range(0, len(queries), step):
            asked = vectors[first : first + step]
            if few is None:
                # Found by words, hits are anywhere by meaning: their ranks take a look at all in full.
                every = self._dense_scores(asked, in_full=mode == "lexical")
            else:
                every = (self._dense_scores_of(few, vector) for vector in asked)
            for query, vector, dense in zip(queries[first : first + step], asked, every, strict=True):
                hits.append(_Search(self, query, vector, dense, allowed).hits(mode, unrelated, top_k))
        return hits

    def lexical_scores(
        self, terms: AbstractSet[str]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """Return BM25 and share of every place, and the highest BM25 there can be, for a query's terms."""
        scores = np.zeros(len(self._alive), dtype=np.float32)
        share = np.zeros(len(self._alive), dtype=np.float32)
        ends = self._ends.tolist()
        # Views of each segment's own part of both.
        slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        views = [(scores[part], share[part]) for part in slices]
        # Sorted: a sum in the order of a hash set would differ in its last bits from one process to the next.
        found = [
            (term, [part.segment.postings.holders(term) for part in self.parts]) for term in sorted(terms)
        ]
        weights = [self._weight(term, holders) for term, holders in found]
        most, squares = sum(weights), sum(weight**2 for weight in weights)
        for (_, holding), weight in zip(found, weights, strict=True):
            # By whether the question holds it.
            values = np.array([ANSWER_WORD, 1.0]) * (weight**2 / squares)
            values = values.astype(np.float32)
            for holders, norms, (bm25, shared) in zip(holding, self._norms, views, strict=True):
                if holders is not None:
                    documents = holders.documents.astype(np.intp)
                    # In half the time of `+=`, which reads and writes the places in two passes.
                    np.add.at(
                        bm25, documents, np.float32(weight) * saturated(holders.counts, norms[documents])
                    )
                    np.add.at(shared, documents, values.take(holders.in_question))
        return scores, share, most

    def place(self, number: int) -> tuple[Segment, int]:
        """Return the segment and the position in it of a place."""
        part = int(np.searchsorted(self._ends, number, side="right"))
        segment = self.parts[part].segment
        return segment, number - (int(self._ends[part]) - len(segment))

    def sharp_scores(self, places: NDArray[np.intp], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [P], a query's cosines with the entries at some places, within `ROUNDING`; places rise."""
        if len(places) > _FEW * len(self._alive):
            [dense] = self._dense_scores(vector[None], in_full=True)
            return dense.scores[places]
        parts = np.split(places, np.searchsorted(places, self._ends[:-1]))
        starts = [0, *self._ends[:-1].tolist()]
        return np.concatenate(
            [
                part.segment.sharp_products(numbers - start, vector)
                for part, numbers, start in zip(self.parts, parts, starts, strict=True)
            ]
        )

    def _dense_scores(self, vectors: NDArray[np.float32], *, in_full: bool) -> Iterator["_Dense"]:
        """Yield every place's cosine with each query."""
        block = [part.segment.products(vectors, in_full=in_full) for part in self.parts]
        for row in range(len(vectors)):
            scores = [
                part.segment.best_phrasing(products[row])
                for part, (products, _) in zip(self.parts, block, strict=True)
            ]
            bound = max(float(bounds[row]) for _, bounds in block)
            yield _Dense(np.concatenate(scores), bound)

    def _dense_scores_of(self, places: NDArray[np.intp], vector: NDArray[np.float32]) -> "_Dense":
        """Return the cosines of a few places; those of all others mean nothing."""
        scores = np.zeros(len(self._alive), dtype=np.float32)
        scores[places] = self.sharp_scores(places, vector)
        return _Dense(scores, ROUNDING)

    def _allowed(self, filter_: Filter | None) -> NDArray[np.bool_]:
        if filter_ is None or not self.parts:
            return self._alive
        return np.concatenate([part.alive & part.segment.mask(filter_) for part in self.parts])

    def _weight(self, term: str, found: Sequence[Holders | None]) -> float:
        if self.statistics is None:
            return idf(self._size, self._holding(found))
        return idf(self.statistics.entries, self.statistics.holding[term])

    def _holding(self, found: Sequence[Holders | None]) -> int:
        """Count the living holders of one term."""
        total = 0
        for holders, part, whole in zip(found, self.parts, self._whole, strict=True):
            if holders is not None:
                documents = holders.documents
                total += len(documents) if whole else int(np.count_nonzero(part.alive[documents]))
        return total


@dataclass(frozen=True, slots=True)
class _Dense:
    """A query's cosine with every place: [places] float32, and how far they are off at most."""

    scores: NDArray[np.float32]
    bound: float


class _Search:
    """One query's search of one index; scores are of places, dead ones included."""

    def __init__(
        self,
        index: FaqIndex,
        query: str,
        vector: NDArray[np.float32],
        dense: _Dense,
        allowed: NDArray[np.bool_],
    ) -> None:
        self._index = index
        self._vector = vector
        self._allowed = allowed
        self._terms = frozenset(lexical_terms(query))
        # What is not allowed is further away than anything.
        self._dense = np.where(allowed, dense.scores, np.float32(-np.inf))
        self._bound = dense.bound
        # Whose cosine was looked at in full since.
        self._sharp = np.zeros(len(allowed), dtype=np.bool_)
        self._lexical, self._share, self._most = index.lexical_scores(self._terms)

    def hits(self, mode: Mode, unrelated: float, top_k: int) -> list[Hit]:
        found = []
        vector = self._vector.astype(np.float64)
        for place in self._best(mode, unrelated, top_k).tolist():
            segment, position = self._index.place(place)
            phrasings = segment.exact_products(position, vector)
            best = int(phrasings.argmax())
            # float32 rounding takes a text's cosine with itself past 1.
            dense = min(1.0, max(-1.0, float(phrasings[best])))
            score = self._score(mode, unrelated, place, dense)
            entry = segment.entries[position]
            found.append((-score, entry.id, place, entry, dense, entry.phrasings[best]))
        found.sort(key=lambda item: item[:2])
        del found[top_k:]
        dense_ranks = self._dense_ranks([dense for _, _, _, _, dense, _ in found])
        lexical_ranks = self._lexical_ranks([place for _, _, place, _, _, _ in found])
        return [
            Hit(
                entry=entry,
                score=min(1.0, max(0.0, -negative)),
                dense=dense,
                lexical=float(self._lexical[place]),
                share=min(1.0, float(self._share[place])),
                dense_rank=dense_rank,
                lexical_rank=lexical_rank,
                matched_phrasing=phrasing,
                terms=self._terms,
            )
            for (negative, _, place, entry, dense, phrasing), dense_rank, lexical_rank in zip(
                found, dense_ranks, lexical_ranks, strict=True
            )
        ]

    def _best(self, mode: Mode, unrelated: float, top_k: int) -> NDArray[np.intp]:
        """Return the places that may be among the best; float32 does to tell which."""
        if mode == "lexical":
            found = self._allowed & (self._lexical > 0)
            return leaders(np.where(found, self._lexical, np.float32(-np.inf)), top_k)
        # By how much a key can be off for a cosine that is: neither form rises faster than closeness.
        slope = 1.0 if mode == "dense" else 1 / (1 - unrelated)
        places = leaders(self._keys(mode, unrelated, slice(None)), top_k, self._bound * slope)
        if self._bound > ROUNDING:
            self._sharpen(places)
            places = places[leaders(self._keys(mode, unrelated, places), top_k, ROUNDING * slope)]
        return places

    def _keys(self, mode: Mode, unrelated: float, places: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        dense = self._dense[places]
        return dense if mode == "dense" else lifted(closeness(dense, unrelated), self._share[places])

    def _sharpen(self, places: NDArray[np.intp]) -> None:
        self._dense[places] = self._index.sharp_scores(places, self._vector)
        self._sharp[places] = True

    def _dense_ranks(self, hits: Sequence[float]) -> list[int]:
        """Return one more than the number of entries closer than each by more than float32 can tell."""
        reach = self._bound + ROUNDING
        near = np.flatnonzero(self._dense >= np.float32(min(hits, default=np.inf) - reach))
        scores = self._dense[near]
        if self._bound > ROUNDING:
            unsure = np.zeros(len(near), dtype=np.bool_)
            for dense in hits:
                unsure |= np.abs(scores - np.float32(dense)) <= reach
            self._sharpen(near[unsure & ~self._sharp[near]])
            scores = self._dense[near]
        return [1 + int(np.count_nonzero(scores > dense + ROUNDING)) for dense in hits]

    def _lexical_ranks(self, places: Sequence[int]) -> list[int | None]:
        """Return one more than the number of entries with a higher score; None for those without one."""
        least = min((float(self._lexical[place]) for place in places), default=0.0)
        scores = self._lexical[self._allowed & (self._lexical > least)]
        return [
            1 + int(np.count_nonzero(scores > self._lexical[place])) if self._lexical[place] > 0 else None
            for place in places
        ]

    def _score(self, mode: Mode, unrelated: float, place: int, dense: float) -> float:
        if mode == "lexical":
            return float(self._lexical[place]) / self._most
        close = closeness(dense, unrelated)
        # Sums in float32 come to a little more than one now and then.
        share = min(1.0, float(self._share[place]))
        # Plain floats: NumPy's own are no numbers to JSON.
        return float(close if mode == "dense" else lifted(close, share))


def _without(part: Part, ids: AbstractSet[str]) -> Part:
    positions = [position for each in ids if (position := part.segment.position(each)) is not None]
    if not positions:
        return part
    alive = part.alive.copy()
    alive[positions] = False
    return Part(part.segment, alive)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Bring the segments, oldest first, into the order of sizes that keeps them few."""
    result: list[Part] = []
    for part in parts:
        if not part.living:
            continue
        result.append(part)
        while len(result) > 1 and (
            result[-2].living < _RATIO * result[-1].living or result[-2].living + result[-1].living <= _SMALL
        ):
            result[-2:] = [_joined(result[-2:])]
        if result[-1].living < (1 - _MOST_DEAD) * len(result[-1].segment):
            result[-1] = _joined(result[-1:])
    return result


def _joined(parts: Sequence[Part]) -> Part:
    segment = Segment.merged([(part.segment, part.alive) for part in parts])
    return Part(segment, np.ones(len(segment), dtype=np.bool_))

"""What an index is made of: a segment holds some entries and never changes.

One row per phrasing holds half the sum of the phrasing's vector and that of question + answer. A query's
product with a row is then the mean of its two cosines, so one pass over one matrix gives what two matrices
would, and the best phrasing of an entry is the highest of its rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.faq.embedded_texts import question_and_answer
from service.faq.entries import FaqEntry
from service.faq.filters import Column, Filter
from service.faq.lexical import LexicalDocument, Postings

if TYPE_CHECKING:
    from service.faq.quantised import QuantisedRows

# Filters and fields asked for last are answered from memory; a mask has a byte an entry.
_CACHED: Final = 32
# So many queries are answered one by one rather than by one matrix product.
_FEW: Final = 2
# From so many rows on, eight bits come first; fewer are read from the processor's cache in no time.
_QUANTISED_FROM: Final = 4_096
# Rows copied together to be multiplied in full: they stay in the processor's cache.
_STRIP: Final = 128

# How far a float32 product of unit vectors is from the exact one, at most; seen: 5e-7.
ROUNDING: Final = 1e-5

Value = TypeVar("Value")


class Segment:
    """Entries with their vectors and terms.

    Shapes: N entries, A alternates of all of them, d dimensions.

    Attributes:
        entries: N, none of them disabled.
        rows: [N + A, d]; the questions in the order of the entries, then the alternates in that order.
        owners: [A], rising: whose alternates they are.
        postings: of the same N, in their order.
    """

    def __init__(
        self,
        entries: tuple[FaqEntry, ...],
        rows: NDArray[np.float32],
        owners: NDArray[np.int32],
        postings: Postings,
    ) -> None:
        """Take the parts as `of` and `merged` make them."""
        self.entries = entries
        self.postings = postings
        self.rows = rows
        self.owners = owners
        # Who has alternates at all, and where those start among the A.
        self._having, first = np.unique(owners, return_index=True)
        self._alternates_start = first.astype(np.intp)
        self._quantised = _in_eight_bits(rows) if len(rows) >= _QUANTISED_FROM else None
        self._position_of = {entry.id: position for position, entry in enumerate(entries)}
        self._masks: _Recent[NDArray[np.bool_]] = _Recent(_CACHED)
        self._columns: _Recent[Column] = _Recent(_CACHED)

    @classmethod
    def of(cls, entries: Sequence[FaqEntry], vectors: Mapping[str, NDArray[np.float32]]) -> Self:
        """Build a segment.

        Args:
            entries: none of them disabled, ids unique.
            vectors: [d] each, unit length, one for every text that `texts_to_embed` names; more are allowed.

        Raises:
            KeyError: a text has no vector.
            ValueError: vectors differ in length, or one is not finite.
        """
        alternates = [(owner, text) for owner, entry in enumerate(entries) for text in entry.alternates]
        phrasings = [entry.question for entry in entries] + [text for _, text in alternates]
        owners = np.asarray([owner for owner, _ in alternates], dtype=np.int32)
        # Row by row into one block: the vectors are not held a second time.
        rows = np.empty((len(phrasings), len(vectors[phrasings[0]]) if phrasings else 0), dtype=np.float32)
        for row, text in enumerate(phrasings):
            rows[row] = vectors[text]
        for row, entry in enumerate(entries):
            rows[row] += vectors[question_and_answer(entry)]
        for row, owner in enumerate(owners.tolist(), start=len(entries)):
            rows[row] += vectors[question_and_answer(entries[owner])]
        rows /= np.float32(2)
        if not np.isfinite(rows).all():
            raise ValueError("a vector is not finite")
        postings = Postings.of(LexicalDocument("\n".join(entry.phrasings), entry.answer) for entry in entries)
        return cls(tuple(entries), rows, owners, postings)

    @classmethod
    def merged(cls, parts: Sequence[tuple[Segment, NDArray[np.bool_]]]) -> Self:
        """Join the entries that are marked, in their order, into one segment.

        Args:
            parts: segments and [N], True for an entry to keep.
        """
        questions: list[NDArray[np.float32]] = []
        alternates: list[NDArray[np.float32]] = []
        owners: list[NDArray[np.int32]] = []
        entries: list[FaqEntry] = []
        for segment, kept in parts:
            count = len(segment)
            stays = kept[segment.owners]
            renumbered = (np.cumsum(kept) - 1 + len(entries)).astype(np.int32)
            questions.append(segment.rows[:count] if kept.all() else segment.rows[:count][kept])
            alternates.append(segment.rows[count:][stays])
            owners.append(renumbered[segment.owners[stays]])
            entries.extend(entry for entry, keep in zip(segment.entries, kept.tolist(), strict=True) if keep)
        rows = np.concatenate([*questions, *alternates])
        postings = Postings.merged([(segment.postings, kept) for segment, kept in parts])
        return cls(tuple(entries), rows, np.concatenate(owners), postings)

    def __len__(self) -> int:
        """Return N."""
        return len(self.entries)

    def position(self, entry_id: str) -> int | None:
        """Return where the entry of that id stands; None if it is not here."""
        return self._position_of.get(entry_id)

    @property
    def dimensions(self) -> int:
        """Numbers in a vector, d."""
        return int(self.rows.shape[1])

    def products(
        self, vectors: NDArray[np.float32], *, in_full: bool = False
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return [Q, N + A], of each query's vector with each row, and [Q], how far off they are at most.

        Args:
            vectors: [Q, d].
            in_full: they are to be within `ROUNDING`.
        """
        if self._quantised is not None and not in_full:
            return self._quantised.products(vectors)
        products: NDArray[np.float32]
        if len(vectors) > _FEW:
            products = vectors @ self.rows.T
        else:
            # On one thread: two threads that wait for each other beside a busy encoder take longer.
            products = np.stack([np.vecdot(self.rows, vector) for vector in vectors])
        return products, np.full(len(vectors), ROUNDING)

    def best_phrasing(self, products: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [N], each entry's highest product of one query's [N + A]."""
        count = len(self)
        best = products[:count].copy()
        if len(self._having):
            highest = np.maximum.reduceat(products[count:], self._alternates_start)
            best[self._having] = np.maximum(best[self._having], highest)
        return best

    def sharp_products(self, positions: NDArray[np.intp], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [P], the highest product of one query with each of P entries, within `ROUNDING`."""
        best = self._row_products(positions, vector)
        first, end = np.searchsorted(self.owners, [positions, positions + 1])
        counts = end - first
        having = np.flatnonzero(counts)
        if len(having):
            counts = counts[having]
            starts = np.cumsum(counts) - counts
            rows = np.repeat(first[having] - starts, counts) + np.arange(counts.sum()) + len(self)
            alternates = np.maximum.reduceat(self._row_products(rows, vector), starts)
            best[having] = np.maximum(best[having], alternates)
        return best

    def _row_products(self, rows: NDArray[np.intp], vector: NDArray[np.float32]) -> NDArray[np.float32]:
        products = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(rows), _STRIP):
            strip = slice(start, start + _STRIP)
            np.vecdot(self.rows.take(rows[strip], axis=0), vector, out=products[strip])
        return products

    def exact_products(self, position: int, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the products of a query's vector with an entry's phrasings, in their order.

        In float64 and summed row by row: the same to the last bit whichever rows stand beside them, so that
        the order of hits depends neither on how entries came in nor on which queries were asked together.
        """
        first, end = np.searchsorted(self.owners, [position, position + 1])
        count = len(self)
        rows = np.concatenate([self.rows[position : position + 1], self.rows[count + first : count + end]])
        exact: NDArray[np.float64] = (rows.astype(np.float64) * vector).sum(axis=1)
        return exact

    def mask(self, filter_: Filter) -> NDArray[np.bool_]:
        """Return [N], True for the entries meant; worked out once for the filters asked for last."""
        return self._masks.get(filter_.key, lambda: filter_.select(self._column))

    def nbytes(self) -> int:
        """Return the bytes of the arrays; entries and terms themselves are not counted."""
        codes = 0 if self._quantised is None else self._quantised.nbytes()
        return self.rows.nbytes + self.owners.nbytes + self.postings.nbytes() + codes

    def _column(self, field: str) -> Column:
        return self._columns.get(field, lambda: Column(self.entries, field))


def _in_eight_bits(rows: NDArray[np.float32]) -> QuantisedRows:
    from service.faq.quantised import QuantisedRows  # noqa: PLC0415 - brings onnxruntime; short FAQs need none

    return QuantisedRows(rows)


class _Recent(Generic[Value]):
    """The values made last, by name; safe for several threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[str, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str, make: Callable[[], Value]) -> Value:
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
                return self._values[name]
        # Outside the lock, so that nobody waits for another's filter; made twice now and then.
        value = make()
        with self._lock:
            self._values[name] = value
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return value

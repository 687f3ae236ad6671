"""The index of a FAQ: exact, in memory, never changed once built.

One row per phrasing holds half the sum of the phrasing's vector and that of question + answer. A query's
product with a row is then the mean of its two cosines, so one pass over one matrix gives what two matrices
would, and the best phrasing of an entry is the highest of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.faq.entries import FaqEntry
from service.faq.lexical import LexicalIndex, lexical_terms
from service.faq.ranking import rank

# Bounds the block of cosines held at once (queries x rows), in float32 values: 16 MiB.
_BLOCK: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Hit:
    """An entry found for a query.

    Attributes:
        id: the entry's id.
        question: its standard wording.
        answer: its answer.
        score: 0..1, falling along the hits; 0 is no closer than unrelated texts, 1 is the same text
        (`ranking.rank`). dense: -1..1, the mean of the cosines with the matched question and with question
        + answer. lexical: BM25 over all of the entry's text, from 0, without an upper bound.
        matched_question: the phrasing, the question or an alternate, closest to the query. entry: the whole
        entry.
    """

    id: str
    question: str
    answer: str
    score: float
    dense: float
    lexical: float
    matched_question: str
    entry: FaqEntry


def texts_to_embed(entries: Sequence[FaqEntry]) -> list[str]:
    """Return the distinct texts whose vectors an index of ``entries`` is built from, in a fixed order."""
    texts: dict[str, None] = {}
    for entry in entries:
        if entry.enabled:
            texts.update(dict.fromkeys(entry.phrasings))
            texts[_question_and_answer(entry)] = None
    return list(texts)


class FaqIndex:
    """Finds the entries nearest to a query; disabled entries are never found.

    Shapes: Q queries, N enabled entries, P phrasings of all of them, d dimensions.
    """

    def __init__(
        self, entries: Sequence[FaqEntry], texts: Sequence[str], vectors: NDArray[np.float32]
    ) -> None:
        """Build the index.

        Args:
            entries: with ids that are unique.
            texts: what `texts_to_embed` gives for ``entries``; more than that is allowed.
            vectors: [len(texts), d], unit length.

        Raises:
            ValueError: an id is there twice, a text has no vector, or a vector is not finite.
        """
        self.entries: tuple[FaqEntry, ...] = tuple(entry for entry in entries if entry.enabled)
        if len({entry.id for entry in entries}) != len(entries):
            raise ValueError("two entries have the same id")
        if len(texts) != len(vectors):
            raise ValueError(f"{len(texts)} texts and {len(vectors)} vectors")
        if not np.isfinite(vectors).all():
            raise ValueError("a vector is not finite")
        row_of = {text: row for row, text in enumerate(texts)}
        phrasing_rows: list[int] = []
        answer_rows: list[int] = []
        starts: list[int] = []
        try:
            for entry in self.entries:
                starts.append(len(phrasing_rows))
                phrasing_rows.extend(row_of[text] for text in entry.phrasings)
                answer_rows.extend([row_of[_question_and_answer(entry)]] * len(entry.phrasings))
        except KeyError as error:
            raise ValueError("a text of an entry has no vector") from error
        self._starts = np.asarray(starts, dtype=np.intp)  # [N]
        self._ends = np.append(self._starts[1:], len(phrasing_rows)).astype(np.intp)  # [N]
        self._rows: NDArray[np.float32] = (vectors[phrasing_rows] + vectors[answer_rows]) / np.float32(
            2
        )  # [P, d]
        self._lexical = LexicalIndex(
            [lexical_terms("\n".join((*entry.phrasings, entry.answer))) for entry in self.entries]
        )

    def __len__(self) -> int:
        """Return N."""
        return len(self.entries)

    def search(
        self, queries: Sequence[str], vectors: NDArray[np.float32], *, unrelated: float, top_k: int
    ) -> list[list[Hit]]:
        """Return each query's best entries, best first, at most ``top_k`` of them, each entry once.

        Args:
            queries: Q texts.
            vectors: [Q, d], theirs, unit length.
            unrelated: the model's cosine for unrelated texts, below 1.
            top_k: at least 1.
        """
        if not self.entries:
            return [[] for _ in queries]
        hits: list[list[Hit]] = []
        step = max(1, _BLOCK // len(self._rows))
        for first in range(0, len(queries), step):
            block = self._cosines(vectors[first : first + step])
            for query, cosines in zip(queries[first : first + step], block, strict=True):
                hits.append(self._hits(query, cosines, unrelated, top_k))
        return hits

    def dense_scores(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return [Q, N]: of each entry, the mean cosine of its best phrasing and of question + answer."""
        return self._best_phrasing(self._cosines(vectors))

    def lexical_scores(self, query: str) -> NDArray[np.float64]:
        """Return [N]: BM25 of each entry's whole text."""
        return self._lexical.scores(lexical_terms(query))

    def _cosines(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        # float32 rounding takes a text's cosine with itself past 1.
        cosines: NDArray[np.float32] = np.clip(vectors @ self._rows.T, -1.0, 1.0)
        return cosines  # [Q, P]

    def _best_phrasing(self, cosines: NDArray[np.float32]) -> NDArray[np.float64]:
        if not self.entries:
            return np.zeros((len(cosines), 0))
        return np.maximum.reduceat(cosines, self._starts, axis=1).astype(np.float64)  # [Q, N]

    def _hits(self, query: str, cosines: NDArray[np.float32], unrelated: float, top_k: int) -> list[Hit]:
        dense = self._best_phrasing(cosines[None])[0]
        lexical = self.lexical_scores(query)
        ranked = rank(dense, lexical, unrelated=unrelated, top_k=top_k)
        hits = []
        for position, score in zip(ranked.positions, ranked.scores, strict=True):
            entry = self.entries[position]
            phrasing = int(cosines[self._starts[position] : self._ends[position]].argmax())
            hits.append(
                Hit(
                    id=entry.id,
                    question=entry.question,
                    answer=entry.answer,
                    score=float(score),
                    dense=float(dense[position]),
                    lexical=float(lexical[position]),
                    matched_question=entry.phrasings[phrasing],
                    entry=entry,
                )
            )
        return hits


def _question_and_answer(entry: FaqEntry) -> str:
    # Without an answer the question stands in: averaging with it steadies a lucky match of one alternate
    # among many.
    return f"{entry.question}\n{entry.answer}" if entry.answer else entry.question

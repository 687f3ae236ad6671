"""BM25 that also works where nothing parts the words: Han, kana and Hangul count as characters and pairs.

Characters let a query of one character match; pairs bring back the order that single characters lose. On
short Chinese questions they find more than a dictionary's words do. Written out rather than taken from a
library: the weights are worked out per query, so that an entry can come or go without touching any other
entry's postings.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Letters of scripts written without spaces (or, for Hangul, with endings stuck to the words), then runs of
# anything else that is a letter, digit or mark: "5g套餐" is "5g" and "套餐", "e1024" one word.
_UNSPACED: Final = (
    "\u3005-\u3007\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U000323af"
)
_RUN: Final = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_])+")

K1: Final = 1.2
B: Final = 0.5


def fold(text: str) -> str:
    """Make full-width and half-width, upper and lower case, and composed and decomposed letters the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def lexical_terms(text: str) -> list[str]:
    """Return the words, characters and character pairs of ``text``, folded, repeats kept."""
    terms: list[str] = []
    for run in _RUN.finditer(fold(text)):
        word = run.group()
        if run.lastgroup == "unspaced":
            terms.extend(word)
            terms.extend(word[start : start + 2] for start in range(len(word) - 1))
        else:
            terms.append(word)
    return terms


class LexicalIndex:
    """BM25 scores of N documents.

    Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework", with Lucene's idf, which
    is never negative: ln(1 + (N - df + 0.5) / (df + 0.5)).
    """

    def __init__(self, documents: Sequence[Iterable[str]]) -> None:
        """Index ``documents``, each the list of its terms; their order is the order of the scores."""
        postings: dict[str, tuple[list[int], list[int]]] = {}
        lengths = np.zeros(len(documents), dtype=np.float64)
        for number, terms in enumerate(documents):
            counts = Counter(terms)
            lengths[number] = counts.total()
            for term, count in counts.items():
                holders, frequencies = postings.setdefault(term, ([], []))
                holders.append(number)
                frequencies.append(count)
        self._postings: dict[str, tuple[NDArray[np.int32], NDArray[np.float32]]] = {
            term: (np.asarray(holders, dtype=np.int32), np.asarray(frequencies, dtype=np.float32))
            for term, (holders, frequencies) in postings.items()
        }
        self._size = len(documents)
        mean_length = float(lengths.mean()) if self._size else 0.0
        # With no term anywhere there are no postings either, so the divisor is never used.
        self._length_norm: NDArray[np.float64] = K1 * (1 - B + B * lengths / (mean_length or 1.0))

    def __len__(self) -> int:
        return self._size

    def scores(self, terms: Iterable[str]) -> NDArray[np.float64]:
        """Return every document's BM25 score for a query's terms: [N], 0 where no term matches.

        A term counts once however often the query repeats it: repeated particles carry no more meaning.
        """
        scores = np.zeros(self._size, dtype=np.float64)
        # Sorted: a sum in the order of a hash set would differ in its last bits from one process to the next.
        for term in sorted(set(terms)):
            if term not in self._postings:
                continue
            holders, frequencies = self._postings[term]
            holding = len(holders)
            idf = np.log1p((self._size - holding + 0.5) / (holding + 0.5))
            scores[holders] += idf * frequencies / (frequencies + self._length_norm[holders])
        return scores

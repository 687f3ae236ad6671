"""The search of an index as its documents define it: one entry, one vector and one word at a time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from service.faq.entries import FaqEntry
from service.faq.index import Hit
from service.faq.lexical import K1, B, lexical_terms
from tests.service.faq.hashed_vectors import hashed_vectors


@dataclass(frozen=True)
class Found:
    """What is expected of one hit."""

    score: float
    dense: float
    lexical: float
    share: float


def cosine(left: str, right: str) -> float:
    """Return the cosine of two texts."""
    one, other = hashed_vectors([left, right]).astype(np.float64)
    return float(one @ other)


def plain_dense(entry: FaqEntry, query: str) -> float:
    """Return the mean of the best phrasing's cosine and that of question and answer."""
    whole = f"{entry.question}\n{entry.answer}" if entry.answer else entry.question
    return (max(cosine(query, text) for text in entry.phrasings) + cosine(query, whole)) / 2


def plain_search(
    entries: Sequence[FaqEntry], query: str, unrelated: float, mode: str = "hybrid"
) -> dict[str, Found]:
    """Return what is known of every enabled entry, by id."""
    enabled = [entry for entry in entries if entry.enabled]
    documents = [lexical_terms("\n".join((*entry.phrasings, entry.answer))) for entry in enabled]
    mean_length = sum(map(len, documents)) / len(documents) if documents else 0.0
    weights = {}
    for term in set(lexical_terms(query)):
        holding = sum(term in document for document in documents)
        weights[term] = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
    result = {}
    for entry, document in zip(enabled, documents, strict=True):
        in_question = set(lexical_terms("\n".join(entry.phrasings)))
        lexical = shared = 0.0
        for term, weight in weights.items():
            count = document.count(term)
            if count:
                lexical += weight * count / (count + K1 * (1 - B + B * len(document) / mean_length))
                shared += weight**2 * (1.0 if term in in_question else 0.5)
        share = shared / sum(weight**2 for weight in weights.values()) if weights else 0.0
        dense = plain_dense(entry, query)
        score = (dense - unrelated) / (1 - unrelated)
        if mode == "hybrid":
            score += 0.35 * share * min(1.0, 1 - score) ** 2
        if mode == "lexical":
            score = lexical / sum(weights.values()) if weights else 0.0
        result[entry.id] = Found(min(1.0, max(0.0, score)), dense, lexical, share)
    return result


def assert_hits_are(hits: list[Hit], expected: dict[str, Found], top_k: int, mode: str = "hybrid") -> None:
    """Compare hits with the plain search's; places through the scores, as near ties may fall either way.

    1e-5: vectors are float32.
    """
    wanted = {name: found for name, found in expected.items() if mode != "lexical" or found.lexical > 0}
    assert len(hits) == min(top_k, len(wanted))
    assert len({hit.id for hit in hits}) == len(hits)
    best = sorted((found.score for found in wanted.values()), reverse=True)
    for hit, score in zip(hits, best, strict=False):
        found = wanted[hit.id]
        assert math.isclose(hit.score, score, abs_tol=1e-5)
        assert math.isclose(hit.score, found.score, abs_tol=1e-5)
        assert math.isclose(hit.dense, found.dense, abs_tol=1e-5)
        assert math.isclose(hit.lexical, found.lexical, abs_tol=1e-6)
        assert math.isclose(hit.share, found.share, abs_tol=1e-6)
        if mode != "lexical":
            assert_rank(hit.dense_rank, found.dense, [other.dense for other in wanted.values()], 1e-4)
        assert (hit.lexical_rank is None) == (found.lexical == 0)
        if hit.lexical_rank is not None:
            assert_rank(hit.lexical_rank, found.lexical, [other.lexical for other in wanted.values()], 1e-6)


def assert_rank(rank: int, value: float, every: list[float], rounding: float) -> None:
    """Check a rank, with what is nearer than ``rounding`` before or behind."""
    assert 1 + sum(other > value + rounding for other in every) <= rank
    assert rank <= max(1, sum(other > value - rounding for other in every))

"""From cosines and BM25 scores to the probability that an entry answers the query, per model.

Models differ: cosines of unrelated texts are near 0.8 for one and near 0.1 for another, so neither a bare
cosine nor any fixed formula of it says how sure one may be. Each model is therefore measured once, on texts
of our own and never on the caller's entries, so a confidence means the same for every model and in a
collection of three entries as in one of thousands. Three things are measured:

- the cosine of texts that have nothing to do with each other (`unrelated_cosine`);
- how often an entry found in the demo FAQ with given evidence is the right one (`fit_calibration`): a
  logistic regression on 122 answerable queries, the same queries with their answer taken away, and 124
  queries that the FAQ has no answer to, half in Chinese and half in English. Two thirds of these examples
  have no right answer: a confidence errs on the side of silence where most queries have one;
- how much surer the same evidence makes for an entry in another language than the query, where cosines are
  lower and words do not meet (``crossing``): each language's queries are asked of the other's half.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.index import FaqIndex, Hit
from service.faq.queries import LabelledQuery, demo_queries

UNRELATED_QUESTIONS: Final = (
    "How do I change a flat bicycle tyre?",
    "What time does the museum close on Sundays?",
    "Can I freeze fresh basil?",
    "Which documents do I need to register a company?",
    "Why is the sky darker at high altitude?",
    "My printer only prints blank pages",
    "Is this medicine safe together with coffee?",
    "How many players are on a volleyball team?",
    "怎么给阳台上的绿萝换盆？",
    "图书馆的自习室可以预约吗？",
    "为什么猫喜欢钻纸箱？",
    "高铁上可以带折叠自行车吗？",
    "租房合同到期前多久要通知房东？",
    "吉他弦生锈了怎么处理",
    "孩子发烧到多少度需要去医院？",
    "这首诗的作者是哪个朝代的？",
)

EVIDENCE_HITS: Final = 10
"""How many of a query's first hits an entry is compared with. A search must look at least this deep, whatever
the caller's ``top_k``: else the same entry would get another confidence for another ``top_k``."""

FEATURES: Final = ("closeness", "lexical_share", "margin")

# Of each query, the hits that the fit learns from: as many as most callers ask for.
_FITTED_HITS: Final = 5
# Keeps the weights finite where the examples can be told apart without error. One prior example's worth for
# features of unit spread.
_RIDGE: Final = 1.0
_NEWTON_STEPS: Final = 100
# A shift of the constant beyond this makes a probability 0 or 1 in all digits that anybody reads.
_MOST_SHIFT: Final = 20.0
_HALVINGS: Final = 60
# Languages written with Han characters only, and those that have them beside others.
_CHINESE: Final = frozenset({"zh", "yue", "wuu", "hak", "nan", "lzh", "cmn"})
_WITH_HAN: Final = _CHINESE | {"ja", "ko"}
_HAN: Final = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")


class Evidence(Protocol):
    """What a confidence is read from; `service.faq.index.Hit` has it."""

    @property
    def dense(self) -> float:
        """The mean of the cosines with the closest phrasing and with question + answer."""
        ...

    @property
    def lexical(self) -> float:
        """BM25, from 0."""
        ...

    @property
    def language(self) -> str | None:
        """Of the entry; None if it does not say."""
        ...


def unrelated_cosine(vectors: NDArray[np.float32]) -> float:
    """Return the mean cosine over all pairs of different texts.

    Args:
        vectors: [T, d], unit length, one for each of `UNRELATED_QUESTIONS`.

    Returns:
        At most 0.99, so that a model which maps everything to one point still gives a scale to divide by.
    """
    cosines = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    pairs = cosines[np.triu_indices(len(vectors), k=1)]
    return float(np.clip(pairs.mean(), -1.0, 0.99))


def features(hits: Sequence[Evidence], unrelated: float) -> NDArray[np.float64]:
    """Return what the confidence of each hit of one query is computed from.

    Args:
        hits: of one query, best first, at least the first `EVIDENCE_HITS` that there are.
        unrelated: the model's cosine for unrelated texts, below 1.

    Returns:
        [K, 3], the columns named by `FEATURES`: the cosine with `unrelated` as 0 and 1 as 1; BM25 by the
        highest BM25 of the hits compared with, 0 if none has a word of the query; the closeness less that of
        the closest other hit compared with, so that an entry with a rival as close is less sure. An entry in
        another language is no rival: more often than not it says the same. Without a rival, one counts as
        unrelated.
    """
    dense = np.array([hit.dense for hit in hits], dtype=np.float64)
    lexical = np.array([hit.lexical for hit in hits], dtype=np.float64)
    closeness = (dense - unrelated) / (1 - unrelated)
    best_lexical = lexical[:EVIDENCE_HITS].max(initial=0.0)
    share = np.minimum(lexical, best_lexical) / best_lexical if best_lexical > 0 else np.zeros_like(lexical)
    compared = closeness[:EVIDENCE_HITS]
    languages = [hit.language for hit in hits]
    rivals = np.zeros_like(closeness)
    for position, language in enumerate(languages):
        others = [
            value
            for other, value in enumerate(compared)
            if other != position and (language is None or languages[other] in {None, language})
        ]
        rivals[position] = max(others, default=0.0)
    return np.column_stack([closeness, share, closeness - rivals])


@dataclass(frozen=True, slots=True)
class Calibration:
    """One model's way from evidence to confidence.

    Attributes:
        unrelated: the model's cosine for unrelated texts, below 1.
        weights: of `FEATURES` and the constant, for queries without Han characters; the first three are not
            negative, so a closer entry is never less sure.
        han_weights: the same for queries with Han characters; differs from ``weights`` only where the model
            reads the two so differently that the examples demand it.
        crossing: added to the constant for entries in another language than the query.
    """

    unrelated: float
    weights: tuple[float, float, float, float]
    han_weights: tuple[float, float, float, float]
    crossing: float = 0.0

    def probabilities(self, query: str, hits: Sequence[Evidence]) -> NDArray[np.float64]:
        """Return for each hit the probability that it answers ``query``, each by itself: [K] in 0..1."""
        weights = np.array(self.han_weights if _HAN.search(query) else self.weights)
        crossing = np.array([self.crossing * crosses(query, hit.language) for hit in hits])
        return _sigmoid(features(hits, self.unrelated) @ weights[:-1] + weights[-1] + crossing)

    def confidences(self, query: str, hits: Sequence[Evidence]) -> list[float]:
        """Return the probabilities held from rising along the hits: a list to cut at a threshold.

        Args:
            query: the query.
            hits: its hits, best first, at least the first `EVIDENCE_HITS` that there are.
        """
        return [float(value) for value in np.minimum.accumulate(self.probabilities(query, hits))]

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` takes, ready for JSON, so that a model need be measured only once."""
        return {
            "unrelated": self.unrelated,
            "weights": list(self.weights),
            "han_weights": list(self.han_weights),
            "crossing": self.crossing,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Make a calibration of what `as_dict` gave.

        Raises:
            ValueError: the record is not such a thing, or its numbers cannot be a calibration.
        """
        try:
            unrelated, crossing = float(record["unrelated"]), float(record["crossing"])
            weights, han_weights = (
                _four([float(value) for value in record[name]]) for name in ("weights", "han_weights")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a calibration: {error!r}") from error
        numbers = (unrelated, crossing, *weights, *han_weights)
        if not all(map(math.isfinite, numbers)) or not -1 <= unrelated < 1:
            raise ValueError("not a calibration: a number is out of range")
        if min(*weights[:3], *han_weights[:3]) < 0:
            raise ValueError("not a calibration: a weight is negative")
        return cls(unrelated, weights, han_weights, crossing)


def crosses(query: str, language: str | None) -> bool:
    """Return whether an entry's language is surely another than the query's, as far as Han characters tell.

    Args:
        query: any text.
        language: the entry's BCP 47 tag; None if it does not say.
    """
    if language is None:
        return False
    tag = language.partition("-")[0].lower()
    return tag not in _WITH_HAN if _HAN.search(query) else tag in _CHINESE


def texts_to_measure() -> list[str]:
    """Return the distinct texts whose vectors `fit_calibration` needs, in a fixed order."""
    queries = [query.query for query in demo_queries()]
    return list(dict.fromkeys((*UNRELATED_QUESTIONS, *queries, *texts_to_embed(demo_entries()))))


def fit_calibration(vectors: Mapping[str, NDArray[np.float32]]) -> Calibration:
    """Measure a model.

    Chinese queries are asked of the Chinese half of the demo FAQ and English ones of the English half: an
    entry's twin in the other language is right as well, and would pass for a rival. Then the other way round,
    for what crossing languages changes: of that only the constant, since there are too few right answers to
    tell weights of their own.

    Queries with Han characters get weights of their own only if the Bayesian information criterion says that
    the examples demand it: a model that knows both languages is steadier with one set, one that knows no
    Chinese is wrong about it in English terms.

    Args:
        vectors: unit length, one for each of `texts_to_measure`.

    Raises:
        KeyError: a text has no vector.
    """
    unrelated = unrelated_cosine(np.stack([vectors[text] for text in UNRELATED_QUESTIONS]))
    rows, right, is_han = _evidence(_examples(vectors, unrelated), unrelated)
    both = fit_logistic(rows, right)
    apart = [fit_logistic(rows[of], right[of]) for of in (~is_han, is_han)]
    gain = sum(
        _log_likelihood(rows[of], right[of], weights)
        for of, weights in zip((~is_han, is_han), apart, strict=True)
    ) - _log_likelihood(rows, right, both)
    # Schwarz 1978: half the log of the number of examples for each further parameter.
    demanded = gain > len(both) * math.log(len(rows)) / 2
    first, second = apart if demanded else (both, both)
    rows, right, is_han = _evidence(_examples(vectors, unrelated, crossing=True), unrelated)
    scores = np.where(is_han, rows @ second[:-1] + second[-1], rows @ first[:-1] + first[-1])
    return Calibration(unrelated, _four(first), _four(second), _shift(scores, right))


def _evidence(
    examples: Sequence[tuple[LabelledQuery, list[Hit]]], unrelated: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Return features, whether the entry is right, and whether its query has Han characters, a row a hit."""
    blocks: list[NDArray[np.float64]] = []
    labels: list[bool] = []
    han: list[bool] = []
    for query, hits in examples:
        block = features(hits, unrelated)[:_FITTED_HITS]
        blocks.append(block)
        labels.extend(hit.id in query.faq_ids for hit in hits[:_FITTED_HITS])
        han.extend([_HAN.search(query.query) is not None] * len(block))
    return np.concatenate(blocks), np.array(labels, dtype=np.float64), np.array(han)


def _shift(scores: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return what to add to all scores, so that they come to as many right entries as there are."""
    low, high = -_MOST_SHIFT, _MOST_SHIFT
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _sigmoid(scores + middle).sum() < right.sum():
            low = middle
        else:
            high = middle
    return (low + high) / 2


def fit_logistic(rows: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit a ridge logistic regression whose weights are not negative.

    Args:
        rows: [E, F], one example each.
        right: [E], 1 or 0.

    Returns:
        [F + 1], the constant last. Where the best weight would be negative it is 0: of such weights the most
        negative (by unit spread) is dropped and the rest fitted again, until none is left.
    """
    spread = rows.std(axis=0)
    kept = [column for column in range(rows.shape[1]) if spread[column] > 0]
    while True:
        fitted = _newton(rows[:, kept] / spread[kept], right)
        if not kept or fitted[:-1].min() >= 0:
            break
        kept.pop(int(fitted[:-1].argmin()))
    weights = np.zeros(rows.shape[1] + 1)
    weights[kept] = fitted[:-1] / spread[kept]
    weights[-1] = fitted[-1]
    return weights


def _newton(rows: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise the ridge logistic loss; convex, so where it ends does not depend on where it starts."""
    design = np.column_stack([rows, np.ones(len(rows))])
    # The constant is held back a little too: without any right (or wrong) example it would run away.
    ridge = np.append(np.full(rows.shape[1], _RIDGE), 1e-3)
    weights = np.zeros(design.shape[1])
    loss = _loss(design, right, ridge, weights)
    for _ in range(_NEWTON_STEPS):
        chances = _sigmoid(design @ weights)
        gradient = design.T @ (chances - right) + ridge * weights
        curvature = (design * (chances * (1 - chances))[:, None]).T @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        size = 1.0
        while (lower := _loss(design, right, ridge, weights - size * step)) > loss and size > 1e-6:
            size /= 2
        weights = weights - size * step
        if loss - lower <= 1e-12 * (1 + loss):
            break
        loss = lower
    return weights


def _loss(
    design: NDArray[np.float64],
    right: NDArray[np.float64],
    ridge: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> float:
    scores = design @ weights
    return float((np.logaddexp(0.0, scores) - right * scores).sum() + 0.5 * (ridge * weights**2).sum())


def _log_likelihood(
    rows: NDArray[np.float64], right: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    scores = rows @ weights[:-1] + weights[-1]
    return float((right * scores - np.logaddexp(0.0, scores)).sum())


def _examples(
    vectors: Mapping[str, NDArray[np.float32]], unrelated: float, *, crossing: bool = False
) -> list[tuple[LabelledQuery, list[Hit]]]:
    """Search the demo for its queries; each answerable one twice, the second time without its answer.

    Args:
        vectors: by text.
        unrelated: the model's cosine for unrelated texts.
        crossing: ask each language's queries of the entries of the other.
    """
    examples: list[tuple[LabelledQuery, list[Hit]]] = []
    entries = demo_entries()
    for language, wants_han in (("zh", not crossing), ("en", crossing)):
        bank = [entry for entry in entries if entry.language == language]
        queries = [query for query in demo_queries() if (_HAN.search(query.query) is not None) == wants_han]
        depth = EVIDENCE_HITS + 1
        for query, hits in zip(queries, _search(bank, queries, vectors, unrelated, depth), strict=True):
            examples.append((query, hits[:EVIDENCE_HITS]))
            if query.answerable:
                without = [hit for hit in hits if hit.id not in query.faq_ids]
                examples.append((query, without[:EVIDENCE_HITS]))
    return examples


def _search(
    bank: Sequence[FaqEntry],
    queries: Sequence[LabelledQuery],
    vectors: Mapping[str, NDArray[np.float32]],
    unrelated: float,
    depth: int,
) -> list[list[Hit]]:
    index = FaqIndex.empty().with_changes(bank, vectors=vectors)
    asked = [query.query for query in queries]
    return index.search(asked, np.stack([vectors[text] for text in asked]), unrelated=unrelated, top_k=depth)


def _sigmoid(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    chances: NDArray[np.float64] = np.exp(-np.logaddexp(0.0, -scores))
    return chances


def _four(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float, float]:
    first, second, third, fourth = (float(value) for value in values)
    return first, second, third, fourth

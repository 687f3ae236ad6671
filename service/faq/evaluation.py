"""How good a search is: its ranking, and whether it knows when to keep silent. Pure functions.

Two questions are kept apart. Does the right entry come first? That is asked of answerable queries only and
needs no threshold (`ranking_metrics`). Should the first hit be shown? That is asked of all queries, by the
confidence of the first hit (`answer_curve`, `auc`, `reliability`): showing it is right if it answers the
query, and wrong both if it is another entry and if nothing answers the query.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from service.faq.queries import LabelledQuery

DEFAULT_PRECISION: Final = 0.9
LIKELY: Final = 0.5
"""A confidence above it says: rather right than wrong."""
BINS: Final = 10
EVALUATED_HITS: Final = 10
"""Hits a query that the metrics look at; a search for an evaluation asks for this many."""
# Of the curve, in JSON: enough to draw it.
_SENT_POINTS: Final = 200


class ScoredHit(Protocol):
    """What an evaluation needs of a hit; `service.faq.index.Hit` has it."""

    @property
    def id(self) -> str:
        """The entry's id."""
        ...

    @property
    def question(self) -> str:
        """Its standard wording."""
        ...

    @property
    def score(self) -> float:
        """0..1, falling along the hits."""
        ...


@dataclass(frozen=True, slots=True)
class RankingMetrics:
    """Means over the answerable queries, 0..1; NaN without any.

    Attributes:
        queries: how many.
        accuracy_at_1: the first hit is right.
        hit_at_5: a right one is among the first five.
        mrr_at_10: 1 / rank of the first right one, 0 past the tenth.
        ndcg_at_10: discounted gain, every right entry worth 1, by the best gain possible.
    """

    queries: int
    accuracy_at_1: float
    hit_at_5: float
    mrr_at_10: float
    ndcg_at_10: float


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What comes of showing first hits of a confidence of at least ``threshold``.

    Attributes:
        threshold: 0..1.
        answered: queries that get an answer.
        right: of those, the ones that get a right answer.
        precision: right / answered.
        recall: right / answerable queries; it ends at the accuracy, not at 1.
        refused: of the unanswerable queries, the share that gets no answer.
    """

    threshold: float
    answered: int
    right: int
    precision: float
    recall: float
    refused: float


@dataclass(frozen=True, slots=True)
class Bin:
    """Queries whose confidence lies in [low, high), the last bin's end included.

    Attributes:
        low: where it begins.
        high: where it ends.
        queries: how many.
        confidence: their mean confidence, 0 without any.
        accuracy: the share whose first hit is right, 0 without any.
    """

    low: float
    high: float
    queries: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Failure:
    """A query that went wrong.

    Attributes:
        query: its text.
        kind: "wrong" = another entry first; "silent" = the right entry first, below the threshold; "answered"
            = no entry answers it and one was shown.
        expected: the right entries.
        found: the first hit's id, "" without hits.
        found_question: its wording.
        score: its confidence.
        rank: of the first right entry, from 1; None if it is not among the hits.
    """

    query: str
    kind: str
    expected: tuple[str, ...]
    found: str
    found_question: str
    score: float
    rank: int | None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All that is known of a search after labelled queries.

    Attributes:
        queries: how many.
        answerable: how many of them an entry answers.
        modes: the ranking by mode, in the order given.
        judged_mode: the mode that everything below is about.
        auc: of telling answerable queries from others by the first hit's confidence; NaN without both kinds.
        right_auc: of telling right first hits from others, wrong ones of answerable queries included.
        ece: expected calibration error over `BINS` bins.
        reliability: those bins.
        curve: from high thresholds to low.
        wanted_precision: asked for.
        proposed: the threshold that reaches it with most right answers, and of those the fewest wrong ones;
            None if none does.
        threshold: what failures are judged by: the one given, else the one proposed, else `LIKELY`.
        at_threshold: what comes of it; None if nothing is answered.
        failures: at that threshold, in the order of the queries.
        answerable_scores: first hits' confidences of answerable queries.
        unanswerable_scores: of the others.
    """

    queries: int
    answerable: int
    modes: dict[str, RankingMetrics]
    judged_mode: str
    auc: float
    right_auc: float
    ece: float
    reliability: tuple[Bin, ...]
    curve: tuple[CurvePoint, ...]
    wanted_precision: float
    proposed: CurvePoint | None
    threshold: float
    at_threshold: CurvePoint | None
    failures: tuple[Failure, ...]
    answerable_scores: tuple[float, ...]
    unanswerable_scores: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it ready for JSON: NaN as None, the curve thinned, without the scores of single queries."""
        record = asdict(self)
        record["curve"] = record["curve"][:: 1 + len(self.curve) // _SENT_POINTS]
        del record["answerable_scores"], record["unanswerable_scores"]
        cleaned: dict[str, Any] = _without_nan(record)
        return cleaned


def evaluate(
    queries: Sequence[LabelledQuery],
    found: Mapping[str, Sequence[Sequence[ScoredHit]]],
    *,
    wanted_precision: float = DEFAULT_PRECISION,
    threshold: float | None = None,
) -> Evaluation:
    """Judge what a search found.

    Args:
        queries: at least one.
        found: by mode, the hits of each query, best first, `EVALUATED_HITS` of them where there are as many,
            none left out for a low score. The first mode is the one that thresholds are proposed for; its
            scores are confidences.
        wanted_precision: of the answers shown, the share to be right; above 0, at most 1.
        threshold: judge failures by this one; None = by the one proposed.

    Raises:
        ValueError: there is nothing to judge, or the lengths differ.
    """
    if not queries or not found:
        raise ValueError("no queries, or no mode")
    if not 0 < wanted_precision <= 1:
        raise ValueError(f"the wanted precision is {wanted_precision}; it must lie above 0 and at most at 1")
    golds = [query.faq_ids for query in queries]
    modes = {
        mode: ranking_metrics(golds, [[hit.id for hit in hits] for hits in lists])
        for mode, lists in found.items()
    }
    judged_mode, lists = next(iter(found.items()))
    # A query without hits gets no answer whatever the threshold: below all that can be asked for.
    scores = np.array([hits[0].score if hits else -1.0 for hits in lists], dtype=np.float64)
    right = np.array(
        [bool(hits) and hits[0].id in gold for gold, hits in zip(golds, lists, strict=True)], dtype=bool
    )
    answerable = np.array([query.answerable for query in queries], dtype=bool)
    curve = answer_curve(scores, right, answerable)
    proposed = propose(curve, wanted_precision)
    if threshold is None:
        threshold = proposed.threshold if proposed else LIKELY
    confidences = np.clip(scores, 0.0, 1.0)
    return Evaluation(
        queries=len(queries),
        answerable=int(answerable.sum()),
        modes=modes,
        judged_mode=judged_mode,
        auc=auc(answerable, scores),
        right_auc=auc(right, scores),
        ece=expected_calibration_error(right, confidences),
        reliability=tuple(reliability(right, confidences)),
        curve=tuple(curve),
        wanted_precision=wanted_precision,
        proposed=proposed,
        threshold=threshold,
        at_threshold=point_at(scores, right, answerable, threshold),
        failures=tuple(_failures(queries, lists, threshold)),
        answerable_scores=tuple(confidences[answerable].tolist()),
        unanswerable_scores=tuple(confidences[~answerable].tolist()),
    )


def ranking_metrics(golds: Sequence[Sequence[str]], rankings: Sequence[Sequence[str]]) -> RankingMetrics:
    """Judge rankings.

    Args:
        golds: of each query, its right ids, each once; queries without any are left out.
        rankings: of each query, ids found, best first, each once.

    Raises:
        ValueError: the lengths differ.
    """
    rows: list[tuple[float, float, float, float]] = []
    for gold, ranking in zip(golds, rankings, strict=True):
        if not gold:
            continue
        ranks = [rank for rank, found in enumerate(ranking[:EVALUATED_HITS], start=1) if found in gold]
        first = ranks[0] if ranks else math.inf
        gain = sum(1 / math.log2(rank + 1) for rank in ranks)
        best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(gold), EVALUATED_HITS) + 1))
        rows.append((float(first == 1), float(first <= 5), 1 / first, gain / best))
    if not rows:
        return RankingMetrics(0, math.nan, math.nan, math.nan, math.nan)
    means = [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]
    return RankingMetrics(len(rows), *means)


def auc(positive: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    """Return the chance that a positive scores above a negative, ties counted half; NaN without both."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return math.nan
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # ties share their mean rank
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def answer_curve(
    scores: NDArray[np.float64], right: NDArray[np.bool_], answerable: NDArray[np.bool_]
) -> list[CurvePoint]:
    """Return what comes of each threshold that makes a difference, from high to low.

    Args:
        scores: [Q] of first hits, at most 1; negative = no hit.
        right: [Q], the first hit answers the query.
        answerable: [Q], some entry answers it.

    Returns:
        One point per distinct score. Its threshold lies halfway to the next lower score, so that a score
        which comes out a little different on another machine does not change sides.
    """
    order = np.argsort(-scores, kind="stable")
    order = order[: int((scores >= 0).sum())]
    falling = scores[order]
    # The last of each run of equal scores: whatever threshold takes one of them takes all.
    last = np.flatnonzero(np.append(falling[1:] < falling[:-1], falling.size > 0))
    good, with_answer = np.cumsum(right[order]), np.cumsum(answerable[order])
    all_with_answer = int(answerable.sum())
    points = []
    for place, position in enumerate(last):
        level = float(falling[position])
        lower = float(falling[last[place + 1]]) if place + 1 < len(last) else 0.0
        threshold = (level + lower) / 2
        points.append(
            _point(
                # Between neighbouring floats there is no room, nor between 0 and 0.
                threshold if lower < threshold < level else level,
                answered=int(position) + 1,
                right=int(good[position]),
                shown_without=int(position) + 1 - int(with_answer[position]),
                answerable=all_with_answer,
                unanswerable=len(scores) - all_with_answer,
            )
        )
    return points


def point_at(
    scores: NDArray[np.float64],
    right: NDArray[np.bool_],
    answerable: NDArray[np.bool_],
    threshold: float,
) -> CurvePoint | None:
    """Return what comes of one threshold; None if nothing is answered. Arguments as `answer_curve`."""
    shown = (scores >= threshold) & (scores >= 0)
    answered = int(shown.sum())
    if not answered:
        return None
    return _point(
        threshold,
        answered=answered,
        right=int((shown & right).sum()),
        shown_without=int((shown & ~answerable).sum()),
        answerable=int(answerable.sum()),
        unanswerable=int((~answerable).sum()),
    )


def _point(
    threshold: float, *, answered: int, right: int, shown_without: int, answerable: int, unanswerable: int
) -> CurvePoint:
    return CurvePoint(
        threshold=threshold,
        answered=answered,
        right=right,
        precision=right / answered,
        recall=right / answerable if answerable else math.nan,
        refused=1 - shown_without / unanswerable if unanswerable else math.nan,
    )


def propose(curve: Sequence[CurvePoint], wanted_precision: float) -> CurvePoint | None:
    """Return the point of ``curve`` with most right answers at the wanted precision; None if none has it.

    Of several, the one with fewest wrong answers: showing more of those helps nobody. It is as sure as the
    queries are many: on a few dozen, chance alone moves it a good deal.
    """
    reached = [point for point in curve if point.precision >= wanted_precision]
    return max(reached, key=lambda point: (point.right, point.precision), default=None)


def reliability(right: NDArray[np.bool_], confidences: NDArray[np.float64], bins: int = BINS) -> list[Bin]:
    """Cut 0..1 into bins of equal width and compare, in each, mean confidence and accuracy."""
    numbers = np.minimum((confidences * bins).astype(np.intp), bins - 1)
    result = []
    for number in range(bins):
        inside = numbers == number
        count = int(inside.sum())
        result.append(
            Bin(
                low=number / bins,
                high=(number + 1) / bins,
                queries=count,
                confidence=float(confidences[inside].mean()) if count else 0.0,
                accuracy=float(right[inside].mean()) if count else 0.0,
            )
        )
    return result


def expected_calibration_error(
    right: NDArray[np.bool_], confidences: NDArray[np.float64], bins: int = BINS
) -> float:
    """Return the mean distance of confidence and accuracy over bins, weighted by their queries.

    Source: Naeini, Cooper and Hauskrecht 2015, "Obtaining Well Calibrated Probabilities Using Bayesian
    Binning"; here of the first hit. NaN without queries.
    """
    if not len(right):
        return math.nan
    found = reliability(right, confidences, bins)
    return sum(one.queries * abs(one.confidence - one.accuracy) for one in found) / len(right)


def _failures(
    queries: Sequence[LabelledQuery], lists: Sequence[Sequence[ScoredHit]], threshold: float
) -> list[Failure]:
    failures = []
    for query, hits in zip(queries, lists, strict=True):
        shown = bool(hits) and hits[0].score >= threshold
        ranks = [rank for rank, hit in enumerate(hits, start=1) if hit.id in query.faq_ids]
        rank = ranks[0] if ranks else None
        if not query.answerable:
            kind = "answered" if shown else ""
        elif rank != 1:
            kind = "wrong"
        else:
            kind = "" if shown else "silent"
        if kind:
            failures.append(
                Failure(
                    query=query.query,
                    kind=kind,
                    expected=query.faq_ids,
                    found=hits[0].id if hits else "",
                    found_question=hits[0].question if hits else "",
                    score=hits[0].score if hits else 0.0,
                    rank=rank,
                )
            )
    return failures


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

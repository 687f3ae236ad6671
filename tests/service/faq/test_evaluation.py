"""Metrics against slow, plain oracles and numbers worked out by hand."""

import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.faq.evaluation import (
    answer_curve,
    auc,
    evaluate,
    expected_calibration_error,
    point_at,
    propose,
    ranking_metrics,
    reliability,
)
from service.faq.queries import LabelledQuery
from tests.service.faq.judged_queries import HYBRID, LEXICAL, QUERIES, Found

# Scores from a small set, so that ties are common.
JUDGED = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.2, 0.25, 0.5, 0.9, 1.0]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=30,
).map(lambda rows: [(score, right and answerable, answerable) for score, right, answerable in rows])


def columns(rows: list[tuple[float, bool, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give scores, right, answerable."""
    return (
        np.array([row[0] for row in rows]),
        np.array([row[1] and row[0] >= 0 for row in rows], dtype=bool),
        np.array([row[2] for row in rows], dtype=bool),
    )


def test_ranking_metrics_by_hand() -> None:
    """Four queries: first, third with two right, past ten, not found; an unanswerable one does not count."""
    ids = [f"e{number}" for number in range(12)]
    metrics = ranking_metrics([["e0"], ["e2", "e4"], ["e11"], ["gone"], []], [ids, ids, ids, ids, ids])
    assert metrics.queries == 4
    assert metrics.accuracy_at_1 == 1 / 4
    assert metrics.hit_at_5 == 2 / 4
    assert metrics.mrr_at_10 == pytest.approx((1 + 1 / 3) / 4)
    # Ranks 3 and 5: 1/log2(4) + 1/log2(6); the best order has ranks 1 and 2: 1 + 1/log2(3).
    second = (0.5 + 0.3868528) / (1 + 0.6309298)
    assert metrics.ndcg_at_10 == pytest.approx((1 + second) / 4, abs=1e-6)


def test_ranking_metrics_of_no_answerable_query_are_not_zero() -> None:
    """Nought would read as a search that finds nothing."""
    assert math.isnan(ranking_metrics([[]], [["a"]]).accuracy_at_1)


@given(
    st.lists(
        st.tuples(st.sets(st.sampled_from("abcdefghijklmn"), max_size=3), st.permutations("abcdefghijklm")),
        max_size=6,
    )
)
def test_ranking_metrics_equal_the_definitions(rows: list[tuple[set[str], list[str]]]) -> None:
    """Written out one query and one rank at a time."""
    golds, rankings = [sorted(gold) for gold, _ in rows], [ranking for _, ranking in rows]
    metrics = ranking_metrics(golds, rankings)
    reciprocal, gains = [], []
    for gold, ranking in zip(golds, rankings, strict=True):
        if gold:
            reciprocal.append(next((1 / (place + 1) for place in range(10) if ranking[place] in gold), 0.0))
            relevances = [1 if ranking[place] in gold else 0 for place in range(10)]
            best = [1] * len(gold) + [0] * (10 - len(gold))
            gains.append(dcg(relevances) / dcg(best))
    assert metrics.queries == len(gains)
    if gains:
        assert metrics.mrr_at_10 == pytest.approx(np.mean(reciprocal))
        assert metrics.ndcg_at_10 == pytest.approx(np.mean(gains))
        assert metrics.accuracy_at_1 <= metrics.mrr_at_10
        assert metrics.accuracy_at_1 <= metrics.hit_at_5


def dcg(relevances: list[int]) -> float:
    """Discounted cumulative gain, as in the textbook."""
    return sum(relevance / math.log2(place + 2) for place, relevance in enumerate(relevances))


@given(JUDGED)
def test_auc_is_the_chance_to_order_a_pair_rightly(rows: list[tuple[float, bool, bool]]) -> None:
    """Counted over all pairs, ties half."""
    scores, _, answerable = columns(rows)
    pairs = [
        (high > low) + (high == low) / 2
        for high, yes in zip(scores, answerable, strict=True)
        if yes
        for low, other in zip(scores, answerable, strict=True)
        if not other
    ]
    found = auc(answerable, scores)
    assert found == pytest.approx(np.mean(pairs)) if pairs else math.isnan(found)


def test_auc_by_hand() -> None:
    """The example of scikit-learn's documentation of roc_auc_score."""
    assert auc(np.array([False, False, True, True]), np.array([0.1, 0.4, 0.35, 0.8])) == 0.75


@given(JUDGED)
def test_the_curve_holds_what_counting_at_each_threshold_gives(rows: list[tuple[float, bool, bool]]) -> None:
    """And every set of answers that some threshold makes is on it, once."""
    scores, right, answerable = columns(rows)
    curve = answer_curve(scores, right, answerable)
    for point in curve:
        shown = [row for row in range(len(rows)) if scores[row] >= max(point.threshold, 0)]
        without = [row for row in range(len(rows)) if not answerable[row]]
        assert point.answered == len(shown)
        assert point.right == sum(right[row] for row in shown)
        assert point.precision == point.right / point.answered
        if answerable.any():
            assert point.recall == point.right / answerable.sum()
        if without:
            hidden = [row for row in without if row not in shown]
            assert point.refused == pytest.approx(len(hidden) / len(without))
        assert str(point) == str(point_at(scores, right, answerable, point.threshold))
    assert [point.answered for point in curve] == sorted(
        {int((scores >= level).sum()) for level in scores if level >= 0}
    )
    assert all(0 <= point.threshold <= 1 for point in curve)


@given(JUDGED, st.sampled_from([0.5, 0.9, 1.0]))
def test_the_proposed_threshold_gives_most_right_answers_and_then_fewest_wrong(
    rows: list[tuple[float, bool, bool]], wanted: float
) -> None:
    """None is proposed exactly if no threshold is good enough."""
    scores, right, answerable = columns(rows)
    best = (0, 0)  # right answers, and wrong ones, the fewer the better
    for level in scores[scores >= 0]:
        shown = scores >= level
        if right[shown].mean() >= wanted:
            best = max(best, (int(right[shown].sum()), -int((~right[shown]).sum())))
    point = propose(answer_curve(scores, right, answerable), wanted)
    assert ((point.right, point.right - point.answered) if point else (0, 0)) == best


def test_a_threshold_lies_between_scores() -> None:
    """A score that differs in its last bits on another machine must not change sides."""
    scores = np.array([0.9, 0.5, 0.1])
    right = np.array([True, True, False])
    answerable = np.array([True, True, False])
    point = propose(answer_curve(scores, right, answerable), 0.9)
    assert point is not None
    assert point.threshold == pytest.approx(0.3)
    assert (point.answered, point.right, point.precision, point.recall, point.refused) == (2, 2, 1, 1, 1)


def test_calibration_error_by_hand() -> None:
    """Two at 0.95, one right: off by 0.45; 0.3 and 0.35 share a bin, none right: off by 0.325."""
    right = np.array([True, False, False, False])
    confidences = np.array([0.95, 0.95, 0.3, 0.35])
    assert expected_calibration_error(right, confidences) == pytest.approx((2 * 0.45 + 2 * 0.325) / 4)
    bins = reliability(right, confidences)
    assert [one.queries for one in bins] == [0, 0, 0, 2, 0, 0, 0, 0, 0, 2]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_calibration_error_equals_the_definition(rows: list[tuple[float, bool]]) -> None:
    """Bins gathered in a dictionary; 1 belongs to the last one."""
    gathered: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in rows:
        gathered.setdefault(min(math.floor(confidence * 10), 9), []).append((confidence, right))
    off = sum(
        len(inside)
        * abs(sum(right for _, right in inside) / len(inside) - sum(one for one, _ in inside) / len(inside))
        for inside in gathered.values()
    ) / len(rows)
    found = expected_calibration_error(
        np.array([right for _, right in rows]), np.array([one for one, _ in rows])
    )
    assert found == pytest.approx(off, abs=1e-9)


def test_an_evaluation_names_each_failure_and_its_kind() -> None:
    """At the threshold proposed; a query without any hit is a wrong one, not a crash."""
    result = evaluate(QUERIES, {"hybrid": HYBRID, "lexical": LEXICAL})
    assert (result.queries, result.answerable, result.judged_mode) == (6, 4, "hybrid")
    assert result.proposed is not None
    assert result.threshold == result.proposed.threshold == pytest.approx((0.95 + 0.7) / 2)
    assert [(one.query, one.kind, one.rank) for one in result.failures] == [
        ("unsure", "silent", 1),
        ("mistaken", "wrong", 2),
        ("nothing", "wrong", None),
    ]
    assert result.modes["hybrid"].accuracy_at_1 == 0.5
    assert result.modes["lexical"].mrr_at_10 == 0.125


def test_a_threshold_of_the_callers_own_judges_the_failures() -> None:
    """The proposal is still made."""
    result = evaluate(QUERIES, {"hybrid": HYBRID}, threshold=0.65)
    assert result.proposed is not None
    assert [one.query for one in result.failures if one.kind == "answered"] == ["unheard of"]
    assert result.at_threshold is not None
    assert (result.at_threshold.answered, result.at_threshold.right) == (2, 1)


def test_where_no_threshold_is_good_enough_failures_are_judged_by_likelihood() -> None:
    """At 0 every unanswerable query would be listed, however unsure its hit."""
    queries = [LabelledQuery("near miss"), LabelledQuery("right", ("a",)), LabelledQuery("off topic")]
    found = [[Found("a", 0.9)], [Found("a", 0.6)], [Found("a", 0.4)]]
    result = evaluate(queries, {"hybrid": found})
    assert result.proposed is None
    assert result.threshold == 0.5
    assert [one.query for one in result.failures] == ["near miss"]


def test_an_evaluation_goes_into_strict_json() -> None:
    """Without unanswerable queries some figures do not exist: null, not NaN."""
    record = evaluate(QUERIES[:1], {"hybrid": HYBRID[:1]}).as_dict()
    assert record["auc"] is None
    assert orjson.loads(orjson.dumps(record)) == record


def test_a_long_curve_is_thinned_in_json_only() -> None:
    """Thousands of queries make as many points."""
    queries = [LabelledQuery(str(number), ("a",)) for number in range(1000)]
    found = [[Found("a", number / 1000)] for number in range(1000)]
    result = evaluate(queries, {"hybrid": found})
    assert len(result.curve) == 1000
    assert 100 <= len(result.as_dict()["curve"]) <= 200


@pytest.mark.parametrize("wanted", [0.0, -1.0, 1.1, math.nan])
def test_a_precision_that_cannot_be_wanted_is_refused(wanted: float) -> None:
    """NaN would make every comparison false."""
    with pytest.raises(ValueError, match="precision"):
        evaluate(QUERIES, {"hybrid": HYBRID}, wanted_precision=wanted)


def test_an_evaluation_of_nothing_is_refused() -> None:
    """There is no figure to give."""
    with pytest.raises(ValueError, match="no queries"):
        evaluate([], {"hybrid": []})

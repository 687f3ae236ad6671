"""Confidences: a probability, never lower for a closer entry, and learnt from our own examples only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.faq.calibration import (
    EVIDENCE_HITS,
    Calibration,
    _examples,
    crosses,
    features,
    fit_calibration,
    fit_logistic,
    texts_to_measure,
    unrelated_cosine,
)
from tests.service.faq.hashed_vectors import hashed_vectors


@dataclass(frozen=True)
class Seen:
    """A hit, as far as a confidence looks."""

    dense: float
    lexical: float
    language: str | None = None


HITS = st.lists(st.builds(Seen, st.floats(-1, 1), st.floats(0, 50) | st.just(0.0)), min_size=1, max_size=14)
WEIGHTS = st.tuples(st.floats(0, 30), st.floats(0, 30), st.floats(0, 30), st.floats(-30, 30))
CALIBRATIONS = st.builds(Calibration, st.floats(-1, 0.99), WEIGHTS, WEIGHTS, st.floats(-20, 20))
TWO = Calibration(0.5, (4.0, 1.0, 10.0, -2.0), (8.0, 1.0, 10.0, -2.0))


@pytest.fixture(scope="module")
def vectors() -> dict[str, NDArray[np.float32]]:
    """Vectors of a model that knows letters only."""
    texts = texts_to_measure()
    return dict(zip(texts, hashed_vectors(texts), strict=True))


def test_features_by_hand() -> None:
    """Closeness from the unrelated cosine, BM25 by the best one, and the lead over the closest other hit."""
    hits = [Seen(0.9, 2.0), Seen(0.7, 8.0), Seen(0.4, 0.0)]
    expected = [[0.8, 0.25, 0.4], [0.4, 1.0, -0.4], [-0.2, 0.0, -1.0]]
    np.testing.assert_allclose(features(hits, 0.5), expected)
    np.testing.assert_allclose(features([Seen(0.9, 0.0)], 0.5), [[0.8, 0.0, 0.8]])
    assert features([], 0.5).shape == (0, 3)


@given(HITS, CALIBRATIONS, st.sampled_from(["退货", "refund"]))
def test_confidences_are_probabilities_that_do_not_rise(
    hits: list[Seen], calibration: Calibration, query: str
) -> None:
    """Else a threshold would leave out an entry and show one behind it."""
    confidences = calibration.confidences(query, hits)
    assert all(0 <= one <= 1 for one in confidences)
    assert confidences == sorted(confidences, reverse=True)


@given(HITS, st.data(), CALIBRATIONS)
def test_a_closer_entry_is_never_less_sure(
    hits: list[Seen], data: st.DataObject, calibration: Calibration
) -> None:
    """And makes none of the others surer."""
    place = data.draw(st.integers(0, len(hits) - 1))
    closer = list(hits)
    closer[place] = replace(hits[place], dense=data.draw(st.floats(hits[place].dense, 1)))
    before = calibration.probabilities("refund", hits)
    after = calibration.probabilities("refund", closer)
    assert after[place] >= before[place] - 1e-12
    assert (np.delete(after, place) <= np.delete(before, place) + 1e-12).all()


@given(HITS, st.integers(0, 5))
def test_hits_past_the_compared_ones_change_nothing(hits: list[Seen], more: int) -> None:
    """The same entry has the same confidence for every top_k, so long as the search looks deep enough."""
    hits = (hits * EVIDENCE_HITS)[:EVIDENCE_HITS]
    longer = hits + [Seen(1.0, 99.0)] * more
    assert TWO.confidences("q", longer)[:EVIDENCE_HITS] == TWO.confidences("q", hits)


def test_queries_with_han_characters_take_weights_of_their_own() -> None:
    """A model may know one language and not the other."""
    hits = [Seen(0.9, 1.0), Seen(0.6, 1.0)]
    assert TWO.confidences("refund", hits) != TWO.confidences("退款", hits)
    assert TWO.confidences("VIP 退款", hits) == TWO.confidences("退款", hits)


@pytest.mark.parametrize(
    ("query", "language", "crossing"),
    [
        ("退款", "en", True),
        ("退款", "zh-Hans", False),
        ("退款", "ZH", False),
        ("退款", "ja", False),
        ("refund", "zh", True),
        ("refund", "yue-HK", True),
        ("refund", "en", False),
        ("refund", "fr", False),
        ("かな", "ja", False),
        ("refund", None, False),
        ("退款", None, False),
    ],
)
def test_crossing_is_what_han_characters_tell(query: str, language: str | None, crossing: bool) -> None:
    """Between languages of one script nothing is known, and nothing is claimed."""
    assert crosses(query, language) is crossing


def test_an_entry_in_another_language_is_judged_by_such_entries() -> None:
    """Its cosine is lower and its words never match: by the usual measure it would be no answer at all."""
    calibration = replace(TWO, crossing=2.0)
    [plain] = TWO.confidences("退款", [Seen(0.8, 0.0, language="en")])
    [raised] = calibration.confidences("退款", [Seen(0.8, 0.0, language="en")])
    assert np.log(raised / (1 - raised)) - np.log(plain / (1 - plain)) == pytest.approx(2.0)
    for language in (None, "zh"):
        same = [Seen(0.8, 0.0, language=language)]
        assert calibration.confidences("退款", same) == TWO.confidences("退款", same)


def test_across_languages_as_many_are_right_as_confidences_say(
    vectors: Mapping[str, NDArray[np.float32]],
) -> None:
    """Whatever the model: one that knows no second language is not sure of anything there."""
    calibration = fit_calibration(vectors)
    right, sure = 0, 0.0
    for query, hits in _examples(vectors, calibration.unrelated, crossing=True):
        sure += float(calibration.probabilities(query.query, hits)[:5].sum())
        right += sum(hit.id in query.faq_ids for hit in hits[:5])
    assert right > 0
    assert sure == pytest.approx(right, rel=1e-6)


def test_the_fit_is_the_same_each_time_and_for_any_order(
    vectors: Mapping[str, NDArray[np.float32]],
) -> None:
    """It is cached by the model's fingerprint, so it must depend on nothing else."""
    first = fit_calibration(vectors)
    again = fit_calibration(dict(reversed(list(vectors.items()))))
    assert first == again
    assert min(*first.weights[:3], *first.han_weights[:3]) >= 0
    assert first.weights[:3] != (0, 0, 0)


def test_a_model_that_tells_nothing_apart_is_never_sure(
    vectors: Mapping[str, NDArray[np.float32]],
) -> None:
    """All its vectors are the same; BM25 alone must not make it certain."""
    blank = np.zeros(24, dtype=np.float32)
    blank[0] = 1
    calibration = fit_calibration(dict.fromkeys(vectors, blank))
    assert calibration.unrelated == 0.99
    hits = [Seen(1.0, 3.0), Seen(1.0, 1.0)]
    assert all(0 < one < 0.8 for one in calibration.confidences("refund", hits))


def test_the_logistic_fit_finds_the_weights_that_made_the_examples() -> None:
    """Labels drawn from known chances; 20,000 of them pin each weight to about 0.1."""
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(20_000, 2)) * [1.0, 0.2]
    chances = 1 / (1 + np.exp(-(rows @ [1.0, 6.0] - 0.5)))
    right = (rng.random(len(rows)) < chances).astype(float)
    np.testing.assert_allclose(fit_logistic(rows, right), [1.0, 6.0, -0.5], atol=0.25)


def test_the_logistic_fit_is_where_the_gradient_is_nought() -> None:
    """The condition that defines it, worked out without the solver: ridge of 1 by unit spread."""
    rng = np.random.default_rng(3)
    rows = rng.random((60, 2)) * [1.0, 40.0]
    right = (rows @ [1.0, 0.03] + rng.normal(size=60) * 0.3 > 1).astype(float)
    weights = fit_logistic(rows, right)
    chances = 1 / (1 + np.exp(-(rows @ weights[:-1] + weights[-1])))
    spread = rows.std(axis=0)
    gradient = (rows / spread).T @ (chances - right) + weights[:-1] * spread
    np.testing.assert_allclose(gradient, 0, atol=1e-4)


def test_evidence_against_sense_gets_no_weight() -> None:
    """A negative weight would make a closer entry less sure."""
    rng = np.random.default_rng(5)
    rows = rng.random((200, 2))
    right = (rows[:, 0] - rows[:, 1] + rng.normal(size=200) * 0.2 > 0).astype(float)
    weights = fit_logistic(rows, right)
    assert weights[0] > 0
    assert weights[1] == 0


@pytest.mark.parametrize("right", [np.zeros(8), np.ones(8)])
def test_examples_of_one_kind_give_finite_weights(right: NDArray[np.float64]) -> None:
    """Nothing bounds such a fit but the ridge."""
    rows = np.linspace(0, 1, 8)[:, None]
    assert np.isfinite(fit_logistic(rows, right)).all()
    assert np.isfinite(fit_logistic(np.ones((8, 1)), right)).all()


@given(CALIBRATIONS)
def test_a_calibration_survives_being_stored(calibration: Calibration) -> None:
    """It is measured once per model."""
    assert Calibration.from_dict(calibration.as_dict()) == calibration


@pytest.mark.parametrize(
    "change",
    [
        {"unrelated": 1.0},
        {"unrelated": float("nan")},
        {"weights": [1.0, 2.0, 3.0]},
        {"weights": [-1.0, 2.0, 3.0, 0.0]},
        {"han_weights": None},
        {"crossing": float("inf")},
        {"crossing": None},
        {"han_weights": ["x", 0, 0, 0]},
    ],
)
def test_what_is_no_calibration_is_refused(change: dict[str, object]) -> None:
    """A cache may be torn or of another version."""
    with pytest.raises(ValueError, match="not a calibration"):
        Calibration.from_dict({**TWO.as_dict(), **change})


def test_the_unrelated_cosine_leaves_room_to_divide() -> None:
    """For a model that maps every text to one point as well."""
    assert unrelated_cosine(np.ones((4, 1), dtype=np.float32)) == 0.99


def test_the_same_answer_in_another_language_is_no_rival() -> None:
    """A bilingual FAQ has every entry twice; a twin as close must not make the right one unsure."""
    alone = features([Seen(0.9, 3.0, language="zh")], 0.7)
    twin = features([Seen(0.9, 3.0, language="zh"), Seen(0.89, 0.0, language="en")], 0.7)
    rival = features([Seen(0.9, 3.0, language="zh"), Seen(0.89, 0.0, language="zh")], 0.7)
    np.testing.assert_array_equal(twin[0], alone[0])
    assert rival[0, 2] < twin[0, 2]

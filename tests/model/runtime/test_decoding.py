"""The best allowed sequence and its probabilities, against trying all sequences one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from model.runtime.crf import LinearChainCrf
from model.runtime.decoding import Joint, SequenceDecoder, softmax
from model.runtime.label_schemes import LabelScheme

SCHEMES = {
    "bio": LabelScheme.from_labels(["I-A", "O", "B-A", "B-B", "I-B"]),
    "iob1": LabelScheme.from_labels(["O", "B-A", "I-A", "I-B"], "iob1"),
    "bioes": LabelScheme.from_labels(["O", "B-A", "I-A", "E-A", "S-A"]),
    "bilou": LabelScheme.from_labels(["U-A", "O", "B-A", "L-A"]),
    "plain": LabelScheme.from_labels(["O", "A", "B"]),
}


def is_allowed(scheme: LabelScheme, names: list[str], joints: list[int]) -> bool:
    """The rules in words, by the labels' spelling."""
    role = {"M": "I", "L": "E", "U": "S"}
    before = ("O", "")
    for name, joint in zip([*names, "O"], [*joints, Joint.FREE], strict=True):
        letter, dash, kind = name.partition("-")
        now = (role.get(letter, letter), kind) if dash else (("O", "") if name == "O" else ("I", name))
        same = before[1] == now[1] != ""
        goes_on = same and before[0] in "BI" and now[0] in "IE"
        if scheme.name in ("bioes", "bilou"):
            fits = goes_on if before[0] in "BI" else now[0] in "OBS"
        elif scheme.name == "iob1":
            # The tested labels have a B- for type A only; type B is runs of I.
            fits = now[0] in "OI" or same
        else:
            fits = now[0] in "OB" or goes_on or scheme.name == "plain"
        if joint == Joint.CONNECTOR:
            fits &= goes_on or now[0] == "O"
        if joint == Joint.BEHIND:
            fits &= goes_on or before[0] == "O"
        if not fits:
            return False
        before = now
    return True


def all_scores(
    scheme: LabelScheme, crf: LinearChainCrf | None, logits: NDArray[Any], joints: list[int]
) -> dict[tuple[int, ...], float]:
    """The score of every allowed sequence."""
    scores = {}
    for path in itertools.product(range(len(scheme.labels)), repeat=len(logits)):
        if is_allowed(scheme, [scheme.labels[label] for label in path], joints):
            score = sum(float(logits[index, label]) for index, label in enumerate(path))
            if crf is not None:
                score += float(crf.start[path[0]] + crf.end[path[-1]])
                score += sum(float(crf.transitions[pair]) for pair in itertools.pairwise(path))
            scores[path] = score
    return scores


def drawn_joints(data: st.DataObject, count: int) -> list[int]:
    """Connectors, each with a word before and one behind it."""
    joints = [int(Joint.FREE)] * count
    for index in range(1, count - 1):
        if joints[index] == Joint.FREE and data.draw(st.booleans()):
            joints[index : index + 2] = Joint.CONNECTOR, Joint.BEHIND
    return joints


@settings(deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SCHEMES)), count=st.integers(1, 5), learned=st.booleans())
def test_the_best_allowed_sequence_is_found(
    data: st.DataObject, name: str, count: int, learned: bool
) -> None:
    """For each scheme, with and without a CRF, with and without connectors."""
    scheme = SCHEMES[name]
    width = len(scheme.labels)
    logits = data.draw(arrays(np.float64, (count, width), elements=st.floats(-4, 4)))
    crf = None
    if learned:
        part = data.draw(arrays(np.float64, (width + 2, width), elements=st.floats(-3, 3)))
        crf = LinearChainCrf(part[0], part[1], part[2:])
    joints = drawn_joints(data, count)
    path, probabilities = SequenceDecoder(scheme, crf).decode(logits, np.array(joints, dtype=np.int8))

    scores = all_scores(scheme, crf, logits, joints)
    assert scores[tuple(path)] == pytest.approx(max(scores.values()), abs=1e-9)
    if crf is None:
        wanted = softmax(logits)[np.arange(count), path]
    else:
        shares = softmax(np.array(list(scores.values())))
        paths = np.array(list(scores))
        wanted = np.array([shares[paths[:, index] == label].sum() for index, label in enumerate(path)])
    np.testing.assert_allclose(probabilities, wanted, rtol=0, atol=1e-9)


@settings(deadline=None)
@given(data=st.data(), count=st.integers(1, 12))
def test_extreme_logits_keep_the_rules(data: st.DataObject, count: int) -> None:
    """No I- without its B-, however much the model wants it."""
    scheme = SCHEMES["bio"]
    logits = data.draw(arrays(np.float64, (count, 5), elements=st.sampled_from([-1e4, 0.0, 3.0, 1e4])))
    path, probabilities = SequenceDecoder(scheme).decode(logits)
    assert is_allowed(scheme, [scheme.labels[label] for label in path], [0] * count)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()


def test_a_long_sequence_under_a_crf_stays_in_range() -> None:
    """Sums over all sequences of 5,000 words overflow float64 unless each step is brought back."""
    rng = np.random.default_rng(5)
    scheme = SCHEMES["bioes"]
    crf = LinearChainCrf(rng.normal(size=5), rng.normal(size=5), rng.normal(size=(5, 5)))
    path, probabilities = SequenceDecoder(scheme, crf).decode(rng.normal(size=(5000, 5)) * 5)
    assert len(path) == 5000
    assert np.isfinite(probabilities).all()
    assert probabilities.mean() > 0.5


def test_an_orphan_inside_label_takes_the_likelier_reading() -> None:
    """A greedy reading would give I-A out of nothing, or drop a sure name."""
    scheme = LabelScheme.from_labels(["O", "B-A", "I-A"])
    path, _ = SequenceDecoder(scheme).decode(np.log([[0.55, 0.40, 0.05], [0.05, 0.05, 0.90]]))
    assert [scheme.labels[label] for label in path] == ["B-A", "I-A"]


def test_nothing_decodes_to_nothing() -> None:
    """A paragraph without words is no error."""
    path, probabilities = SequenceDecoder(SCHEMES["bio"]).decode(np.zeros((0, 5)))
    assert (path, len(probabilities)) == ([], 0)


def test_a_crf_of_other_labels_is_refused() -> None:
    """Broadcasting would make something of it."""
    crf = LinearChainCrf(np.zeros(1), np.zeros(1), np.zeros((1, 1)))
    with pytest.raises(ValueError, match="1 labels, the scheme 5"):
        SequenceDecoder(SCHEMES["bio"], crf)


@settings(deadline=None)
@given(arrays(np.float32, (3, 4), elements=st.floats(-1e4, 1e4, width=32)))
def test_softmax_gives_probabilities(logits: NDArray[np.float32]) -> None:
    """Large logits must not overflow."""
    probabilities = softmax(logits)
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-12)
    assert (probabilities >= 0).all()

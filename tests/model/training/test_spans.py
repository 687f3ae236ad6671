"""Laying spans over tokens, and reading them back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.training.spans import IGNORED_LABEL, Span, align, bio_labels, spans_of

LABELS = bio_labels(["PER", "LOC"])
LABEL_IDS = {name: index for index, name in enumerate(LABELS)}


def test_labels_follow_token_borders() -> None:
    """First token B, the rest I; tokens of no text are left out of the loss."""
    # text "Ann Lee, Rio": <s> Ann Lee , Rio </s>
    offsets = np.array([[0, 0], [0, 3], [4, 7], [7, 8], [9, 12], [0, 0]])
    names, misfits = align([Span(0, 7, "PER"), Span(9, 12, "LOC")], offsets, LABEL_IDS)
    assert names[1:-1] == [LABEL_IDS[k] for k in ("B-PER", "I-PER", "O", "B-LOC")]
    assert names[0] == names[-1] == IGNORED_LABEL
    assert not misfits


def test_a_span_inside_a_token_is_reported() -> None:
    """Such a span can never be given back; training says how many there are."""
    offsets = np.array([[0, 6], [7, 9]])
    _, misfits = align([Span(0, 3, "PER"), Span(7, 9, "LOC")], offsets, LABEL_IDS)
    assert misfits == [Span(0, 3, "PER")]


def test_a_stray_inside_label_begins_a_span() -> None:
    """As seqeval does: I-LOC after O or after I-PER opens a new span."""
    offsets = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    assert spans_of(["O", "I-LOC", "I-PER", "B-PER"], offsets) == [
        Span(1, 2, "LOC"),
        Span(2, 3, "PER"),
        Span(3, 4, "PER"),
    ]


@given(st.data())
def test_labels_give_the_spans_back(data: st.DataObject) -> None:
    """Whatever spans lie on token borders, labelling and reading back is the identity."""
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=12))
    ends = np.cumsum(lengths)
    offsets = np.stack((ends - lengths, ends), axis=1)
    spans: list[Span] = []
    token = 0
    while token < len(lengths):
        width = data.draw(st.integers(0, 3))
        if width and token + width <= len(lengths):
            label = data.draw(st.sampled_from(["PER", "LOC"]))
            spans.append(Span(int(offsets[token, 0]), int(offsets[token + width - 1, 1]), label))
        token += max(width, 1)
    label_ids, misfits = align(spans, offsets, LABEL_IDS)
    assert not misfits
    assert spans_of([LABELS[k] for k in label_ids], offsets) == spans


def test_an_unknown_label_is_an_error() -> None:
    """A label outside the list is not dropped in silence."""
    with pytest.raises(KeyError, match="B-ORG"):
        align([Span(0, 1, "ORG")], np.array([[0, 1]]), LABEL_IDS)

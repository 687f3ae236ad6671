"""Laying spans over tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from model.training.spans import IGNORED_LABEL, Span, align, bio_labels

LABELS = bio_labels(["PER", "LOC"])
LABEL_IDS = {name: index for index, name in enumerate(LABELS)}


def test_labels_follow_token_borders() -> None:
    """First token B, the rest I; tokens of no text are left out of the loss."""
    # text "Ann Lee, Rio": <s> Ann Lee , Rio </s>
    offsets = np.array([[0, 0], [0, 3], [4, 7], [7, 8], [9, 12], [0, 0]])
    names = align([Span(0, 7, "PER"), Span(9, 12, "LOC")], offsets, LABEL_IDS)
    assert names[1:-1] == [LABEL_IDS[k] for k in ("B-PER", "I-PER", "O", "B-LOC")]
    assert names[0] == names[-1] == IGNORED_LABEL


@given(st.data())
def test_labels_give_the_spans_back(data: st.DataObject) -> None:
    """Whatever spans lie on token borders, seqeval reads them out of the labels again."""
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
    names = [LABELS[number] for number in align(spans, offsets, LABEL_IDS)]
    read_back = [
        Span(int(offsets[first, 0]), int(offsets[last, 1]), label)
        for label, first, last in get_entities(names)
    ]
    assert read_back == spans


def test_an_unknown_label_is_an_error() -> None:
    """A label outside the list is not dropped in silence."""
    with pytest.raises(KeyError, match="B-ORG"):
        align([Span(0, 1, "ORG")], np.array([[0, 1]]), LABEL_IDS)

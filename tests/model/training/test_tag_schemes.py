"""Tag sequences are read as seqeval reads them."""

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities

from model.training.tag_schemes import (
    UnknownSchemeError,
    count_out_of_place,
    entities_of_tags,
    recognise_scheme,
)

TAGS = ["O", *(f"{part}-{label}" for part in "BIES" for label in ("PER", "LOC", "a-b"))]


@given(st.lists(st.sampled_from(TAGS), max_size=30))
def test_entities_are_those_of_seqeval(tags: list[str]) -> None:
    """Over any sequence, most of them invalid in every scheme."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = [(first, last, label) for label, first, last in get_entities(tags)]
    assert [tuple(run) for run in entities_of_tags(tags)] == expected


@given(st.lists(st.sampled_from(TAGS), max_size=30))
def test_other_letters_spell_the_same(tags: list[str]) -> None:
    """BILOU is BIOES with other letters."""
    bilou = [tag.replace("E-", "L-", 1).replace("S-", "U-", 1) if tag[1:2] == "-" else tag for tag in tags]
    assert entities_of_tags(bilou) == entities_of_tags(tags)


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O O", "IOB2"),
        ("B-A I-A B-A", "IOB2"),
        ("I-A I-A B-A O I-B", "IOB1"),
        ("I-A O B-B", "IOB2"),
        ("O A A B-long", "plain"),
        ("S-A O B-A E-A", "BIOES"),
        ("B-A I-A L-A", "BILOU"),
        ("B-A M-A E-A S-B", "BMES"),
    ],
)
def test_schemes_are_told_apart(tags: str, scheme: str) -> None:
    """By their letters, IOB1 from IOB2 by where a B stands."""
    if scheme == "plain":
        tags = tags.replace("B-long", "creative-work")
    assert recognise_scheme([tags.split()]) == scheme


@pytest.mark.parametrize("tags", ["B I O", "B-A U-A E-A"])
def test_letters_of_no_scheme_are_refused(tags: str) -> None:
    """Letters without labels, and letters of two schemes."""
    with pytest.raises(UnknownSchemeError):
        recognise_scheme([tags.split()])


@pytest.mark.parametrize(
    ("tags", "scheme", "count"),
    [
        ("B-A I-A O B-B", "IOB2", 0),
        ("I-A O B-A I-B", "IOB2", 2),
        ("I-A B-A O I-B", "IOB1", 0),
        ("B-A I-A", "IOB1", 1),
        ("B-A I-A E-A S-A O", "BIOES", 0),
        ("B-A O E-A B-A E-B I-B", "BIOES", 5),
        ("A A B", "plain", 0),
    ],
)
def test_tags_out_of_place_are_counted(tags: str, scheme: str, count: int) -> None:
    """So that a file in the wrong scheme shows."""
    assert count_out_of_place(tags.split(), scheme) == count

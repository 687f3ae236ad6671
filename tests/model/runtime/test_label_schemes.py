"""Which sequences a scheme allows, and which entities they stand for."""

from __future__ import annotations

import itertools

import pytest

from model.runtime.bundle import SchemeName
from model.runtime.label_schemes import LabelScheme

BIOES = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "E-B"]


def runs(scheme: LabelScheme, names: list[str]) -> list[tuple[int, int, str]] | None:
    """(first, last, type) of each entity by the scheme's tables; None if the sequence is not allowed."""
    path = [scheme.labels.index(name) for name in names]
    allowed = scheme.may_start[path[0]] and scheme.may_end[path[-1]]
    for before, after in itertools.pairwise(path):
        allowed &= scheme.may_follow[before, after]
    if not allowed:
        return None
    found: list[tuple[int, int, str]] = []
    for index, label in enumerate(path):
        kind = scheme.types[label]
        if kind is None:
            continue
        if index and scheme.continues[path[index - 1], label]:
            found[-1] = (found[-1][0], index, kind)
        else:
            found.append((index, index, kind))
    return found


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (["O", "B-X", "I-X"], "bio"),
        (["I-X", "B-X", "O"], "bio"),
        (["O", "B-X"], "bio"),
        (["O", "I-X"], "iob1"),
        (["O", "B-X", "I-X", "E-X", "S-X"], "bioes"),
        (["O", "B-X", "M-X", "E-X", "S-X"], "bioes"),
        (["O", "B-X", "I-X", "L-X", "U-X"], "bilou"),
        (["O", "PER", "LOC"], "plain"),
        (["O", "ORG-COM", "X-"], "plain"),
        (["O"], "plain"),
    ],
)
def test_letters_tell_the_scheme(labels: list[str], name: str) -> None:
    """Published models say nothing else about it."""
    assert LabelScheme.from_labels(labels).name == name


@pytest.mark.parametrize(
    ("scheme", "labels", "sequence", "wanted"),
    [
        ("bio", "O B-A I-A B-B I-B", "B-A I-A B-A O B-B", [(0, 1, "A"), (2, 2, "A"), (4, 4, "B")]),
        ("bio", "O B-A I-A B-B I-B", "O I-A", None),
        ("bio", "O B-A I-A B-B I-B", "B-A I-B", None),
        ("bio", "O B-A I-A I-B", "I-B I-B B-A I-A", [(0, 1, "B"), (2, 3, "A")]),
        ("iob1", "O B-A I-A", "I-A I-A B-A I-A O I-A", [(0, 1, "A"), (2, 3, "A"), (5, 5, "A")]),
        ("iob1", "O B-A I-A I-B", "I-B I-A B-A", [(0, 0, "B"), (1, 1, "A"), (2, 2, "A")]),
        ("iob1", "O B-A I-A", "B-A I-A", None),
        ("iob1", "O B-A I-A I-B", "I-B B-A", None),
        ("bioes", BIOES, "B-A I-A E-A S-A B-B E-B", [(0, 2, "A"), (3, 3, "A"), (4, 5, "B")]),
        ("bioes", BIOES, "B-A", None),
        ("bioes", BIOES, "B-A O", None),
        ("bioes", BIOES, "B-A S-A", None),
        ("bioes", BIOES, "S-A I-A E-A", None),
        ("bioes", BIOES, "B-A E-B", None),
        ("bilou", "O B-A I-A L-A U-A", "U-A B-A L-A O", [(0, 0, "A"), (1, 2, "A")]),
        ("bilou", "O B-A I-A L-A U-A", "B-A I-A O", None),
        ("plain", "O A B", "A A B O A", [(0, 1, "A"), (2, 2, "B"), (4, 4, "A")]),
        ("plain", "O B-cell T-cell", "B-cell B-cell T-cell", [(0, 1, "B-cell"), (2, 2, "T-cell")]),
    ],
)
def test_sequences_stand_for_the_entities_of_their_scheme(
    scheme: SchemeName, labels: str | list[str], sequence: str, wanted: list[tuple[int, int, str]] | None
) -> None:
    """Written out by hand from the schemes' definitions."""
    names = labels.split() if isinstance(labels, str) else labels
    assert runs(LabelScheme.from_labels(names, scheme), sequence.split()) == wanted


@pytest.mark.parametrize("labels", [["B-X", "I-X"], ["O", "O"], ["O", "B-X", "Q-X"], ["O", "E-X", "L-X"]])
def test_labels_that_would_be_misread_are_refused(labels: list[str]) -> None:
    """No O, repeated, or letters of no scheme; the last are told where to say that they are none."""
    with pytest.raises(ValueError, match="label"):
        LabelScheme.from_labels(labels)


def test_a_letter_that_the_named_scheme_lacks_is_refused() -> None:
    """The manifest says bio, the labels say more."""
    with pytest.raises(ValueError, match="'S-X': scheme bio has B I, not S"):
        LabelScheme.from_labels(["O", "B-X", "S-X"], "bio")


def test_types_are_listed_once_in_label_order() -> None:
    """As /info and messages give them."""
    assert LabelScheme.from_labels(["O", "B-B", "B-A", "I-B", "I-A"]).entity_types == ("B", "A")

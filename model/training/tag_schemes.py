"""Tag sequences (IOB1, IOB2, BIOES, BILOU, BMES, plain labels) and the entities that they spell."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

OUTSIDE: Final = "O"
PLAIN: Final = "plain"
_PREFIXED: Final = re.compile(r"([BIESLUM])[-_](.+)", re.DOTALL)
# Other letters for the same parts: begin, inside, end, single.
_SAME_AS: Final = {"L": "E", "U": "S", "M": "I"}
_GOES_ON: Final = frozenset("IE")
_STAYS_OPEN: Final = frozenset("BI")


class Tag(NamedTuple):
    """A tag taken apart: ``part`` is one of B, I, E, S and O."""

    part: str
    label: str


class TaggedRun(NamedTuple):
    """An entity over tokens ``first`` to ``last``, both included."""

    first: int
    last: int
    label: str


class UnknownSchemeError(ValueError):
    """Tags that no scheme explains."""


def is_tag(value: str) -> bool:
    """Whether it is ``O`` or a label behind a scheme's letter, such as ``B-PER``."""
    return value == OUTSIDE or _PREFIXED.fullmatch(value) is not None


def parse_tag(tag: str) -> Tag:
    """Take a tag apart; what has no scheme's letter is a plain label, which goes on while it repeats."""
    if tag == OUTSIDE:
        return Tag(OUTSIDE, "")
    match = _PREFIXED.fullmatch(tag)
    if match is None:
        return Tag("I", tag)
    part, label = match.groups()
    return Tag(_SAME_AS.get(part, part), label)


def recognise_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Name the scheme of a file's tags.

    IOB1 and IOB2 use the same letters: in IOB1 a B stands only between two entities of one type.

    Raises:
        UnknownSchemeError: Letters of two schemes stand side by side, or the tags are letters without labels.
    """
    letters: set[str] = set()
    plain: set[str] = set()
    begun_by: Counter[str] = Counter()
    for sentence in sentences:
        for tag in sentence:
            match = _PREFIXED.fullmatch(tag)
            if match:
                letters.add(match[1])
            elif tag != OUTSIDE:
                plain.add(tag)
        begun_by.update(_beginnings(sentence))
    if plain and not letters:
        if plain <= set("BIESLUM"):
            raise UnknownSchemeError(f"the tags {', '.join(sorted(plain))} name no entity type")
        return PLAIN
    if letters & {"L", "U"} and letters & {"E", "S", "M"}:
        raise UnknownSchemeError(f"the tags' letters {', '.join(sorted(letters))} are of two schemes")
    for marks, name in ((("L", "U"), "BILOU"), (("M",), "BMES"), (("E", "S"), "BIOES")):
        if letters.intersection(marks):
            return name
    return "IOB1" if begun_by["I"] and not begun_by["B"] else "IOB2"


def _beginnings(sentence: Sequence[str]) -> Iterable[str]:
    """The letter of each tag that begins an entity where IOB1 would write I."""
    before = Tag(OUTSIDE, "")
    for tag in map(parse_tag, sentence):
        if tag.part != OUTSIDE and (before.part == OUTSIDE or before.label != tag.label):
            yield tag.part
        before = tag


def entities_of_tags(tags: Sequence[str]) -> list[TaggedRun]:
    """Read tags as conlleval and seqeval (not strict) do: whatever is out of place begins an entity.

    A tag goes on with the entity before it if it is inside or end, the tag before is begin or inside, and
    both have one label.

    Source: conlleval.pl of the CoNLL-2000 shared task; Ramshaw and Marcus 1995, arXiv:cmp-lg/9505040.
    """
    runs: list[TaggedRun] = []
    before = Tag(OUTSIDE, "")
    for index, tag in enumerate(map(parse_tag, tags)):
        if tag.part != OUTSIDE:
            if tag.part in _GOES_ON and before.part in _STAYS_OPEN and tag.label == before.label:
                runs[-1] = runs[-1]._replace(last=index)
            else:
                runs.append(TaggedRun(index, index, tag.label))
        before = tag
    return runs


def count_out_of_place(tags: Sequence[str], scheme: str) -> int:
    """How many tags a strict reader of ``scheme`` would not accept where they stand."""
    if scheme == PLAIN:
        return 0
    ends_are_marked = scheme in {"BIOES", "BILOU", "BMES"}
    count = 0
    for before, tag in itertools.pairwise([Tag(OUTSIDE, ""), *map(parse_tag, tags), Tag(OUTSIDE, "")]):
        is_open = before.part in _STAYS_OPEN
        goes_on = tag.part in _GOES_ON and is_open and before.label == tag.label
        if ends_are_marked:
            count += (is_open or tag.part in _GOES_ON) and not goes_on
        elif scheme == "IOB1":
            count += tag.part == "B" and not (is_open and before.label == tag.label)
        else:
            count += tag.part in _GOES_ON and not goes_on
    return count

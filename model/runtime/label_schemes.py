"""Label schemes: what a token's label says about where entities begin and end.

======  ========================================  =================================================
scheme  labels                                    an entity
======  ========================================  =================================================
bio     ``B-X I-X O``                             begins with B, goes on with I (also called IOB2)
iob1    ``B-X I-X O``                             is a run of I; B only right behind another of its type
bioes   ``B-X I-X E-X S-X O``                     begins with B and ends with E, or is one S
bilou   ``B-X I-X L-X U-X O``                     the same in other letters
plain   ``X O``                                   is a run of X
======  ========================================  =================================================

BMES and BMEW are read as bioes. A type for which a scheme's letter is missing does without: where no ``B-X``
exists, ``I-X`` begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import SchemeName

OUTSIDE: Final = "O"

# What each letter stands for, by scheme: (B)egins, goes on (I)nside, (E)nds, is a (S)ingle word.
_ROLES: Final[dict[SchemeName, dict[str, str]]] = {
    "bio": {"B": "B", "I": "I"},
    "iob1": {"B": "B", "I": "I"},
    "bioes": {"B": "B", "I": "I", "M": "I", "E": "E", "S": "S", "W": "S"},
    "bilou": {"B": "B", "I": "I", "L": "E", "U": "S"},
    "plain": {},
}


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """What may follow what; L labels in logit order.

    Attributes:
        name: the scheme.
        labels: names, as the bundle has them.
        types: [L] entity type, None for O.
        begins: [L] bool; never goes on with what stands before it (B, S).
        ends: [L] bool; nothing goes on behind it (E, S).
        outside: index of O.
        may_start: [L] bool; allowed at the start of a text.
        may_end: [L] bool; allowed at its end.
        may_follow: [L, L] bool; ``may_follow[a, b]`` = b may come right after a.
        continues: [L, L] bool; ``continues[a, b]`` = b right after a is the same entity.
    """

    name: SchemeName
    labels: tuple[str, ...]
    types: tuple[str | None, ...]
    begins: tuple[bool, ...]
    ends: tuple[bool, ...]
    outside: int
    may_start: NDArray[np.bool_]
    may_end: NDArray[np.bool_]
    may_follow: NDArray[np.bool_]
    continues: NDArray[np.bool_]

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Distinct types, in the order of the labels."""
        return tuple(dict.fromkeys(name for name in self.types if name is not None))

    @classmethod
    def from_labels(cls, labels: Sequence[str], name: SchemeName | None = None) -> Self:
        """Read a scheme from its label names.

        Args:
            labels: distinct; one is ``O``.
            name: which scheme; None = by the letters that occur. Labels of iob1 look like those of bio and
                are taken for it if they hold a ``B-``: only a name can tell.

        Raises:
            ValueError: no O, a repeated label, or a letter that the scheme does not have.
        """
        if OUTSIDE not in labels or len(set(labels)) != len(labels):
            raise ValueError(f"labels must be distinct and hold {OUTSIDE}: {list(labels)}")
        scheme = _derive(labels) if name is None else name
        parsed = [_parse(label, scheme) for label in labels]
        roles = [role for role, _ in parsed]
        types = [entity_type for _, entity_type in parsed]
        of_type: dict[str | None, set[str]] = {}
        for role, entity_type in parsed:
            of_type.setdefault(entity_type, set()).add(role)

        may_start = np.array(
            [role == OUTSIDE or role in _openers(scheme, of_type[kind]) for role, kind in parsed]
        )
        # With an E for its type, an entity that has begun must be ended by one.
        unfinished = np.array([role in "BI" and "E" in of_type[kind] for role, kind in parsed])
        count = len(labels)
        continues = np.zeros((count, count), dtype=np.bool_)
        may_follow = ~unfinished[:, None] & may_start[None, :]
        for before in range(count):
            for after in range(count):
                if types[before] is None or types[before] != types[after]:
                    continue
                continues[before, after] = roles[before] in "BI" and roles[after] in "IE"
                if scheme == "iob1" and roles[after] == "B" and roles[before] in "BI":
                    may_follow[before, after] = True
        return cls(
            name=scheme,
            labels=tuple(labels),
            types=tuple(types),
            begins=tuple(role in ("B", "S") for role in roles),
            ends=tuple(role in ("E", "S") for role in roles),
            outside=list(labels).index(OUTSIDE),
            may_start=may_start,
            may_end=~unfinished,
            may_follow=may_follow | continues,
            continues=continues,
        )


def _derive(labels: Sequence[str]) -> SchemeName:
    letters = {letter for letter, _ in map(_split, labels) if letter is not None}
    if not letters:
        return "plain"
    if letters == {"I"}:
        return "iob1"
    for name, roles in _ROLES.items():
        if letters <= roles.keys():
            return name
    known = "; ".join(f"{name} has {' '.join(roles)}" for name, roles in _ROLES.items() if roles)
    raise ValueError(
        f"the labels' letters {' '.join(sorted(letters))} are those of no scheme ({known}); if they are no "
        'letters of a scheme but part of the names, say "label_scheme": "plain" in the manifest'
    )


def _parse(label: str, scheme: SchemeName) -> tuple[str, str | None]:
    """Role (O, B, I, E or S) and entity type of a label."""
    if label == OUTSIDE:
        return OUTSIDE, None
    letter, name = _split(label)
    if scheme == "plain" or letter is None:
        return "I", label
    if letter not in _ROLES[scheme]:
        raise ValueError(f"label {label!r}: scheme {scheme} has {' '.join(_ROLES[scheme])}, not {letter}")
    return _ROLES[scheme][letter], name


def _split(label: str) -> tuple[str | None, str]:
    """The letter before the dash, None if there is none, and the rest."""
    letter, dash, name = label.partition("-")
    return (letter, name) if dash and name and len(letter) == 1 else (None, label)


def _openers(scheme: SchemeName, roles: set[str]) -> set[str]:
    """Which of a type's roles may open an entity."""
    if scheme == "iob1":
        return {"I"} if "I" in roles else {"B"}
    return roles & {"B", "S"} or roles

"""More labelled text out of what there is: other names in known sentences, known sentences for new names.

A tagger that has seen a name in three sentences knows the sentences. Putting other names of the same type
in their place leaves nothing to know by heart but how names look and what stands around them.

Source: Dai and Adel 2020, arXiv:2010.11683, "mention replacement".
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import TYPE_CHECKING, Final

from model.training.spans import LabelledText, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

_HAN: Final = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]")
_SLOT: Final = re.compile(r"\{([^{}\s]+)\}")
_SHORTEST_CAPITALS: Final = 5  # "IBM" is written so anyway, "ENRON" says that the sentence shouts
_WEIGHT_OF_A_PRODUCT: Final = 150  # as many names of a list weigh as much as all that a product makes

Kind = tuple[bool, str]
"""(written with Han characters, label): a name is replaced by one of its own kind."""


class NameFileError(ValueError):
    """A file of names or of sentences that is not what it should be; the message has the line."""


@dataclasses.dataclass(frozen=True, slots=True)
class NameList:
    """Names of one label: ``first`` alone, or each of ``first`` joined with each of ``second``."""

    first: tuple[str, ...]
    joint: str = ""
    second: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        """How often it is drawn from, beside others."""
        return _WEIGHT_OF_A_PRODUCT if self.second else len(self.first)

    def draw(self, chooser: random.Random) -> str:
        """One name."""
        name = chooser.choice(self.first)
        return name + self.joint + chooser.choice(self.second) if self.second else name


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """Names by kind: those that were written down, and those that labelled texts hold."""

    listed: Mapping[Kind, Sequence[NameList]]
    seen: Mapping[Kind, Sequence[str]]

    def draw(self, kind: Kind, chooser: random.Random, *, listed_share: float) -> str | None:
        """One name of a kind, from the lists with probability ``listed_share``; None if there is none."""
        lists, seen = self.listed.get(kind, ()), self.seen.get(kind, ())
        if lists and (not seen or chooser.random() < listed_share):
            return chooser.choices(lists, [names.weight for names in lists])[0].draw(chooser)
        return chooser.choice(seen) if seen else None


def kind_of(name: str, label: str) -> Kind:
    """What may stand in a name's place."""
    return bool(_HAN.search(name)), label


def read_names(paths: Iterable[Path]) -> dict[Kind, list[NameList]]:
    """Read files of names.

    ``[LABEL]`` opens a list, ``;`` and line ends part its names, ``#`` begins a comment line. A line ``+``
    makes one list of two: each name before it is joined with each behind it, by what follows the ``+``
    (``_`` = a space). A file with a Han character in it is for names written with them.

    Raises:
        NameFileError: A name before the first ``[LABEL]``, or half a product.
        OSError: A file cannot be read.
    """
    lists: dict[Kind, list[NameList]] = {}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        han = bool(_HAN.search(text))
        for label, names in _read_lists(path, text):
            lists.setdefault((han, label), []).append(names)
    return lists


def _read_lists(path: Path, text: str) -> list[tuple[str, NameList]]:
    found: list[tuple[str, NameList]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            found.append((line[1:-1], NameList(())))
            continue
        if not found:
            raise NameFileError(f"{path}:{number}: a name before the first [LABEL]")
        label, names = found[-1]
        if line.startswith("+"):
            joined = dataclasses.replace(names, joint=line[1:].strip().replace("_", " "), second=("",))
        else:
            items = tuple(item.strip() for item in line.split(";") if item.strip())
            joined = (
                dataclasses.replace(names, second=tuple(filter(None, names.second)) + items)
                if names.second
                else dataclasses.replace(names, first=names.first + items)
            )
        found[-1] = (label, joined)
    for label, names in found:
        if not names.first or names.second == ("",):
            raise NameFileError(f"{path}: a list of {label} is empty")
    return found


def read_templates(paths: Iterable[Path]) -> list[str]:
    """Read sentences with ``{LABEL}`` where a name goes, one a line; ``#`` begins a comment line.

    Raises:
        OSError: A file cannot be read.
    """
    return [
        line
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]


def names_in(texts: Iterable[LabelledText]) -> dict[Kind, list[str]]:
    """The different names of labelled texts, sorted; a rare one will be drawn as often as a common one."""
    seen: dict[Kind, set[str]] = {}
    for text in texts:
        for span in text.spans:
            name = text.text[span.start : span.end]
            seen.setdefault(kind_of(name, span.label), set()).add(name)
    return {kind: sorted(names) for kind, names in seen.items()}


def substitute(
    text: LabelledText, names: Names, chooser: random.Random, *, rate: float, listed_share: float
) -> LabelledText:
    """Put another name of its kind in a name's place, each with probability ``rate`` (0..1).

    A name in small letters or in capitals gets a successor written so too.
    """
    pieces: list[tuple[str, str | None]] = []
    for piece, label in _pieces(text):
        name = piece
        if label is not None and chooser.random() < rate:
            other = names.draw(kind_of(piece, label), chooser, listed_share=listed_share)
            name = piece if other is None else _written_like(other, piece)
        pieces.append((name, label))
    return _put_together(pieces)


def fill(template: str, names: Names, chooser: random.Random, *, listed_share: float) -> LabelledText | None:
    """Put a name into each slot of a sentence; None if a slot's label has no name.

    A sentence with a Han character gets names written with them.
    """
    han = bool(_HAN.search(template))
    pieces: list[tuple[str, str | None]] = []
    for rank, part in enumerate(_SLOT.split(template)):
        if rank % 2 == 0:
            pieces.append((part, None))
            continue
        name = names.draw((han, part), chooser, listed_share=listed_share)
        if name is None:
            return None
        pieces.append((name, part))
    return _put_together(pieces)


def _put_together(pieces: Sequence[tuple[str, str | None]]) -> LabelledText:
    text, spans = "", []
    for piece, label in pieces:
        if label is not None:
            spans.append(Span(len(text), len(text) + len(piece), label))
        text += piece
    return LabelledText(text, tuple(spans))


def _written_like(name: str, model: str) -> str:
    if model.islower():
        return name.lower()
    return name.upper() if model.isupper() and len(model) >= _SHORTEST_CAPITALS else name


def recase(text: LabelledText, chooser: random.Random) -> LabelledText:
    """Write a text in capitals, in small letters, or with each name alone in small letters, one as often.

    Headlines shout and chats whisper; a tagger of edited text otherwise takes capitals for names. A text
    whose length that would change (ß) stays as it is.
    """
    way = chooser.randrange(3)
    if way == 2:
        new = _put_together(
            [(piece.lower() if label else piece, label) for piece, label in _pieces(text)]
        ).text
    else:
        new = text.text.upper() if way == 0 else text.text.lower()
    return dataclasses.replace(text, text=new) if len(new) == len(text.text) else text


def _pieces(text: LabelledText) -> list[tuple[str, str | None]]:
    """What stands between names, with no label, and the names, in turn."""
    pieces: list[tuple[str, str | None]] = []
    done = 0
    for span in text.spans:
        pieces += [(text.text[done : span.start], None), (text.text[span.start : span.end], span.label)]
        done = span.end
    return [*pieces, (text.text[done:], None)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What one pass over labelled texts gives.

    Attributes:
        rate: Probability that a name is replaced, 0..1.
        listed_share: Probability that a new name comes from the lists, not from the labelled texts, 0..1.
        template_listed_share: The same for the slots of a template.
        template_copies: Fillings of each template with slots; one without slots is taken once.
        empty_share: Probability that a text without a name is kept, 0..1.
        recased_share: Probability that a text is written in other case, 0..1; see ``recase``.
    """

    rate: float = 0.4
    listed_share: float = 0.35
    template_listed_share: float = 0.75
    template_copies: int = 2
    empty_share: float = 1.0
    recased_share: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rate", "listed_share", "template_listed_share", "empty_share", "recased_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in 0..1, not {getattr(self, name)}")
        if self.template_copies < 0:
            raise ValueError(f"template_copies must not be negative, not {self.template_copies}")


def one_pass(
    sets: Sequence[tuple[Sequence[LabelledText], float]],
    names: Names,
    templates: Sequence[str],
    mixture: Mixture,
    chooser: random.Random,
) -> list[LabelledText]:
    """What a trainer should read once.

    Args:
        sets: Labelled texts, and the share of them that a pass takes, drawn anew each time (0..1).
        names: To replace names by.
        templates: Sentences with slots.
        mixture: How much of what.
        chooser: Same state, same texts.

    Returns:
        Texts in the order of the sets, those from templates last.
    """
    texts = [
        substitute(text, names, chooser, rate=mixture.rate, listed_share=mixture.listed_share)
        for labelled, share in sets
        for text in labelled
        if chooser.random() < share and (text.spans or chooser.random() < mixture.empty_share)
    ]
    for template in templates:
        for _ in range(mixture.template_copies if _SLOT.search(template) else 1):
            filled = fill(template, names, chooser, listed_share=mixture.template_listed_share)
            if filled is not None:
                texts.append(filled)
    if not mixture.recased_share:
        return texts
    return [recase(text, chooser) if chooser.random() < mixture.recased_share else text for text in texts]

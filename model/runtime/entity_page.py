"""Texts with their entities marked, as HTML that needs no network, no script and no other file.

A label shows as its name behind the entity, a colour (eight, light and dark, of different lightness) and the
style of a line below, so that nobody has to tell hues apart. Whatever a text or a label holds is escaped, and
the page's policy forbids scripts and requests all the same.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class Colour(NamedTuple):
    """The ground of an entity on a light and on a dark page."""

    light: str
    dark: str


LIGHT_INK: Final = "#1b1b1b"
DARK_INK: Final = "#f6f6f6"
COLOURS: Final = (
    Colour("#ffd39c", "#7a4100"),
    Colour("#a3c9ff", "#0b4a8f"),
    Colour("#d3f9d8", "#1d5c2a"),
    Colour("#f5a9cb", "#86124f"),
    Colour("#fff3a3", "#5c5200"),
    Colour("#c3aef0", "#4b2a91"),
    Colour("#c5f6fa", "#0b5563"),
    Colour("#cfc9c1", "#4a4641"),
)
LINES: Final = ("solid", "dashed", "double", "dotted")
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Mark:
    """An entity to be shown: ``[start, end)`` in code points.

    Attributes:
        label: Shown behind it.
        title: Shown when pointed at; a score, for one.
        wrong: Whether it is a mistake, shown by a cross before its label.
    """

    start: int
    end: int
    label: str
    title: str = ""
    wrong: bool = False


class Looks:
    """The look of each label, by its place in a list; 32 differ, further ones by their names only."""

    def __init__(self, labels: Iterable[str]) -> None:
        self._place = {label: place for place, label in enumerate(dict.fromkeys(labels))}

    def __iter__(self) -> Iterator[str]:
        """The labels, in order."""
        return iter(self._place)

    def classes(self, label: str) -> str:
        """CSS classes; a label that is not in the list has none of its own."""
        place = self._place.get(label)
        if place is None:
            return "e"
        colour = place % len(COLOURS)
        line = (colour + place // len(COLOURS)) % len(LINES)  # neighbours differ in both
        return f"e c{colour} {LINES[line]}"


def marked_text(text: str, marks: Sequence[Mark], looks: Looks) -> str:
    """``text`` with its entities marked, as a fragment of HTML.

    The direction is that of the text's first letter with one; labels stand apart from it. Control characters
    are shown as their pictures.

    Args:
        text: Any text.
        marks: In order, without overlaps.
        looks: Of their labels.

    Raises:
        ValueError: Marks overlap, are out of order or outside the text.
    """
    parts = ['<p class="text" dir="auto">']
    done = 0
    for mark in marks:
        if not done <= mark.start < mark.end <= len(text):
            raise ValueError(f"mark {mark.start}..{mark.end} {mark.label} overlaps another or lies outside")
        parts += [
            escaped(text[done : mark.start]),
            f'<mark class="{looks.classes(mark.label)}" title="{escaped(mark.title)}">',
            escaped(text[mark.start : mark.end]),
            f"<bdi>{'✗ ' if mark.wrong else ''}{escaped(mark.label)}</bdi></mark>",
        ]
        done = mark.end
    parts += [escaped(text[done:]), "</p>\n"]
    return "".join(parts)


def scored_marks(entities: Iterable[tuple[int, int, str, float]]) -> list[Mark]:
    """Marks of found entities ``(start, end, label, score)``, with the score in the title."""
    return [
        Mark(start, end, label, f"{label}, score {score:.3f}, characters {start} to {end}")
        for start, end, label, score in entities
    ]


def legend(looks: Looks) -> str:
    """Every label in its look."""
    marks = (
        f'<li><mark class="{looks.classes(label)}"><bdi>{escaped(label)}</bdi></mark></li>' for label in looks
    )
    return f'<ul class="legend">{"".join(marks)}</ul>\n'


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, caption: str) -> str:
    """A table whose first column names its rows."""

    def line(cells: Sequence[object]) -> str:
        first, *others = cells
        numbers = "".join(f"<td>{escaped(str(cell))}</td>" for cell in others)
        return f'<tr><th scope="row">{escaped(str(first))}</th>{numbers}</tr>\n'

    columns = "".join(f'<th scope="col">{escaped(name)}</th>' for name in head)
    return (
        f'<div class="wide"><table>\n<caption>{escaped(caption)}</caption>\n'
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{''.join(map(line, rows))}</tbody>\n</table></div>\n"
    )


def page_start(title: str) -> str:
    """A page up to its first fragment; ``title`` is also the heading, plain text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escaped(title)}</h1>\n"
    )


PAGE_END: Final = "</body>\n</html>\n"


def escaped(text: str) -> str:
    """``text`` as it can stand between tags and in quoted attributes; no control character is left."""
    return html.escape(_CONTROL.sub(_picture, text.replace("\r\n", "\n")), quote=True)


def _picture(match: re.Match[str]) -> str:
    code_point = ord(match[0])
    if code_point < 0x20:
        return chr(0x2400 + code_point)
    return "\u2421" if code_point == 0x7F else "\ufffd"


def _colour_rules(name: str) -> str:
    return "".join(
        f".c{place} {{ background: {getattr(colour, name)}; }}\n" for place, colour in enumerate(COLOURS)
    )


STYLE: Final = f"""\
:root {{ color-scheme: light dark; --ink: {LIGHT_INK}; --paper: #ffffff; --ground: #e6e6e6;
  --rule: #8a8a8a; }}
body {{ font: 1rem/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; }}
h1, h2, h3, caption, th, td {{ overflow-wrap: anywhere; }}
h3 {{ font-size: .85rem; font-weight: normal; margin: 1.2rem 0 0; border-top: 1px solid var(--rule); }}
.text {{ white-space: pre-wrap; overflow-wrap: anywhere; line-height: 2.3; margin: .3rem 0;
  unicode-bidi: isolate; text-align: start; }}
.e {{ color: inherit; background: var(--ground); padding: .15em .2em; border-radius: .25em;
  border-bottom: .2em solid currentColor; box-decoration-break: clone; -webkit-box-decoration-break: clone; }}
.dashed {{ border-bottom-style: dashed; }} .double {{ border-bottom-style: double; }}
.dotted {{ border-bottom-style: dotted; }}
.e bdi {{ font-size: .7em; font-weight: bold; margin-inline: .4em; white-space: nowrap;
  user-select: none; }}
.legend {{ list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .6rem; }}
.side {{ font-size: .75rem; margin: .5rem 0 0; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; }} caption {{ text-align: start; font-weight: bold; }}
th, td {{ padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: end; }}
th[scope=row], th:first-child {{ text-align: start; }}
{_colour_rules("light")}@media (prefers-color-scheme: dark) {{
:root {{ --ink: {DARK_INK}; --paper: #16181a; --ground: #3a3d40; --rule: #777777; }}
{_colour_rules("dark")}}}
"""

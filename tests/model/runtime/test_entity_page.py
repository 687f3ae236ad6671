"""Marked texts are readable by everybody, say exactly what the text says, and run nothing."""

import itertools
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.runtime.entity_page import (
    COLOURS,
    DARK_INK,
    LIGHT_INK,
    PAGE_END,
    Looks,
    Mark,
    escaped,
    legend,
    marked_text,
    page_start,
    scored_marks,
    table,
)

HOSTILE = (
    "</p></mark><script>alert(1)</script><img src=x onerror='alert(2)'>\"' onload=\"x\" &lt;b&gt; ]]> <!--"
)

OUR_TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "ul", "li", "mark", "bdi", "p", "div"} | {
    *("table", "caption", "thead", "tbody", "tr", "th", "td")
}
OUR_ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "dir", "title", "scope"}


class Outline(HTMLParser):
    """What a browser would see: elements with attributes, and the text that is no label."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.labels: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Opened, unless it is one that has no end."""
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)
        if tag == "bdi":
            self.labels.append("")

    def handle_endtag(self, tag: str) -> None:
        """Closed; the innermost first."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text."""
        if "bdi" in self._open:
            self.labels[-1] += data
        else:
            self.text += data


def test_entities_are_marked_with_label_and_score() -> None:
    """The score shows when pointed at."""
    marks = scored_marks([(0, 2, "PER", 0.98765), (3, 5, "LOC", 0.5)])
    outline = Outline(marked_text("张三在北京", marks, Looks(["PER", "LOC"])))
    assert outline.text.strip() == "张三在北京"
    assert outline.labels == ["PER", "LOC"]
    paragraph, first, *_ = outline.elements
    assert paragraph == ("p", {"class": "text", "dir": "auto"})
    assert first == ("mark", {"class": "e c0 solid", "title": "PER, score 0.988, characters 0 to 2"})


def test_a_mistake_has_a_cross() -> None:
    """Not a colour only."""
    assert Outline(marked_text("Oslo", [Mark(0, 4, "LOC", wrong=True)], Looks(["LOC"]))).labels == ["✗ LOC"]


def test_hostile_texts_labels_and_titles_stay_text() -> None:
    """Texts come from anybody: no element, attribute or comment may come from one."""
    marks = [Mark(4, 9, HOSTILE, title=HOSTILE)]
    body = (
        legend(Looks([HOSTILE]))
        + marked_text(HOSTILE, marks, Looks([HOSTILE]))
        + table([HOSTILE, HOSTILE], [[HOSTILE, HOSTILE]], caption=HOSTILE)
    )
    content = page_start(HOSTILE) + body + PAGE_END
    outline = Outline(content)
    assert {tag for tag, _ in outline.elements} <= OUR_TAGS
    assert {name for _, attributes in outline.elements for name in attributes} <= OUR_ATTRIBUTES
    assert outline.labels == [HOSTILE, HOSTILE]
    assert outline.text.count(HOSTILE) == 8  # title, heading, text, two each in head and row, caption
    assert "<!--" not in content


def test_a_page_asks_for_nothing_and_runs_nothing() -> None:
    """It can be mailed and opened anywhere; the policy holds what the escaping should."""
    start = page_start("x")
    assert "default-src 'none'; style-src 'unsafe-inline'" in start
    assert "http://" not in start
    assert "https://" not in start
    assert "url(" not in start
    assert "<script" not in start


@given(st.text(), st.data())
def test_a_marked_text_is_the_text(text: str, data: st.DataObject) -> None:
    """Whatever it holds, but for control characters, which are shown as pictures."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    marks = [Mark(start, end, "L") for start, end in itertools.pairwise(cuts)]
    shown = marked_text(text, marks, Looks(["L"]))
    shown.encode()
    expected = "".join(
        piece.replace("\r\n", "\n")
        for piece in (text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)]))
    )
    printable = "".join(
        "?"
        if (ord(character) < 0x20 and character not in "\t\n") or 0x7F <= ord(character) < 0xA0
        else character
        for character in expected
    )
    got = Outline(shown).text.removesuffix("\n")
    assert len(got) == len(printable)
    assert all(one == other for one, other in zip(got, printable, strict=True) if other != "?")


def test_control_characters_are_shown() -> None:
    """They are no HTML, and half a surrogate pair no UTF-8."""
    assert escaped("a\x00\x1b\x7f\x85\ud800\r\nb\tc\r") == "a\u2400\u241b\u2421\ufffd\ufffd\nb\tc\u240d"


@pytest.mark.parametrize("marks", [[(0, 3), (2, 4)], [(2, 4), (0, 1)], [(0, 9)], [(1, 1)], [(-1, 2)]])
def test_marks_that_cannot_be_shown_are_an_error(marks: list[tuple[int, int]]) -> None:
    """Text would be left out or shown twice."""
    with pytest.raises(ValueError, match="overlaps another or lies outside"):
        marked_text("abcd", [Mark(start, end, "X") for start, end in marks], Looks(["X"]))


def luminance(colour: str) -> float:
    """Relative luminance. Source: WCAG 2.2, definition of relative luminance."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast ratio, 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_colour_is_readable_in_light_and_dark() -> None:
    """WCAG asks for 4.5 at least, 7 at best; small labels deserve the latter."""
    for colour in COLOURS:
        assert contrast(colour.light, LIGHT_INK) >= 7
        assert contrast(colour.dark, DARK_INK) >= 7


def test_labels_differ_by_more_than_hue() -> None:
    """32 looks are distinct, and neighbours differ in the line below, too."""
    labels = [f"L{number}" for number in range(40)]
    looks = Looks(labels)
    classes = [looks.classes(label) for label in labels]
    assert len(set(classes[:32])) == 32
    for one, other in itertools.pairwise(classes):
        assert one.split()[1] != other.split()[1]
        assert one.split()[2] != other.split()[2]
    assert looks.classes("unheard of") == "e"

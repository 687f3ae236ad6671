"""Segments: rows, masks, and what a merge keeps."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.filters import parse_filter
from service.faq.segments import Segment, _Recent
from tests.service.faq.hashed_vectors import hashed_vectors

TEXTS = st.text(alphabet="ab税", min_size=1, max_size=4)


@st.composite
def banks(draw: st.DrawFn) -> list[FaqEntry]:
    """Up to five entries with none to three alternates."""
    return [
        FaqEntry(
            id=str(number),
            question=draw(TEXTS),
            answer=draw(TEXTS | st.just("")),
            alternates=tuple(draw(st.lists(TEXTS, max_size=3))),
            tags=tuple(draw(st.lists(st.sampled_from("xy"), max_size=1))),
        )
        for number in range(draw(st.integers(0, 5)))
    ]


def build(entries: list[FaqEntry]) -> Segment:
    """Make a segment with hashed vectors."""
    texts = texts_to_embed(entries)
    return Segment.of(entries, dict(zip(texts, hashed_vectors(texts), strict=True)))


def products_by_phrasing(segment: Segment, query: str) -> dict[str, list[float]]:
    """Return each entry's exact products."""
    vector = hashed_vectors([query])[0].astype(np.float64)
    return {
        entry.id: segment.exact_products(position, vector).tolist()
        for position, entry in enumerate(segment.entries)
    }


@settings(deadline=None)
@given(banks().filter(bool), TEXTS)
def test_the_best_phrasing_is_the_highest_of_an_entry(entries: list[FaqEntry], query: str) -> None:
    """The fast way over all rows finds what looking at each entry finds; 1e-5, as it works in float32."""
    segment = build(entries)
    [products], _ = segment.products(hashed_vectors([query]))
    exact = products_by_phrasing(segment, query)
    assert [len(exact[entry.id]) for entry in entries] == [len(entry.phrasings) for entry in entries]
    assert segment.best_phrasing(products).tolist() == pytest.approx(
        [max(exact[entry.id]) for entry in entries], abs=1e-5
    )


@settings(deadline=None)
@given(st.lists(banks().filter(bool), min_size=1, max_size=3), TEXTS, st.data())
def test_a_merge_keeps_every_living_entry_as_it_was(
    groups: list[list[FaqEntry]], query: str, data: st.DataObject
) -> None:
    """Vectors to the last bit, alternates with their owners, order as it stood."""
    named = [
        [entry.model_copy(update={"id": f"{number}-{entry.id}"}) for entry in group]
        for number, group in enumerate(groups)
    ]
    parts = []
    for group in named:
        kept = data.draw(st.lists(st.booleans(), min_size=len(group), max_size=len(group)))
        parts.append((build(group), np.array(kept)))
    merged = Segment.merged(parts)
    left = [
        entry for segment, kept in parts for entry, keep in zip(segment.entries, kept, strict=True) if keep
    ]
    assert list(merged.entries) == left
    before = {
        name: value for segment, _ in parts for name, value in products_by_phrasing(segment, query).items()
    }
    assert products_by_phrasing(merged, query) == {entry.id: before[entry.id] for entry in left}
    assert [merged.position(entry.id) for entry in left] == list(range(len(left)))
    where = parse_filter({"field": "tags", "equals": "x"})
    assert merged.mask(where).tolist() == [where.matches(entry) for entry in left]


def test_a_mask_is_worked_out_once_for_a_filter() -> None:
    """A service asks the same few filters over and over, of segments that rarely change."""
    segment = build([FaqEntry(id="1", question="a", answer="", tags=("x",))])
    first = segment.mask(parse_filter({"field": "tags", "in": ["x", "y"]}))
    assert segment.mask(parse_filter({"field": "tags", "in": ["y", "x"]})) is first


def test_only_the_values_asked_for_last_are_kept() -> None:
    """A client that makes up filters must not fill the memory."""
    made: list[str] = []
    recent: _Recent[str] = _Recent(2)

    def ask(name: str) -> str:
        return recent.get(name, lambda: made.append(name) or name)

    assert [ask(name) for name in "abacaba"] == list("abacaba")
    assert made == ["a", "b", "c", "b"]


def test_nobody_waits_for_a_value_that_another_thread_makes() -> None:
    """A slow filter of one caller must not hold up the others."""
    recent: _Recent[str] = _Recent(2)
    started, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        assert go_on.wait(30)
        return "slow"

    thread = threading.Thread(target=lambda: recent.get("slow", slow))
    thread.start()
    assert started.wait(30)
    assert recent.get("quick", lambda: "quick") == "quick"
    go_on.set()
    thread.join(30)
    assert recent.get("slow", lambda: "again") == "slow"

"""The report: one file, well formed, that says what the evaluation says."""

import re
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from service.faq.evaluation import evaluate
from service.faq.queries import LabelledQuery
from service.faq.report import html_report
from tests.service.faq.judged_queries import HYBRID, LEXICAL, QUERIES, Found

WHEN = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def test_the_report_stands_alone_and_is_well_formed() -> None:
    """It is mailed around: no script, nothing fetched; each plot parses as XML."""
    result = evaluate(QUERIES, {"hybrid": HYBRID, "dense": HYBRID, "lexical": LEXICAL})
    page = html_report(result, title="demo, tiny model", created=WHEN)
    assert not re.search(r"<(script|link|img|iframe)|\b(src|href)=|url\(", page)
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    names = [ET.fromstring(plot).attrib["aria-label"] for plot in plots]
    assert names == [
        "Ranking by mode",
        "Reliability",
        "Precision and recall over the threshold",
        "Scores",
    ]
    for word in ("hybrid", "dense", "lexical", "min_score 0.825", "2026-01-02T03:04"):
        assert word in page
    assert page == html_report(result, title="demo, tiny model", created=WHEN)


def test_every_failing_query_is_listed() -> None:
    """With what was found instead."""
    page = html_report(evaluate(QUERIES, {"hybrid": HYBRID}), title="t", created=WHEN)
    assert "Queries that fail (3)" in page
    for query in ("unsure", "mistaken", "nothing"):
        assert f"<td>{query}</td>" in page
    assert "<td>a: &lt;a&gt;</td>" in page


def test_what_went_wrong_is_told_apart() -> None:
    """A label that names no entry is the labels' fault, not the search's."""
    queries = [LabelledQuery(name, (name,)) for name in ("gone", "mistaken", "missed")]
    hits = [[Found("a", 0.5)], [Found("a", 0.5)], []]
    page = html_report(evaluate(queries, {"hybrid": hits}), title="t", unknown_ids=["gone"], created=WHEN)
    assert "<td>gone</td><td>the collection has no entry of that id</td>" in page
    assert "<td>mistaken</td><td>another entry came first</td>" in page
    assert "<td>missed</td><td>nothing was found</td>" in page
    assert "1 labels name no entry of the collection; their queries count as failed: gone" in page


def test_what_people_typed_cannot_become_markup() -> None:
    """Queries, ids and titles come from outside."""
    nasty = "<script>alert(1)</script>&\"'"
    result = evaluate([LabelledQuery(nasty, (nasty,))], {nasty: [[Found(nasty + "x", 0.5)]]})
    page = html_report(result, title=nasty, created=WHEN)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5


def test_a_report_without_unanswerable_queries_or_hits_can_be_made() -> None:
    """Some figures do not exist then."""
    for hits in ([[]], [[Found("a", 0.0)]]):
        for query in (LabelledQuery("q", ("a",)), LabelledQuery("q")):
            page = html_report(evaluate([query], {"hybrid": hits}), title="t", created=WHEN)
            assert "nan" not in page.replace("answer", "")

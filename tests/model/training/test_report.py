"""The report of a measurement: figures by hand, and its page."""

import json

from model.runtime.entity_page import Looks
from model.runtime.tagging import Entity
from model.training.evaluation import Tagged
from model.training.report import NerReport, make_report
from model.training.report_page import report_fragments
from model.training.spans import LabelledText, Span

TEXTS = [
    LabelledText("Ada in Oslo", (Span(0, 3, "PER"), Span(7, 11, "LOC"))),
    LabelledText("Bank of Oslo", (Span(0, 12, "ORG"),)),
    LabelledText("<b>Rio</b>", (Span(3, 6, "LOC"),)),
    LabelledText("nothing", ()),
    LabelledText("张三在北京", (Span(0, 2, "PER"), Span(3, 5, "LOC"))),
]
FOUND = [
    [Entity(0, 3, "PER", 0.9), Entity(7, 11, "LOC", 0.8)],
    [Entity(8, 12, "LOC", 0.7)],
    [Entity(3, 6, "ORG", 0.6)],
    [Entity(0, 7, "ORG", 0.5)],
    [Entity(0, 3, "PER", 0.4)],
]


def report(examples: int = 50) -> NerReport:
    """Of the texts above."""
    return make_report(TEXTS, Tagged(FOUND, characters=45, seconds=0.09), examples=examples)


def test_figures_are_those_counted_by_hand() -> None:
    """Scores, kinds of mistakes and confusion."""
    summary = report().summary()
    assert json.loads(json.dumps(summary)) == summary
    assert (summary["precision"], summary["recall"], summary["f1"]) == (33.33, 33.33, 33.33)
    assert summary["f1_PER"] == summary["labels"]["PER"]["f1"] == 50.0
    assert summary["labels"]["LOC"] == {
        "precision": 50.0,
        "recall": 33.33,
        "f1": 40.0,
        "gold": 3,
        "predicted": 2,
        "correct": 1,
    }
    assert summary["macro"]["f1"] == 30.0
    assert summary["weighted"]["f1"] == 36.67
    assert summary["mistakes"] == {"border": 1, "type": 1, "border and type": 1, "missed": 1, "spurious": 1}
    assert summary["confusion"] == {
        "LOC": {"LOC": 1, "ORG": 1, "PER": 0, "O": 1},
        "ORG": {"LOC": 1, "ORG": 0, "PER": 0, "O": 0},
        "PER": {"LOC": 0, "ORG": 0, "PER": 2, "O": 0},
        "O": {"LOC": 0, "ORG": 1, "PER": 0, "O": 0},
    }
    assert summary["milliseconds_per_1000_characters"] == 2000
    assert [example["number"] for example in summary["examples"]] == [2, 3, 4, 5]
    assert summary["examples"][0]["mistakes"] == [
        {
            "kind": "border and type",
            "gold": {"start": 0, "end": 12, "text": "Bank of Oslo", "label": "ORG"},
            "predicted": {"start": 8, "end": 12, "text": "Oslo", "label": "LOC"},
        }
    ]


def test_few_examples_show_different_mistakes() -> None:
    """Not the first ones of the file, which may all be of one kind."""
    texts = [LabelledText("Oslo", (Span(0, 4, "LOC"),))] * 5 + [LabelledText("Rio", (Span(0, 3, "LOC"),))]
    found = [[]] * 5 + [[Entity(0, 3, "ORG", 1.0)]]
    chosen = make_report(texts, Tagged(found, 23, 1.0), examples=2).examples
    assert [example.number for example in chosen] == [1, 6]
    assert report(examples=0).examples == []


def test_the_page_shows_gold_against_predicted() -> None:
    """Wrong ones with a cross, whatever is in texts, labels and remarks escaped."""
    looks = Looks(["PER", "LOC", "ORG"])
    content = "".join(report_fragments(report(), looks, remarks=["<i>beware</i>"]))
    assert "<h3>text 5: border, missed</h3>" in content
    assert 'title="LOC, gold">北京<bdi>✗ LOC</bdi>' in content
    assert 'title="PER, score 0.400">张三在<bdi>✗ PER</bdi>' in content
    assert "text 1:" not in content
    assert "&lt;b&gt;<mark" in content
    assert "&lt;i&gt;beware" in content
    assert '<th scope="row">all (micro)</th><td>33.33</td>' in content
    assert "2000.0 ms per 1,000 characters" in content


def test_a_perfect_tagger_has_no_mistakes_to_show() -> None:
    """And no division by zero."""
    perfect = make_report(TEXTS[3:4], Tagged([[]], 7, 0.0), examples=9)
    assert perfect.examples == []
    assert "–" in "".join(report_fragments(perfect, Looks([])))

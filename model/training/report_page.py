"""A measurement as fragments of HTML: tables, and the examples with gold and predicted entities marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from model.runtime.entity_page import Looks, Mark, escaped, legend, marked_text, table
from model.training.mistakes import MISTAKES, Kind
from model.training.report import NOTHING, Example, NerReport
from model.training.scoring import Average, Score
from model.training.spans import Span


def report_fragments(report: NerReport, looks: Looks, *, remarks: Sequence[str] = ()) -> Iterator[str]:
    """The body of a report's page.

    Args:
        report: The measurement.
        looks: Of the labels.
        remarks: About the data or the model; plain text.
    """
    yield (
        f"<p>{report.texts} texts, {report.characters} characters, "
        f"{report.milliseconds_per_1000_characters:.1f} ms per 1,000 characters.</p>\n"
    )
    if remarks:
        yield f"<ul>{''.join(f'<li>{escaped(remark)}</li>' for remark in remarks)}</ul>\n"
    yield scores_table(report)
    yield confusion_table(report)
    yield table(
        ["mistake", "pairs", "share"],
        _mistake_rows(report),
        caption="Mistakes",
    )
    yield f"<h2>Examples</h2>\n{legend(looks)}"
    yield from (example_fragment(example, looks) for example in report.examples)


def scores_table(report: NerReport) -> str:
    """Precision, recall and F1 of each label and over all."""
    rows: list[Sequence[object]] = [
        [label, *_percents(score), score.gold, score.predicted, score.correct]
        for label, score in [*report.per_label.items(), ("all (micro)", report.overall)]
    ]
    rows += [
        ["macro", *_percents(report.macro), "", "", ""],
        ["weighted", *_percents(report.weighted), "", "", ""],
    ]
    head = ["label", "precision", "recall", "F1", "gold", "predicted", "correct"]
    return table(head, rows, caption="Exact borders and label, in percent")


def confusion_table(report: NerReport) -> str:
    """What each gold label was predicted as."""
    return table(
        ["gold \\ predicted", *report.labels, NOTHING],
        [[gold, *row] for gold, row in report.confusion_rows()],
        caption="Labels of spans that belong together, whatever their borders",
    )


def example_fragment(example: Example, looks: Looks) -> str:
    """A text twice, with its gold and with its predicted entities; the wrong ones have a cross."""
    right = {pair.gold for pair in example.pairs if pair.kind is Kind.RIGHT}
    gold = [
        Mark(span.start, span.end, span.label, f"{span.label}, gold", wrong=span not in right)
        for span in example.text.spans
    ]
    predicted = [
        Mark(
            found.start,
            found.end,
            found.label,
            f"{found.label}, score {found.score:.3f}",
            wrong=Span(found.start, found.end, found.label) not in right,
        )
        for found in example.found
    ]
    kinds = ", ".join(dict.fromkeys(str(pair.kind) for pair in example.mistakes))
    return (
        f"<h3>text {example.number}: {escaped(kinds)}</h3>\n"
        f'<p class="side">gold</p>\n{marked_text(example.text.text, gold, looks)}'
        f'<p class="side">predicted</p>\n{marked_text(example.text.text, predicted, looks)}'
    )


def _mistake_rows(report: NerReport) -> Iterable[Sequence[object]]:
    total = sum(report.kinds.get(kind, 0) for kind in MISTAKES)
    for kind in MISTAKES:
        count = report.kinds.get(kind, 0)
        yield [kind, count, f"{100 * count / total:.1f} %" if total else "–"]


def _percents(score: Score | Average) -> list[str]:
    return [f"{100 * share:.2f}" for share in (score.precision, score.recall, score.f1)]

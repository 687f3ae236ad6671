"""The model card of a trained tagger: what it was made from, how good it is, where it errs; Markdown."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from model.runtime.entity_page import PAGE_END, Looks, escaped, page_start
from model.training.curves import learning_curves
from model.training.mistakes import MISTAKES, Kind
from model.training.report import NOTHING
from model.training.report_page import report_fragments

if TYPE_CHECKING:
    from model.training.data_checks import DataCheck
    from model.training.history import History
    from model.training.mistakes import Pair
    from model.training.options import Architecture, TrainingOptions
    from model.training.report import Example, NerReport
    from model.training.scoring import Score
    from model.training.spans import Span

CARD_NAME: Final = "MODEL_CARD.md"
CURVES_NAME: Final = "learning_curves.svg"
PAGE_NAME: Final = "mistakes.html"
_WEAK: Final = 0.1  # F1 below that over all labels
_FEW_GOLD: Final = 100
_FEW_OF_LABEL: Final = 20  # below, precision and recall differ by chance
_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>|#])")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card is written from.

    Attributes:
        name: Of the model.
        description: One sentence.
        licence: SPDX identifier.
        languages: Codes.
        base: The bundle that training began from.
        architecture: Of the network.
        options: How it was trained.
        history: How that went.
        data: The findings on the labelled files.
        roles: What each of their sets was for: ``train``, ``dev`` or ``test``.
        misfits: Training spans that cannot be learned exactly; see ``word_fit``.
        split: Training paragraphs that were longer than a window.
        reports: The measurements, by name of the set.
        scores: A sentence on what the entities' scores mean.
    """

    name: str
    description: str
    licence: str
    languages: Sequence[str]
    base: str
    architecture: Architecture
    options: TrainingOptions
    history: History
    data: DataCheck
    roles: Mapping[str, str]
    misfits: int
    split: int
    reports: Mapping[str, NerReport]
    scores: str


def card_files(facts: CardFacts) -> dict[str, str]:
    """The card, its picture, and a page of the mistakes, by file name; no page if no example is kept."""
    files = {CARD_NAME: model_card(facts), CURVES_NAME: learning_curves(facts.history)}
    if any(report.examples for report in facts.reports.values()):
        looks = Looks(_taught(facts))
        page = [page_start(f"{facts.name}: what it gets wrong")]
        for name, report in facts.reports.items():
            page += [f"<h2>{escaped(name)}</h2>\n", *report_fragments(report, looks)]
        files[PAGE_NAME] = "".join([*page, PAGE_END])
    return files


def model_card(facts: CardFacts) -> str:
    """The card's text."""
    return "\n".join(_lines(facts)) + "\n"


def weak_spots(facts: CardFacts) -> Iterator[str]:
    """What the figures say against the model, a sentence each."""
    for label, count in facts.data.scarce.items():
        yield f"{label} had {count} examples to learn from."
    for name, report in facts.reports.items():
        yield from (f"On {name}, {spot}" for spot in _spots_of(report))
    # The counts only: what the warnings of a check quote are texts, which may be private.
    if facts.data.contradictions:
        yield f"{len(facts.data.contradictions)} texts of the data occur with different spans."
    for leak in facts.data.leaks:
        yield (
            f"{len(leak.texts)} of {leak.of} texts of {leak.judging} are in {leak.teaching} too "
            f"({leak.with_spans} with spans), which flatters scores."
        )
    if facts.data.misfits:
        yield f"{len(facts.data.misfits)} spans of the data are no whole words and cannot be found exactly."


def figures(
    reports: Mapping[str, NerReport],
    spots: Iterable[str] | None = None,
    *,
    how: str = "read as the service reads texts",
) -> Iterator[str]:
    """The parts "How good it is" and "Weak spots" of a card, as Markdown lines.

    Args:
        reports: By name of the set.
        spots: Sentences on what the figures say against the model; by default all that the reports hold.
        how: How the texts were read, if that is worth saying.
    """
    if spots is None:
        spots = (f"On {name}, {spot}" for name, report in reports.items() for spot in _spots_of(report))
    yield "## How good it is"
    yield ""
    yield f"Exact borders and label, in percent{how and ', '}{how}."
    yield ""
    yield from _table(["set", "label", "precision", "recall", "F1", "spans", "found"], _score_rows(reports))
    yield ""
    yield "## Weak spots"
    yield ""
    told = [f"- {spot}" for spot in spots]
    yield from told or ["None that the figures show."]
    yield ""


def _spots_of(report: NerReport) -> Iterator[str]:
    if report.overall.gold < _FEW_GOLD:
        yield f"all figures are rough: there are {report.overall.gold} spans."
    for label, score in report.per_label.items():
        if score.f1 < report.overall.f1 - _WEAK:
            yield (f"{label} has F1 {100 * score.f1:.1f}, all labels together {100 * report.overall.f1:.1f}.")
        if score.gold >= _FEW_OF_LABEL and abs(score.precision - score.recall) > _WEAK:
            more, less = ("misses", "invents") if score.precision > score.recall else ("invents", "misses")
            yield (
                f"{label} {more} more than it {less}: precision {100 * score.precision:.1f}, recall "
                f"{100 * score.recall:.1f}."
            )
    confused = [
        (count, gold, predicted)
        for (gold, predicted), count in report.confusion.items()
        if gold != predicted and NOTHING not in (gold, predicted)
    ]
    if confused and max(confused)[0] > 1:
        count, gold, predicted = max(confused)
        yield f"{gold} is taken for {predicted} most often of all confusions ({count} times)."


def _lines(facts: CardFacts) -> Iterator[str]:
    yield f"# {facts.name}"
    yield ""
    yield f"{facts.description.rstrip('.')}."
    yield ""
    encoder = facts.architecture == "encoder"
    yield f"- Made by `conche train ner` {'from' if encoder else 'beside'} {facts.base}" + (
        "" if encoder else f", whose tokenizer it shares; a {facts.architecture} trained from nothing"
    )
    yield f"- Languages: {', '.join(facts.languages)}. Licence: {facts.licence}"
    yield f"- Labels: {', '.join(_taught(facts))}"
    yield ""
    served = "read as the service reads texts" if encoder else ""
    yield from figures(facts.reports, weak_spots(facts), how=served)
    yield "## Scores"
    yield ""
    yield facts.scores
    yield ""
    yield "## Data"
    yield ""
    labels = _taught(facts)
    yield from _table(
        ["set", "for", "format", "texts", "without spans", "left out", *labels],
        (
            [
                name,
                facts.roles[name],
                counts.form,
                counts.texts,
                counts.without_spans,
                len(counts.bad),
                *(counts.spans.get(label, 0) for label in labels),
            ]
            for name, counts in facts.data.sets
        ),
    )
    yield ""
    if facts.misfits:
        yield f"{facts.misfits} training spans are no whole words and could not be learned exactly."
    if facts.split:
        yield (
            f"{facts.split} training paragraphs are longer than {facts.options.max_tokens} tokens and were "
            "read in windows."
        )
    if facts.misfits or facts.split:
        yield ""
    yield "## Training"
    yield ""
    yield f"![Loss and dev F1]({CURVES_NAME})"
    yield ""
    yield from _table(
        ["epoch", "loss", *(f"F1 on {name}" for name in facts.history.epochs[0].dev), "minutes"],
        _epochs(facts),
    )
    yield ""
    yield f"The weights of epoch {facts.history.best.epoch} were kept."
    yield ""
    yield from _table(["setting", "value"], list(dataclasses.asdict(facts.options).items()))
    for name, report in facts.reports.items():
        yield ""
        yield from mistakes(name, report)


def _taught(facts: CardFacts) -> list[str]:
    found: dict[str, None] = {}
    for name, counts in facts.data.sets:
        if facts.roles[name] == "train":
            found.update(dict.fromkeys(counts.spans))
    return list(found)


def _score_rows(reports: Mapping[str, NerReport]) -> Iterator[Sequence[object]]:
    def row(name: str, label: str, score: Score) -> Sequence[object]:
        shares = [f"{100 * share:.1f}" for share in (score.precision, score.recall, score.f1)]
        return [name, label, *shares, score.gold, score.predicted]

    for name, report in reports.items():
        for label, score in report.per_label.items():
            yield row(name, label, score)
        yield row(name, "all", report.overall)


def _epochs(facts: CardFacts) -> Iterator[Sequence[object]]:
    for report in facts.history.epochs:
        scores = [f"{100 * score.f1:.2f}" for score in report.dev.values()]
        yield [report.epoch, f"{report.loss:.4f}", *scores, f"{report.seconds / 60:.1f}"]


def mistakes(name: str, report: NerReport) -> Iterator[str]:
    """The part of a card on what went wrong on a set, as Markdown lines."""
    yield f"## Mistakes on {name}"
    yield ""
    yield "Kinds: " + ", ".join(f"{report.kinds.get(kind, 0)} {kind}" for kind in MISTAKES) + "."
    yield ""
    yield f"What each label (row) was taken for; {NOTHING} = nothing:"
    yield ""
    yield from _table(
        ["", *report.labels, NOTHING], ([label, *counts] for label, counts in report.confusion_rows())
    )
    if report.examples:
        yield ""
        yield f"Examples; marked in their texts in {PAGE_NAME}:"
        yield ""
        yield from (_example(example) for example in report.examples)


def _example(example: Example) -> str:
    told = "; ".join(_told(example.text.text, pair) for pair in example.mistakes)
    return f"- {_escaped(' '.join(example.text.text.split()))} — {told}"


def _told(text: str, pair: Pair) -> str:
    def named(span: Span | None) -> str:
        return "" if span is None else f"**{_escaped(text[span.start : span.end])}** {span.label}"

    if pair.kind is Kind.MISSED:
        return f"missed {named(pair.gold)}"
    if pair.kind is Kind.SPURIOUS:
        return f"invented {named(pair.predicted)}"
    return f"{named(pair.predicted)} instead of {named(pair.gold)}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join(_escaped(str(cell)) for cell in cells) + " |"

    yield line(head)
    yield line(["---"] * len(head))
    yield from (line(row) for row in rows)


def _escaped(text: str) -> str:
    """Text as it is, whatever Markdown or HTML it looks like."""
    return _MARKUP.sub(r"\\\1", text)

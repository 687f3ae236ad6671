"""A measurement of a tagger in full: scores, confusion, kinds of mistakes, examples, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from model.runtime.tagging import Entity
from model.training.evaluation import Tagged
from model.training.mistakes import MISTAKES, Kind, Pair, pair_spans
from model.training.scoring import Average, Score, averages, score_spans, score_summary
from model.training.spans import LabelledText, Span

NOTHING: Final = "O"
"""What a missed span was predicted as, and what a spurious one is; no entity type is called so."""


@dataclass(frozen=True, slots=True)
class Example:
    """A text in which something went wrong.

    Attributes:
        number: Of the text among the usable ones, from 1.
        text: The text and its gold spans.
        found: Predicted entities.
        pairs: All of them, the right ones too.
    """

    number: int
    text: LabelledText
    found: Sequence[Entity]
    pairs: Sequence[Pair]

    @property
    def mistakes(self) -> list[Pair]:
        """The pairs that are not right."""
        return [pair for pair in self.pairs if pair.kind is not Kind.RIGHT]


@dataclass(frozen=True, slots=True)
class NerReport:
    """How a tagger did on a set of labelled texts.

    Attributes:
        overall: Micro-averaged.
        per_label: Of each label that is in the gold or the predicted spans.
        macro: Mean over labels, each alike.
        weighted: Mean over labels, each by its gold spans.
        kinds: How many pairs are of each kind.
        confusion: How many spans with the first label were predicted with the second; ``NOTHING`` for none.
        examples: Some of the texts with mistakes, in order, each kind of mistake among them.
        texts: How many texts.
        characters: In them, in code points.
        milliseconds_per_1000_characters: Time to read them one at a time, tokenisation included.
    """

    overall: Score
    per_label: Mapping[str, Score]
    macro: Average
    weighted: Average
    kinds: Mapping[Kind, int]
    confusion: Mapping[tuple[str, str], int]
    examples: Sequence[Example]
    texts: int
    characters: int
    milliseconds_per_1000_characters: float

    @property
    def labels(self) -> list[str]:
        """Those that occur, by name."""
        return list(self.per_label)

    def confusion_rows(self) -> Iterator[tuple[str, list[int]]]:
        """A row for each gold label and for none; columns are the predicted labels and none."""
        names = [*self.labels, NOTHING]
        for gold in names:
            yield gold, [self.confusion.get((gold, predicted), 0) for predicted in names]

    def summary(self) -> dict[str, Any]:
        """All figures as JSON: shares in percent with two decimals, as a manifest keeps them."""
        return {
            **score_summary(self.overall, self.per_label),
            "texts": self.texts,
            "characters": self.characters,
            "milliseconds_per_1000_characters": round(self.milliseconds_per_1000_characters, 3),
            "labels": {label: _score_in_full(score) for label, score in self.per_label.items()},
            "macro": _in_percent(self.macro),
            "weighted": _in_percent(self.weighted),
            "mistakes": {str(kind): self.kinds.get(kind, 0) for kind in MISTAKES},
            "confusion": {
                gold: dict(zip([*self.labels, NOTHING], row, strict=True))
                for gold, row in self.confusion_rows()
            },
            "examples": [_example_in_full(example) for example in self.examples],
        }


def make_report(texts: Sequence[LabelledText], tagged: Tagged, *, examples: int) -> NerReport:
    """Hold what was found against what was to be found.

    Args:
        texts: The labelled texts.
        tagged: Found in them, in the same order.
        examples: Most texts with mistakes to keep.
    """
    predicted = [[Span(entity.start, entity.end, entity.label) for entity in found] for found in tagged.found]
    overall, per_label = score_spans([text.spans for text in texts], predicted)
    macro, weighted = averages(per_label)
    compared = [
        Example(number, text, found, pair_spans(text.spans, spans))
        for number, (text, found, spans) in enumerate(
            zip(texts, tagged.found, predicted, strict=True), start=1
        )
    ]
    pairs = [pair for example in compared for pair in example.pairs]
    return NerReport(
        overall=overall,
        per_label=per_label,
        macro=macro,
        weighted=weighted,
        kinds=Counter(pair.kind for pair in pairs),
        confusion=Counter((_label(pair.gold), _label(pair.predicted)) for pair in pairs),
        examples=_choose(compared, examples),
        texts=len(texts),
        characters=tagged.characters,
        milliseconds_per_1000_characters=tagged.milliseconds_per_1000_characters,
    )


def _label(span: Span | None) -> str:
    return NOTHING if span is None else span.label


def _choose(examples: Sequence[Example], count: int) -> list[Example]:
    """Up to ``count`` of those with mistakes: the first of each kind, the second of each, and so on."""
    of_kinds: list[list[Example]] = [
        [example for example in examples if any(pair.kind is kind for pair in example.pairs)]
        for kind in MISTAKES
    ]
    in_turn = (example for row in zip_longest(*of_kinds) for example in row if example is not None)
    chosen = {example.number: example for example in in_turn}
    return sorted(list(chosen.values())[:count], key=lambda example: example.number)


def _in_percent(average: Average) -> dict[str, float]:
    return {
        "precision": round(100 * average.precision, 2),
        "recall": round(100 * average.recall, 2),
        "f1": round(100 * average.f1, 2),
    }


def _score_in_full(score: Score) -> dict[str, float | int]:
    return {
        **_in_percent(Average(score.precision, score.recall, score.f1)),
        "gold": score.gold,
        "predicted": score.predicted,
        "correct": score.correct,
    }


def _example_in_full(example: Example) -> dict[str, Any]:
    text = example.text.text

    def span_in_full(span: Span | None) -> dict[str, Any] | None:
        if span is None:
            return None
        covered = text[span.start : span.end]
        return {"start": span.start, "end": span.end, "text": covered, "label": span.label}

    return {
        "number": example.number,
        "text": text,
        "mistakes": [
            {
                "kind": str(pair.kind),
                "gold": span_in_full(pair.gold),
                "predicted": span_in_full(pair.predicted),
            }
            for pair in example.mistakes
        ],
    }

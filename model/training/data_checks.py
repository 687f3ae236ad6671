"""What is wrong with labelled data though each text can be used: repeats, leaks, scarce labels."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.runtime.tokenization import Tokenizer
from model.training.label_files.readings import BadLine, Reading
from model.training.spans import LabelledText, count_spans
from model.training.word_fit import Misfit, misfits_of

DEFAULT_MIN_EXAMPLES: Final = 50
_SHOWN: Final = 5
_EXCERPT: Final = 60
_MISFITS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class SetCounts:
    """What one file holds.

    Attributes:
        form: Its format.
        texts: Usable texts, of which ``without_spans`` have none.
        characters: In them.
        spans: By label, most frequent first.
        bad: Texts left out.
        repeated: Texts that are in the file once more, with the same spans.
        notes: How it was read.
    """

    form: str
    texts: int
    without_spans: int
    characters: int
    spans: Mapping[str, int]
    bad: Sequence[BadLine]
    repeated: int
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Leak:
    """Texts of a set that judges which are in a set that teaches too."""

    judging: str
    teaching: str
    texts: Sequence[str]
    with_spans: int
    of: int


@dataclass(frozen=True, slots=True)
class PlacedMisfit:
    """A span that cannot be found exactly, what it covers, and where its text begins."""

    path: Path
    line: int
    covered: str
    misfit: Misfit

    def __str__(self) -> str:
        span = self.misfit.span
        where = f"{self.path}:{self.line}: {span.start}..{span.end} {span.label}"
        return f"{where} {_excerpt(self.covered)} {self.misfit.reason}"


@dataclass(frozen=True, slots=True)
class DataCheck:
    """The findings on all sets of a training or a measurement.

    Attributes:
        sets: Names and counts, in the order given.
        contradictions: Texts that occur with different spans, within a set or between two that teach.
        leaks: Between the sets that teach and those that judge.
        misfits: Spans that the tagger can never find exactly, for instance since they cut words.
        scarce: Labels with few examples to learn from, and how many.
        min_examples: Fewer are few.
    """

    sets: Sequence[tuple[str, SetCounts]]
    contradictions: Sequence[str]
    leaks: Sequence[Leak]
    misfits: Sequence[PlacedMisfit]
    scarce: Mapping[str, int]
    min_examples: int

    def lines(self) -> Iterator[str]:
        """The report, for people."""
        for name, counts in self.sets:
            yield from _lines_of_set(name, counts)
        yield from self.warnings()

    def warnings(self) -> Iterator[str]:
        """What somebody should look at before training or believing a score."""
        if self.contradictions:
            yield (
                f"warning: {len(self.contradictions)} texts occur with different spans: "
                f"{_excerpts(self.contradictions)}"
            )
        for leak in self.leaks:
            yield (
                f"warning: {len(leak.texts)} of {leak.of} texts of {leak.judging} are in {leak.teaching} too "
                f"({leak.with_spans} with spans), which flatters scores: {_excerpts(leak.texts)}"
            )
        if self.misfits:
            yield (
                f"warning: {len(self.misfits)} spans cannot be learned or found exactly, since they are no "
                "whole words, or have marks at a border that no entity keeps:"
            )
            yield from (f"  {misfit}" for misfit in self.misfits[:_MISFITS_SHOWN])
            if len(self.misfits) > _MISFITS_SHOWN:
                yield f"  and {len(self.misfits) - _MISFITS_SHOWN} more"
        for label, count in self.scarce.items():
            yield f"warning: {label} has {count} examples to learn from, fewer than {self.min_examples}"


def check_data(
    teaching: Mapping[str, Reading],
    judging: Mapping[str, Reading],
    *,
    reader: Tokenizer,
    min_examples: int = DEFAULT_MIN_EXAMPLES,
) -> DataCheck:
    """Look over the sets of a training, or with nothing that teaches those of a measurement.

    Texts are the same if they differ in white space and Unicode composition only.

    Args:
        teaching: Training sets by name.
        judging: Development and test sets by name.
        reader: The tagger's tokenizer, whose words a span has to keep to; see ``word_fit.tagger_reader``.
        min_examples: A label with fewer training spans is reported.
    """
    readings = [*teaching.items(), *judging.items()]
    taught = Counter[str]()
    for reading in teaching.values():
        taught.update(count_spans(reading.texts))
    labels = taught.keys() | {
        label for reading in judging.values() for label in count_spans(reading.texts) if teaching
    }
    return DataCheck(
        sets=[(name, _count(reading)) for name, reading in readings],
        contradictions=_contradictions(teaching, judging),
        leaks=list(_leaks(teaching, judging)),
        misfits=[misfit for _, reading in readings for misfit in _misfits(reading, reader)],
        scarce={label: taught[label] for label in sorted(labels) if taught[label] < min_examples},
        min_examples=min_examples,
    )


def _key(text: str) -> str:
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _labelling(labelled: LabelledText) -> tuple[tuple[str, str], ...]:
    """What is labelled how; not where, so that white space makes no difference."""
    return tuple((labelled.text[span.start : span.end], span.label) for span in labelled.spans)


def _count(reading: Reading) -> SetCounts:
    seen = Counter((_key(text.text), _labelling(text)) for text in reading.texts)
    return SetCounts(
        form=reading.format,
        texts=len(reading.texts),
        without_spans=sum(not text.spans for text in reading.texts),
        characters=sum(len(text.text) for text in reading.texts),
        spans=count_spans(reading.texts),
        bad=reading.bad,
        repeated=sum(count - 1 for count in seen.values()),
        notes=reading.notes,
    )


def _contradictions(teaching: Mapping[str, Reading], judging: Mapping[str, Reading]) -> list[str]:
    groups = [[text for reading in teaching.values() for text in reading.texts]]
    groups += [reading.texts for reading in judging.values()]
    found: dict[str, None] = {}
    for texts in groups:
        labellings: defaultdict[str, set[tuple[tuple[str, str], ...]]] = defaultdict(set)
        for text in texts:
            labellings[_key(text.text)].add(_labelling(text))
        found.update(dict.fromkeys(key for key, ways in labellings.items() if len(ways) > 1))
    return list(found)


def _leaks(teaching: Mapping[str, Reading], judging: Mapping[str, Reading]) -> Iterator[Leak]:
    for teacher, learned in teaching.items():
        known = {_key(text.text) for text in learned.texts}
        for judge, judged in judging.items():
            leaked = [text for text in judged.texts if _key(text.text) in known]
            if leaked:
                # The longest first: a shared "Thanks." is chance, a shared sentence is not.
                texts = sorted({text.text for text in leaked}, key=len, reverse=True)
                yield Leak(judge, teacher, texts, sum(bool(text.spans) for text in leaked), len(judged.texts))


def _misfits(reading: Reading, reader: Tokenizer) -> Iterator[PlacedMisfit]:
    found = misfits_of(reading.texts, reader)
    for labelled, line, misfits in zip(reading.texts, reading.lines, found, strict=True):
        for misfit in misfits:
            covered = labelled.text[misfit.span.start : misfit.span.end]
            yield PlacedMisfit(reading.path, line, covered, misfit)


def _lines_of_set(name: str, counts: SetCounts) -> Iterator[str]:
    total = sum(counts.spans.values())
    yield (
        f"{name}: {counts.form}, {counts.texts} texts ({counts.without_spans} without spans), "
        f"{counts.characters} characters, {total} spans"
    )
    for label, count in counts.spans.items():
        yield f"  {label:16} {count:7}  {100 * count / total:5.1f} %"
    for note in counts.notes:
        yield f"  note: {note}"
    if counts.repeated:
        yield f"  note: {counts.repeated} texts are there more than once, with the same spans"
    if counts.bad:
        yield f"  {len(counts.bad)} texts left out, the first: {counts.bad[0]}"


def _excerpts(texts: Sequence[str]) -> str:
    return ", ".join(map(_excerpt, texts[:_SHOWN])) + (" …" if len(texts) > _SHOWN else "")


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…")

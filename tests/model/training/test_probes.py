"""The shipped tagger on everyday sentences of our own: a model that replaces it must not lose them."""

import re
from pathlib import Path
from typing import Final

import pytest

from model.training.evaluation import read_tagger, tag_texts
from model.training.spans import LabelledText, Span

PATH: Final = Path(__file__).parents[3] / "models" / "ner-zh-en"
LEAST_SHARE: Final = 0.65  # 39 of 59 when this was written; only a better model may move it, upwards
_MARKED: Final = re.compile(r"\[([^|\]]+)\|([A-Z]+)\]")


def read_probes() -> list[LabelledText]:
    """Texts of ``probes.txt``, their marks turned into spans."""
    lines = Path(__file__).with_name("probes.txt").read_text(encoding="utf-8").splitlines()
    return [_unmark(line) for line in lines if line and not line.startswith("#")]


def _unmark(line: str) -> LabelledText:
    text, spans, done = "", [], 0
    for mark in _MARKED.finditer(line):
        text += line[done : mark.start()]
        spans.append(Span(len(text), len(text) + len(mark[1]), mark[2]))
        text, done = text + mark[1], mark.end()
    return LabelledText(text + line[done:], tuple(spans))


@pytest.fixture(scope="module")
def results() -> list[tuple[LabelledText, bool]]:
    """Each probe, and whether all of it came out right: every name, nothing else."""
    probes = read_probes()
    tagged = tag_texts(read_tagger(PATH), [probe.text for probe in probes], threads=1)
    return [
        (probe, probe.spans == tuple(Span(entity.start, entity.end, entity.label) for entity in found))
        for probe, found in zip(probes, tagged.found, strict=True)
    ]


def _wrong(results: list[tuple[LabelledText, bool]]) -> list[str]:
    return [probe.text for probe, right in results if not right]


def test_enough_of_the_probes_come_out_right(results: list[tuple[LabelledText, bool]]) -> None:
    """All names of a sentence with their exact borders, and no other."""
    named = [result for result in results if result[0].spans]
    assert 1 - len(_wrong(named)) / len(named) >= LEAST_SHARE, _wrong(named)


def test_sentences_without_names_stay_empty(results: list[tuple[LabelledText, bool]]) -> None:
    """Customers ask about parcels and passwords all day; a made-up firm in each would be noise."""
    plain = [result for result in results if not result[0].spans]
    assert len(plain) >= 5
    assert _wrong(plain) == []

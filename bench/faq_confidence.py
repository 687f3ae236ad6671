"""Measure whether confidences mean what they say, on FAQ sets that they were not fitted on.

    python bench/faq_confidence.py BUNDLE SET... [--every N]

BUNDLE is a bundle's folder. A SET is a folder with faqs.jsonl ({"id", "question", "answer", "similar"?}) and
queries.jsonl ({"query", "faq_id"}). Each query is asked twice: of the whole bank, and of the bank without the
entries that answer it, where no answer is right. So half of the questions are unanswerable, and those are the
hardest there can be: the bank holds everything but the answer.

Printed for the score and the confidence of the first hit: AUC of telling answerable questions from the
others, AUC of telling right first hits from the others, expected calibration error over 10 bins; the limit
proposed for a precision of 0.9 by one half of the queries, with its precision and recall on the other half;
precision and recall at the threshold that the demo FAQ proposes for 0.9, and at 0.5. The demo's own figures
are of the examples that the calibration was fitted on.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer
from service.faq.calibration import EVIDENCE_HITS, Calibration, fit_calibration, texts_to_measure
from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.evaluation import Evaluation, evaluate
from service.faq.index import FaqIndex, Hit
from service.faq.queries import LabelledQuery, demo_queries
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
    budget = ComputeBudget()
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
    # The whole bank first; then, for each set of answers, the bank without them.
    for without, group in [((), queries), *(pair for pair in groups(queries) if pair[0])]:
        bank = [entry for entry in entries if entry.id not in without]
        index = FaqIndex.empty().with_changes(bank, vectors=vectors)
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


def ask_demo(vectors: Vectors, unrelated: float, *, crossing: bool = False) -> list[Asked]:
    """Ask each language's queries of its half of the demo, or of the other; the unanswerable ones once."""
    asked = []
    for language in ("zh", "en"):
        bank = [entry for entry in demo_entries() if (entry.language == language) != crossing]
        queries = [query for query in demo_queries() if query.query.isascii() == (language == "en")]
        with_answer = [query for query in queries if query.answerable]
        asked += ask(bank, with_answer, vectors, unrelated)
        asked += ask(bank, [query for query in queries if not query.answerable], vectors, unrelated)
    return asked


def precision_at(asked: Sequence[Asked], calibration: Calibration | None, threshold: float | None) -> str:
    """Say what comes of a threshold."""
    point = None if threshold is None else judge(asked, calibration, threshold).at_threshold
    if point is None:
        return "no answers"
    return f"{point.threshold:.3f} P {point.precision:.3f} R {point.recall:.3f}"


def report(name: str, asked: Sequence[Asked], demo: Sequence[Asked], calibration: Calibration) -> None:
    """Print two lines."""
    texts = sorted({one.query.query for one in asked})
    first_half = set(texts[::2])
    rest = [one for one in asked if one.query.query not in first_half]
    for kind, used in (("score", None), ("confidence", calibration)):
        whole = judge(asked, used, None)
        own = judge([one for one in asked if one.query.query in first_half], used, None).proposed
        demos = judge(demo, used, None).proposed
        print(
            f"{name:17} {kind:10} acc@1 {whole.modes['hybrid'].accuracy_at_1:.3f} | AUC {whole.auc:.3f} "
            f"right {whole.right_auc:.3f} | ECE {whole.ece:.3f} | own half "
            f"{precision_at(rest, used, own.threshold if own else None)} | demo "
            f"{precision_at(asked, used, demos.threshold if demos else None)} | "
            f"{precision_at(asked, used, 0.5)}"
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
    demo = ask_demo(vectors, calibration.unrelated)
    report("demo (fitted on)", demo, demo, calibration)
    report("across languages", ask_demo(vectors, calibration.unrelated, crossing=True), demo, calibration)
    for name, (entries, queries) in sets.items():
        report(name, ask(entries, queries, vectors, calibration.unrelated), demo, calibration)


if __name__ == "__main__":
    main()

"""What FAQ search costs, by size, with the model that embeds the queries at work beside it.

    python bench/faq_lookup.py                  # 1k, 10k, 100k and 1M entries; about six minutes, 6 GB
    python bench/faq_lookup.py --quick          # 1k and 10k
    python bench/faq_lookup.py --details        # and each kind of search and write by itself

Searches go through the service's own objects, from the text of a query to hits with their confidences; only
HTTP is left out. Queries are the labelled ones of the demo FAQ, embedded by the default model as they come.
Entries are made up: texts are strung together from words of the demo FAQ and, so that words are as many and
as unevenly spread as in real collections, from words drawn by Zipf's law; vectors have the mean and the
spread of the model's own, and those of an entry lie as near each other, and those of a subject, as its do.
Each size runs in a process of its own, so that memory is its alone.

"Busy" is with two clients that have texts embedded all the while. Recall is of the ten best that a plain
product of the query with all vectors, in full, comes to.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.faq.calibration import texts_to_measure
from service.faq.catalogue import FaqCatalogue
from service.faq.embedded_texts import texts_to_embed
from service.faq.embedding import embed_queries, embed_texts
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries
from service.faq.filters import Filter, parse_filter
from service.faq.index import FaqIndex, Mode
from service.faq.lexical import lexical_terms
from service.faq.live_indexes import LiveCollection
from service.faq.queries import demo_queries
from service.faq.ranking import closeness, lifted
from service.faq.segments import Segment
from service.faq.store import CollectionInfo
from service.inference import Embedder, EmbeddingOptions
from service.lifespan import open_services
from service.metrics import Metrics
from service.settings import Settings

Vectors = NDArray[np.float32]

COLLECTION = "made-up"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
# Entries that come in together; a larger collection is built of several such writes.
CHUNK = 100_000
# Parts of what sets a vector apart from the mean: its subject's, its entry's; the rest is the text's own.
SUBJECT, ENTRY = 0.45, 0.35
ENTRIES_A_SUBJECT = 10
RECALLED = 10
BUSY_CLIENTS = 2
WHERE = parse_filter({"and": [{"field": "language", "equals": "zh"}, {"field": "metadata.price", "lt": 50}]})
WHERE_FEW = parse_filter({"field": "metadata.price", "lt": 2})


@dataclass
class Corpus:
    """Makes entries and their vectors, the same for the same seed.

    Args:
        size: entries in all.
        real: [T, d], vectors of texts by the model.
    """

    size: int
    real: Vectors
    seed: int = 7

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        entries = demo_entries()
        english = [
            word for entry in entries for word in f"{entry.question} {entry.answer}".split() if word.isascii()
        ]
        chinese = [
            text[start : start + 3]
            for entry in entries
            if not entry.question.isascii()
            for text in (entry.question, entry.answer)
            for start in range(0, len(text), 3)
        ]
        self.words = {"en": english, "zh": chinese}
        self.mean = self.real.mean(axis=0)
        _, spread, axes = np.linalg.svd(self.real - self.mean, full_matrices=False)
        self.axes = (axes * (spread / np.sqrt(len(self.real)))[:, None]).astype(np.float32)
        self.subjects = self.normal(max(1, self.size // ENTRIES_A_SUBJECT))

    def normal(self, count: int) -> Vectors:
        """Draw [count, axes]."""
        return self.numbers.standard_normal((count, len(self.axes)), dtype=np.float32)

    def text(self, language: str, count: int) -> str:
        """Join ``count`` words, a third of them made up."""
        words = self.random.choices(self.words[language], k=count)
        for place in range(0, count, 3):
            rank = min(int(self.random.paretovariate(0.9)), 50_000)
            han = chr(0x4E00 + rank * 7 % 5_000) + chr(0x4E00 + rank % 4_999)
            words[place] = f"w{rank}" if language == "en" else han
        return (" " if language == "en" else "").join(words)

    def entry(self, number: int) -> FaqEntry:
        """Make one entry."""
        language = "zh" if number % 2 else "en"
        alternates = (self.text(language, 7),) if number % 4 == 0 else ()
        return FaqEntry(
            id=f"e{number}", question=self.text(language, 8), answer=self.text(language, 30),
            alternates=alternates, language=language, metadata={"price": number % 100},
        )  # fmt: skip

    def embedded(self, entries: Sequence[FaqEntry]) -> dict[str, Vectors]:
        """Give every text of ``entries`` a vector."""
        owners: dict[str, int] = {}
        for number, entry in enumerate(entries):
            for text in texts_to_embed([entry]):
                owners.setdefault(text, number)
        subjects = self.subjects[self.numbers.integers(len(self.subjects), size=len(entries))]
        about = np.sqrt(SUBJECT) * subjects + np.sqrt(ENTRY) * self.normal(len(entries))
        own = self.normal(len(owners))
        own *= np.sqrt(1 - SUBJECT - ENTRY)
        own += about[list(owners.values())]
        vectors = own @ self.axes + self.mean
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return dict(zip(owners, vectors.astype(np.float32, copy=False), strict=True))

    def chunks(self) -> Iterator[tuple[list[FaqEntry], dict[str, Vectors]]]:
        """Yield all entries, some at a time, with their vectors."""
        for first in range(0, self.size, CHUNK):
            entries = [self.entry(number) for number in range(first, min(first + CHUNK, self.size))]
            yield entries, self.embedded(entries)


@dataclass
class Made:
    """A searcher of one collection that is in no store."""

    live: LiveCollection

    async def current(self, name: str) -> LiveCollection:  # noqa: ARG002 - there is one
        """Return it."""
        return self.live

    async def follow(self, name: str) -> None:
        """Nothing is written."""

    def forget(self, name: str) -> None:
        """Nothing is dropped."""


@dataclass
class Searches:
    """Takes down the steps of a catalogue's searches, in seconds."""

    embedding: list[float] = field(default_factory=list)
    lookup: list[float] = field(default_factory=list)

    def on_search(
        self, *, unanswered: int, best: Sequence[float], embed_seconds: float, seconds: float
    ) -> None:
        """Note one."""
        del unanswered, best
        self.embedding.append(embed_seconds)
        self.lookup.append(seconds)

    def on_write(self, *, written: int, deleted: int) -> None:
        """Nothing is written while searches are timed."""

    def on_write_failure(self, code: str) -> None:
        """Nothing is written while searches are timed."""

    def on_index(self, seconds: float) -> None:
        """Indexes are timed by themselves."""


def rss() -> int:
    """Return this process's resident bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def quantiles(seconds: Sequence[float]) -> list[float]:
    """Return p50 and p99, in milliseconds."""
    return [float(value) * 1e3 for value in np.percentile(seconds, [50, 99])]


def build(corpus: Corpus) -> tuple[FaqIndex, float]:
    """Return the index of a corpus, and the seconds that it alone took."""
    index, seconds = FaqIndex.empty(), 0.0
    for entries, vectors in corpus.chunks():
        started_at = time.perf_counter()
        index = index.with_changes(entries, (), vectors)
        seconds += time.perf_counter() - started_at
    return index, seconds


async def searched(
    catalogue: FaqCatalogue, searches: Searches, queries: Sequence[str]
) -> tuple[list[float], list[float], float]:
    """Search for each query, one after the other.

    Returns:
        p50 and p99 of embedding and of looking up, in milliseconds, and those of CPU time a search.
    """
    searches.embedding.clear()
    searches.lookup.clear()
    spent = time.process_time()
    for query in queries:
        await catalogue.search(COLLECTION, [query], top_k=5)
    spent = time.process_time() - spent
    return quantiles(searches.embedding), quantiles(searches.lookup), spent * 1e3 / len(queries)


@contextlib.asynccontextmanager
async def busy(embedder: Embedder) -> AsyncIterator[None]:
    """Keep the embedder at work with requests of others."""
    texts = [entry.question for entry in demo_entries()]

    async def client(first: int) -> None:
        number = first
        while True:
            await embedder.embed([texts[number % len(texts)]], EmbeddingOptions())
            number += BUSY_CLIENTS

    clients = [asyncio.create_task(client(number)) for number in range(BUSY_CLIENTS)]
    try:
        yield
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def recall(index: FaqIndex, queries: Sequence[str], vectors: Vectors, unrelated: float, mode: Mode) -> float:
    """Return the part of the ten best by a plain product with all vectors that a search finds."""
    found = wanted = 0
    for query, vector in zip(queries, vectors, strict=True):
        dense = np.concatenate(
            [part.segment.best_phrasing(part.segment.rows @ vector) for part in index.parts]
        )
        keys = dense
        if mode == "hybrid":
            _, share, _ = index.lexical_scores(frozenset(lexical_terms(query)))
            keys = lifted(closeness(dense, unrelated), share)
        keys = np.where(np.concatenate([part.alive for part in index.parts]), keys, -np.inf)
        best = np.argsort(-keys, kind="stable")[:RECALLED]
        names = {segment.entries[position].id for segment, position in map(index.place, best.tolist())}
        [hits] = index.search([query], vector[None], unrelated=unrelated, top_k=RECALLED, mode=mode)
        found += len(names & {hit.id for hit in hits})
        wanted += len(names)
    return found / wanted


async def measure(size: int, queries: int, folder: Path, *, details: bool) -> dict[str, float | list[float]]:
    """Measure one size."""
    settings = Settings(data_dir=folder, faq_file="none", ner_bundle="none")
    async with open_services(settings, Metrics()) as services:
        embedder, served = services.embedder, services.catalogue
        if embedder is None or served is None:
            raise SystemExit("the default model is not there")
        real = (await embed_texts(embedder, texts_to_measure())).vectors
        unrelated = (await served.calibrate()).unrelated
        corpus = Corpus(size, np.stack(list(real.values())))
        gc.collect()
        before = rss()
        index, built = await asyncio.to_thread(build, corpus)
        gc.collect()
        after = rss()
        live = LiveCollection(made_up_info(size), 1, index)
        searches = Searches()
        catalogue = FaqCatalogue(
            served.store, embedder, calibrations=folder / "calibrations", observer=searches,
            searcher=lambda **_: Made(live),
        )  # fmt: skip
        asked = [query.query for query in demo_queries()]
        asked = [asked[number % len(asked)] for number in range(queries)]
        await searched(catalogue, searches, asked[:10])
        alone = await searched(catalogue, searches, asked)
        async with busy(embedder):
            beside = await searched(catalogue, searches, asked)
        some = list(dict.fromkeys(asked))[:50]
        vectors = (await embed_queries(embedder, some)).vectors
        result: dict[str, float | list[float]] = {
            "entries": size,
            "vectors": sum(len(part.segment.rows) for part in index.parts),
            "build_s": built,
            "array_bytes": index.nbytes() / size,
            "rss_bytes": (after - before) / size,
            "rss_mib": after / 2**20,
            "encode": alone[0],
            "lookup": alone[1],
            "cpu_ms": alone[2],
            "busy_encode": beside[0],
            "busy_lookup": beside[1],
            "recall_hybrid": recall(index, some, vectors, unrelated, "hybrid"),
            "recall_dense": recall(index, some, vectors, unrelated, "dense"),
        }
        if details:
            print_details(corpus, index, some, vectors, unrelated)
        return result


def made_up_info(size: int) -> CollectionInfo:
    """Describe the collection as a store would."""
    return CollectionInfo(
        name=COLLECTION, revision=1, entries=size, fingerprint=None, model_id=None, generation=1,
        dimensions=None, default_answer=None, min_score=None, created_at="", updated_at="",
    )  # fmt: skip


# By itself


def timed(action: Callable[[int], object], times: int) -> NDArray[np.float64]:
    """Return [times, 2], milliseconds of each call on the clock, and of all this process's threads."""
    taken = []
    for number in range(times):
        start, spent = time.perf_counter(), time.process_time()
        action(number)
        taken.append(((time.perf_counter() - start) * 1e3, (time.process_time() - spent) * 1e3))
    return np.array(taken)


def print_details(
    corpus: Corpus, index: FaqIndex, texts: Sequence[str], vectors: Vectors, unrelated: float
) -> None:
    """Print what each kind of search and write takes without the model."""

    def lookup(mode: Mode, where: Filter | None = None) -> Callable[[int], object]:
        return lambda number: index.search(
            [texts[number % len(texts)]], vectors[number % len(texts)][None], unrelated=unrelated, top_k=5,
            mode=mode, filter=where,
        )  # fmt: skip

    header = " ".join(f"{name:>8}" for name in ("best", "p50", "p99"))
    print(f"{corpus.size:>9,} {'milliseconds':28} {header}   {header} of CPU time")
    report("first use of a filter", timed(lookup("hybrid", WHERE), 1))
    for name, action in {
        "hybrid": lookup("hybrid"),
        "hybrid, filter of 25 %": lookup("hybrid", WHERE),
        "hybrid, filter of 2 %": lookup("hybrid", WHERE_FEW),
        "dense": lookup("dense"),
        "lexical": lookup("lexical"),
    }.items():
        action(0)
        report(name, timed(action, 100))
    fresh = [corpus.entry(corpus.size + number) for number in range(300)]
    more = corpus.embedded(fresh)

    def write(number: int) -> None:
        nonlocal index
        index = index.with_changes([fresh[number]], (), more)

    report("write of one entry", timed(write, 300))
    merged = timed(lambda _: Segment.merged([(part.segment, part.alive) for part in index.parts]), 1)
    report("merge of all segments", merged)


def report(name: str, taken: NDArray[np.float64]) -> None:
    """Print the quantiles of one measurement; CPU time is what others on the machine cannot stretch."""
    clock, cpu = (
        " ".join(f"{value:8.2f}" for value in np.percentile(column, [0, 50, 99])) for column in taken.T
    )
    print(f"{'':9} {name:28} {clock}   {cpu}", flush=True)


# The table

_COLUMNS = (
    "entries", "rows", "build s", "bytes an entry: arrays", "all", "RSS MiB", "encode p50 / p99 ms",
    "lookup p50 / p99 ms", "CPU ms a search", "busy: encode", "lookup", "recall@10 hybrid / dense",
)  # fmt: skip


def print_row(one: dict[str, float | list[float]]) -> None:
    """Print one size's figures as a row of a Markdown table."""

    def pair(name: str) -> str:
        value = one[name]
        assert isinstance(value, list)
        return " / ".join(f"{each:.1f}" for each in value)

    print(
        f"| {one['entries']:,} | {one['vectors']:,} | {one['build_s']:.1f} | {one['array_bytes']:,.0f} | "
        f"{one['rss_bytes']:,.0f} | {one['rss_mib']:,.0f} | {pair('encode')} | {pair('lookup')} | "
        f"{one['cpu_ms']:.1f} | {pair('busy_encode')} | {pair('busy_lookup')} | "
        f"{one['recall_hybrid']:.4f} / {one['recall_dense']:.4f} |",
        flush=True,
    )


def main() -> None:
    """Run every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes, fewer queries")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        [size] = arguments.sizes
        figures = asyncio.run(measure(size, arguments.queries, arguments.one, details=arguments.details))
        (arguments.one / f"{size}.json").write_text(json.dumps(figures), encoding="utf-8")
        return
    sizes, queries = arguments.sizes, arguments.queries
    if arguments.quick:
        sizes, queries = SIZES[:2], 100
    print("| " + " | ".join(_COLUMNS) + " |\n|" + " --- |" * len(_COLUMNS), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            command = [sys.executable, __file__, "--sizes", str(size), "--queries", str(queries)]
            command += ["--one", folder, *(["--details"] if arguments.details else [])]
            subprocess.run(command, check=True)
            print_row(json.loads((Path(folder) / f"{size}.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()

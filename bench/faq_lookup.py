"""What the FAQ index costs, by size: building, memory, a lookup, a write.

    python bench/faq_lookup.py                     # 1k, 10k and 100k entries
    python bench/faq_lookup.py --sizes 1000000 --queries 100

Entries are synthetic: clustered unit vectors, and texts strung together from words of the demo FAQ and, so
that words are as many and as unevenly spread as in real collections, from made-up ones drawn by Zipf's law.
Encoding the query is not part of it. Each size runs in a process of its own, so that memory is its alone.
"""

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.entry_files import demo_entries as demo
from service.faq.filters import Filter, parse_filter
from service.faq.index import FaqIndex, Mode
from service.faq.segments import Segment

DIMENSIONS = 384
UNRELATED = 0.0
WHERE = parse_filter({"and": [{"field": "language", "equals": "zh"}, {"field": "metadata.price", "lt": 50}]})


@dataclass
class Corpus:
    """Makes entries and queries, the same for the same seed."""

    size: int
    seed: int = 7

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.numbers = np.random.default_rng(self.seed)
        english = [
            word for entry in demo() for word in f"{entry.question} {entry.answer}".split() if word.isascii()
        ]
        chinese = [
            text[start : start + 3]
            for entry in demo()
            if not entry.question.isascii()
            for text in (entry.question, entry.answer)
            for start in range(0, len(text), 3)
        ]
        self.words = {"en": english, "zh": chinese}
        self.centres = self.unit(self.numbers.standard_normal((max(1, self.size // 10), DIMENSIONS)))

    @staticmethod
    def unit(vectors: np.ndarray) -> np.ndarray:
        """Bring vectors to unit length."""
        scaled: np.ndarray = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
        return scaled

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

    def vectors(self, count: int) -> np.ndarray:
        """Make [count, d] around the centres."""
        chosen = self.centres[self.numbers.integers(len(self.centres), size=count)]
        return self.unit(chosen + self.numbers.standard_normal((count, DIMENSIONS), dtype=np.float32) * 0.03)

    def embedded(self, entries: list[FaqEntry]) -> dict[str, np.ndarray]:
        """Give every text of ``entries`` a vector."""
        texts = texts_to_embed(entries)
        return dict(zip(texts, self.vectors(len(texts)), strict=True))


def timed(action: Callable[[int], object], times: int) -> np.ndarray:
    """Return [times, 2], milliseconds of each call on the clock, and of all this process's threads."""
    taken = []
    for number in range(times):
        start, spent = time.perf_counter(), time.process_time()
        action(number)
        taken.append(((time.perf_counter() - start) * 1e3, (time.process_time() - spent) * 1e3))
    return np.array(taken)


def rss() -> int:
    """Return this process's resident bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def measure(size: int, queries: int, top_k: int) -> None:
    """Print one size's figures."""
    corpus = Corpus(size)
    entries = [corpus.entry(number) for number in range(size)]
    vectors = corpus.embedded(entries)
    count = len(vectors)
    gc.collect()
    before = rss()
    start = time.perf_counter()
    index = FaqIndex.empty().with_changes(entries, (), vectors)
    built = time.perf_counter() - start
    del vectors
    gc.collect()
    held = index.nbytes()
    print(
        f"{size:>9,} entries, {count:,} vectors: built in {built:.1f} s, "
        f"{held / size:,.0f} bytes an entry in arrays, RSS grew by {(rss() - before) / 2**20:,.0f} MiB "
        f"to {rss() / 2**20:,.0f} MiB (entries themselves included)"
    )
    texts = [corpus.text("zh" if number % 2 else "en", 6) for number in range(queries)]
    asked = corpus.vectors(queries)

    def lookup(mode: Mode, where: Filter | None = None) -> Callable[[int], object]:
        return lambda number: index.search(
            [texts[number]], asked[number : number + 1], unrelated=UNRELATED, top_k=top_k, mode=mode,
            filter=where,
        )  # fmt: skip

    header = " ".join(f"{name:>8}" for name in ("best", "p50", "p99"))
    print(f"{'':9} {'milliseconds':28} {header}   {header} of CPU time")
    report("first use of a filter", timed(lookup("hybrid", WHERE), 1))
    for name, action in {
        "hybrid": lookup("hybrid"),
        "hybrid, filtered": lookup("hybrid", WHERE),
        "dense": lookup("dense"),
        "lexical": lookup("lexical"),
    }.items():
        action(0)
        report(name, timed(action, queries))
    fresh = [corpus.entry(size + number) for number in range(300)]
    more = corpus.embedded(fresh)

    def write(number: int) -> None:
        nonlocal index
        index = index.with_changes([fresh[number]], (), more)

    report("write of one entry", timed(write, 300))
    merged = timed(lambda _: Segment.merged([(part.segment, part.alive) for part in index.parts]), 1)
    report("merge of all segments", merged)
    many = [corpus.entry(size * 2 + number) for number in range(size // 3)]
    block = corpus.embedded(many)
    report(f"write of {len(many):,} entries", timed(lambda _: index.with_changes(many, (), block), 1))


def report(name: str, taken: np.ndarray) -> None:
    """Print the quantiles of one measurement; CPU time is what others on the machine cannot stretch."""
    clock, cpu = (
        " ".join(f"{value:8.2f}" for value in np.percentile(column, [0, 50, 99])) for column in taken.T
    )
    print(f"{'':9} {name:28} {clock}   {cpu}", flush=True)


def main() -> None:
    """Run every size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--top-k", type=int, default=5)
    arguments = parser.parse_args()
    if len(arguments.sizes) == 1:
        measure(arguments.sizes[0], arguments.queries, arguments.top_k)
        return
    for size in arguments.sizes:
        rest = ["--queries", str(arguments.queries), "--top-k", str(arguments.top_k)]
        subprocess.run([sys.executable, __file__, "--sizes", str(size), *rest], check=True)


if __name__ == "__main__":
    main()

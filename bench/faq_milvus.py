"""Searching in Milvus beside searching in memory: are the answers the same, and what do they cost.

    conche faq migrate --from DATA --to milvus://127.0.0.1:19530 -c NAME
    python bench/faq_milvus.py DATA milvus://127.0.0.1:19530 NAME queries.jsonl --queries 200

QUERIES are JSON lines with "query". Each is asked by itself, in each mode; the time is from the query's
vector to its hits. "Unproven" are queries of which so many entries might be among the best that not all were
looked at.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.faq.embedding import embed_queries, model_fingerprint
from service.faq.index import Mode
from service.faq.live_indexes import LiveIndexes
from service.faq.milvus_search import MilvusSearcher
from service.faq.milvus_store import MilvusFaqStore
from service.faq.open_store import open_place
from service.faq.searching import SearchableCollection
from service.lifespan import open_services
from service.metrics import Metrics
from service.settings import OFF, Settings

MODES: tuple[Mode, ...] = ("hybrid", "dense", "lexical")
UNRELATED = 0.75


async def compare(source: str, target: str, collection: str, texts: list[str], top_k: int) -> None:
    """Print one line a mode."""
    settings = Settings(ner_bundle=OFF, faq_store="none")
    async with open_services(settings, Metrics()) as services:
        if services.embedder is None:
            raise services.absence("/embed")
        vectors = np.concatenate([(await embed_queries(services.embedder, [text])).vectors for text in texts])
        fingerprint, model_id = model_fingerprint(services.embedder.manifest), services.embedder.model_id
    memory, milvus = (open_place(place, settings, make=False) for place in (source, target))
    if not isinstance(milvus, MilvusFaqStore):
        raise TypeError(f"{target} is not in Milvus")
    unproven: list[int] = []
    here = await LiveIndexes(memory, fingerprint=fingerprint, model_id=model_id).current(collection)
    searcher = MilvusSearcher(milvus, fingerprint=fingerprint, model_id=model_id, on_unproven=unproven.append)
    there = await searcher.current(collection)
    print(f"{len(here)} entries in memory, {len(there)} in Milvus {milvus.parts.milvus.server_version}")
    sides: tuple[SearchableCollection, SearchableCollection] = (here, there)
    for mode in MODES:
        unproven.clear()
        same, worst = 0, 0.0
        seconds: tuple[list[float], list[float]] = ([], [])
        for number, text in enumerate(texts):
            lists = []
            for side, times in zip(sides, seconds, strict=True):
                started_at = time.perf_counter()
                [hits] = side.search(
                    [text],
                    vectors[number : number + 1],
                    unrelated=UNRELATED,
                    top_k=top_k,
                    mode=mode,
                    filter=None,
                )
                times.append(time.perf_counter() - started_at)
                lists.append(hits)
            same += [hit.id for hit in lists[0]] == [hit.id for hit in lists[1]]
            pairs = list(zip(*lists, strict=False))
            worst = max([worst, *(abs(one.score - other.score) for one, other in pairs)])
        memory_ms, milvus_ms = (
            "/".join(f"{np.percentile(times, part) * 1e3:.0f}" for part in (50, 99)) for times in seconds
        )
        print(
            f"{mode:8} same lists {same} of {len(texts)}, largest difference of scores {worst:.1e}, "
            f"unproven {sum(unproven)}, p50/p99 ms {memory_ms} in memory, {milvus_ms} in Milvus"
        )
    memory.close()
    milvus.close()


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("source", "target", "collection", "queries_file"):
        parser.add_argument(name)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--top-k", type=int, default=10)
    given = parser.parse_args()
    lines = Path(given.queries_file).read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["query"] for line in lines[:: max(1, len(lines) // given.queries)]]
    asyncio.run(compare(given.source, given.target, given.collection, texts[: given.queries], given.top_k))


if __name__ == "__main__":
    main()

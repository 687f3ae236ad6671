"""A data folder with a FAQ of any size, made up: texts and vectors are those of ``bench/faq_lookup.py``."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

import numpy as np
from faq_lookup import Corpus

from service.faq.calibration import texts_to_measure
from service.faq.embedding import embed_texts, model_fingerprint
from service.faq.queries import demo_queries
from service.faq.store import Write
from service.lifespan import open_services
from service.metrics import Metrics
from service.settings import OFF, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COLLECTION: Final = "made-up"
# Entries that are written in one step.
_CHUNK: Final = 5_000


def faq_folder(size: int, work: Path, say: Callable[[str], None]) -> Path:
    """Have a data folder whose collection has ``size`` entries; one that is there is taken."""
    folder = work / f"faq-{size}"
    if not folder.is_dir():
        say(f"making a FAQ of {size:,} entries ...")
        partial = work / f".faq-{size}"
        shutil.rmtree(partial, ignore_errors=True)
        asyncio.run(_make(size, partial))
        partial.rename(folder)
    return folder


async def _make(size: int, folder: Path) -> None:
    settings = Settings(data_dir=folder, faq_file=OFF, ner_bundle=OFF)
    async with open_services(settings, Metrics()) as services:
        embedder, catalogue = services.embedder, services.catalogue
        if embedder is None or catalogue is None:
            raise SystemExit("the default model is not there")
        real = (await embed_texts(embedder, texts_to_measure())).vectors
        corpus = Corpus(size, np.stack(list(real.values())))
        for entries, vectors in corpus.chunks():
            for first in range(0, len(entries), _CHUNK):
                write = Write(upserts=tuple(entries[first : first + _CHUNK]), vectors=vectors)
                catalogue.store.apply(
                    COLLECTION,
                    write,
                    fingerprint=model_fingerprint(embedder.manifest),
                    model_id=embedder.model_id,
                    create=True,
                )


def search_queries() -> list[str]:
    """What is asked: the labelled queries of the demo FAQ."""
    return [query.query for query in demo_queries()]

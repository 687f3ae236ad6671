"""How good a tagging bundle is, measured through the runtime that serves it; needs no torch."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.runtime.bundle import Bundle
from model.runtime.documents import read_documents
from model.runtime.engine import pad_batch
from model.runtime.entities import EntityFinder
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.tokenization import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from model.runtime.engine import Engine
    from model.runtime.tagging import Entity


class NotATaggerError(ValueError):
    """The bundle gives vectors, not labels."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """What a tagger found.

    Attributes:
        found: Entities of each text.
        characters: In all texts, in code points.
        seconds: Taken to read the texts one at a time, from text to entities.
    """

    found: list[list[Entity]]
    characters: int
    seconds: float

    @property
    def milliseconds_per_1000_characters(self) -> float:
        """0 of no characters."""
        return 1e6 * self.seconds / self.characters if self.characters else 0.0


def read_tagger(path: Path) -> Bundle:
    """Load a tagging bundle.

    Raises:
        BundleError: The bundle is damaged.
        NotATaggerError: It is one for embedding.
    """
    bundle = Bundle.load(path)
    if bundle.manifest.task != "token-classification":
        raise NotATaggerError(
            f"{bundle.manifest.name} is for {bundle.manifest.task}; a token-classification bundle is wanted"
        )
    return bundle


def tag_texts(
    bundle: Bundle,
    texts: Sequence[str],
    *,
    threads: int,
    on_text: Callable[[], None] = lambda: None,
    engine: Engine | None = None,
) -> Tagged:
    """Find the entities of texts, each read by itself exactly as the service reads them.

    Args:
        bundle: See :func:`read_tagger`.
        texts: Any length.
        threads: Compute threads.
        on_text: Called after each text.
        engine: With the bundle's graph, and closed in the end; None = the reference.

    Raises:
        BundleError: The bundle is damaged.
    """
    tokenizer = Tokenizer.from_bundle(bundle)
    finder = EntityFinder.from_bundle(bundle)
    found: list[list[Entity]] = []
    seconds = 0.0
    with closing(engine or OnnxRuntimeEngine(bundle, threads=threads)) as running:
        for text in texts:
            began = time.perf_counter()
            (document,) = read_documents([text], tokenizer, max_tokens=bundle.manifest.max_tokens)
            logits = [
                running.run(pad_batch([window.input_ids], tokenizer.pad_token_id), ["logits"])["logits"][0]
                for window in document.windows
            ]
            found.append(finder.find(document, logits))
            seconds += time.perf_counter() - began
            on_text()
    return Tagged(found, sum(map(len, texts)), seconds)

"""How good a tagging bundle is, measured through the runtime that serves it; needs no torch."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from model.runtime.bundle import Bundle
from model.runtime.documents import read_documents
from model.runtime.engine import OnnxRuntimeEngine, pad_batch
from model.runtime.entities import EntityFinder
from model.runtime.tokenization import Tokenizer
from model.training.scoring import Score, score_spans
from model.training.spans import Span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from model.training.spans import LabelledText


class NotATaggerError(ValueError):
    """The bundle gives vectors, not labels."""


def evaluate_tagger(
    path: Path, texts: Sequence[LabelledText], *, threads: int, on_text: Callable[[], None] = lambda: None
) -> tuple[Score, dict[str, Score]]:
    """Score a tagging bundle on labelled texts, read exactly as the service reads them.

    Args:
        path: The bundle.
        texts: With spans whose labels are the bundle's entity types.
        threads: Compute threads.
        on_text: Called after each text.

    Returns:
        Micro-averaged over all labels, and by label.

    Raises:
        BundleError: The bundle is damaged.
        NotATaggerError: It is one for embedding.
    """
    bundle = Bundle.load(path)
    if bundle.manifest.task != "token-classification":
        raise NotATaggerError(
            f"{bundle.manifest.name} is for {bundle.manifest.task}; a token-classification bundle is wanted"
        )
    tokenizer = Tokenizer.from_bundle(bundle)
    finder = EntityFinder.from_bundle(bundle)
    found: list[list[Span]] = []
    with closing(OnnxRuntimeEngine(bundle, threads=threads)) as engine:
        documents = read_documents(
            [labelled.text for labelled in texts], tokenizer, max_tokens=bundle.manifest.max_tokens
        )
        for document in documents:
            logits = [
                engine.run(pad_batch([window.input_ids], tokenizer.pad_token_id), ["logits"])["logits"][0]
                for window in document.windows
            ]
            found.append(
                [Span(entity.start, entity.end, entity.label) for entity in finder.find(document, logits)]
            )
            on_text()
    return score_spans([labelled.spans for labelled in texts], found)

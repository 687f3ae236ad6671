"""How good a bundle's vectors are, measured through the runtime that serves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from model.runtime.bundle import Bundle
from model.runtime.engine import Engine, pad_batch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine
from model.runtime.threads import thread_count
from model.runtime.tokenization import Tokenizer

_BATCH_TOKENS: Final = 4096


class BundleEmbedder:
    """Embeds many texts with a bundle, those of like length together."""

    def __init__(self, bundle: Bundle, engine: Engine | None = None) -> None:
        """Load the bundle's tokenizer and graph.

        Args:
            bundle: For embedding.
            engine: With the bundle's graph, and closed in the end; None = the reference.

        Raises:
            ValueError: It is not an embedding bundle.
            BundleError: It cannot be loaded.
        """
        manifest = bundle.manifest
        if manifest.task != "embedding":
            raise ValueError(f"{manifest.name} is for {manifest.task}, not for embedding")
        self._manifest = manifest
        self._prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
        self._output = f"embeddings_{manifest.pooling}_normalized"
        self._tokenizer = Tokenizer.from_bundle(bundle)
        self._engine = engine or OnnxRuntimeEngine(bundle, threads=thread_count())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._engine.close()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts with the bundle's default prompt, cut to its longest input.

        Returns:
            [n, d], unit vectors in the order of ``texts``.
        """
        rows = [
            self._tokenizer.truncate(tokenized, self._manifest.max_tokens).input_ids
            for tokenized in self._tokenizer.tokenize(texts, prefix=self._prompt)
        ]
        vectors = np.empty((len(rows), self._manifest.dimensions or 0), np.float32)
        order = sorted(range(len(rows)), key=lambda index: len(rows[index]))
        while order:
            # The longest are last, and decide how many fit into a batch.
            size = max(1, _BATCH_TOKENS // len(rows[order[-1]]))
            chosen, order = order[-size:], order[:-size]
            batch = pad_batch([rows[index] for index in chosen], self._tokenizer.pad_token_id)
            vectors[chosen] = self._engine.run(batch, [self._output])[self._output]
        return vectors


@dataclass(frozen=True, slots=True)
class FaqAccuracy:
    """How often the right entry comes first, or among the first five, of ``queries`` queries."""

    accuracy_at_1: float
    hit_at_5: float
    queries: int


def sentence_similarity(embedder: BundleEmbedder, path: Path) -> float:
    """Correlate cosines with people's judgements of likeness.

    Args:
        embedder: Of the bundle.
        path: JSON lines with ``a``, ``b`` and ``score``.

    Returns:
        Spearman's rank correlation times 100.
    """
    pairs = _read_lines(path)
    first = embedder.embed([pair["a"] for pair in pairs])
    second = embedder.embed([pair["b"] for pair in pairs])
    cosines = (first.astype(np.float64) * second).sum(axis=1)
    return 100 * spearman(cosines, np.array([pair["score"] for pair in pairs], np.float64))


def faq_accuracy(embedder: BundleEmbedder, folder: Path) -> FaqAccuracy:
    """Rank FAQ entries by the mean of the cosines to the question and to question and answer.

    Args:
        embedder: Of the bundle.
        folder: ``faqs.jsonl`` with ``id``, ``question``, ``answer``, and ``queries.jsonl`` with ``query``
            and ``faq_id``.
    """
    entries, queries = _read_lines(folder / "faqs.jsonl"), _read_lines(folder / "queries.jsonl")
    questions = embedder.embed([entry["question"] for entry in entries])
    whole = embedder.embed([f"{entry['question']} {entry['answer']}" for entry in entries])
    scores = embedder.embed([query["query"] for query in queries]) @ (questions + whole).T
    ranked = np.argsort(-scores, axis=1, kind="stable")
    ids = [str(entry["id"]) for entry in entries]
    ranks = [
        [ids[column] for column in row].index(str(query["faq_id"]))
        for row, query in zip(ranked.tolist(), queries, strict=True)
    ]
    found = np.array(ranks)
    return FaqAccuracy(float((found == 0).mean()), float((found < 5).mean()), len(queries))


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Rank correlation; equal values share the mean of their ranks."""
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return ranks


def _read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def measure(
    path: Path, *, sts: dict[str, Path] | None = None, faq: dict[str, Path] | None = None
) -> dict[str, Any]:
    """Measure a bundle on sets of sentence pairs and of FAQs.

    Args:
        path: The bundle's folder.
        sts: Files of sentence pairs, by the set's name.
        faq: Folders of FAQ sets, by name.

    Returns:
        Figures as the manifest's ``quality`` holds them, rounded to two digits.

    Raises:
        BundleError: The bundle cannot be loaded.
        ValueError: It is not for embedding.
    """
    figures: dict[str, Any] = {}
    with BundleEmbedder(Bundle.load(path)) as embedder:
        for name, file in (sts or {}).items():
            figures[name] = {"spearman_x100": round(sentence_similarity(embedder, file), 2)}
        for name, folder in (faq or {}).items():
            result = faq_accuracy(embedder, folder)
            figures[name] = {
                "accuracy_at_1": round(100 * result.accuracy_at_1, 2),
                "hit_at_5": round(100 * result.hit_at_5, 2),
                "queries": result.queries,
            }
    return figures

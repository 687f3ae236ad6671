"""Runs a peer in its own environment and takes the time there: ``python worker.py KIND ARGUMENT...``.

Orders come in and results go out as JSON lines. This file is run by the peers' interpreters, so it knows
nothing of this project and imports a peer only when it is that peer's turn.

    {"do": "time", "texts": [...], "clients": 1, "per_request": 1, "seconds": 3, "least_requests": 1}
        -> {"seconds": 3.1, "requests": 42, "latencies": [...]}
    {"do": "outputs", "texts": [...]} -> {"outputs": [...]}
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[list[str]], Any]
    Handlers = dict[str, Callable[[dict[str, Any]], dict[str, Any]]]

# No contestant asks a hub for anything, or tells anybody that it runs.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "true",
}


def one_request_at_a_time(
    texts: Sequence[str], run: Run, *, per_request: int, seconds: float, least_requests: int
) -> dict[str, Any]:
    """Call ``run`` with the next ``per_request`` texts, again and again, as a program by itself does."""
    latencies: list[float] = []
    position = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) - began < seconds or len(latencies) < least_requests:
        request = [texts[(position + offset) % len(texts)] for offset in range(per_request)]
        position += per_request
        run(request)
        latencies.append(time.perf_counter() - now)
    return {"seconds": time.perf_counter() - began, "requests": len(latencies), "latencies": latencies}


def sentence_transformers(backend: str, checkpoint: str, exported: str) -> Run:
    """Load a checkpoint with one of the three back ends; an export is kept for the next time."""
    library = import_module("sentence_transformers")
    options: dict[str, Any] = {"device": "cpu", "backend": backend}
    if backend == "onnx":
        options["model_kwargs"] = {"provider": "CPUExecutionProvider"}
    if backend != "torch" and not Path(exported).is_dir():
        library.SentenceTransformer(checkpoint, **options).save_pretrained(exported)
    model = library.SentenceTransformer(checkpoint if backend == "torch" else exported, **options)
    return lambda texts: model.encode(texts, show_progress_bar=False)


def token_classification(checkpoint: str, batch_size: str) -> Run:
    """Load a tagger as transformers' pipeline."""
    tagger = import_module("transformers").pipeline(
        "token-classification", model=checkpoint, device="cpu", aggregation_strategy="first"
    )
    return lambda texts: tagger(texts, batch_size=int(batch_size))


def spacy(package: str) -> Run:
    """Load a pipeline of spaCy's, all but its tagger of entities switched off."""
    library = import_module("spacy")
    # A package of models is found by its name; one that was renamed holds its folder beside its module.
    module = import_module(package)
    [folder] = [path.parent for path in Path(str(module.__file__)).parent.glob("*/config.cfg")]
    nlp = library.load(folder, enable=["tok2vec", "ner"])
    return lambda texts: [[entity.text for entity in doc.ents] for doc in nlp.pipe(texts)]


KINDS: dict[str, Callable[..., Run]] = {
    "sentence-transformers": sentence_transformers,
    "token-classification": token_classification,
    "spacy": spacy,
}


def plain(outputs: Any) -> Any:
    """Turn arrays and numbers of libraries into what JSON has."""
    if hasattr(outputs, "tolist"):
        return outputs.tolist()
    if isinstance(outputs, dict):
        return {key: plain(value) for key, value in outputs.items()}
    return [plain(one) for one in outputs] if isinstance(outputs, (list, tuple)) else outputs


def serve(load: Callable[[], Handlers]) -> None:
    """Load what answers orders, say so, and answer until there are no more."""
    # What libraries print, while they are loaded or later, must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    handlers = load()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = handlers[order["do"]](order)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def load_peer() -> Handlers:
    """Load the peer that the command line names."""
    run = KINDS[sys.argv[1]](*sys.argv[2:])

    def timed(order: dict[str, Any]) -> dict[str, Any]:
        return one_request_at_a_time(
            order["texts"],
            run,
            per_request=order["per_request"],
            seconds=order["seconds"],
            least_requests=order["least_requests"],
        )

    return {"time": timed, "outputs": lambda order: {"outputs": plain(run(order["texts"]))}}


if __name__ == "__main__":
    os.environ.update(OFFLINE)
    serve(load_peer)

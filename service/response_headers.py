"""What an answer says beside its body: model, tokens read, texts cut, windows used, and what it took.

Headers about single texts count like errors do: a place is one in the list that was sent, from 0. What that
list is compared with, the query of /rerank or the source sentence of /similarity, is in no list and is called
``query``; a cross-encoder reads it with each text, so that there it is a part of each.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from service.relevance import QueryRead
from service.request_work import RequestWork

# Proxies refuse header blocks of more than 4 to 8 KiB.
_MAX_LIST_CHARACTERS: Final = 2000

RESULT_HEADERS: Final[dict[str, dict[str, object]]] = {
    "x-conche-model": {"description": "Name of the bundle.", "schema": {"type": "string"}},
    "x-conche-tokens": {
        "description": "Tokens read, over all texts, special ones and prompts included.",
        "schema": {"type": "integer"},
    },
    "x-conche-tokens-by-input": {
        "description": "Tokens read of each text of the list sent, in order, comma-separated. A pair counts "
        "as one text, and so do query and text for a cross-encoder. Absent if there are more than fit.",
        "schema": {"type": "string"},
    },
    "x-conche-tokens-query": {
        "description": "Tokens read of what the list is compared with: the query, or the source sentence. "
        "Absent where a cross-encoder reads it with each text.",
        "schema": {"type": "integer"},
    },
    "x-conche-truncated": {
        "description": "`index:tokens_cut` of each text that was cut, comma-separated; ends in `...` if "
        "there are more than fit. The index is that in the list sent; `query:tokens_cut`, which comes first, "
        "is of the query or source sentence. Absent if nothing was cut.",
        "schema": {"type": "string"},
    },
    "x-conche-empty": {
        "description": "Which texts held nothing to read, by index in the list sent, comma-separated; ends "
        "in `...` if there are more than fit. Absent if none did; setting `CONCHE_EMPTY_INPUT` says whether "
        "such texts are taken.",
        "schema": {"type": "string"},
    },
    "x-conche-ranked-by": {
        "description": "What the scores are of: `cross-encoder`, which reads query and text together, or "
        "`bi-encoder`, the cosine of their vectors.",
        "schema": {"type": "string", "enum": ["bi-encoder", "cross-encoder"]},
    },
    "x-conche-windows": {
        "description": "`index:windows` of each text that took more than one window, comma-separated; ends "
        "in `...` if there are more than fit. Absent if none did.",
        "schema": {"type": "string"},
    },
    "x-conche-windows-total": {
        "description": "Windows read, over all texts: one for each paragraph that fits the model.",
        "schema": {"type": "integer"},
    },
    "server-timing": {
        "description": "What the answer took, in ms: `tokenize`; `queue`, how long a row waited for its run, "
        "the mean over the request's rows; `run`, of the runs that held its rows, beside those of other "
        "requests; `decode`, where entities were made of what the model gave; `lookup`, where an index was "
        "searched; `total`, until the answer was ready to be sent. (W3C Server Timing.)",
        "schema": {"type": "string"},
        "example": "tokenize;dur=0.61, queue;dur=0.15, run;dur=7.92, total;dur=9.70",
    },
    "x-compute-characters": {
        "description": "Code points tokenised. This and those below as text-embeddings-inference has them.",
        "schema": {"type": "integer"},
    },
    "x-compute-tokens": {
        "description": "Tokens that models read, special ones, prompts and the overlaps of windows included.",
        "schema": {"type": "integer"},
    },
    "x-total-time": {"description": "`total`, in whole ms.", "schema": {"type": "integer"}},
    "x-tokenization-time": {"description": "`tokenize`, in whole ms.", "schema": {"type": "integer"}},
    "x-queue-time": {"description": "`queue`, in whole ms.", "schema": {"type": "integer"}},
    "x-inference-time": {"description": "`run`, in whole ms.", "schema": {"type": "integer"}},
}

# In every answer that a model, or its tokenizer, did anything for.
WORK_HEADERS: Final = (
    "server-timing",
    "x-compute-characters",
    "x-compute-tokens",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
)


def documented_headers(*names: str) -> dict[str, dict[str, object]]:
    """OpenAPI entries of the headers of a route that asks a model."""
    return {name: RESULT_HEADERS[name] for name in (*names, *WORK_HEADERS)}


def work_headers(work: RequestWork, *, total_seconds: float) -> dict[str, str]:
    """Headers that tell what an answer took, `WORK_HEADERS`."""
    seconds = {
        "tokenize": work.tokenize_seconds,
        "queue": work.queue_seconds,
        "run": work.run_seconds,
        "decode": work.decode_seconds,
        "lookup": work.lookup_seconds,
        "total": total_seconds,
    }
    # Rounded once: 0.9999 ms would be 1.00 in one header and 0 in the other.
    milliseconds = {name: round(value * 1000, 2) for name, value in seconds.items() if value is not None}
    values = (
        ", ".join(f"{name};dur={value:.2f}" for name, value in milliseconds.items()),
        str(work.characters),
        str(work.tokens),
        *(str(int(milliseconds[name])) for name in ("total", "tokenize", "queue", "run")),
    )
    return dict(zip(WORK_HEADERS, values, strict=True))


def reading_headers(
    model_id: str,
    tokens: Sequence[int],
    truncated: Sequence[int],
    empty: Sequence[int] = (),
    *,
    query: QueryRead | None = None,
) -> dict[str, str]:
    """Headers of an answer of embedders, classifiers and their tokenizers.

    Args:
        model_id: of the model.
        tokens: read, per text of the list.
        truncated: tokens cut off, per text.
        empty: places of the texts that held nothing to read.
        query: what the texts were compared with, if that was read by itself.
    """
    headers = {"x-conche-model": model_id, **_tokens(tokens), **_empty(empty)}
    cut = [f"{index}:{count}" for index, count in enumerate(truncated) if count > 0]
    if query is not None:
        headers["x-conche-tokens"] = str(sum(tokens) + query.tokens)
        headers["x-conche-tokens-query"] = str(query.tokens)
        if query.truncated:
            cut.insert(0, f"query:{query.truncated}")
    return headers | {"x-conche-truncated": _listed(cut)} if cut else headers


def tagging_headers(model_id: str, tokens: Sequence[int], windows: Sequence[int]) -> dict[str, str]:
    """Headers of an entity answer; ``tokens`` and ``windows`` per text."""
    headers = {
        "x-conche-model": model_id,
        **_tokens(tokens),
        "x-conche-windows-total": str(sum(windows)),
        **_empty([index for index, count in enumerate(windows) if count == 0]),
    }
    split = [f"{index}:{count}" for index, count in enumerate(windows) if count > 1]
    return headers | {"x-conche-windows": _listed(split)} if split else headers


def _empty(places: Sequence[int]) -> dict[str, str]:
    return {"x-conche-empty": _listed(map(str, places))} if places else {}


def _tokens(tokens: Sequence[int]) -> dict[str, str]:
    headers = {"x-conche-tokens": str(sum(tokens))}
    # A text takes two characters at least; a list that cannot fit is not even written.
    by_input = ",".join(map(str, tokens)) if 2 * len(tokens) <= _MAX_LIST_CHARACTERS else ""
    if 0 < len(by_input) <= _MAX_LIST_CHARACTERS:
        headers["x-conche-tokens-by-input"] = by_input
    return headers


def _listed(items: Iterable[str]) -> str:
    parts: list[str] = []
    length = 0
    for part in items:
        length += len(part) + 1
        if length > _MAX_LIST_CHARACTERS:
            parts.append("...")
            break
        parts.append(part)
    return ",".join(parts)

"""What an answer says beside its body: model, tokens read, texts cut, windows used."""

from collections.abc import Sequence
from typing import Final

# Proxies refuse header blocks of more than 4 to 8 KiB.
_MAX_LIST_CHARACTERS: Final = 2000

RESULT_HEADERS: Final[dict[str, dict[str, object]]] = {
    "x-conche-model": {"description": "Name of the bundle.", "schema": {"type": "string"}},
    "x-conche-tokens": {
        "description": "Tokens read, over all texts, special ones and prompts included.",
        "schema": {"type": "integer"},
    },
    "x-conche-truncated": {
        "description": "`index:tokens_cut` of each text that was cut, comma-separated; ends in `...` if "
        "there are more than fit. Absent if none was cut.",
        "schema": {"type": "string"},
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
}


def documented_headers(*names: str) -> dict[str, dict[str, object]]:
    """OpenAPI entries of the headers of a route."""
    return {name: RESULT_HEADERS[name] for name in names}


def embedding_headers(model_id: str, tokens: Sequence[int], truncated: Sequence[int]) -> dict[str, str]:
    """Headers of an embedding answer; ``tokens`` read and tokens cut off, per text."""
    headers = {"x-conche-model": model_id, "x-conche-tokens": str(sum(tokens))}
    cut = _by_index(truncated, above=0)
    return headers | {"x-conche-truncated": cut} if cut else headers


def tagging_headers(model_id: str, tokens: Sequence[int], windows: Sequence[int]) -> dict[str, str]:
    """Headers of an entity answer; ``tokens`` and ``windows`` per text."""
    headers = {
        "x-conche-model": model_id,
        "x-conche-tokens": str(sum(tokens)),
        "x-conche-windows-total": str(sum(windows)),
    }
    split = _by_index(windows, above=1)
    return headers | {"x-conche-windows": split} if split else headers


def _by_index(counts: Sequence[int], *, above: int) -> str:
    parts: list[str] = []
    length = 0
    for index, count in enumerate(counts):
        if count <= above:
            continue
        part = f"{index}:{count}"
        length += len(part) + 1
        if length > _MAX_LIST_CHARACTERS:
            parts.append("...")
            break
        parts.append(part)
    return ",".join(parts)

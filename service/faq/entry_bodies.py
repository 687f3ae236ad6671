"""An entry as stores keep it: JSON without the id, which stands in a column of its own."""

import json
from typing import Any, Final

from service.faq.entries import FaqEntry

_TUPLES: Final = ("alternates", "tags")


def body_of(entry: FaqEntry) -> str:
    """Write ``entry`` down; equal entries give equal bodies."""
    # The standard library's writer: metadata may hold whole numbers of any size.
    return json.dumps(entry.model_dump(exclude={"id"}), ensure_ascii=False, separators=(",", ":"))


def entry_of(identifier: str, body: str) -> FaqEntry:
    """Read what `body_of` wrote."""
    fields: dict[str, Any] = json.loads(body)
    for name in _TUPLES:
        fields[name] = tuple(fields[name])
    # Not validated again: that was done before it was written, and takes ten times as long as reading.
    return FaqEntry.model_construct(id=identifier, **fields)

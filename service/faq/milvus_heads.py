"""The states of FAQ collections in Milvus: which is the newest one, and what it says."""

import threading
from collections.abc import Iterable
from typing import Final

from service.errors import StorageError
from service.faq.milvus_connection import MilvusConnection
from service.faq.milvus_schema import Head, Names, head_key, quoted

_TRIES: Final = 20
_NAMES_A_QUERY: Final = 200


class MilvusHeads:
    """Reads heads and keeps the newest one of each collection, as heads never change."""

    def __init__(self, milvus: MilvusConnection, names: Names) -> None:
        self._milvus = milvus
        self._names = names
        self._lock = threading.Lock()
        self._kept: dict[str, Head] = {}

    def newest(self) -> dict[str, int]:
        """The newest version of each collection, dropped ones included; one call, never out of date."""
        found: dict[str, int] = {}
        for alias in self._milvus.aliases(self._names.heads):
            sealed = self._names.sealed(alias)
            if sealed:
                found[sealed[0]] = max(sealed[1], found.get(sealed[0], 0))
        return found

    def head(self, name: str) -> Head | None:
        """The newest head of ``name``, of a dropped collection too; None if it never was."""
        return self.heads([name]).get(name)

    def live(self, name: str) -> tuple[Head | None, list[str]]:
        """The newest head of ``name``, None if there is no such collection, and then the names there are."""
        head = self.head(name)
        if head is not None and head.incarnation is not None:
            return head, []
        return None, [head.name for head in self.heads().values() if head.incarnation is not None]

    def heads(self, names: Iterable[str] | None = None) -> dict[str, Head]:
        """The newest heads by name; of all collections if no names are given."""
        wanted = None if names is None else set(names)
        for _ in range(_TRIES):
            newest = self.newest()
            if wanted is not None:
                newest = {name: version for name, version in newest.items() if name in wanted}
            with self._lock:
                found = {
                    name: head
                    for name, version in newest.items()
                    if (head := self._kept.get(name)) is not None and head.version == version
                }
            missing = {name: version for name, version in newest.items() if name not in found}
            if missing:
                found |= self._read(missing)
            if found.keys() == newest.keys():
                return found
            # A head goes when a newer one is sealed: look which that is.
        raise StorageError(
            f"the state of the FAQ collections {', '.join(sorted(missing)[:5])} is not in Milvus"
        )

    def keep(self, head: Head) -> None:
        """Remember what was just written or read."""
        with self._lock:
            kept = self._kept.get(head.name)
            if kept is None or kept.version < head.version:
                self._kept[head.name] = head

    def _read(self, versions: dict[str, int]) -> dict[str, Head]:
        # Whatever is there of a head is right, so not waiting is worth a try.
        found = self._read_at(versions, at=0)
        missing = {name: version for name, version in versions.items() if name not in found}
        return found | (self._read_at(missing, at=None) if missing else {})

    def _read_at(self, versions: dict[str, int], *, at: int | None) -> dict[str, Head]:
        found: dict[str, Head] = {}
        pairs = sorted(versions.items())
        for start in range(0, len(pairs), _NAMES_A_QUERY):
            some = dict(pairs[start : start + _NAMES_A_QUERY])
            first_keys = ", ".join(quoted(head_key(name, version, 0)) for name, version in some.items())
            rows = self._milvus.query(
                self._names.heads, f"key in [{first_keys}]", ["name", "parts", "body"], at=at
            )
            for row in rows:
                body = row["body"]
                if row["parts"] > 1:
                    whole = self._whole(row["name"], some[row["name"]], row["parts"], at)
                    if whole is None:
                        continue
                    body = whole
                head = Head.from_json(body)
                self.keep(head)
                found[head.name] = head
        return found

    def _whole(self, name: str, version: int, parts: int, at: int | None) -> str | None:
        keys = ", ".join(quoted(head_key(name, version, part)) for part in range(parts))
        rows = self._milvus.query(self._names.heads, f"key in [{keys}]", ["part", "body"], at=at)
        rows.sort(key=lambda row: int(row["part"]))
        return "".join(row["body"] for row in rows) if len(rows) == parts else None

"""A connection to Milvus: the few calls that are used, each with a time limit, and errors of ours.

What is written is cut into messages far below what a server takes.
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from service.errors import StorageError, UnavailableError
from service.faq.milvus_schema import MAX_ROWS_A_QUERY

if TYPE_CHECKING:  # an optional extra, imported when a connection is made
    from pymilvus import MilvusClient

Row = dict[str, Any]

_MESSAGE_BYTES: Final = 4 * 1024 * 1024
_KEYS_A_MESSAGE: Final = 4_000
# Rows that one answer holds, if each is an entry or a vector; a server's answer may have 64 MiB.
_LARGE_ROWS: Final = 4_096
_NUMBER_BYTES: Final = 5  # more than a component takes


# pymilvus pings an idle server every ten seconds; gRPC's servers take more than one in five minutes for
# abuse, and hang up. Calls have time limits of their own.
_GRPC_OPTIONS: Final = {"grpc.keepalive_time_ms": 330_000}


class MilvusConnection:
    """Speaks with one Milvus.

    Args:
        uri: such as http://host:19530.
        token: "user:password" or an API key; "" = none. Never logged.
        database: "" = the default one.
        timeout_s: of every call.

    Raises:
        UnavailableError: it does not answer within the time.
        StorageError: pymilvus is not installed, or Milvus refuses.
    """

    def __init__(self, uri: str, *, token: str = "", database: str = "", timeout_s: float = 10.0) -> None:
        try:
            from grpc import RpcError  # noqa: PLC0415 - an optional extra
            from pymilvus import MilvusClient, MilvusException  # noqa: PLC0415 - an optional extra
        except ImportError as error:
            raise StorageError(
                "CONCHE_FAQ_STORE=milvus needs pymilvus, which is not installed: pip install -e '.[milvus]'"
            ) from error
        # It logs every refusal as an error, and some of them are how we learn that another writer was first.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        self._uri = uri
        self._database = database
        self._timeout_s = timeout_s
        # pymilvus hands on as it is what gRPC raises when the time is up.
        self._refusals: tuple[type[Exception], ...] = (MilvusException, RpcError)
        with self._ours("connecting"):
            self.client: MilvusClient = MilvusClient(
                uri=uri, token=token, db_name=database, timeout=timeout_s, grpc_options=_GRPC_OPTIONS
            )
            self.server_version = str(self.client.get_server_version(timeout=timeout_s))

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def query(
        self,
        collection: str,
        filter_: str,
        fields: Sequence[str],
        *,
        at: int | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """All rows that ``filter_`` selects, or the first so many in no certain order.

        Args:
            collection: its name.
            filter_: of Milvus.
            fields: columns.
            at: see `consistency`.
            limit: None = all.
        """
        bound = {} if limit is None else {"limit": limit}
        with self._ours("reading"):
            return list(
                self.client.query(
                    collection,
                    filter=filter_,
                    output_fields=list(fields),
                    timeout=self._timeout_s,
                    **consistency(at),
                    **bound,
                )
            )

    def count(self, collection: str, filter_: str, *, at: int | None = None) -> int:
        """How many rows ``filter_`` selects; ``at``: see `consistency`."""
        [row] = self.query(collection, filter_, ["count(*)"], at=at)
        return int(row["count(*)"])

    def search(
        self,
        collection: str,
        field: str,
        data: Sequence[Any],
        filter_: str,
        *,
        limit: int,
        options: Mapping[str, Any],
        at: int | None = None,
    ) -> list[list[tuple[str, float]]]:
        """For each of ``data`` the ids of the entries of the nearest rows, with their scores, best first.

        Args:
            collection: with the columns ``entry_id`` and ``field``.
            field: an indexed column.
            data: vectors, or texts where the server makes vectors of them.
            filter_: of Milvus; which rows may be found.
            limit: rows.
            options: of the index.
            at: see `consistency`.
        """
        with self._ours("searching"):
            lists = self.client.search(
                collection,
                data=list(data),
                anns_field=field,
                filter=filter_,
                limit=limit,
                output_fields=["entry_id"],
                search_params={"params": dict(options)},
                timeout=self._timeout_s,
                **consistency(at),
            )
        return [[(str(hit["entity"]["entry_id"]), float(hit["distance"])) for hit in hits] for hits in lists]

    def rows(
        self,
        collection: str,
        filter_: str,
        fields: Sequence[str],
        *,
        start: int,
        stop: int,
        at: int | None = None,
        large: bool = True,
    ) -> Iterator[Row]:
        """All rows that ``filter_`` selects with ``start <= sequence < stop``, however many there are.

        In rising ranges of ``sequence``; within one in no certain order. Milvus neither sorts nor gives more
        than 16,384 rows at a time, so ranges grow and shrink with what comes back.

        Args:
            collection: with a column ``sequence``.
            filter_: of Milvus.
            fields: columns.
            start: of the range.
            stop: of the range.
            at: see `consistency`.
            large: an entry or a vector is among the fields.
        """
        limit = _LARGE_ROWS if large else MAX_ROWS_A_QUERY
        low, width = start, max(1, limit // 4)
        while low < stop:
            high = min(low + width, stop)
            try:
                found = self.query(
                    collection,
                    f"{filter_} and sequence >= {low} and sequence < {high}",
                    fields,
                    at=at,
                    # One entry has fewer rows than this; what cannot be halved is taken whole.
                    limit=limit if high - low > 1 else MAX_ROWS_A_QUERY,
                )
            except _TooLargeError:
                if high - low <= 1:
                    raise
                found = None
            if high - low > 1 and (found is None or len(found) >= limit):
                width = (high - low) // 2
                continue
            yield from found or ()
            low = high
            if len(found or ()) < limit // 4:  # most places are empty by now
                width *= 2

    def insert(self, collection: str, rows: Iterable[Row]) -> None:
        """Add rows, in as many messages as it takes."""
        batch: list[Row] = []
        size = 0
        for row in rows:
            length = _bytes_of(row)
            if batch and size + length > _MESSAGE_BYTES:
                self._insert(collection, batch)
                batch, size = [], 0
            batch.append(row)
            size += length
        if batch:
            self._insert(collection, batch)

    def now(self) -> int | None:
        """Milvus's time, for `consistency`: what was written or removed before this call is so at it.

        None if the server has no such clock; milvus-lite has none, and its strong reads wait for nothing.
        """
        with self._ours("reading"):
            connection = self.client._get_connection()  # noqa: SLF001 - there is no other way to ask
            return int(connection.alloc_timestamp(timeout=self._timeout_s)) or None

    def written_until(self, *collections: str) -> int:
        """Milvus's time of what was last written to these from here; 0 = not known."""
        from pymilvus.client import ts_utils  # noqa: PLC0415 - an optional extra

        address = getattr(self.client._get_connection(), "server_address", "")  # noqa: SLF001 - there is no other way to ask
        times = [ts_utils.get_collection_ts(name, address, self._database) or 0 for name in collections]
        return max(times, default=0)

    def delete(self, collection: str, keys: Sequence[str]) -> None:
        """Delete rows by their primary keys; those that are not there are no error."""
        for start in range(0, len(keys), _KEYS_A_MESSAGE):
            with self._ours("deleting"):
                self.client.delete(
                    collection, ids=list(keys[start : start + _KEYS_A_MESSAGE]), timeout=self._timeout_s
                )

    def purge(self, collection: str, filter_: str, between: Callable[[], None]) -> None:
        """Delete all rows that ``filter_`` selects, some thousands at a time, and call ``between`` them."""
        while rows := self.query(collection, filter_, ["key"], limit=_KEYS_A_MESSAGE):
            self.delete(collection, [row["key"] for row in rows])
            between()

    def aliases(self, collection: str = "") -> list[str]:
        """The aliases of a Milvus collection, or all there are."""
        with self._ours("reading"):
            return list(self.client.list_aliases(collection, timeout=self._timeout_s)["aliases"])

    def make_alias(self, collection: str, alias: str) -> bool:
        """Make ``alias`` point to ``collection``; False if it points to another one.

        Of several callers with different collections exactly one gets True, now and later.
        """
        try:
            with self._ours("writing"):
                self.client.create_alias(collection, alias, timeout=self._timeout_s)
        except ServerRefusedError:
            # It is there; perhaps by an earlier try of this very call, whose answer was lost.
            target = self.alias_target(alias)
            if target is None:
                raise
            return target == collection
        return True

    def alias_target(self, alias: str) -> str | None:
        """What ``alias`` points to; None if there is no such alias."""
        try:
            with self._ours("reading"):
                return str(self.client.describe_alias(alias, timeout=self._timeout_s)["collection_name"])
        except ServerRefusedError:
            return None

    def drop_alias(self, alias: str) -> None:
        """Remove an alias; it need not be there."""
        with self._ours("writing"):
            self.client.drop_alias(alias, timeout=self._timeout_s)

    def collections(self) -> list[str]:
        """The names of all Milvus collections."""
        with self._ours("reading"):
            return list(self.client.list_collections(timeout=self._timeout_s))

    def make(self, make: Callable[["MilvusClient"], None], name: str) -> None:
        """Call what makes a Milvus collection; another process may be doing so at this moment."""
        try:
            with self._ours("making collections"):
                make(self.client)
        except ServerRefusedError:
            with self._ours("making collections"):
                if not self.client.has_collection(name, timeout=self._timeout_s):
                    raise
                make(self.client)

    def drop(self, name: str) -> None:
        """Drop a Milvus collection."""
        with self._ours("writing"):
            self.client.drop_collection(name, timeout=self._timeout_s)

    def _insert(self, collection: str, rows: list[Row]) -> None:
        with self._ours("writing"):
            self.client.insert(collection, rows, timeout=self._timeout_s)

    @contextmanager
    def _ours(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._refusals as error:
            raise self._translated(error, doing) from error

    def _translated(self, error: Exception, doing: str) -> Exception:
        message = str(getattr(error, "message", error))
        lowered = message.lower()
        if any(sign in lowered for sign in _GONE):
            return UnavailableError(f"Milvus at {self._uri} does not answer ({doing})")
        if any(sign in lowered for sign in _TOO_LARGE):
            return _TooLargeError(f"Milvus at {self._uri}: an answer is too large: {message}")
        return ServerRefusedError(f"Milvus at {self._uri} refuses ({doing}): {message}")


def consistency(at: int | None) -> dict[str, Any]:
    """How fresh an answer must be, as arguments of a query or search.

    Args:
        at: Milvus's time: everything written by then must be seen, which needs no waiting once every node has
            come so far; 0 = anything will do. None = everything that was written before the call, which waits
            for the next time tick (200 ms by default).
    """
    if at is None:
        return {"consistency_level": "Strong"}
    return {"consistency_level": "Customized", "guarantee_timestamp": max(at, 1)}


# How pymilvus and gRPC say that there is no answer; codes differ by the call and the server.
_GONE: Final = (
    "fail connecting",
    "server unavailable",
    "statuscode.unavailable",
    "failed to connect",
    "deadline",
    "retry timeout",
    "rpc timeout",
    "connection refused",
    "socket closed",
    "closed channel",
    "should create connect first",
    "retry run out",
)
_TOO_LARGE: Final = ("larger than max", "resource_exhausted", "message too large")


class ServerRefusedError(StorageError):
    """Milvus answered, and said no."""


class _TooLargeError(StorageError):
    """An answer has more bytes than Milvus sends."""


def _bytes_of(row: Mapping[str, Any]) -> int:
    size = 0
    for value in row.values():
        if isinstance(value, str):
            size += len(value.encode())
        elif isinstance(value, list) and value and isinstance(value[0], str):
            size += sum(len(item.encode()) + _NUMBER_BYTES for item in value)
        elif isinstance(value, list):
            size += _NUMBER_BYTES * len(value)
        elif isinstance(value, dict):
            size += len(json.dumps(value, ensure_ascii=False).encode())
        else:
            size += 2 * _NUMBER_BYTES
    return size

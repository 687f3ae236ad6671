"""How FAQ collections lie in Milvus: names, fields, and what a reader may believe.

**Four kinds of Milvus collection**, shared by all FAQ collections under one prefix. One for each FAQ
collection would be loaded anew with every `create` (three seconds on a server) and Milvus counts collections
in thousands; rows of one FAQ collection are kept together by the partition key instead.

``<prefix>_heads``
    What is known of an FAQ collection at one *version*: a `Head` as JSON, cut into parts. Never changed.
``<prefix>_entries``
    Entries, one row or more for each *version of an entry*; see `ENTRY_FIELDS`. Never changed.
``<prefix>_vectors_<dimensions>``
    One row for each text that searching needs, of each version of an entry and each generation; see
    `VECTOR_FIELDS`. Never changed.
``<prefix>_owner_<id>``
    Empty and never loaded: it is what the aliases of one writer point to.

**Versions are settled by aliases**, the one thing that Milvus makes atomically and shows to everybody at once
(no waiting for a time tick): an alias that is there cannot be made to point elsewhere by making it again. For
version v of a collection there are two of them, and each is made at most once:

* ``claim`` -> a writer's owner collection: this writer, and nobody else, writes rows with ``version == v``.
* ``seal`` -> the heads (done: v is the state of the collection) or the entries (void: v never happens,
  because its writer died or was too slow).

So a write is: claim v = newest + 1; write the rows; write the head; seal. The seal is the commit. Whoever
finds a claim, and no new sign of life (`Names.beat`) for a whole lease, seals it void and claims the next
version; a writer that wakes up after that finds the seal taken and knows that its write did not happen. No
clock is compared with another.

**A reader** asks for the seals that point to the heads (`service.faq.milvus_heads`: one call of about a
millisecond), takes the `Head` of the newest one (kept in memory, as it never changes), and believes only rows
that `visible` selects, read as of `readable_at` the head (`service.faq.milvus_connection.consistency`): a
strong read would wait for a time tick each time, this one only just after a write. Of those,

* an entry is the rows of its *greatest* version; if that is a tombstone there is no such entry. Superseded
  rows are deleted after the commit, so for a moment, or until the next write if the writer died, there may be
  two;
* a vector row counts if its version is that of its entry.

Rows may be deleted under a reader by a later write. They are only after that write's seal, so a reader that
finds the same newest version after its last read as before its first has seen one moment; if not, it reads
again.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

from service.faq.embedded_texts import texts_to_embed
from service.faq.entries import FaqEntry
from service.faq.lexical import lexical_terms
from service.faq.store import CollectionInfo

if TYPE_CHECKING:  # an optional extra, imported when a store is opened
    from pymilvus import CollectionSchema, MilvusClient

# Milvus's own limits.
MAX_STRING_BYTES: Final = 65_535
MAX_JSON_BYTES: Final = 65_535
MAX_ARRAY_ITEMS: Final = 4_096
MAX_ROWS_A_QUERY: Final = 16_384
# A JSON row's other bytes; far below the 64 MiB that a server takes in one message.
_TERM_BYTES: Final = 256
_TERMS_TEXT_BYTES: Final = 65_000
_ID_BYTES: Final = 800
_LANGUAGE_BYTES: Final = 256
_KEY_BYTES: Final = 160
_PARTITIONS: Final = 16

# Phrasings are numbered from 0 (the question); this one stands for question and answer together.
QUESTION_AND_ANSWER: Final = -1

ENTRY_FIELDS: Final = {
    "key": "primary key: incarnation, digest of the id, version, part",
    "incarnation": "int64, partition key: one life of an FAQ collection; never used again",
    "entry_id": "the entry's id",
    "version": "int64: of the FAQ collection, when this was written",
    "part": "int64 from 0: an entry whose body or terms are past Milvus's limits has several rows",
    "parts": "int64: how many rows this version of the entry has",
    "deleted": "bool: a tombstone, with neither body nor terms",
    "enabled": "bool",
    "sequence": "int64: the place in the order of first writing; a replaced entry and a tombstone keep it",
    "filterable": "bool: False = language, tags and metadata did not fit and are empty here; ask the body",
    "language": "'' = none",
    "tags": "array of strings",
    "metadata": "JSON, as in the entry",
    "terms": "array: distinct lexical terms (`term_key`) of an enabled entry, each in exactly one part",
    "term_count": "int64, of part 0: all its lexical terms, repeats counted; 0 elsewhere and if disabled",
    "body": "JSON of the entry without its id, cut into parts",
    "placeholder": "[1, 0]: Milvus before 2.6 has no collection without a vector",
}
# Only where the server makes BM25 itself (`makes_bm25`).
BM25_FIELDS: Final = {
    "terms_text": "the part's lexical terms, repeats kept, joined by spaces; '' if there are none",
    "terms_bm25": "sparse vector that the server makes of terms_text; for candidates, not for scores",
}
VECTOR_FIELDS: Final = {
    "key": "primary key",
    "incarnation": "as in the entries",
    "generation": "int64: of the vectors",
    "entry_id": "the entry's id",
    "version": "of the entry that it belongs to",
    "sequence": "of the entry",
    "phrasing": "int64: which text, an index into `FaqEntry.phrasings` or QUESTION_AND_ANSWER",
    "digest": "SHA-256 of the text, hex",
    "filterable": "as in the entries",
    "language": "as in the entries",
    "tags": "as in the entries",
    "metadata": "as in the entries",
    "vector": "float32, unit length; the metric is IP",
}
FILTER_FIELDS: Final = ("filterable", "language", "tags", "metadata")


@dataclass(frozen=True, slots=True)
class Names:
    """What things are called in Milvus.

    Attributes:
        prefix: letters and digits; several Conches may share a database by different ones.
    """

    prefix: str

    @property
    def heads(self) -> str:
        """The Milvus collection of heads; seals that point to it are commits."""
        return f"{self.prefix}_heads"

    @property
    def entries(self) -> str:
        """The Milvus collection of entries; seals that point to it are void."""
        return f"{self.prefix}_entries"

    @property
    def vectors_start(self) -> str:
        """What the names of all Milvus collections of vectors begin with."""
        return f"{self.prefix}_vectors_"

    def vectors(self, dimensions: int) -> str:
        """The Milvus collection of vectors of one length."""
        return f"{self.vectors_start}{dimensions}"

    def owner(self, identifier: str) -> str:
        """The Milvus collection that a writer's claims point to."""
        return f"{self.prefix}_owner_{identifier}"

    def claim(self, name: str, version: int) -> str:
        """The alias by which a writer takes a version of the FAQ collection ``name``."""
        return f"{self.prefix}_c_{_escaped(name)}_{version}"

    def beat(self, name: str, version: int, number: int) -> str:
        """The alias by which the writer of a version shows, again and again, that it is alive."""
        return f"{self.prefix}_b_{_escaped(name)}_{version}_{number}"

    def seal(self, name: str, version: int) -> str:
        """The alias that settles whether a version is, or never was."""
        return f"{self.prefix}_v_{_escaped(name)}_{version}"

    def sealed(self, alias: str) -> tuple[str, int] | None:
        """The FAQ collection and version of a seal; None if it is not one of this prefix."""
        return self._parsed(f"{self.prefix}_v_", alias)

    def claimed(self, alias: str) -> tuple[str, int] | None:
        """The FAQ collection and version of a claim; None if it is not one of this prefix."""
        return self._parsed(f"{self.prefix}_c_", alias)

    def beaten(self, alias: str) -> tuple[str, int] | None:
        """The FAQ collection and version of a beat; None if it is not one of this prefix."""
        return self._parsed(f"{self.prefix}_b_", alias.rpartition("_")[0])

    @staticmethod
    def _parsed(start: str, alias: str) -> tuple[str, int] | None:
        if not alias.startswith(start):
            return None
        escaped, _, version = alias.removeprefix(start).rpartition("_")
        return (_unescaped(escaped), int(version)) if escaped and version.isdecimal() else None


@dataclass(frozen=True, slots=True)
class PendingGeneration:
    """Vectors that a reindex under way is making."""

    generation: int
    fingerprint: str
    model_id: str
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """An FAQ collection at one version.

    Attributes:
        name: of the FAQ collection.
        version: rises with everything that is written, also what no follower needs to know.
        revision: `CollectionInfo.revision`: the version at which the content last changed.
        incarnation: of the rows; None = the collection was dropped, and only its number lives on.
        horizon: followers from before this revision read everything.
        entries: how many, disabled ones included.
        enabled_entries: N of BM25.
        lexical_terms: of the enabled entries, repeats counted; over N it is BM25's mean length.
        next_sequence: of the next new entry.
        generation, fingerprint, model_id, dimensions: of the live vectors.
        pending: vectors that are being made.
        tombstones: how many there are.
        written_until: Milvus's time of the last of its rows; 0 = not known.
        voids: versions that never happened, whose rows might still turn up.
        sweep: what the write of this version made superfluous; the next writer removes it if this one died.
    """

    name: str
    version: int
    revision: int
    incarnation: int | None
    horizon: int
    created_at: str
    updated_at: str
    generation: int
    entries: int = 0
    enabled_entries: int = 0
    lexical_terms: int = 0
    next_sequence: int = 1
    fingerprint: str | None = None
    model_id: str | None = None
    dimensions: int | None = None
    pending: PendingGeneration | None = None
    default_answer: str | None = None
    min_score: float | None = None
    tombstones: int = 0
    written_until: int = 0
    voids: tuple[int, ...] = ()
    sweep: tuple[Mapping[str, Any], ...] = field(default=())

    def info(self) -> CollectionInfo:
        """What callers of the store see of it."""
        return CollectionInfo(
            name=self.name,
            revision=self.revision,
            entries=self.entries,
            fingerprint=self.fingerprint,
            model_id=self.model_id,
            generation=self.generation,
            dimensions=self.dimensions,
            default_answer=self.default_answer,
            min_score=self.min_score,
            created_at=self.created_at,
            updated_at=self.updated_at,
            pending_generation=None if self.pending is None else self.pending.generation,
        )

    def as_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `as_json` wrote; fields of later versions are left out."""
        fields = {name: value for name, value in json.loads(text).items() if name in cls.__dataclass_fields__}
        pending = fields.pop("pending", None)
        head = cls(**fields)
        return replace(
            head,
            pending=None if pending is None else PendingGeneration(**pending),
            voids=tuple(head.voids),
            sweep=tuple(head.sweep),
        )


def visible(head: Head) -> str:
    """The part of a Milvus filter that selects the rows of ``head``, superseded ones included."""
    selected = f"incarnation == {head.incarnation} and version <= {head.version}"
    return f"{selected} and version not in [{', '.join(map(str, head.voids))}]" if head.voids else selected


def readable_at(head: Head) -> int | None:
    """Milvus's time as of which all rows of ``head`` are there; None = only a strong read is sure of them.

    Rows that later writes removed may be there or not, as with every read.
    """
    return head.written_until or None


def quoted(text: str) -> str:
    """``text`` as a string of a Milvus filter."""
    # JSON's escapes are those of Milvus's strings; what is not ASCII stands as it is.
    return json.dumps(text, ensure_ascii=False)


def term_key(term: str) -> str:
    """``term`` as it stands in ``terms``: a long one by its digest."""
    if len(term) * 4 <= _TERM_BYTES or len(term.encode()) <= _TERM_BYTES:
        return term
    return "sha256:" + hashlib.sha256(term.encode()).hexdigest()


def entry_rows(
    entry: FaqEntry,
    body: str,
    terms: Sequence[str],
    *,
    incarnation: int,
    version: int,
    sequence: int,
    bm25: bool,
) -> list[dict[str, Any]]:
    """The rows of one version of an entry.

    Args:
        entry: to be kept.
        body: `service.faq.entry_bodies.body_of` it.
        terms: `entry_terms` of it.
        incarnation: see `ENTRY_FIELDS`, as for the next two.
        version: of the FAQ collection.
        sequence: of the entry.
        bm25: whether the Milvus collection has `BM25_FIELDS`.
    """
    distinct = list(dict.fromkeys(map(term_key, terms)))
    bodies = list(_chunks(body, MAX_STRING_BYTES))
    term_parts = [
        distinct[start : start + MAX_ARRAY_ITEMS] for start in range(0, len(distinct), MAX_ARRAY_ITEMS)
    ]
    texts = list(_joined(terms)) if bm25 else []
    parts = max(1, len(bodies), len(term_parts), len(texts))
    shared = {
        "incarnation": incarnation,
        "entry_id": entry.id,
        "version": version,
        "parts": parts,
        "deleted": False,
        "enabled": entry.enabled,
        "sequence": sequence,
        "placeholder": [1.0, 0.0],
        **filter_fields(entry),
    }
    return [
        shared
        | {
            "key": _key(incarnation, entry.id, version, part),
            "part": part,
            "terms": term_parts[part] if part < len(term_parts) else [],
            "term_count": len(terms) if part == 0 else 0,
            "body": bodies[part] if part < len(bodies) else "",
        }
        | ({"terms_text": texts[part] if part < len(texts) else ""} if bm25 else {})
        for part in range(parts)
    ]


def tombstone_row(
    identifier: str, *, incarnation: int, version: int, sequence: int, bm25: bool
) -> dict[str, Any]:
    """The row that says that an entry is gone."""
    return {
        "key": _key(incarnation, identifier, version, 0),
        "incarnation": incarnation,
        "entry_id": identifier,
        "version": version,
        "part": 0,
        "parts": 1,
        "deleted": True,
        "enabled": False,
        "sequence": sequence,
        "filterable": True,
        "language": "",
        "tags": [],
        "metadata": {},
        "terms": [],
        "term_count": 0,
        "body": "",
        "placeholder": [1.0, 0.0],
    } | ({"terms_text": ""} if bm25 else {})


def entry_terms(entry: FaqEntry) -> list[str]:
    """All lexical terms of an entry, repeats kept, as the index counts them; none if it is disabled."""
    if not entry.enabled:
        return []
    return lexical_terms("\n".join(entry.phrasings)) + lexical_terms(entry.answer)


def filter_fields(entry: FaqEntry) -> dict[str, Any]:
    """The columns `FILTER_FIELDS` of an entry."""
    language = entry.language or ""
    metadata = json.dumps(entry.metadata, ensure_ascii=False).encode()
    if len(language) > _LANGUAGE_BYTES or len(metadata) > MAX_JSON_BYTES:
        return {"filterable": False, "language": "", "tags": [], "metadata": {}}
    return {
        "filterable": True,
        "language": language,
        "tags": list(entry.tags),
        "metadata": dict(entry.metadata),
    }


def vector_key(incarnation: int, generation: int, identifier: str, version: int, phrasing: int) -> str:
    """The primary key of a vector's row."""
    return f"{_key(incarnation, identifier, version, phrasing)}-{generation:x}"


def head_rows(head: Head) -> list[dict[str, Any]]:
    """The rows of a head."""
    chunks = list(_chunks(head.as_json(), MAX_STRING_BYTES))
    return [
        {
            "key": head_key(head.name, head.version, part),
            "name": head.name,
            "version": head.version,
            "part": part,
            "parts": len(chunks),
            "body": chunk,
            "placeholder": [1.0, 0.0],
        }
        for part, chunk in enumerate(chunks)
    ]


def head_key(name: str, version: int, part: int) -> str:
    """The primary key of a head's row."""
    return f"{name}@{version}@{part}"


def head_keys(head: Head) -> list[str]:
    """The primary keys of a head's rows."""
    return [row["key"] for row in head_rows(head)]


def vector_rows(
    entry: FaqEntry,
    vectors: Mapping[str, Sequence[float]],
    *,
    incarnation: int,
    generation: int,
    version: int,
    sequence: int,
) -> list[dict[str, Any]]:
    """The rows of the vectors of one version of an entry.

    Args:
        entry: that needs them.
        vectors: by text; texts that are not among them get no row.
        incarnation: see `VECTOR_FIELDS`, as for the next three.
        generation: of the vectors.
        version: of the entry.
        sequence: of the entry.
    """
    shared = {
        "incarnation": incarnation,
        "generation": generation,
        "entry_id": entry.id,
        "version": version,
        "sequence": sequence,
        **filter_fields(entry),
    }
    return [
        shared
        | {
            "key": vector_key(incarnation, generation, entry.id, version, phrasing),
            "phrasing": phrasing,
            "digest": text_digest(text),
            "vector": vectors[text],
        }
        for text, phrasing in numbered_texts(entry).items()
        if text in vectors
    ]


def numbered_texts(entry: FaqEntry) -> dict[str, int]:
    """The texts that searching ``entry`` needs, and how `VECTOR_FIELDS` number them."""
    numbers = {text: number for number, text in enumerate(entry.phrasings)}
    return {text: numbers.get(text, QUESTION_AND_ANSWER) for text in texts_to_embed([entry])}


def text_digest(text: str) -> str:
    """By which a text's vectors are found."""
    return hashlib.sha256(text.encode()).hexdigest()


def makes_bm25(server_version: str) -> bool:
    """Whether the server turns text into BM25 vectors: milvus-lite 3 and Milvus from 2.5.

    By version, because asking for it ends a 2.3.5 server. The wheel of that one calls itself "v2.3.5-lite".
    """
    if server_version.startswith("milvus_lite"):
        return True
    numbers = server_version.lstrip("v").split("-")[0].split(".")
    try:
        return tuple(map(int, numbers[:2])) >= (2, 5)
    except ValueError:
        return False


def is_milvus_lite(server_version: str) -> bool:
    """Whether it is milvus-lite: its HNSW loses half of what a filter leaves, so it searches without one."""
    return server_version.startswith("milvus_lite")


def create_heads(client: "MilvusClient", name: str) -> None:
    """Make and load the Milvus collection of heads, if it is not there."""
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema = client.create_schema(auto_id=False, description="Conche: states of FAQ collections")
    _string(schema, "key", _KEY_BYTES, is_primary=True)
    _string(schema, "name", _KEY_BYTES)
    for number in ("version", "part", "parts"):
        schema.add_field(number, DataType.INT64)
    _string(schema, "body", MAX_STRING_BYTES)
    schema.add_field("placeholder", DataType.FLOAT_VECTOR, dim=2)
    _create(client, name, schema, {"placeholder": ("FLAT", "IP", {})})


def create_owner(client: "MilvusClient", name: str) -> None:
    """Make a Milvus collection for aliases to point to; it stays empty."""
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema = client.create_schema(auto_id=False, description="Conche: a writer")
    _string(schema, "key", _KEY_BYTES, is_primary=True)
    schema.add_field("placeholder", DataType.FLOAT_VECTOR, dim=2)
    client.create_collection(name, schema=schema)


def create_entries(client: "MilvusClient", name: str, *, bm25: bool) -> None:
    """Make and load the Milvus collection of entries, if it is not there."""
    from pymilvus import DataType, Function, FunctionType  # noqa: PLC0415 - an optional extra

    schema = _partitioned(client, "Conche: FAQ entries")
    for number in ("part", "parts", "sequence", "term_count"):
        schema.add_field(number, DataType.INT64)
    for flag in ("deleted", "enabled"):
        schema.add_field(flag, DataType.BOOL)
    _add_filter_fields(schema)
    schema.add_field(
        "terms",
        DataType.ARRAY,
        element_type=DataType.VARCHAR,
        max_capacity=MAX_ARRAY_ITEMS,
        max_length=_TERM_BYTES,
    )
    _string(schema, "body", MAX_STRING_BYTES)
    schema.add_field("placeholder", DataType.FLOAT_VECTOR, dim=2)
    indexes: dict[str, tuple[str, str, dict[str, Any]]] = {"placeholder": ("FLAT", "IP", {})}
    if bm25:
        # "standard" parts at spaces and keeps each term; "whitespace" is not to be had everywhere.
        schema.add_field(
            "terms_text",
            DataType.VARCHAR,
            max_length=MAX_STRING_BYTES,
            enable_analyzer=True,
            analyzer_params={"tokenizer": "standard"},
        )
        schema.add_field("terms_bm25", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(
            Function(
                name="bm25",
                function_type=FunctionType.BM25,
                input_field_names=["terms_text"],
                output_field_names=["terms_bm25"],
            )
        )
        indexes["terms_bm25"] = ("SPARSE_INVERTED_INDEX", "BM25", {})
    _create(client, name, schema, indexes)


def create_vectors(client: "MilvusClient", name: str, dimensions: int, *, approximate: bool) -> None:
    """Make and load a Milvus collection of vectors, if it is not there.

    Args:
        client: connected.
        name: `Names.vectors`.
        dimensions: of each vector.
        approximate: HNSW, for a server; else every vector is looked at.
    """
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema = _partitioned(client, f"Conche: FAQ vectors of {dimensions} dimensions")
    for number in ("generation", "sequence", "phrasing"):
        schema.add_field(number, DataType.INT64)
    _string(schema, "digest", 64)
    _add_filter_fields(schema)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
    index = ("HNSW", "IP", {"M": 16, "efConstruction": 200}) if approximate else ("FLAT", "IP", {})
    _create(client, name, schema, {"vector": index})


def _partitioned(client: "MilvusClient", description: str) -> "CollectionSchema":
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema = client.create_schema(auto_id=False, description=description)
    _string(schema, "key", _KEY_BYTES, is_primary=True)
    schema.add_field("incarnation", DataType.INT64, is_partition_key=True)
    _string(schema, "entry_id", _ID_BYTES)
    schema.add_field("version", DataType.INT64)
    return schema


def _add_filter_fields(schema: "CollectionSchema") -> None:
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema.add_field("filterable", DataType.BOOL)
    _string(schema, "language", _LANGUAGE_BYTES)
    schema.add_field(
        "tags", DataType.ARRAY, element_type=DataType.VARCHAR, max_capacity=100, max_length=_ID_BYTES
    )
    schema.add_field("metadata", DataType.JSON)


def _string(schema: "CollectionSchema", name: str, max_bytes: int, **more: Any) -> None:
    from pymilvus import DataType  # noqa: PLC0415 - an optional extra

    schema.add_field(name, DataType.VARCHAR, max_length=max_bytes, **more)


def _create(
    client: "MilvusClient",
    name: str,
    schema: "CollectionSchema",
    indexes: Mapping[str, tuple[str, str, dict[str, Any]]],
) -> None:
    partitions = {"num_partitions": _PARTITIONS} if "incarnation" in {f.name for f in schema.fields} else {}
    # Making what is there, with the same fields, is no error on a server; milvus-lite must be asked first.
    if not client.has_collection(name):
        client.create_collection(name, schema=schema, **partitions)
    for field_name, (kind, metric, options) in indexes.items():
        if not client.list_indexes(name, field_name=field_name):
            parameters = client.prepare_index_params()
            parameters.add_index(field_name, index_type=kind, metric_type=metric, params=options)
            client.create_index(name, parameters, sync=False)
    from pymilvus.client.types import LoadState  # noqa: PLC0415 - an optional extra

    if client.get_load_state(name)["state"] != LoadState.Loaded:
        client.load_collection(name)


def _key(incarnation: int, identifier: str, version: int, part: int) -> str:
    digest = hashlib.sha256(identifier.encode()).hexdigest()[:40]
    return f"{incarnation:x}-{digest}-{version:x}-{part}"


def _chunks(text: str, max_bytes: int) -> Iterator[str]:
    """Cut ``text`` into pieces of so many bytes of UTF-8 at most, between characters."""
    encoded = text.encode()
    start = 0
    while start < len(encoded):
        end = min(start + max_bytes, len(encoded))
        while end < len(encoded) and encoded[end] & 0xC0 == 0x80:  # amid a character
            end -= 1
        yield encoded[start:end].decode()
        start = end


def _joined(terms: Iterable[str]) -> Iterator[str]:
    """Join terms by spaces, in texts that fit a column."""
    text: list[str] = []
    size = 0
    for term in map(term_key, terms):
        length = len(term.encode()) + 1
        if size + length > _TERMS_TEXT_BYTES:
            yield " ".join(text)
            text, size = [], 0
        text.append(term)
        size += length
    if text:
        yield " ".join(text)


def _escaped(name: str) -> str:
    return name.replace("_", "_u").replace("-", "_h")


def _unescaped(escaped: str) -> str:
    return escaped.replace("_h", "-").replace("_u", "_")

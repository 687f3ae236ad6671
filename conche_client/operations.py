"""Each call as a `Plan`: what is sent, and what its answers come to. Options are as the routes have them."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any, Final, Literal, TypedDict, TypeVar
from urllib.parse import quote

from conche_client.exchange import Answer, Plan, Request
from conche_client.results import (
    BadLine,
    CollectionInfo,
    Embeddings,
    Entities,
    Entity,
    Entry,
    EntryPage,
    Evaluation,
    Explanation,
    Found,
    Health,
    Highlights,
    Hit,
    Model,
    Prediction,
    Predictions,
    Ranked,
    Ranking,
    Reindexing,
    SearchResults,
    ServerInfo,
    Similarities,
    Usage,
    WriteReport,
)

Item = TypeVar("Item")
Record = TypeVar("Record")
Filter = Mapping[str, object]
TextOrPair = str | tuple[str, str]
OnDuplicate = Literal["replace", "skip", "error"]
FileFormat = Literal["csv", "jsonl", "xlsx"]

# Of one request: the server's own limit, unless it is set otherwise; and well below its limit of characters,
# since each may be several bytes of the body.
MOST_ITEMS: Final = 2048
MOST_CHARACTERS: Final = 2_000_000

_FILE_TYPES: Final[dict[FileFormat, str]] = {
    "csv": "text/csv",
    "jsonl": "application/x-ndjson",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


class EmbedOptions(TypedDict, total=False):
    """How texts are embedded; what is not said is as the model and the server have it.

    ``input_type`` is ``query`` or ``passage``, or names another of the model's prompts. ``truncate`` cuts a
    text that is too long, at the end that ``truncation_direction`` says; `Usage` tells which.
    """

    model: str | None
    input_type: str | None
    prompt_name: str | None
    pooling: Literal["cls", "mean"] | None
    normalize: bool | None
    dimensions: int | None
    truncate: bool | None
    truncation_direction: Literal["left", "right"] | None


class CompareOptions(TypedDict, total=False):
    """How texts are compared; as of `EmbedOptions`."""

    model: str | None
    truncate: bool | None
    truncation_direction: Literal["left", "right"] | None


class SimilarityOptions(CompareOptions, total=False):
    """How sentences are compared: all of them under one prompt."""

    prompt_name: str | None


class SearchOptions(TypedDict, total=False):
    """What is searched and how much is wanted of it."""

    collection: str | None
    top_k: int | None
    min_score: float | None
    mode: Literal["hybrid", "dense", "lexical"] | None
    filter: Filter | None


class NerOptions(TypedDict, total=False):
    """Which entities are wanted, and what their places count."""

    model: str | None
    threshold: float | None
    labels: Sequence[str] | None
    offset_unit: Literal["code-points", "utf-16", "bytes"] | None
    aggregation_strategy: Literal["viterbi", "none", "simple", "first", "average", "max"] | None


class ClassifyOptions(CompareOptions, total=False):
    """How texts are labelled; ``raw_scores`` asks for the model's logits as they are."""

    raw_scores: bool | None


class PredictOptions(ClassifyOptions, total=False):
    """How texts and pairs are labelled: what makes scores of the logits, and how many labels are wanted."""

    function_to_apply: Literal["softmax", "sigmoid", "none"] | None
    top_k: int | None


class EntryChanges(TypedDict, total=False):
    """Fields of an entry to change. None takes one back to its default; metadata changes key by key."""

    question: str
    answer: str
    alternates: Sequence[str] | None
    language: str | None
    tags: Sequence[str] | None
    metadata: Mapping[str, object] | None
    enabled: bool | None


def _said(kind: Any, options: Mapping[str, object]) -> dict[str, object]:
    """Options that were said. The server ignores fields that it does not know, so a misspelt one stops here.

    Raises:
        TypeError: there is no such option.
    """
    unknown = options.keys() - kind.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"no such option: {', '.join(sorted(unknown))}; there are {', '.join(kind.__annotations__)}"
        )
    return {name: value for name, value in options.items() if value is not None}


# -- texts -----------------------------------------------------------------------------------------------


def embed(texts: str | Sequence[str], most: int, options: EmbedOptions) -> Plan[Embeddings]:
    """One vector per text."""
    requests = _in_parts("/embed", "inputs", _listed(texts), most, _said(EmbedOptions, options))

    def join(answers: list[Answer]) -> Embeddings:
        vectors = [vector for answer in answers for vector in answer.json()]
        return Embeddings(vectors, _usage(answers, requests))

    return Plan(requests, join)


def search(queries: str | Sequence[str], most: int, options: SearchOptions) -> Plan[SearchResults]:
    """What each query finds."""
    requests = _in_parts("/search", "query", _listed(queries), most, _said(SearchOptions, options))

    def join(answers: list[Answer]) -> SearchResults:
        found = [
            Found([_hit(hit) for hit in result["hits"]], result["default_answer"])
            for answer in answers
            for result in answer.json()["results"]
        ]
        return SearchResults(found, _request_ids(answers))

    return Plan(requests, join)


def ner(texts: str | Sequence[str], most: int, options: NerOptions) -> Plan[Entities]:
    """The entities of each text."""
    said = _said(NerOptions, options)
    if "labels" in said:
        said["labels"] = _listed(said["labels"])
    requests = _in_parts("/ner", "inputs", _listed(texts), most, said)

    def join(answers: list[Answer]) -> Entities:
        found = [[_record(Entity, one) for one in text] for answer in answers for text in answer.json()]
        return Entities(found, _usage(answers, requests))

    return Plan(requests, join)


def predict(items: str | Sequence[TextOrPair], most: int, options: PredictOptions) -> Plan[Predictions]:
    """The labels of each text, or of each pair of texts that are read together.

    Raises:
        TypeError: an item is neither a text nor a pair of them.
    """
    said = _said(PredictOptions, options)
    parameters = {name: said.pop(name) for name in ("function_to_apply", "top_k") if name in said}
    if parameters:
        said["parameters"] = parameters
    # Each in a list of its own: to the route, two texts in one list are a pair.
    requests = _in_parts("/predict", "inputs", [_text_or_pair(one) for one in _listed(items)], most, said)

    def join(answers: list[Answer]) -> Predictions:
        return _predictions([text for answer in answers for text in answer.json()], answers, requests)

    return Plan(requests, join)


def _text_or_pair(item: object) -> list[str]:
    texts = [item] if isinstance(item, str) else list(item) if isinstance(item, tuple | list) else []
    if len(texts) not in {1, 2} or not all(isinstance(text, str) for text in texts):
        raise TypeError("an item is a text, or a pair of texts: a tuple of two")
    return texts


def classify(texts: str | Sequence[str], most: int, options: ClassifyOptions) -> Plan[Predictions]:
    """The labels of each text."""
    requests = _in_parts("/classify", "input", _listed(texts), most, _said(ClassifyOptions, options))

    def join(answers: list[Answer]) -> Predictions:
        return _predictions([text for answer in answers for text in answer.json()["data"]], answers, requests)

    return Plan(requests, join)


def _predictions(found: Sequence[Any], answers: Sequence[Answer], requests: Sequence[Request]) -> Predictions:
    labels = [[_record(Prediction, one) for one in text] for text in found]
    return Predictions(labels, _usage(answers, requests))


def rerank(
    query: str, texts: Sequence[str], most: int, options: CompareOptions, *, raw_scores: bool
) -> Plan[Ranking]:
    """Texts in order for a query."""
    said = _said(CompareOptions, options)
    # As the model gave them: parts cannot be put in order by scores of which negative cosines became 0.
    requests = _in_parts(
        "/rerank", "texts", _listed(texts), most, {"query": query, "raw_scores": True} | said
    )

    def join(answers: list[Answer]) -> Ranking:
        found = [
            Ranked(one["index"] + request.first, one["score"])
            for request, answer in zip(requests, answers, strict=True)
            for one in answer.json()
        ]
        found.sort(key=lambda one: (-one.score, one.index))
        ranked_by = answers[0].headers.get("x-conche-ranked-by", "bi-encoder")
        if not raw_scores:
            score = _sigmoid if ranked_by == "cross-encoder" else partial(max, 0.0)
            found = [Ranked(one.index, score(one.score)) for one in found]
        return Ranking(found, ranked_by, _usage(answers, requests))

    return Plan(requests, join)


def _sigmoid(logit: float) -> float:
    # Of the negative, so that no exponential overflows.
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def similarity(
    source: str, sentences: Sequence[str], most: int, options: SimilarityOptions
) -> Plan[Similarities]:
    """The cosine of each sentence with the source."""
    parameters = _said(SimilarityOptions, options)
    model = {"model": parameters.pop("model")} if "model" in parameters else {}
    requests = [
        Request(
            "POST",
            "/similarity",
            {
                "inputs": {"source_sentence": source, "sentences": part},
                "parameters": parameters,
                **model,
            },
            items="sentences",
            first=first,
        )
        for first, part in _parts(_listed(sentences), most)
    ]

    def join(answers: list[Answer]) -> Similarities:
        cosines = [float(cosine) for answer in answers for cosine in answer.json()]
        return Similarities(cosines, _usage(answers, requests))

    return Plan(requests, join)


# -- the server ------------------------------------------------------------------------------------------


def info() -> Plan[ServerInfo]:
    """What the server is and takes."""

    def join(answers: list[Answer]) -> ServerInfo:
        document = answers[0].json()
        return _record(ServerInfo, document | {"document": document})

    return Plan([Request("GET", "/info")], join)


def health() -> Plan[Health]:
    """Whether requests would be served."""

    def join(answers: list[Answer]) -> Health:
        (answer,) = answers
        return Health(answer.status == 200, answer.json()["reasons"])

    return Plan([Request("GET", "/readyz", read_anyway=503)], join)


def models() -> Plan[list[Model]]:
    """The models that calls can name."""
    return Plan(
        [Request("GET", "/v1/models")],
        lambda answers: [_record(Model, one) for one in answers[0].json()["data"]],
    )


# -- FAQ collections -------------------------------------------------------------------------------------


def collections() -> Plan[list[CollectionInfo]]:
    """All collections, by name."""
    return Plan(
        [Request("GET", "/faq")],
        lambda answers: [_record(CollectionInfo, one) for one in answers[0].json()["collections"]],
    )


def collection_info(name: str) -> Plan[CollectionInfo]:
    """A collection, without its entries."""
    return _one(CollectionInfo, Request("GET", _path(name)))


def configure(name: str, *, default_answer: str | None, min_score: float | None) -> Plan[CollectionInfo]:
    """Make a collection, or set what it has beside entries."""
    body = {"default_answer": default_answer, "min_score": min_score}
    return _one(CollectionInfo, Request("PUT", _path(name), body))


def drop(name: str) -> Plan[int]:
    """Remove a collection with its entries; how many there were."""
    return _deleted([Request("DELETE", _path(name), repeatable=False)])


def upsert(
    name: str, entries: Sequence[Entry | Mapping[str, object]], most: int, on_duplicate: OnDuplicate
) -> Plan[WriteReport]:
    """Add or replace entries."""
    bodies = [_said_fields(entry) for entry in entries]
    requests = [
        Request(
            "POST",
            _path(name, "entries"),
            {"entries": part, "on_duplicate": on_duplicate},
            items="entries",
            first=first,
            # Sent twice, entries would collide with themselves.
            repeatable=on_duplicate != "error",
        )
        for first, part in _parts(bodies, most)
    ]
    return Plan(requests, _write_report)


def get_entry(name: str, identifier: str) -> Plan[Entry]:
    """Read an entry."""
    return _one(Entry, Request("GET", _path(name, "entries", identifier)))


def patch_entry(name: str, identifier: str, changes: EntryChanges) -> Plan[Entry]:
    """Change fields of an entry; the entry as it is then."""
    _said(EntryChanges, changes)
    return _one(Entry, Request("PATCH", _path(name, "entries", identifier), dict(changes)))


def delete_entry(name: str, identifier: str) -> Plan[int]:
    """Delete an entry."""
    return _deleted([Request("DELETE", _path(name, "entries", identifier), repeatable=False)])


def delete_entries(name: str, ids: Sequence[str] | None, filter_: Filter | None, most: int) -> Plan[int]:
    """Delete entries by id or by filter; how many were there.

    Raises:
        TypeError: neither was said, or both.
    """
    if (ids is None) == (filter_ is None):
        raise TypeError("say either ids or filter; drop() takes the whole collection")
    path = _path(name, "delete")
    if ids is None:
        return _deleted([Request("POST", path, {"filter": filter_}, repeatable=False)])
    return _deleted(
        [
            Request("POST", path, {"ids": part}, items="ids", first=first, repeatable=False)
            for first, part in _parts(_listed(ids), most)
            if part
        ]
    )


def page(name: str, *, limit: int, after: str | None, filter_: Filter | None) -> Plan[EntryPage]:
    """A page of entries."""
    query = {"limit": str(limit)} | ({} if after is None else {"after": after}) | _filter_query(filter_)

    def join(answers: list[Answer]) -> EntryPage:
        answer = answers[0].json()
        return EntryPage([_record(Entry, one) for one in answer["entries"]], answer["next"])

    return Plan([Request("GET", _path(name, "entries"), query=query)], join)


def count(name: str, filter_: Filter | None) -> Plan[int]:
    """How many entries there are."""
    return Plan(
        [Request("GET", _path(name, "count"), query=_filter_query(filter_))],
        lambda answers: int(answers[0].json()["count"]),
    )


def import_file(
    name: str, content: bytes, *, format: FileFormat, on_duplicate: OnDuplicate, strict: bool
) -> Plan[WriteReport]:
    """Take the entries of a file, in one write."""
    request = Request(
        "POST",
        _path(name, "import"),
        content=content,
        content_type=_FILE_TYPES[format],
        query={"on_duplicate": on_duplicate, "strict": str(strict).lower()},
        repeatable=on_duplicate != "error",
    )
    return Plan([request], _write_report)


def export_file(name: str, *, format: FileFormat, filter_: Filter | None) -> Plan[bytes]:
    """Entries as a file that an import reads back the same."""
    query = {"format": str(format)} | _filter_query(filter_)
    return Plan([Request("GET", _path(name, "export"), query=query)], lambda answers: answers[0].body)


def evaluate(
    name: str, queries: Sequence[Mapping[str, object]], wanted_precision: float | None
) -> Plan[Evaluation]:
    """Judge a collection's search by labelled queries."""
    body: dict[str, object] = {"queries": list(queries)}
    if wanted_precision is not None:
        body["wanted_precision"] = wanted_precision

    def join(answers: list[Answer]) -> Evaluation:
        document = answers[0].json()
        proposed = document["proposed"]
        more = {
            "proposed_threshold": None if proposed is None else proposed["threshold"],
            "document": document,
        }
        return _record(Evaluation, document | more)

    return Plan([Request("POST", _path(name, "evaluate"), body)], join)


def start_reindex(name: str) -> Plan[Reindexing]:
    """Begin to embed a collection anew with the server's model."""
    return _one(Reindexing, Request("POST", _path(name, "reindex"), repeatable=False))


def reindexing(name: str) -> Plan[Reindexing]:
    """How far that is."""
    return _one(Reindexing, Request("GET", _path(name, "reindex")))


# -- parts of requests and answers -----------------------------------------------------------------------


def _listed(items: Any) -> list[Any]:
    """One text is a list of one."""
    return [items] if isinstance(items, str) else list(items)


def _parts(items: Sequence[Item], most: int) -> Iterator[tuple[int, list[Item]]]:
    """Position of the first, and the items, of each request; an empty list is one request."""
    part: list[Item] = []
    first = characters = 0
    for index, item in enumerate(items):
        size = _characters(item)
        if part and (len(part) == most or characters + size > MOST_CHARACTERS):
            yield first, part
            part, first, characters = [], index, 0
        part.append(item)
        characters += size
    if part or not items:
        yield first, part


def _characters(item: object) -> int:
    """Of a text, or of a pair; entries are not counted."""
    if isinstance(item, list):
        return sum(map(_characters, item))
    return len(item) if isinstance(item, str) else 0


def _in_parts(
    path: str, name: str, items: Sequence[object], most: int, options: Mapping[str, object]
) -> list[Request]:
    return [
        Request("POST", path, {name: part, **options}, items=name, first=first)
        for first, part in _parts(items, most)
    ]


def _path(collection: str, *parts: str) -> str:
    # A part that is only dots would be taken for a way up.
    return "/".join(["/faq", *(quote(part, safe="").replace(".", "%2E") for part in (collection, *parts))])


def _filter_query(filter_: Filter | None) -> dict[str, str]:
    return {} if filter_ is None else {"filter": json.dumps(filter_, ensure_ascii=False)}


def _said_fields(entry: Entry | Mapping[str, object]) -> dict[str, object]:
    record = asdict(entry) if isinstance(entry, Entry) else entry
    return {name: value for name, value in record.items() if value is not None}


def _record(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """A dataclass of an answer's fields; those that it lacks are left out.

    Raises:
        TypeError: the answer lacks one that it needs.
    """
    known = {one.name for one in fields(kind)}  # type: ignore[arg-type]  # every kind is a dataclass
    return kind(**{name: value for name, value in values.items() if name in known})


def _one(kind: type[Record], request: Request) -> Plan[Record]:
    return Plan([request], lambda answers: _record(kind, answers[0].json()))


def _deleted(requests: Sequence[Request]) -> Plan[int]:
    return Plan(requests, lambda answers: sum(int(answer.json()["deleted"]) for answer in answers))


def _write_report(answers: list[Answer]) -> WriteReport:
    documents = [answer.json() for answer in answers]
    return WriteReport(
        revision=documents[-1]["revision"],
        added=sum(document["added"] for document in documents),
        replaced=sum(document["replaced"] for document in documents),
        unchanged=sum(document["unchanged"] for document in documents),
        skipped=[identifier for document in documents for identifier in document["skipped"]],
        bad_lines=[_record(BadLine, line) for line in documents[-1].get("bad_lines", ())],
        metadata_columns=documents[-1].get("metadata_columns", []),
    )


def _hit(values: Mapping[str, Any]) -> Hit:
    highlights = {
        name: [(start, end) for start, end in spans] for name, spans in values["highlights"].items()
    }
    return _record(
        Hit,
        {
            **values,
            "explain": _record(Explanation, values["explain"]),
            "highlights": _record(Highlights, highlights),
        },
    )


def _request_ids(answers: Sequence[Answer]) -> list[str]:
    return [answer.headers.get("x-request-id", "") for answer in answers]


def _usage(answers: Sequence[Answer], requests: Sequence[Request]) -> Usage:
    """What the headers of a call's answers say; ``answers`` are to ``requests``, in order."""
    by_input: list[int] | None = []
    truncated: dict[int, int] = {}
    windows: dict[int, int] = {}
    empty: list[int] = []
    complete = True
    for request, answer in zip(requests, answers, strict=True):
        listed = answer.headers.get("x-conche-tokens-by-input")
        if listed is None or by_input is None:
            by_input = None
        else:
            by_input += [int(count) for count in listed.split(",")]
        for name, counts in (("x-conche-truncated", truncated), ("x-conche-windows", windows)):
            for one in filter(None, answer.headers.get(name, "").split(",")):
                if one == "...":
                    complete = False
                    continue
                index, value = one.split(":")
                counts[-1 if index == "query" else int(index) + request.first] = int(value)
        for one in filter(None, answer.headers.get("x-conche-empty", "").split(",")):
            if one == "...":
                complete = False
            else:
                empty.append(int(one) + request.first)
    of_query = answers[0].headers.get("x-conche-tokens-query")
    return Usage(
        model=answers[0].headers.get("x-conche-model", ""),
        tokens=sum(int(answer.headers.get("x-conche-tokens", 0)) for answer in answers),
        tokens_by_input=by_input,
        tokens_query=None if of_query is None else int(of_query),
        truncated=truncated,
        truncated_complete=complete,
        empty=empty,
        windows=windows,
        request_ids=_request_ids(answers),
        times_ms=[_times(answer.headers.get("server-timing", "")) for answer in answers],
    )


def _times(header: str) -> dict[str, float]:
    """The durations of ``server-timing``, in ms; proxies may add some of theirs."""
    times = {}
    for metric in header.split(","):
        name, *parameters = (part.strip() for part in metric.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key == "dur":
                times[name] = float(value)
    return times

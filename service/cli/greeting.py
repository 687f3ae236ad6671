"""What a started server says about itself: a page for people, or the fields of a log line."""

import json
from importlib import metadata

from model.runtime.bundle import Manifest
from service.faq.catalogue import FaqCatalogue
from service.faq.entry_files import demo_entries
from service.faq.source_file import DEFAULT_COLLECTION
from service.faq.store import CollectionInfo
from service.lifespan import Services
from service.settings import DEMO, OFF

_DEMO_QUERY = "怎么退货？"
_DEMO_ENTRY = "return-how.zh"  # which answers it


def summary(services: Services, *, url: str, seconds: float, workers: int = 1) -> dict[str, object]:
    """What was loaded, as fields of a log line."""
    return {
        "url": url,
        "seconds": round(seconds, 2),
        "workers": workers,
        "threads": services.threads,
        "streams": services.streams,
        "embedding": services.embedder and _model(services.embedder.manifest),
        "ner": services.tagger and _model(services.tagger.manifest),
        "classifier": services.classifier and _model(services.classifier.manifest),
        "reranker": services.reranker and _model(services.reranker.manifest),
        "faq_entries": _entries(services),
        "faq_collections": len(_collections(services)),
        "faq_left_out": services.faq_left_out,
        "unavailable": {route: absence.reason for route, absence in services.absences.items()},
    }


def greeting(
    services: Services,
    *,
    url: str,
    seconds: float,
    keys: bool = False,
    metrics_url: str | None = None,
    workers: int = 1,
) -> str:
    """What was loaded, and requests to paste.

    Args:
        services: what was loaded.
        url: of the server.
        seconds: that the start took.
        keys: whether requests need an API key.
        metrics_url: where the metrics are, if not at the server's own URL.
        workers: processes that share the URL.
    """
    key = ' -H "x-api-key: $CONCHE_API_KEY"' if keys else ""
    threads = _count(services.threads, "thread", "threads")
    if services.streams > 1:
        threads += f" in {services.streams} streams"
    if workers > 1:
        threads = f"{workers} workers of {threads} each"
    lines = [f"Conche {metadata.version('conche')}, ready in {seconds:.1f} s with {threads}"]
    for loaded in services.models:
        does = _does(loaded.model.manifest)
        named = "" if loaded.model.model_id in services.defaults else f'; "model": "{loaded.model.model_id}"'
        by = f"{loaded.engine.name}, {loaded.choice.candidate.precision}"
        lines.append(f"  {does:<10}  {_model(loaded.model.manifest)} by {by}{named}")
    if services.catalogue is not None:
        lines.append(f"  FAQ         {_faq(services)}")
    lines += [
        f"  {route:<11} off: {absence.reason}"
        for route, absence in services.absences.items()
        if not absence.by_default
    ]
    lines += ["", "Try:"]
    if services.embedder is not None:
        lines.append(_curl(url, "/embed", key, {"inputs": ["怎么申请退款？", "How do I get a refund?"]}))
    if services.catalogue is not None and _entries(services):
        lines.append(_curl(url, "/search", key, _search(services.catalogue)))
    if services.tagger is not None:
        lines.append(
            _curl(
                url,
                "/ner",
                key,
                {"inputs": ["Ada Lovelace met Charles Babbage in London.", "李娜住在北京。"]},
            )
        )
    if services.classifier is not None:
        lines.append(_curl(url, "/predict", key, {"inputs": "How do I get a refund?"}))
    if services.reranker is not None:
        texts = ["We deliver on Sundays.", "Refunds take three working days."]
        lines.append(_curl(url, "/rerank", key, {"query": "How long does a refund take?", "texts": texts}))
    lines += ["", f"Documentation: {url}/docs   Metrics: {metrics_url or url}/metrics   Stop: Ctrl-C"]
    return "\n".join(lines)


def _does(manifest: Manifest) -> str:
    match manifest.task:
        case "embedding":
            return "embeddings"
        case "token-classification":
            return "entities"
        case "sequence-classification":
            return "ranking" if len(manifest.labels) == 1 else "labels"


def _model(manifest: Manifest) -> str:
    megabytes = sum(entry.size for entry in manifest.files.values()) / 1e6
    languages = "+".join(manifest.languages)
    return f"{manifest.name} ({languages}, {megabytes:.0f} MB, {manifest.licence})"


def _collections(services: Services) -> list[CollectionInfo]:
    return [] if services.catalogue is None else services.catalogue.store.collections()


def _entries(services: Services) -> int:
    return sum(info.entries for info in _collections(services))


def _faq(services: Services) -> str:
    left_out = services.faq_left_out
    text = _count(_entries(services), "entry", "entries")
    names = [info.name for info in _collections(services)]
    if names not in ([], [DEFAULT_COLLECTION]):
        text += f" in {_count(len(names), 'collection', 'collections')}"
    notes = [_source(services)] if services.faq_source != OFF else []
    if left_out:
        notes.append(f"{_count(left_out, 'line', 'lines')} left out, see the log")
    said = "; ".join(note for note in notes if note)
    return f"{text} ({said})" if said else text


def _source(services: Services) -> str:
    """Where entries come from: the file, or the demo, as far as they are its own; "" for those of others."""
    if services.faq_source != DEMO:
        return services.faq_source
    assert services.catalogue is not None  # noqa: S101 - whose entries are told
    entries = _entries(services)
    names = [info.name for info in _collections(services)]
    if DEFAULT_COLLECTION not in names:
        return ""
    demo = demo_entries()
    there = services.catalogue.store.get(DEFAULT_COLLECTION, [entry.id for entry in demo])
    found = sum(there.get(entry.id) == entry for entry in demo)
    return DEMO if found == entries else f"{found} of the demo" if found else ""


def _search(catalogue: FaqCatalogue) -> dict[str, object]:
    """A request that finds something: the demo's question if it is there, else one of what is there."""
    infos = [info for info in catalogue.store.collections() if info.entries]
    name = next((info.name for info in infos if info.name == DEFAULT_COLLECTION), infos[0].name)
    query = _DEMO_QUERY
    if _DEMO_ENTRY not in catalogue.store.get(name, [_DEMO_ENTRY]):
        (first, *_), _ = catalogue.store.page(name, limit=1)
        query = first.question
    body: dict[str, object] = {"query": query, "top_k": 2}
    return body if name == DEFAULT_COLLECTION else {**body, "collection": name}


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _curl(url: str, path: str, key: str, body: dict[str, object]) -> str:
    data = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")  # how a shell writes ' between two '
    return f"  curl -s {url}{path}{key} -H 'content-type: application/json' -d '{data}'"

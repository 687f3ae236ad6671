"""What a started server says about itself: a page for people, or the fields of a log line."""

import json
from importlib import metadata

from model.runtime.bundle import Manifest
from service.lifespan import Services
from service.settings import DEMO

_DEMO_QUERY = "怎么退货？"


def summary(services: Services, *, url: str, seconds: float) -> dict[str, object]:
    """What was loaded, as fields of a log line."""
    return {
        "url": url,
        "seconds": round(seconds, 2),
        "threads": services.threads,
        "embedding": services.embedder and _model(services.embedder.manifest),
        "ner": services.tagger and _model(services.tagger.manifest),
        "faq_entries": 0 if services.searcher is None else len(services.searcher.index),
        "faq_left_out": services.faq_left_out,
        "unavailable": {route: absence.reason for route, absence in services.absences.items()},
    }


def greeting(services: Services, *, url: str, seconds: float) -> str:
    """What was loaded, and requests to paste."""
    lines = [f"Conche {metadata.version('conche')}, ready in {seconds:.1f} s with {services.threads} threads"]
    if services.embedder is not None:
        lines.append(f"  embeddings  {_model(services.embedder.manifest)}")
    if services.tagger is not None:
        lines.append(f"  entities    {_model(services.tagger.manifest)}")
    if services.searcher is not None:
        lines.append(f"  FAQ         {_faq(services, len(services.searcher.index))}")
    lines += [f"  {route:<11} off: {absence.reason}" for route, absence in services.absences.items()]
    lines += ["", "Try:"]
    if services.embedder is not None:
        lines.append(_curl(url, "/embed", {"inputs": ["怎么申请退款？", "How do I get a refund?"]}))
    if services.searcher is not None:
        entries = services.searcher.index.entries
        query = _DEMO_QUERY if services.faq_source == DEMO or not entries else entries[0].question
        lines.append(_curl(url, "/search", {"query": query, "top_k": 2}))
    if services.tagger is not None:
        lines.append(
            _curl(url, "/ner", {"inputs": "Ada Lovelace met Charles Babbage in London. 李娜住在北京。"})
        )
    lines += ["", f"Documentation: {url}/docs   Metrics: {url}/metrics   Stop: Ctrl-C"]
    return "\n".join(lines)


def _model(manifest: Manifest) -> str:
    megabytes = sum(entry.size for entry in manifest.files.values()) / 1e6
    languages = "+".join(manifest.languages)
    return f"{manifest.name} ({languages}, {megabytes:.0f} MB, {manifest.licence})"


def _faq(services: Services, entries: int) -> str:
    left_out = services.faq_left_out
    missing = f"; {_count(left_out, 'line', 'lines')} left out, see the log" if left_out else ""
    return f"{_count(entries, 'entry', 'entries')} ({services.faq_source}{missing})"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _curl(url: str, path: str, body: dict[str, object]) -> str:
    data = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")  # how a shell writes ' between two '
    return f"  curl -s {url}{path} -H 'content-type: application/json' -d '{data}'"

"""What several processes count, as one: figures of each are added, or brought together as their meaning asks.

Counters, histograms and summaries add up, those of processes that are no more included: a sum never falls.
What a gauge shows says `GAUGES`. Figures of one process as such (its memory, say) stay apart, by the label
``worker``.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

# A family: name, help, type, unit and samples; a sample: name, labels, value, exemplar (labels, value, time)
# or None. As JSON has them, which knows no NaN: None stands for it.
Sample = list[Any]
Family = list[Any]
Snapshot = list[Family]

Rule = Callable[[Iterable[float]], float]

GAUGES: Final[Mapping[str, Rule]] = {
    "conche_api_keys": max,
    "conche_batch_limit_tokens": max,
    "conche_connections": sum,
    "conche_connections_limit": sum,
    "conche_faq_collections": max,  # one store, seen by each
    "conche_faq_entries": max,
    "conche_faq_mismatched_collections": max,
    "conche_faq_store_readable": min,
    "conche_inference_streams": sum,
    "conche_inference_threads": max,
    "conche_model_healthy": min,
    "conche_queue_depth_items": sum,
    "conche_queue_depth_tokens": sum,
    "conche_queue_limit_items": sum,
    "conche_queue_limit_tokens": sum,
    "conche_ready": min,
    "conche_tls_certificate_expiry_timestamp_seconds": min,
    "python_info": max,
}
"""How a gauge of several processes is shown: all together, or the least or largest."""

_ADDED: Final = frozenset({"counter", "histogram", "summary"})
_OF_A_PROCESS: Final = ("process_", "python_gc_")


def is_snapshot(told: object) -> TypeGuard[Snapshot]:
    """Whether what a process says are figures that can be added to those of others."""
    return isinstance(told, list) and all(map(_is_family, told))


def _is_family(told: object) -> bool:
    match told:
        case [str(), str(), str(), str(), list() as found]:
            return all(map(_is_sample, found))
    return False


def _is_sample(told: object) -> bool:
    match told:
        case [str(), dict() as labels, None | int() | float(), exemplar]:
            return _are_labels(labels) and (exemplar is None or _is_exemplar(exemplar))
    return False


def _is_exemplar(told: object) -> bool:
    match told:
        case [dict() as labels, None | int() | float(), None | int() | float()]:
            return _are_labels(labels)
    return False


def _are_labels(told: Mapping[object, object]) -> bool:
    return all(isinstance(word, str) for pair in told.items() for word in pair)


def counted(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Of snapshots of processes that are no more, what must not be forgotten: the sums."""
    kept = [
        [family for family in snapshot if family[2] in _ADDED and not family[0].startswith(_OF_A_PROCESS)]
        for snapshot in snapshots
    ]
    return _added(kept)


def summed(living: Mapping[int, Snapshot], ended: Snapshot) -> Snapshot:
    """One snapshot of all.

    Args:
        living: by the worker's number.
        ended: what `counted` made of those that are no more.
    """
    named = [_with_worker(living[number], str(number)) for number in sorted(living)]
    return _added([*named, ended])


def _with_worker(snapshot: Snapshot, worker: str) -> Snapshot:
    return [
        [
            *family[:4],
            [[name, {**labels, "worker": worker}, *rest] for name, labels, *rest in family[4]],
        ]
        if family[0].startswith(_OF_A_PROCESS)
        else family
        for family in snapshot
    ]


def _added(snapshots: Sequence[Snapshot]) -> Snapshot:
    heads: dict[str, list[Any]] = {}
    samples: dict[str, dict[tuple[Any, ...], list[Sample]]] = {}
    for snapshot in snapshots:
        for name, help_text, kind, unit, found in snapshot:
            heads.setdefault(name, [name, help_text, kind, unit])
            alike = samples.setdefault(name, {})
            for sample in found:
                alike.setdefault((sample[0], *sorted(sample[1].items())), []).append(sample)
    return [
        [*head, [_one(same, _rule(head[2], name)) for same in samples[name].values()]]
        for name, head in heads.items()
    ]


def _rule(kind: str, name: str) -> Rule:
    if kind in _ADDED:
        return math.fsum
    return GAUGES.get(name, max)


def _one(same: Sequence[Sample], rule: Rule) -> Sample:
    if len(same) == 1:
        return same[0]
    name, labels, _, _ = same[0]
    values = [math.nan if value is None else value for _, _, value, _ in same]
    exemplars = [exemplar for _, _, _, exemplar in same if exemplar is not None]
    newest = max(exemplars, key=lambda exemplar: exemplar[2] or 0.0, default=None)
    return [name, labels, rule(values), newest]

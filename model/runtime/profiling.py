"""Where an engine's time goes, operator by operator, from ONNX Runtime's own trace."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model.runtime.engine import TokenBatch
from model.runtime.onnxruntime_engine import OnnxRuntimeEngine

if TYPE_CHECKING:
    from model.runtime.bundle import Bundle

_KERNEL = "_kernel_time"  # what the names of the events end with that time a kernel


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """All nodes of one operator.

    Attributes:
        operator: its ONNX name.
        nodes: how many the optimised graph has.
        seconds: that they take, over all batches, each node's least time counting.
    """

    operator: str
    nodes: int
    seconds: float


def profile_operators(
    bundle: Bundle, batches: Sequence[TokenBatch], outputs: Sequence[str], *, threads: int, repeats: int
) -> list[OperatorTime]:
    """Run batches in ONNX Runtime and add up what its operators took.

    Of the repeats the least time counts, node by node and batch by batch: whatever else runs on the machine
    can only add to it.

    Args:
        bundle: the model.
        batches: at least one.
        outputs: what each is run for.
        threads: compute threads.
        repeats: runs of each batch, at least 1; one more comes before them.

    Returns:
        The operators, the costliest first.

    Raises:
        BundleError: the graph cannot be loaded.
        ValueError: an array or an output that ``Engine.run`` refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        engine = OnnxRuntimeEngine(bundle, threads=threads, trace_prefix=Path(folder) / "trace")
        with closing(engine):
            for batch in batches:
                for _ in range(1 + repeats):
                    engine.run(batch, outputs)
        (trace,) = Path(folder).iterdir()
        events = json.loads(trace.read_bytes())
    return add_up(events, runs=1 + repeats)


def add_up(trace: Sequence[dict[str, object]], *, runs: int) -> list[OperatorTime]:
    """Add up the events of a trace, by operator.

    Args:
        trace: as ONNX Runtime writes it; times are in microseconds.
        runs: of each batch, one after the other; every node ran once in each.

    Returns:
        The operators, the costliest first.
    """
    of_node: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in trace:
        name, duration, facts = event.get("name"), event.get("dur"), event.get("args")
        if event.get("cat") != "Node" or not isinstance(name, str) or not name.endswith(_KERNEL):
            continue
        if isinstance(facts, dict) and isinstance(duration, int | float):
            of_node[name, str(facts["op_name"])].append(duration / 1e6)
    seconds: dict[str, list[float]] = defaultdict(list)
    for (_, operator), durations in of_node.items():
        batches = range(0, len(durations), runs)
        seconds[operator].append(sum(min(durations[first : first + runs]) for first in batches))
    times = [OperatorTime(operator, len(nodes), sum(nodes)) for operator, nodes in seconds.items()]
    return sorted(times, key=lambda time: -time.seconds)

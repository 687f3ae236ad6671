"""A model of how text-embeddings-inference (TEI) schedules texts on a CPU, run on a real engine.

TEI's server is a Rust program whose ONNX Runtime binding fetches a prebuilt library while it is compiled, so
it could not be built where this was written. What its scheduling does to throughput and latency can be
measured without it: texts queue one by one in the order of arrival, whatever request they came with; when the
engine is free, the oldest run, eight at most with its ONNX Runtime backend, and no more than
``--max-batch-tokens`` with padding. An answer leaves when all of its texts have run. Here that queue is kept
by hand and the engine really runs each batch, so time goes on by what the runs take. HTTP, tokenising and
JSON cost nothing: what this gives is at least as good as TEI on the same engine.

Source: huggingface/text-embeddings-inference, backends/ort/src/lib.rs (``max_batch_size``), core/src/queue.rs
and router/src/main.rs (``max_batch_tokens``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from comparison.packing import in_arrival_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_TEXTS: Final = 8
MOST_TOKENS: Final = 16_384


@dataclass(slots=True)
class Outcome:
    """What clients saw.

    Attributes:
        texts: answered.
        tokens: of those texts.
        computed_tokens: the same with padding.
        seconds: from the first request to the last answer.
        latencies: seconds of each request, in the order of the answers.
    """

    texts: int = 0
    tokens: int = 0
    computed_tokens: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Request:
    sent_at: float
    waiting: int


def closed_loop(
    lengths: Sequence[int],
    run: Callable[[list[int]], float],
    *,
    clients: int,
    per_request: int,
    seconds: float,
    least_requests: int = 1,
) -> Outcome:
    """Let clients send one request after the other, each the next texts of a common list.

    Args:
        lengths: tokens of the texts; the list begins again when it is through.
        run: runs the texts at these positions as one batch, and returns the seconds that it took.
        clients: that have one request on the way at any time.
        per_request: texts of a request.
        seconds: after which nothing new is sent; what is on the way is answered.
        least_requests: that are sent in any case.
    """
    outcome = Outcome()
    queue: deque[tuple[_Request, int]] = deque()
    position = sent = 0

    def send() -> None:
        nonlocal position, sent
        if outcome.seconds >= seconds and sent >= least_requests:
            return
        request = _Request(outcome.seconds, per_request)
        for _ in range(per_request):
            queue.append((request, position % len(lengths)))
            position += 1
        sent += 1

    for _ in range(clients):
        send()
    while queue:
        waiting = [lengths[text] for _, text in queue]
        # The oldest that fit: the first batch of those that are waiting now.
        size = len(in_arrival_order(waiting[:MOST_TEXTS], most_texts=MOST_TEXTS, most_tokens=MOST_TOKENS)[0])
        batch = [queue.popleft() for _ in range(size)]
        outcome.seconds += run([text for _, text in batch])
        outcome.texts += size
        outcome.tokens += sum(waiting[:size])
        outcome.computed_tokens += size * max(waiting[:size])
        for request, _ in batch:
            request.waiting -= 1
            if request.waiting == 0:
                outcome.latencies.append(outcome.seconds - request.sent_at)
                send()
    return outcome

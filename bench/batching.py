"""What the rules of batching cost at saturation: padding, batch sizes, work and waiting; runs no model.

    .venv-dev/bin/python bench/batching.py
    .venv-dev/bin/python bench/batching.py --fixed 60            # a processor that is quick at products

The service's own waiting room in virtual time. Clients send the mixed texts of `make bench` and wait for
their answers; while a batch runs, those answered by the one before it send anew. A run takes as long as its
tokens, padding counted, and `--fixed` tokens more: what `conche profile NAME --shape ROWSxTOKENS` measures
for a large and a small batch gives that (bench/README.md). 1.00 of the work would be no padding, and runs
for nothing.
"""

import argparse
import itertools
import sys
from asyncio import Future
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison.figures import quantile
from comparison.texts import cut, dealt, read_texts

from model.runtime.bundle import Bundle
from model.runtime.tokenization import Tokenizer
from service.waiting_room import BatchingLimits, Request, WaitingRoom

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULTS: Final = BatchingLimits()
CLIENTS: Final = ((8, 32), (32, 1), (1, 2048))


@dataclass(frozen=True, slots=True)
class Course:
    """How it went.

    Attributes:
        padding: computed tokens over tokens of the texts.
        rows, tokens: of a batch, padding counted; the means.
        work: time taken over that of the texts' own tokens, 1 at least.
        p50, p99: of the requests' times, in tokens' time.
    """

    padding: float
    rows: float
    tokens: float
    work: float
    p50: float
    p99: float


def simulate(
    lengths: Sequence[int],
    limits: BatchingLimits,
    *,
    clients: int,
    per_request: int,
    fixed: float,
    answers: int = 60,
) -> Course:
    """Let ``clients`` send requests until ``answers`` requests, and one for each client, were answered.

    Args:
        lengths: tokens of the texts, which are sent in turn, again and again.
        limits: of the batcher.
        clients: that wait for their answers.
        per_request: texts of a request.
        fixed: what a run costs beside its tokens, in tokens.
        answers: to wait for.
    """
    coming = itertools.cycle(lengths)
    room: WaitingRoom[None, None] = WaitingRoom()
    now = 0.0
    sent: dict[Request[None, None], float] = {}
    times: list[float] = []
    batches = rows = real = padded = 0
    free = clients
    while len(times) < answers + clients:
        batch = room.choose(limits) if room else []
        for entry in batch:
            room.remove(entry)
        for _ in range(free):  # answered by the batch before this one: they send while this one runs
            own = [next(coming) for _ in range(per_request)]
            # Nobody waits for it, so it needs no event loop.
            request: Request[None, None] = Request([None] * per_request, own, Future.__new__(Future))
            sent[request] = now
            while request.upcoming:
                room.add(request.upcoming.popleft())
        free = 0
        if not batch:
            continue
        longest = max(entry.length for entry in batch)
        now += fixed + len(batch) * longest
        batches, rows, padded = batches + 1, rows + len(batch), padded + len(batch) * longest
        real += sum(entry.length for entry in batch)
        for entry in batch:
            entry.request.unfinished -= 1
            if entry.request.unfinished == 0:
                times.append(now - sent.pop(entry.request))
                free += 1
    return Course(
        padded / real,
        rows / batches,
        padded / batches,
        now / real,
        quantile(times, 0.5),
        quantile(times, 0.99),
    )


def mixed_lengths(bundle: Path) -> list[int]:
    """Tokens of the mixed English texts, as `make bench` cuts and deals them."""
    tokenizer = Tokenizer.from_bundle(Bundle.load(bundle))

    def ends(texts: Sequence[str]) -> list[list[int]]:
        return [one.offsets[~one.special][:, 1].tolist() for one in tokenizer.tokenize(texts)]

    texts = cut(read_texts("text", "en"), ends)
    texts = dealt(texts, [len(one) for one in tokenizer.tokenize(texts)])
    return [len(one) for one in tokenizer.tokenize(texts)]


def main() -> None:
    """Print a table for each number of clients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--bundle", type=Path, default=ROOT / "models" / "multilingual-e5-small-zh-en", help="counts tokens"
    )
    parser.add_argument("--fixed", type=float, default=20.0, help="what a run costs beside its tokens (20)")
    arguments = parser.parse_args()
    lengths = mixed_lengths(arguments.bundle)
    print(
        f"{len(lengths)} texts of {sum(lengths) / len(lengths):.1f} tokens; a run costs {arguments.fixed:g}"
    )
    print(f"{'clients':>8}{'texts':>7}{'budget':>8}{'free':>6}", end="")
    print(f"{'padding':>9}{'rows':>7}{'tokens':>8}{'work':>7}{'p50':>9}{'p99':>9}")
    for clients, per_request in CLIENTS:
        rules = [replace(DEFAULTS, free_padding_tokens=free) for free in (0, 8, 16, 32, 64)]
        rules += [replace(DEFAULTS, max_batch_tokens=budget) for budget in (256, 512, 1024, 4096)]
        for limits in rules:
            course = simulate(
                lengths,
                limits,
                clients=clients,
                per_request=per_request,
                fixed=arguments.fixed,
                answers=max(4, 4000 // per_request),
            )
            print(
                f"{clients:>8}{per_request:>7}{limits.max_batch_tokens:>8}{limits.free_padding_tokens:>6}"
                f"{course.padding:>9.3f}{course.rows:>7.1f}{course.tokens:>8.0f}{course.work:>7.3f}"
                f"{course.p50:>9.0f}{course.p99:>9.0f}"
            )


if __name__ == "__main__":
    main()

"""What a text costs a running service in CPU time, by how many are waiting together.

    conche serve --threads 1                                # in another terminal, or anywhere
    python bench/service_curve.py http://127.0.0.1:8080

Clients each send one text of the demo FAQ's queries after the other to /embed; the more of them there are,
the larger are the batches that form. The service's own counters say how much CPU time it took, HTTP and
tokenising included, so the figures hold beside other work on the machine, if not quite as well as on a quiet
one. The last line fits `fixed + texts * each` to the runs of the model: what bench/autoscaling.py takes.
With `--lengths` texts of several lengths are sent to /embed and /ner instead, many in a request: what
docs/capacity.md has.
"""

import argparse
import http.client
import json
import re
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from service.faq.queries import demo_queries

CLIENTS = (1, 4, 16, 64)
WORDS = (4, 16, 64, 256)  # of a text
TEXTS_A_REQUEST = 16


@dataclass(frozen=True, slots=True)
class Counters:
    """What the service has counted since its start."""

    cpu_seconds: float
    texts: float
    tokens: float
    batches: float

    def __sub__(self, earlier: "Counters") -> "Counters":
        return Counters(
            self.cpu_seconds - earlier.cpu_seconds,
            self.texts - earlier.texts,
            self.tokens - earlier.tokens,
            self.batches - earlier.batches,
        )


def read_counters(address: str) -> Counters:
    """Ask ``address``, as host:port, for its metrics; those of all models are added up."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    except OSError as error:
        raise SystemExit(f"{address} does not answer: {error}") from error
    finally:
        connection.close()

    def total(name: str) -> float:
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        if not values:
            raise SystemExit(f"{address} has no {name}: no Conche, not on Linux, or metrics elsewhere")
        return sum(map(float, values))

    return Counters(
        total("process_cpu_seconds_total"),
        total("conche_texts_total"),
        total("conche_tokens_total"),
        total("conche_batch_size_count"),
    )


def send(address: str, texts: Sequence[str], clients: int) -> None:
    """Have ``clients`` send ``texts`` between them, one a request, each waiting for its answer.

    Raises:
        SystemExit: something else than a vector came back.
    """
    failures: list[str] = []

    def client(own: Sequence[str]) -> None:
        connection = http.client.HTTPConnection(address, timeout=300)
        try:
            for text in own:
                body = json.dumps({"inputs": text})
                connection.request("POST", "/embed", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    failures.append(f"status {answer.status}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(repr(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=client, args=(texts[n::clients],)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"{len(failures)} requests failed, the first with {failures[0]}")


def cost_of_length(
    address: str, path: str, words: Sequence[str], number: int, requests: int
) -> tuple[float, float]:
    """Tokens of a text of ``number`` words, and CPU ms that it takes, special tokens and HTTP included.

    Raises:
        SystemExit: ``path`` does not answer with 200.
    """
    # A tagger would run equal windows once.
    texts = [" ".join(words[7 * n : 7 * n + number]) for n in range(TEXTS_A_REQUEST)]
    body = json.dumps({"inputs": texts})
    connection = http.client.HTTPConnection(address, timeout=300)
    before = read_counters(address)
    for _ in range(requests):
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: status {answer.status}, {said[:200]!r}")
    connection.close()
    spent = read_counters(address) - before
    return spent.tokens / spent.texts, 1000 * spent.cpu_seconds / spent.texts


def print_lengths(address: str, rounds: int) -> None:
    """A table of what texts cost by length."""
    words = [word for query in demo_queries() if query.query.isascii() for word in query.query.split()]
    print("| route | tokens a text | CPU ms a text | texts/s per core |")
    print("| --- | --- | --- | --- |")
    for path in ("/embed", "/ner"):
        for number in WORDS:
            requests = max(1, 256 // number)
            cost_of_length(address, path, words, number, 1)
            found = [cost_of_length(address, path, words, number, requests) for _ in range(rounds)]
            tokens, ms = (float(value) for value in np.median(found, axis=0))
            print(f"| `{path}` | {tokens:.0f} | {ms:.1f} | {1000 / ms:.3g} |")


def fit(costs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """CPU ms of a run by itself and of each text in it, by least squares.

    Args:
        costs: mean texts of a batch, and CPU ms a text.

    Returns:
        ``fixed`` and ``each``, so that a batch of n costs ``fixed + n * each``.
    """
    sizes, ms = (np.array(column) for column in zip(*costs, strict=True))
    (fixed, each), *_ = np.linalg.lstsq(np.stack([1 / sizes, np.ones_like(sizes)], axis=1), ms, rcond=None)
    return float(fixed), float(each)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="of the service, without TLS and keys")
    parser.add_argument("--texts", type=int, default=512, help="sent in each round")
    parser.add_argument(
        "--rounds", type=int, default=3, help="with each number of clients; medians are shown"
    )
    parser.add_argument("--lengths", action="store_true", help="by length of a text, not by clients")
    options = parser.parse_args()
    address = urlsplit(options.url).netloc
    queries = [query.query for query in demo_queries()]
    texts = [queries[n % len(queries)] for n in range(options.texts)]

    read_counters(address)  # whoever is not there is not sent anything
    if options.lengths:
        print_lengths(address, options.rounds)
        return
    send(address, texts, max(CLIENTS))  # the first batches of each shape cost more
    seen: dict[int, list[tuple[float, float, float]]] = {clients: [] for clients in CLIENTS}
    for _ in range(options.rounds):
        for clients in CLIENTS:
            before = read_counters(address)
            send(address, texts, clients)
            spent = read_counters(address) - before
            seen[clients].append(
                (
                    spent.texts / spent.batches,
                    spent.tokens / spent.texts,
                    1000 * spent.cpu_seconds / spent.texts,
                )
            )
    print("| clients | texts a batch | tokens a text | CPU ms a text | texts/s per core |")
    print("| --- | --- | --- | --- | --- |")
    costs = []
    for clients, rounds in seen.items():
        size, tokens, ms = (float(value) for value in np.median(rounds, axis=0))
        costs.append((size, ms))
        print(f"| {clients} | {size:.1f} | {tokens:.1f} | {ms:.2f} | {1000 / ms:.0f} |")
    fixed, each = fit(costs)
    print(f"\n--fixed-ms {fixed:.2f} --text-ms {each:.2f}")


if __name__ == "__main__":
    main()

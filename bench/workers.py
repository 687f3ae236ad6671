"""One process with all threads against several with a share each: throughput, latency and memory.

    .venv/bin/python bench/workers.py             # 1 x 2 and 2 x 1: workers x threads, three rounds each
    .venv/bin/python bench/workers.py 1x8 1x8x2   # on eight cores; the third number: streams of each

Starts `conche serve` anew for each, on a port of its own. Clients, each with its connection, send the demo
FAQ's queries to /embed, one a request and each waiting for its answer. The rounds take turns, and medians are
shown. What an event loop takes is the CPU time of the processes' main threads: with the CPU time of all it is
what bench/many_cores.py asks for, and holds on a busy machine, where texts per second mean little.
"""

import argparse
import asyncio
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from comparison.http_load import Load, Request, closed_loop

from service.faq.queries import demo_queries

LAST_WORDS = 20  # lines of a process that did not start
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round.

    Attributes:
        texts_a_second: answered.
        p50_ms, p99_ms: from a request to its whole answer.
        loop_ms: CPU time of the event loops, a text.
        all_ms: CPU time of all processes, a text.
        texts_a_batch: mean.
        memory_mib: proportional set size of all processes together: shared pages count once.
    """

    texts_a_second: float
    p50_ms: float
    p99_ms: float
    loop_ms: float
    all_ms: float
    texts_a_batch: float
    memory_mib: float


class Server:
    """A running `conche serve`.

    Raises:
        SystemExit: it did not start; the message has what it wrote last.
    """

    def __init__(self, workers: int, threads: int, streams: str, folder: Path) -> None:
        command = [sys.executable, "-c", "from service.cli import main; main()", "serve", "--port", "0"]
        command += ["--workers", str(workers), "--threads", str(threads), "--log-format", "json"]
        command += [
            "--streams",
            streams,
            "--data-dir",
            str(folder),
            "--access-log-sample",
            "0",
            "--faq-store",
            "none",
        ]
        command += ["--ner-bundle", "none"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        said: deque[str] = deque(maxlen=LAST_WORDS)
        for line in self.process.stderr:
            said.append(line)
            found = re.search(r'"url": ?"http://[^":]+:(\d+)"', line)
            if found:
                self.port = int(found[1])
                break
        else:
            status = self.process.wait()
            words = "".join(said).strip() or "it wrote nothing"
            raise SystemExit(f"it did not start (exit code {status}): {words}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        self.serving = [int(child) for child in children] if workers > 1 else [pid]
        self.all = {pid, *self.serving}

    def loop_seconds(self) -> float:
        """CPU time of the threads that the event loops run in."""
        return sum(_cpu_seconds(Path(f"/proc/{pid}/task/{pid}/stat")) for pid in self.serving)

    def all_seconds(self) -> float:
        """CPU time of all."""
        return sum(_cpu_seconds(Path(f"/proc/{pid}/stat")) for pid in self.all)

    def memory_mib(self) -> float:
        """Of all together."""
        pages = [Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii") for pid in self.all]
        return sum(int(re.findall(r"^Pss:\s+(\d+)", page, re.MULTILINE)[0]) for page in pages) / 1024

    def batches(self) -> float:
        """Run so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        return sum(
            float(value) for value in re.findall(r"^conche_batch_size_count\S* (\S+)$", page, re.MULTILINE)
        )

    def stop(self) -> None:
        """And wait."""
        self.process.terminate()
        self.process.wait(60)


def _cpu_seconds(stat: Path) -> float:
    fields = stat.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND  # utime, stime


def load(port: int, texts: Sequence[str], clients: int, seconds: float) -> Load:
    """Have ``clients`` send ``texts``, one a request, each waiting for its answer.

    Raises:
        SystemExit: one was not answered with 200.
    """
    requests = [Request("/embed", json.dumps({"inputs": text}).encode(), 1, 0) for text in texts]
    done = asyncio.run(closed_loop(port, requests, clients=clients, seconds=seconds))
    if done.failed or done.refused:
        raise SystemExit(f"requests failed: {done.failed}, {len(done.refused)} refused")
    return done


def measure(server: Server, clients: int, seconds: float) -> Figures:
    """One round."""
    texts = [query.query for query in demo_queries()]
    load(server.port, texts, clients, min(2.0, seconds))  # the first batches of each shape cost more
    loop, everything, batches = server.loop_seconds(), server.all_seconds(), server.batches()
    done = load(server.port, texts, clients, seconds)
    loop, everything = server.loop_seconds() - loop, server.all_seconds() - everything
    answered = len(done.latencies)
    took = sorted(1000 * taken for taken in done.latencies)
    return Figures(
        answered / done.seconds,
        took[answered // 2],
        took[min(answered - 1, answered * 99 // 100)],
        1000 * loop / answered,
        1000 * everything / answered,
        answered / (server.batches() - batches),
        server.memory_mib(),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "shapes", nargs="*", default=["1x2", "2x1"], help="workers x threads, or x streams as well"
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    seen: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for shape in options.shapes:
                workers, threads, *streams = shape.split("x")
                server = Server(
                    int(workers), int(threads), streams[0] if streams else "auto", Path(folder) / shape
                )
                try:
                    for clients in options.clients:
                        figures = measure(server, clients, options.seconds)
                        seen.setdefault((shape, clients), []).append(figures)
                finally:
                    server.stop()
    print(
        "| workers x threads x streams | clients | texts/s | p50, p99 ms "
        "| CPU ms a text: loop, all | a batch | MiB |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (shape, clients), rounds in seen.items():

        def median(name: str, rounds: list[Figures] = rounds) -> float:
            return float(statistics.median(getattr(one, name) for one in rounds))

        print(
            f"| {shape} | {clients} | {median('texts_a_second'):.0f} "
            f"| {median('p50_ms'):.0f}, {median('p99_ms'):.0f} "
            f"| {median('loop_ms'):.2f}, {median('all_ms'):.1f} "
            f"| {median('texts_a_batch'):.1f} | {median('memory_mib'):.0f} |"
        )


if __name__ == "__main__":
    main()

"""How many replicas an autoscaler keeps, and how long texts wait meanwhile: a simulation, no measurement.

    python bench/autoscaling.py --fixed-ms F --text-ms T                 # what bench/service_curve.py prints
    python bench/autoscaling.py --fixed-ms F --text-ms T --svg folder    # and a picture of each load

Replicas take the texts that wait, up to a batch's worth, and run them in `fixed + texts * each` of CPU time,
spread over their cores; requests come at random (Poisson) and go to any ready replica. The autoscaler is
Kubernetes' HorizontalPodAutoscaler: it looks every 15 s at CPU use and at the queue metric of
deploy/helm/prometheus-adapter.yaml, each as old as scrapes make it, within a tolerance of 10 %, counts pods
that are not ready as unloaded before it adds more, takes the largest answer, and keeps to the policies of the
chart's values. A removed replica finishes what it has. Loads are multiples of what one replica can do.

Sources: Kubernetes documentation, "Horizontal Pod Autoscaling", sections "Algorithm details" and
"Configurable scaling behavior".
"""

import argparse
import itertools
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TICK_S = 1.0
LOOK_EVERY_S = 15  # the controller's period, and that of scrapes and of metrics-server
LOOK_OFFSET_S = 7  # how old the newest scrape is when the controller looks
TOLERANCE = 0.1
BIN_S = 60


@dataclass(frozen=True, slots=True)
class Replica:
    """What one pod can do.

    Attributes:
        fixed_ms: CPU time of a run by itself.
        text_ms: CPU time of each text in it, HTTP included.
        cores: it has; a run is spread over all of them.
        max_batch: texts of a run.
        max_queue: texts that may wait; more are refused.
        max_queue_s: what may wait is also what runs within this time, two full batches at least, once a run
            of half a batch has shown the pace; None = no such bound.
    """

    fixed_ms: float
    text_ms: float
    cores: float
    max_batch: int
    max_queue: int
    max_queue_s: float | None = None

    def run_seconds(self, texts: int) -> float:
        """How long a run of ``texts`` takes."""
        return (self.fixed_ms + texts * self.text_ms) / 1000 / self.cores

    @property
    def capacity(self) -> float:
        """Texts a second, in full batches."""
        return self.max_batch / self.run_seconds(self.max_batch)

    @property
    def max_queue_at_work(self) -> int:
        """Texts that may wait where the pace is known."""
        if self.max_queue_s is None:
            return self.max_queue
        return min(self.max_queue, max(int(self.capacity * self.max_queue_s), 2 * self.max_batch))


@dataclass(frozen=True, slots=True)
class Rules:
    """The autoscaler's; defaults are those of the chart's values.

    Attributes:
        cpu: share of the CPU request to aim at; 0 = not looked at.
        queue: share of the places in the queue to aim at; 0 = not looked at.
        window_s: over which the queue's samples are averaged.
        start_s: from the decision to a ready pod.
    """

    least: int = 2
    most: int = 10
    cpu: float = 0.7
    queue: float = 0.01
    window_s: int = 60
    start_s: int = 20
    up_share: float = 1.0
    up_pods: int = 2
    up_period_s: int = 30
    down_share: float = 0.25
    down_pods: int = 1
    down_period_s: int = 60
    down_window_s: int = 300


@dataclass(slots=True)
class Waits:
    """When requests came, and when they were answered; of one index one request."""

    arrived: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


class Pod:
    """One replica at work. Times are in seconds since the start of the simulation."""

    def __init__(self, replica: Replica, ready_at: float, texts: int) -> None:
        self.ready_at = ready_at
        self._most_waiting = max(1, replica.max_queue // texts)
        self._most_waiting_at_work = max(1, replica.max_queue_at_work // texts)
        self._most_of_batch = max(1, replica.max_batch // texts)
        self._run_seconds = [replica.run_seconds(n * texts) for n in range(self._most_of_batch + 1)]
        self._waiting: list[float] = []
        self._free_at = ready_at
        self._work = 0.0
        self._seen_work = 0.0
        self._samples: deque[tuple[float, float]] = deque()
        self.cpu = 0.0

    def take(self, arrivals: Sequence[float], until: float, waits: "Waits") -> int:
        """Work until ``until``.

        Args:
            arrivals: of requests, in order, all before ``until`` and after those given before.
            until: when to look up.
            waits: what is done is added to it.

        Returns:
            How many were refused.
        """
        waiting = self._waiting
        waiting.extend(arrivals)
        first = 0
        while first < len(waiting):
            start = max(self._free_at, waiting[first])
            if start >= until:
                break
            last = bisect_right(waiting, start, first, min(len(waiting), first + self._most_of_batch))
            if 2 * (last - first) >= self._most_of_batch:
                self._most_waiting = self._most_waiting_at_work
            seconds = self._run_seconds[last - first]
            self._free_at = start + seconds
            self._work += seconds
            waits.arrived.extend(waiting[first:last])
            waits.answered.extend([self._free_at] * (last - first))
            first = last
        del waiting[:first]
        refused = max(0, len(waiting) - self._most_waiting)
        del waiting[len(waiting) - refused :]
        return refused

    @property
    def idle(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def scrape(self, now: float, window_s: int) -> None:
        """Note CPU use since the last time, and how much waits."""
        done = self._work - max(0.0, self._free_at - now)  # a run under way is counted as far as it is
        self.cpu = (done - self._seen_work) / LOOK_EVERY_S
        self._seen_work = done
        self._samples.append((now, len(self._waiting) / self._most_waiting))
        while self._samples[0][0] <= now - window_s:
            self._samples.popleft()

    @property
    def queue(self) -> float:
        """Share of the places taken, on average over the window."""
        return sum(share for _, share in self._samples) / max(len(self._samples), 1)


def wanted(values: Sequence[float], missing: int, target: float) -> int:
    """Replicas that one metric asks for.

    Args:
        values: of the pods that have any.
        missing: pods that are not ready.
        target: the average to come to.
    """
    pods = len(values) + missing
    if not values:
        return pods
    ratio = sum(values) / len(values) / target
    if abs(ratio - 1) <= TOLERANCE:
        return pods
    if missing:
        # Unloaded if that keeps the number from rising, loaded if that keeps it from falling.
        filled = (sum(values) / target + (0 if ratio > 1 else missing)) / pods
        if abs(filled - 1) <= TOLERANCE or (filled > 1) != (ratio > 1):
            return pods
        return math.ceil(filled * pods)
    return math.ceil(ratio * pods)


class Autoscaler:
    """Kubernetes' HorizontalPodAutoscaler, with two metrics and policies."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._advice: deque[tuple[float, int]] = deque()
        self._changes: deque[tuple[float, int]] = deque()

    def decide(self, now: float, ready: Sequence[Pod], starting: int) -> int:
        """How many replicas there shall be."""
        rules = self._rules
        current = len(ready) + starting
        answers = []
        if rules.cpu:
            answers.append(wanted([pod.cpu for pod in ready], starting, rules.cpu))
        if rules.queue:
            answers.append(wanted([pod.queue for pod in ready], starting, rules.queue))
        advice = min(max(*answers, rules.least) if answers else current, rules.most)
        self._advice.append((now, advice))
        while self._advice[0][0] <= now - rules.down_window_s:
            self._advice.popleft()
        if advice > current:
            before = current - self._net(now, rules.up_period_s, up=True)
            bound = max(math.ceil(before * (1 + rules.up_share)), before + rules.up_pods)
            decided = max(current, min(advice, bound))
        else:
            held = max(number for _, number in self._advice)
            before = current + self._net(now, rules.down_period_s, up=False)
            bound = min(math.floor(before * (1 - rules.down_share)), before - rules.down_pods)
            decided = min(current, max(held, bound, rules.least))
        if decided != current:
            self._changes.append((now, decided - current))
        return decided

    def _net(self, now: float, period_s: int, *, up: bool) -> int:
        changes = (change for at, change in self._changes if at > now - period_s)
        return sum(abs(change) for change in changes if (change > 0) == up)


@dataclass(slots=True)
class Outcome:
    """What a run of the simulation came to.

    Attributes:
        replicas: there were at each tick, those that start included.
        load: texts a second at each tick.
        arrived: [requests], when each came that was not refused.
        waits: [requests], how long each took.
        refused: requests.
    """

    replicas: list[int] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    arrived: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    waits: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    refused: int = 0

    @property
    def replica_hours(self) -> float:
        """What it cost."""
        return sum(self.replicas) * TICK_S / 3600

    def quantile(self, share: float) -> float:
        """Of all requests, in seconds."""
        return float(np.quantile(self.waits, share)) if len(self.waits) else math.nan

    def by_minute(self, share: float) -> list[float]:
        """The quantile of the requests that came in each minute; NaN where none did."""
        bins = (self.arrived // BIN_S).astype(int)
        order = np.argsort(bins, kind="stable")
        edges = np.searchsorted(bins[order], np.arange(math.ceil(len(self.load) * TICK_S / BIN_S) + 1))
        seconds = self.waits[order]
        pairs = itertools.pairwise(edges)
        return [float(np.quantile(seconds[a:b], share)) if b > a else math.nan for a, b in pairs]


def simulate(
    replica: Replica, rules: Rules, load: Iterable[float], *, texts: int = 1, seed: int = 0
) -> Outcome:
    """Run a load.

    Args:
        replica: each of them.
        rules: of the autoscaler; it starts at ``rules.least``.
        load: texts a second, for each tick.
        texts: of each request; they come together, to one replica.
        seed: of arrivals.
    """
    chance = np.random.default_rng(seed)
    autoscaler = Autoscaler(rules)
    pods = [Pod(replica, 0.0, texts) for _ in range(rules.least)]
    leaving: list[Pod] = []
    outcome = Outcome()
    waits = Waits()
    for tick, rate in enumerate(load):
        now = tick * TICK_S
        if tick % LOOK_EVERY_S == 0:
            for pod in pods:
                if pod.ready_at <= now:
                    pod.scrape(now, rules.window_s)
        if tick % LOOK_EVERY_S == LOOK_OFFSET_S:
            # A pod without a scrape yet counts as not ready.
            ready = [pod for pod in pods if pod.ready_at <= now - LOOK_OFFSET_S]
            number = autoscaler.decide(now, ready, len(pods) - len(ready))
            pods.extend(Pod(replica, now + rules.start_s, texts) for _ in range(number - len(pods)))
            leaving.extend(pods[number:])  # the youngest go first
            del pods[number:]
        serving = [pod for pod in pods if pod.ready_at <= now]
        for pod in serving:  # a share of a Poisson process is one too
            requests = chance.poisson(rate * TICK_S / texts / len(serving))
            arrivals = np.sort(now + TICK_S * chance.random(requests)).tolist()
            outcome.refused += pod.take(arrivals, now + TICK_S, waits)
        for pod in leaving:
            pod.take((), now + TICK_S, waits)
        leaving = [pod for pod in leaving if not pod.idle]
        outcome.replicas.append(len(pods))
        outcome.load.append(rate)
    outcome.arrived = np.array(waits.arrived)
    outcome.waits = np.array(waits.answered) - outcome.arrived
    return outcome


def step(capacity: float) -> list[float]:
    """Ten minutes of 0.8, twenty of 4, fifteen of 0.8 replicas' worth."""
    return [0.8 * capacity] * 600 + [4 * capacity] * 1200 + [0.8 * capacity] * 900


def ramp(capacity: float) -> list[float]:
    """From 0.8 to 5 replicas' worth in twenty minutes, and ten minutes of that."""
    return [capacity * (0.8 + 4.2 * min(second / 1200, 1)) for second in range(1800)]


def day(capacity: float) -> list[float]:
    """24 hours: 0.4 replicas' worth at night, a peak of 4 before noon and one of 3.2 in the evening."""

    def share(hour: float) -> float:
        morning = math.exp(-(((hour - 10.5) / 2.3) ** 2))
        evening = math.exp(-(((hour - 20) / 2.0) ** 2))
        return 0.4 + 3.6 * morning + 2.8 * evening

    return [capacity * share(second / 3600) for second in range(24 * 3600)]


LOADS: dict[str, Callable[[float], list[float]]] = {"step": step, "ramp": ramp, "day": day}

_WIDTH, _HEIGHT, _SIDE, _TOP = 760, 150, 56, 26
_POINTS = 900
_COLOURS = ("#0b62a4", "#d9730d", "#3d7a3a", "#7a3d78")


def picture(name: str, replica: Replica, outcomes: dict[str, Outcome]) -> str:
    """Draw the load, the replicas and the p99 of each minute, by set of rules, as an SVG document."""
    first = next(iter(outcomes.values()))
    minutes = len(first.load) * TICK_S / 60
    every_th = max(1, len(first.load) // _POINTS)
    load = [rate / replica.capacity for rate in first.load[::every_th]]
    replicas = {rule: [float(n) for n in one.replicas[::every_th]] for rule, one in outcomes.items()}
    p99 = {rule: one.by_minute(0.99) for rule, one in outcomes.items()}
    panels = [
        ("load, in replicas' worth", {"": load}, False),
        ("replicas", replicas, False),
        ("p99 of each minute, s (logarithmic)", p99, True),
    ]
    parts = []
    for row, (title, lines, logarithmic) in enumerate(panels):
        top = _TOP + row * (_HEIGHT + 44)
        every = [value for line in lines.values() for value in line if math.isfinite(value)]
        low = 10 ** math.floor(math.log10(max(min(every), 1e-3))) if logarithmic else 0.0
        high = 10 ** math.ceil(math.log10(max(*every, low * 10))) if logarithmic else math.ceil(max(every))

        def height(value: float, low: float = low, high: float = high, log: bool = logarithmic) -> float:
            if log:
                return math.log(max(value, low) / low) / math.log(high / low)
            return value / high

        parts.append(f'<text x="{_SIDE}" y="{top - 8}">{escape(title)}</text>')
        parts.append(
            f'<rect x="{_SIDE}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#8a949e"/>'
        )
        for value in (low, high):
            y = top + _HEIGHT * (1 - height(value))
            parts.append(f'<text x="{_SIDE - 6}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>')
        for colour, (rule, line) in zip(_COLOURS, lines.items(), strict=False):
            points = " ".join(
                f"{_SIDE + _WIDTH * at / max(len(line) - 1, 1):.1f},{top + _HEIGHT * (1 - height(value)):.1f}"
                for at, value in enumerate(line)
                if math.isfinite(value)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            if rule:
                x = _SIDE + 260 + 150 * list(lines).index(rule)
                parts.append(f'<text x="{x}" y="{top - 8}" fill="{colour}">{escape(rule)}</text>')
    bottom = _TOP + len(panels) * (_HEIGHT + 44)
    parts.append(f'<text x="{_SIDE}" y="{bottom - 26}">0</text>')
    parts.append(f'<text x="{_SIDE + _WIDTH}" y="{bottom - 26}" text-anchor="end">{minutes:g} min</text>')
    width = _SIDE + _WIDTH + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Autoscaling: {escape(name)}" '
        f'viewBox="0 0 {width} {bottom}" width="{width}" height="{bottom}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#1c2733">'
        f'<rect width="{width}" height="{bottom}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fixed-ms", type=float, required=True, help="CPU ms of a run by itself")
    parser.add_argument("--text-ms", type=float, required=True, help="CPU ms of each text in it")
    parser.add_argument("--cores", type=float, default=2, help="of a replica")
    parser.add_argument("--tokens", type=float, default=16, help="of a text")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="CONCHE_BATCHING__MAX_BATCH_TOKENS")
    parser.add_argument("--batch-size", type=int, default=256, help="CONCHE_BATCHING__MAX_BATCH_SIZE")
    parser.add_argument("--queue-tokens", type=int, default=131_072, help="CONCHE_BATCHING__MAX_QUEUE_TOKENS")
    parser.add_argument("--queue-items", type=int, default=8192, help="CONCHE_BATCHING__MAX_QUEUE_ITEMS")
    parser.add_argument("--queue-seconds", type=float, default=30, help="CONCHE_BATCHING__MAX_QUEUE_SECONDS")
    parser.add_argument("--texts", type=int, default=1, help="of a request")
    parser.add_argument("--cpu", type=float, default=70, help="target, percent")
    parser.add_argument("--queue", type=float, default=0.01, help="target of conche_queue_saturation_ratio")
    parser.add_argument("--window", type=int, default=60, help="seconds over which the queue is averaged")
    parser.add_argument("--start", type=int, default=20, help="seconds from the decision to a ready pod")
    parser.add_argument("--least", type=int, default=2, help="replicas")
    parser.add_argument("--most", type=int, default=10, help="replicas")
    parser.add_argument("--load", action="append", choices=list(LOADS), help="default: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", type=Path, help="folder for a picture of each load")
    options = parser.parse_args()
    replica = Replica(
        options.fixed_ms,
        options.text_ms,
        options.cores,
        max_batch=max(1, min(options.batch_size, int(options.batch_tokens / options.tokens))),
        max_queue=max(1, min(options.queue_items, int(options.queue_tokens / options.tokens))),
        max_queue_s=options.queue_seconds,
    )
    queue_s = replica.max_queue_at_work / replica.capacity

    def rules(cpu: float, queue: float) -> Rules:
        return Rules(options.least, options.most, cpu, queue, options.window, options.start)

    by_name = {
        "CPU": rules(options.cpu / 100, 0),
        "queue": rules(0, options.queue),
        "CPU and queue": rules(options.cpu / 100, options.queue),
    }
    print(
        f"One replica: {replica.capacity:.0f} texts/s at most, {1000 * replica.run_seconds(1):.1f} ms for a "
        f"text alone; a full queue is {queue_s:.0f} s of work, the target of the queue "
        f"{1000 * options.queue * queue_s:.0f} ms."
    )
    print(
        "\n| load | autoscaled by | replicas, most | replica hours | p50 ms | p99 ms | worst minute's p99, s "
        "| minutes with p99 above 1 s | refused |"
    )
    print("| --- " * 9 + "|")
    for name in options.load or LOADS:
        load = LOADS[name](replica.capacity)
        outcomes = {}
        for rule, chosen in by_name.items():
            one = simulate(replica, chosen, load, texts=options.texts, seed=options.seed)
            minutes = [value for value in one.by_minute(0.99) if math.isfinite(value)]
            cells = (
                *(name, rule, max(one.replicas), f"{one.replica_hours:.1f}"),
                *(f"{1000 * one.quantile(0.5):.0f}", f"{1000 * one.quantile(0.99):.0f}"),
                *(f"{max(minutes):.2f}", sum(minute > 1 for minute in minutes), one.refused),
            )
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            outcomes[rule] = one
        if options.svg:
            options.svg.mkdir(parents=True, exist_ok=True)
            (options.svg / f"{name}.svg").write_text(picture(name, replica, outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()

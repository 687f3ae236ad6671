"""One run of the comparison: whose turn it is, what was measured, and when it is time to stop."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from comparison.contestants import Result
from comparison.processes import NotRunningError
from comparison.workloads import BATCHES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from comparison.contestants import Contestant
    from comparison.workloads import Texts, Workload

# Vectors that are further from the reference than this are not the same model's.
LEAST_COSINE: Final = 0.999
_PROBES: Final = 16
OVERLOAD: Final = 10
# Rounds that early workloads have behind them when the others have their first.
EARLY_ROUNDS: Final = 2
# Seconds that are not counted of each turn at the workloads that are quoted, whoever's turn it is: a server
# may change with the load (`service.stream_following`), and was stopped while others had their turns.
LEAD_S: Final = 2.5
# Texts of a request up to which a first one is not counted; larger ones warm up for themselves.
_WARMED_UP_FOR: Final = 64


@dataclass(frozen=True, slots=True)
class Turn:
    """One contestant's turn at one workload."""

    round: int
    workload: Workload
    contestant: str

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it in the file of measurements."""
        return self.workload.name, self.contestant, self.round


def turns(
    workloads: Sequence[Workload], entrants: Mapping[str, Sequence[str]], rounds: int
) -> Iterator[Turn]:
    """Yield all turns of a run.

    A round goes through every workload before the next one begins, and at each of them through all
    contestants, so that those who are set beside each other are measured within moments, and a run that is
    out of time has something of everything. Early workloads are some rounds ahead of the
    others. Each round begins with another contestant: nobody always follows the same one.

    Args:
        workloads: in the order in which they come.
        entrants: names of contestants by workload's name.
        rounds: at most; a workload may have fewer of its own.
    """
    ahead = EARLY_ROUNDS if any(workload.early for workload in workloads) else 0
    for step in range(rounds + ahead):
        for workload in workloads:
            names = entrants.get(workload.name, ())
            number = step if workload.early else step - ahead
            if 0 <= number < min(workload.rounds, rounds):
                for place in range(len(names)):
                    yield Turn(number, workload, names[(place + number) % len(names)])


class Measurements:
    """What was measured, in a file of JSON lines that a run which was interrupted goes on with."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self._path = path
        self.lines: list[dict[str, Any]] = []
        if resume and path.is_file():
            self.lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        else:
            path.write_text("", encoding="utf-8")

    def has(self, turn: Turn) -> bool:
        """Whether this turn was taken."""
        return turn.key in {(one["workload"], one["contestant"], one["round"]) for one in self.lines}

    def add(self, turn: Turn, measured: Mapping[str, Any]) -> None:
        """Keep what came of a turn."""
        workload, contestant, number = turn.key
        line = {"workload": workload, "contestant": contestant, "round": number, **measured}
        self.lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


@dataclass
class Run:
    """Takes the turns.

    Args:
        contestants: by name; they are started when their first turn comes.
        texts: of the workloads.
        measurements: where results go.
        seconds: of one turn, before what is on its way is waited for.
        lead: seconds that are not counted, before a turn at the workloads that are quoted.
        until: on ``time.monotonic``; no turn begins that is not likely to end by then.
        say: told how it goes.
        reference: vectors of the probes for each model's name, that all have to give.
    """

    contestants: Mapping[str, Contestant]
    texts: Texts
    measurements: Measurements
    seconds: float
    lead: float
    until: float
    say: Callable[[str], None]
    absent: dict[str, str] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    cosines: dict[str, float] = field(default_factory=dict)
    reference: dict[str, Any] = field(default_factory=dict)
    out_of_time: bool = False
    _took: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self, plan: Sequence[Turn]) -> None:
        """Take every turn of ``plan`` that there is time for."""
        for number, turn in enumerate(plan):
            if turn.contestant in self.absent or self.measurements.has(turn):
                continue
            expected = self._took.get((turn.workload.name, turn.contestant), self.lead + 2 * self.seconds)
            if turn.round > 0 and time.monotonic() + expected > self.until:
                self.out_of_time = True
                continue
            began = time.monotonic()
            told = self._turn(turn)
            self._took[turn.workload.name, turn.contestant] = time.monotonic() - began
            place = f"{number + 1}/{len(plan)}"
            self.say(f"[{place}] round {turn.round + 1}, {turn.workload.title}: {turn.contestant}: {told}")

    def _turn(self, turn: Turn) -> str:
        contestant = self.contestants[turn.contestant]
        try:
            if turn.workload.kind == "start":
                seconds = contestant.start()
                rss = contestant.process.rss_mib() if contestant.process else 0.0
                self.measurements.add(turn, {"start_s": seconds, "rss_mib": rss})
                told = f"{seconds:.1f} s, {rss:.0f} MiB"
            else:
                if contestant.process is None:
                    self.starts[contestant.name] = contestant.start()
                    self._prove(contestant, turn.workload)
                assert contestant.process is not None
                contestant.process.resume()
                result, more = self._measured(contestant, turn)
                self.measurements.add(turn, {**asdict(result), **more})
                told = f"{result.texts_per_s:.1f} texts/s"
                told += (
                    ""
                    if result.p50_ms is None
                    else f", p50 {result.p50_ms:.1f} ms, p99 {result.p99_ms:.1f} ms"
                )
                told += f", {result.refused} refused" if result.refused else ""
                told += "".join(f", {name} {value:.2f}" for name, value in more.items())
                told += f", FAILED {dict(result.failed)}" if result.failed else ""
        except NotRunningError as error:
            contestant.stop()
            if contestant.name not in self.starts:
                self.absent[contestant.name] = str(error)
            self.measurements.add(turn, {"error": str(error)})
            told = f"did not do it: {error}"
        if contestant.process is not None:
            contestant.process.pause()
        return told

    def _measured(self, contestant: Contestant, turn: Turn) -> tuple[Result, dict[str, float]]:
        """What a turn gave, and what is told of its workload alone."""
        workload = turn.workload
        job = self.texts.job(workload, seconds=self.seconds)
        # A first go at it, not counted: caches, shapes, connections, and what follows the load.
        if workload.early:
            contestant.time(replace(job, seconds=self.lead))
        elif workload.kind == "overload":
            contestant.time(self.texts.job(BATCHES, seconds=self.lead))
        elif turn.round == 0 and workload.per_request <= _WARMED_UP_FOR:
            contestant.time(replace(job, clients=1, seconds=min(0.3, self.seconds / 4)))
        if workload.kind != "overload":
            return contestant.time(job), {}
        peak_job = self.texts.job(BATCHES, seconds=self.seconds)
        before = contestant.time(peak_job).texts_per_s
        rate = OVERLOAD * before / workload.per_request
        result = contestant.time(
            self.texts.job(workload, seconds=4 * self.seconds, rate=rate, patience=20 * self.seconds)
        )
        # Right before and right after: a peak of some minutes ago may be that of another machine.
        after = contestant.time(peak_job).texts_per_s
        return result, {"kept": 2 * result.texts_per_s / (before + after)}

    def _prove(self, contestant: Contestant, workload: Workload) -> None:
        """Refuse a contestant whose vectors are not those of the model.

        Raises:
            NotRunningError: with the least cosine.
        """
        if workload.route != "embed":
            return
        probes = self.texts.of(workload)[0][:_PROBES]
        vectors = contestant.vectors(probes)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        expected = self.reference.setdefault(workload.model, vectors)
        cosine = float((vectors * expected).sum(axis=1).min())
        self.cosines[contestant.name] = cosine
        if cosine < LEAST_COSINE:
            raise NotRunningError(f"other vectors than the reference's: cosine {cosine:.4f}")

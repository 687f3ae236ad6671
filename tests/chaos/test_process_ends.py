"""The process is killed or told to stop while callers are at it."""

import http.client
import os
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from tests.chaos.served import HANG_S, Supervisor, ask, serving, until

KILLS = 3


class Callers:
    """One that writes and two that embed, again and again; what they got.

    Attributes:
        acknowledged: ids of entries that the service said were written.
        sent: ids of all that were sent.
        statuses: of all answers.
        broken: requests that got no answer.
    """

    def __init__(self, port: int) -> None:
        self.acknowledged: list[str] = []
        self.sent: list[str] = []
        self.statuses: set[int] = set()
        self.broken = 0
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write)]
        self._threads += [threading.Thread(target=self._embed) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        number = 0
        while not self._over.is_set():
            name = f"e{number}"
            entry = {"id": name, "question": f"return order {number}", "answer": "yes"}
            self.sent.append(name)
            number += 1
            if self._ask("/faq/shop/entries", {"entries": [entry]}):
                self.acknowledged.append(name)

    def _embed(self) -> None:
        while not self._over.is_set():
            self._ask("/embed", {"inputs": ["hello world", "return order"] * 8})

    def _ask(self, path: str, body: object) -> bool:
        try:
            self.statuses.add(ask(self._port, "POST", path, body).status)
        except (OSError, http.client.HTTPException):
            self.broken += 1
            self._over.wait(0.05)  # as a client that retries
            return False
        return True

    def end(self) -> None:
        """Let them finish what they are at."""
        self._over.set()
        for thread in self._threads:
            thread.join(HANG_S)


def test_kill_9_under_load_breaks_connections_and_loses_nothing_acknowledged(folder: Path) -> None:
    """Callers see broken connections and never a wrong answer; the supervisor does the rest."""
    with serving(folder) as served:
        supervisor = Supervisor(served)
        callers = Callers(served.port)
        for killed in range(1, KILLS + 1):
            before = len(callers.acknowledged)
            until(lambda before=before: len(callers.acknowledged) >= before + 5, "five more writes")  # type: ignore[misc]
            served.process.send_signal(signal.SIGKILL)
            until(lambda killed=killed: len(supervisor.exits) == killed, "the end of the process")  # type: ignore[misc]
        before = len(callers.acknowledged)
        until(lambda: len(callers.acknowledged) >= before + 5, "writes after the last start")
        callers.end()
        assert callers.statuses == {200}
        assert callers.broken >= KILLS
        there = served.ids()
        assert set(callers.acknowledged) <= there <= set(callers.sent)
        hits = served.ask("POST", "/search", {"query": "return order", "collection": "shop"}).json()
        assert hits["results"][0]["hits"][0]["id"] in there
        assert supervisor.end() == 0
        assert supervisor.exits == [-signal.SIGKILL] * KILLS
    with closing(sqlite3.connect(folder / "data" / "faq.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def workers_of(pid: int) -> list[int]:
    """Processes that a supervisor started."""
    return [int(found) for found in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def counters(port: int) -> dict[str, float]:
    """What a scrape has that must never fall, by name and labels."""
    lines = ask(port, "GET", "/metrics").body.decode().splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if line.startswith("conche_"))
    return {
        name: float(value)
        for name, value in samples.items()
        if name.partition("{")[0].endswith(("_total", "_count", "_bucket"))
    }


def test_kill_9_of_one_worker_leaves_the_others_at_work_and_no_counter_falls(folder: Path) -> None:
    """Only what that worker had in hand is broken; the next one takes its place."""
    died = 'conche_worker_restarts_total{reason="died"}'
    with serving(folder, "--workers", "3") as served:
        callers = Callers(served.port)
        seen = counters(served.port)
        for killed in range(1, KILLS + 1):
            before = len(callers.acknowledged)
            until(lambda before=before: len(callers.acknowledged) >= before + 5, "five more writes")  # type: ignore[misc]
            os.kill(workers_of(served.process.pid)[-1], signal.SIGKILL)

            def is_replaced(killed: int = killed) -> bool:
                now = counters(served.port)
                assert [name for name in seen if now[name] < seen[name]] == []
                seen.update(now)
                return seen[died] >= killed and len(workers_of(served.process.pid)) == 3

            until(is_replaced, "another worker")
        callers.end()
        assert callers.statuses == {200}
        assert callers.broken <= KILLS * 3  # as many callers as there are
        assert set(callers.acknowledged) <= served.ids() <= set(callers.sent)
        assert served.stop() == 0
    with closing(sqlite3.connect(folder / "data" / "faq.sqlite")) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_worker_whose_loop_stands_still_is_replaced(folder: Path) -> None:
    """Its process lives, and no probe may ever meet it: the supervisor notices."""
    with serving(folder, "--workers", "2", "--loop-stall-seconds", "10") as served:
        stopped = workers_of(served.process.pid)[0]
        os.kill(stopped, signal.SIGSTOP)
        until(lambda: stopped not in workers_of(served.process.pid), "the end of it")
        silent = 'conche_worker_restarts_total{reason="silent"}'
        until(lambda: len(workers_of(served.process.pid)) == 2, "a new one")
        assert counters(served.port)[silent] == 1
        assert served.embed().status == 200
        assert served.stop() == 0


def test_sigterm_shows_itself_and_loses_no_request(folder: Path) -> None:
    """Callers that ask /readyz first, as load balancers do, get 200 for whatever they send."""
    statuses: list[int] = []
    with serving(folder, "--shutdown-delay-seconds", "5") as served:

        def balanced() -> None:
            while served.ask("GET", "/readyz").status == 200:
                statuses.append(served.embed().status)

        served.say("engine", "hold")
        long = threading.Thread(target=lambda: statuses.append(served.embed().status))
        long.start()
        until((folder / "held").exists, "a run in work")
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.ask("GET", "/readyz").status == 503, "a red /readyz")
        assert served.ask("GET", "/livez").status == 200
        served.unsay("engine")
        long.join(HANG_S)
        assert served.embed().status == 200  # red, and still taken
        assert served.wait() == 0
        assert statuses == [200]
    with serving(folder, "--shutdown-delay-seconds", "5") as served:
        statuses.clear()
        callers = [threading.Thread(target=balanced) for _ in range(4)]
        for caller in callers:
            caller.start()
        until(lambda: len(statuses) > 20, "some answers")
        assert served.stop() == 0
        for caller in callers:
            caller.join(HANG_S)
        assert set(statuses) == {200}


def test_what_outlasts_the_deadline_of_a_stop_is_told_so(folder: Path) -> None:
    """A stop takes no longer than it may, and nobody is left without an answer."""
    answers = []
    with serving(folder, "--shutdown-grace-seconds", "1") as served:
        served.say("engine", "hold")
        long = threading.Thread(target=lambda: answers.append(served.embed()))
        long.start()
        until((folder / "held").exists, "a run in work")
        assert served.stop() == 0
        long.join(HANG_S)
    (answer,) = answers
    assert (answer.status, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1

"""``conche serve`` with several workers, as callers and Prometheus see it."""

import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.service.cli.test_serve import HANG_S, Running, Unfinished, _read_until, _start, wait_until

TRIES = 12


@pytest.fixture(scope="module")
def served(models_folder: Path) -> Iterator[Running]:
    """A server with three workers."""
    process = _start(
        models_folder, "--workers", "3", "--admin", CONCHE_LOG_LEVEL="error", CONCHE_METRICS_PORT="0"
    )
    yield Running(process)
    process.kill()
    process.communicate(timeout=HANG_S)


def metrics_url(served: Running) -> str:
    """Where its metrics are."""
    found = re.search(r"Metrics: (\S+)", served.greeting)
    assert found
    return found.group(1)


def counters(url: str) -> dict[str, float]:
    """Every counter of one scrape, on a connection of its own."""
    return {
        sample.name
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(httpx.get(url, timeout=HANG_S).text)
        if family.type == "counter" and family.name.startswith("conche_")
        for sample in family.samples
    }


def scrapes_add_up(url: str, metrics: str) -> None:
    """Twelve requests are twelve in every scrape after them, whoever answers it."""
    name = "conche_requests_total code= method=POST route=/embed status=200"
    before = counters(metrics)
    for _ in range(12):
        answer = httpx.post(f"{url}/embed", json={"inputs": "hello world"}, timeout=HANG_S)
        assert answer.status_code == 200
    for _ in range(8):
        after = counters(metrics)
        assert after[name] == before[name] + 12
        assert after["conche_texts_total model=tiny-embedding"] >= 12
        assert not [key for key in before if after[key] < before[key]]
        before |= {key: value for key, value in after.items() if key != name}


def test_any_scrape_of_three_workers_has_what_all_counted(served: Running) -> None:
    """On the port for metrics."""
    scrapes_add_up(served.url, metrics_url(served))


def test_one_process_counts_alike(models_folder: Path) -> None:
    """With the same test, and on the port for everything."""
    process = _start(models_folder)
    try:
        url = Running(process).url
        scrapes_add_up(url, f"{url}/metrics")
    finally:
        process.kill()
        process.communicate(timeout=HANG_S)


def test_the_greeting_tells_of_them_once(served: Running) -> None:
    """Whoever pastes its requests need not know that they are several."""
    assert "3 workers of " in served.greeting
    assert served.greeting.count("Documentation:") == 1
    info = httpx.get(f"{served.url}/info", timeout=HANG_S).json()
    assert info["workers"] == 3
    assert 1 <= info["worker"] <= 3


def test_the_sum_is_openmetrics_with_figures_of_each_process(served: Running) -> None:
    """Prometheus's own format; memory and the like by worker, which there are no more of."""
    wish = {"accept": "application/openmetrics-text; version=1.0.0"}
    text = httpx.get(metrics_url(served), headers=wish, timeout=HANG_S).text
    families = {family.name: family for family in parse_openmetrics(text)}
    memory = families["process_resident_memory_bytes"].samples
    assert [sample.labels for sample in memory] == [{"worker": str(number)} for number in (1, 2, 3)]
    assert families["conche_workers_ready"].samples[0].value == 3
    assert families["conche_ready"].samples[0].value == 1
    assert families["conche_faq_entries"].samples[0].value == 3


def test_a_change_of_models_is_refused_rather_than_made_in_one(served: Running) -> None:
    """A third of the requests would find the model, and nobody could say why."""
    answers = [
        httpx.post(f"{served.url}/admin/models", json={"bundle": "tiny-spare"}, timeout=HANG_S),
        httpx.delete(f"{served.url}/admin/models/tiny-ner", timeout=HANG_S),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert "CONCHE_WORKERS" in answer.json()["error"]
    assert httpx.get(f"{served.url}/admin/models", timeout=HANG_S).status_code == 200


def test_what_one_worker_wrote_all_find(served: Running) -> None:
    """A new connection each time, so that every worker gets its turn."""
    for number in range(TRIES):
        entry = {"id": "gift", "question": "do you wrap gifts", "answer": f"yes, {number}"}
        written = httpx.post(f"{served.url}/faq/shared/entries", json={"entries": [entry]}, timeout=HANG_S)
        assert written.status_code == 200, written.text
        found = httpx.post(
            f"{served.url}/search",
            json={"query": "do you wrap gifts", "collection": "shared"},
            timeout=HANG_S,
        )
        assert found.json()["results"][0]["hits"][0]["answer"] == f"yes, {number}"


def test_writers_in_all_workers_lose_nothing(served: Running) -> None:
    """Writes come one after the other, whichever process they go to."""
    statuses: list[int] = []

    def write(writer: int) -> None:
        for number in range(TRIES):
            entry = {"id": f"{writer}-{number}", "question": f"order {writer} {number}", "answer": "yes"}
            answer = httpx.post(f"{served.url}/faq/busy/entries", json={"entries": [entry]}, timeout=HANG_S)
            statuses.append(answer.status_code)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(HANG_S)
    assert Counter(statuses) == {200: 4 * TRIES}
    counted = {
        httpx.get(f"{served.url}/faq/busy/count", timeout=HANG_S).json()["count"] for _ in range(TRIES)
    }
    assert counted == {4 * TRIES}


def test_any_worker_tells_how_far_a_reindex_is(served: Running) -> None:
    """Whichever of them does it, and whichever is asked."""
    url = f"{served.url}/faq/again"
    entry = {"id": "gift", "question": "do you wrap gifts", "answer": "yes"}
    assert httpx.post(f"{url}/entries", json={"entries": [entry]}, timeout=HANG_S).status_code == 200
    assert httpx.get(f"{url}/reindex", timeout=HANG_S).json()["state"] == "none"
    assert httpx.post(f"{url}/reindex", timeout=HANG_S).status_code == 202
    wait_until(lambda: httpx.get(f"{url}/reindex", timeout=HANG_S).json()["state"] != "running")
    states = {httpx.get(f"{url}/reindex", timeout=HANG_S).json()["state"] for _ in range(TRIES)}
    assert states == {"finished"}


def test_a_stop_turns_readiness_red_and_finishes_what_is_in_work(models_folder: Path) -> None:
    """In all workers; a second signal ends the wait, with its own exit code."""
    process = _start(models_folder, "--workers", "2", CONCHE_NER_BUNDLE="none")
    served = Running(process)
    request = Unfinished(served.url)
    process.send_signal(signal.SIGTERM)
    assert "Ctrl-C again to stop now" in _read_until(process, "finishing 1 request")
    process.send_signal(signal.SIGTERM)
    head, error = request.answer()
    _, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert head.startswith("http/1.1 503")
    assert error["code"] == "unavailable"
    assert "Traceback" not in errors


def test_a_signal_to_all_processes_at_once_cuts_nothing_off(models_folder: Path) -> None:
    """As systemd sends it: a worker has it from there and from the supervisor, and that is one stop."""
    process = _start(models_folder, "--workers", "2", CONCHE_NER_BUNDLE="none")
    served = Running(process)
    request = Unfinished(served.url)
    process.send_signal(signal.SIGTERM)
    _read_until(process, "finishing 1 request")
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    for worker in workers:
        os.kill(int(worker), signal.SIGTERM)
    time.sleep(0.5)  # several looks at whether it is to hurry; one that does would be caught by most of them
    request.connection.sendall(b'{"inputs": "hello!"}')
    head = request.connection.recv(65536).lower()
    _, errors = process.communicate(timeout=HANG_S)
    assert head.startswith(b"http/1.1 200")
    assert process.returncode == 0
    assert "cutting off" not in errors


def test_what_prevents_the_start_is_said_once(models_folder: Path) -> None:
    """By the first worker; the others would only say the same."""
    process = _start(models_folder, "--workers", "3", CONCHE_EMBEDDING_BUNDLE="missing")
    output, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, output) == (1, "")
    assert len(errors.splitlines()) == 1, errors
    assert "missing does not exist" in errors

"""What is read from servers and libraries: padding, vectors, tokens; and what a worker does when asked."""

import base64
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from comparison.contestants import Job, conche, model_tokens, of_load, read_vector, tokens_of_first
from comparison.http_load import Load
from comparison.processes import NotRunningError, Worker
from comparison.worker import one_request_at_a_time, plain

METRICS = """\
# HELP conche_batch_tokens Tokens of a batch, padding counted.
conche_batch_tokens_bucket{le="8.0",model="a"} 3.0
conche_batch_tokens_count{model="a"} 3.0
conche_batch_tokens_sum{model="a"} 120.0
conche_batch_tokens_sum{model="b"} 30.0
conche_tokens_total{model="a"} 100.0
conche_tokens_total{model="b"} 25.0
"""

ECHO = """
import sys
sys.path.insert(0, sys.argv[1])
from comparison.worker import serve
def fail(order):
    raise ValueError("no such thing")
def end(order):
    sys.exit(3)
def load():
    print("a library greets", flush=True)
    return {"echo": lambda order: order, "fail": fail, "end": end}
serve(load)
"""


def test_padding_is_read_from_the_metrics() -> None:
    """Sums over all models; buckets and counts are no sums."""
    assert model_tokens(METRICS) == (150.0, 125.0)
    assert model_tokens("") == (0.0, 0.0)


def test_the_service_still_has_those_metrics() -> None:
    """A name that changed would make the padding disappear without a word."""
    from service.metrics import Metrics

    rendered = Metrics().render()[0].decode()
    assert "# TYPE conche_batch_tokens histogram" in rendered
    assert "# TYPE conche_tokens_total counter" in rendered


def test_vectors_come_in_base64_or_in_numbers() -> None:
    """Little-endian float32, as OpenAI's clients read it."""
    vector = np.array([1.5, -2.0], dtype="<f4")
    for spelt in (base64.b64encode(vector.tobytes()).decode(), [1.5, -2.0]):
        assert read_vector(spelt).tolist() == [1.5, -2.0]


def test_tokens_of_a_list_that_begins_again() -> None:
    """Seven texts of a list of three are it twice, and the first."""
    assert tokens_of_first(7, [1, 10, 100]) == 223
    assert tokens_of_first(0, [1]) == 0


def test_requests_hold_the_texts_in_order(tmp_path: Path) -> None:
    """And the tokens in them; what fills no request is left out."""
    ours = conche("Conche", "", environment={}, log=tmp_path / "log", model="m")
    job = Job(route="embed", texts=["a", "b", "c"], lengths=[3, 4, 5], clients=1, per_request=2, seconds=1)
    [request] = ours.requests(job)
    assert json.loads(request.body) == {"input": ["a", "b"], "model": "m", "encoding_format": "base64"}
    assert (request.path, request.texts, request.tokens) == ("/v1/embeddings", 2, 7)


def test_a_load_becomes_rates_and_quantiles() -> None:
    """Refusals have their own."""
    load = Load(seconds=2.0, texts=10, tokens=50, latencies=[0.1, 0.3, 0.2], refused=[0.004])
    result = of_load(load, rss_mib=7.0, padding=1.1)
    assert (result.texts_per_s, result.tokens_per_s, result.requests) == (5.0, 25.0, 3)
    assert (result.p50_ms, result.p99_ms) == (200.0, 300.0)
    assert (result.refused, result.refused_p99_ms, result.padding) == (1, 4.0, 1.1)


def test_a_library_is_called_with_the_texts_in_turn() -> None:
    """One request after the other, from the start of the list again when it is through."""
    asked: list[list[str]] = []
    answer = one_request_at_a_time(["a", "b", "c"], asked.append, per_request=2, seconds=0, least_requests=2)
    assert asked == [["a", "b"], ["c", "a"]]
    assert answer["requests"] == len(answer["latencies"]) == 2


def test_arrays_become_json() -> None:
    """Of whatever library."""
    assert json.loads(json.dumps(plain([{"a": np.float32(1.5)}, np.zeros(2)]))) == [{"a": 1.5}, [0.0, 0.0]]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """A worker that prints before it is ready."""
    bench = Path(__file__).parents[3] / "bench"
    return Worker([sys.executable, "-c", ECHO, bench], {}, tmp_path / "log")


def test_a_worker_answers_and_what_it_prints_does_not_come_between(worker: Worker) -> None:
    """Errors are told, and it goes on; it has memory, and ends when it is told to."""
    assert worker.wait_until_ready(60) > 0
    assert worker.ask({"do": "echo", "x": [1]}) == {"do": "echo", "x": [1]}
    with pytest.raises(NotRunningError, match="ValueError: no such thing"):
        worker.ask({"do": "fail"})
    worker.pause()
    worker.resume()
    assert worker.ask({"do": "echo"}) == {"do": "echo"}
    assert worker.rss_mib() > 1
    worker.stop()
    assert not worker.alive()


def test_a_worker_that_ends_is_noticed(worker: Worker) -> None:
    """Nobody waits for its answer."""
    worker.wait_until_ready(60)
    with pytest.raises(NotRunningError, match="ended"):
        worker.ask({"do": "end"})
    worker.stop()

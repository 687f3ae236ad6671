"""The engine hangs, raises, gives NaN, finds no memory, or ends its worker."""

from pathlib import Path

import pytest

from tests.chaos.served import Answer, serving, until

# It ends when the test says that the time is over, so that what comes before takes as long as it likes.
FLAGS = ("--batching-stall-timeout-seconds", "5", "--recycle-seconds", "3600")


def _refused(answer: Answer) -> None:
    assert (answer.status, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("hang", "no progress for 5 s"),
        ("raise", "fails on every text: RuntimeError"),
        ("nan", "not finite for every text"),
        ("exit", "stopped after Ended"),
    ],
)
def test_a_lost_engine_turns_readiness_red_fails_requests_at_once_and_ends_the_process(
    folder: Path, fault: str, reason: str
) -> None:
    """Nothing but a new process helps, and the exit code asks for one."""
    with serving(folder, *FLAGS) as served:
        assert served.embed().status == 200
        served.say("engine", fault)
        _refused(served.embed())
        ready = served.ask("GET", "/readyz")
        _refused(ready)
        assert reason in ready.json()["reasons"][0]
        assert served.ask("GET", "/livez").status == 200
        _refused(served.embed())
        served.say("recycle", "now")
        assert served.wait() == 70
        served.unsay("engine")
        served.start()
        assert served.ask("GET", "/readyz").status == 200
        assert served.embed().status == 200


def test_a_model_that_never_has_memory_again_is_lost_in_the_end(folder: Path) -> None:
    """Once it may be a neighbour's doing; five times in a row, a new process is what helps."""
    answers: list[Answer] = []
    with serving(folder, *FLAGS) as served:
        served.say("engine", "starve")
        answer = served.embed()
        assert (answer.status, answer.json()["code"]) == (500, "inference_failed")
        assert served.ask("GET", "/readyz").status == 200
        until(lambda: answers.append(served.embed()) or answers[-1].status == 503, "the model to be lost")
        _refused(answers[-1])
        ready = served.ask("GET", "/readyz")
        _refused(ready)
        assert "had no memory for any text 5 times in a row" in ready.json()["reasons"][0]
        served.say("recycle", "now")
        assert served.wait() == 70


def test_an_engine_lost_by_a_write_leaves_the_index_as_it_was(folder: Path) -> None:
    """Entries are embedded before anything is stored."""
    entry = {"id": "one", "question": "hello", "answer": ""}
    with serving(folder, *FLAGS) as served:
        assert served.write(entry).status == 200
        served.say("engine", "raise")
        _refused(served.write({**entry, "id": "two", "question": "return order"}))
        assert served.ids() == {"one"}
        served.say("recycle", "now")
        assert served.wait() == 70

"""How far a command is: a line drawn anew on a terminal, plain lines in a log."""

import io
from collections.abc import Iterator

import pytest

from service.cli.progress import ProgressLine


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Terminal(io.StringIO):
    """What is written to it, and what is seen on its last line."""

    def isatty(self) -> bool:
        """It says that it is one."""
        return True

    @property
    def seen(self) -> str:
        """Since the line was last wiped."""
        return self.getvalue().rsplit("\x1b[K", 1)[-1]


@pytest.fixture
def clock() -> Clock:
    """Of one test."""
    return Clock()


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "100")
    return


def test_a_log_gets_a_line_at_the_start_and_then_every_half_minute(clock: Clock) -> None:
    """With step, steps, what is said of them, and the seconds left."""
    log = io.StringIO()
    with ProgressLine(log, clock=clock) as progress:
        for step in range(1, 101):
            progress.show("training", step, 100, f"loss {1 / step:.2f}")
            clock.now += 1
    assert log.getvalue().splitlines() == [
        "training",
        "training: 31 of 100, loss 0.03, 69 s left",
        "training: 61 of 100, loss 0.02, 39 s left",
        "training: 91 of 100, loss 0.01, 9 s left",
    ]


def test_a_log_hears_of_a_step_that_takes_long(clock: Clock) -> None:
    """Comparing one large batch with PyTorch may take minutes; who reads the log wonders whether it hangs."""
    log = io.StringIO()
    progress = ProgressLine(log, clock=clock)
    progress.beat()
    progress.show("comparing", 5, 9)
    for _ in range(7):
        clock.now += 10
        progress.beat()
    assert log.getvalue().splitlines() == ["comparing", *["comparing: still at 5 of 9"] * 2]


def test_steps_before_an_interruption_cost_no_time(clock: Clock) -> None:
    """A run that goes on at step 901 has not just done 900 steps in a second."""
    log = io.StringIO()
    progress = ProgressLine(log, clock=clock)
    for step in range(901, 904):
        progress.show("training", step, 1000)
        clock.now += 20
    assert log.getvalue().splitlines() == ["training", "training: 903 of 1000, 1940 s left"]


def test_short_stages_between_are_named_once(clock: Clock) -> None:
    """Each epoch is measured; a log of fifty epochs is not to say so fifty times, nor a long one nothing."""
    log = io.StringIO()
    progress = ProgressLine(log, clock=clock)
    for epoch in range(3):
        progress.show("training", epoch + 1, 3)
        for read in range(1, 5):
            progress.show("measuring", read, 4)
            clock.now += 2 if epoch < 2 else 20
    assert log.getvalue().splitlines() == [
        "training",
        "measuring",
        "measuring: 2 of 4, 40 s left",
        "measuring: 4 of 4, 0 s left",
    ]


def test_a_terminal_has_one_line_drawn_anew(clock: Clock) -> None:
    """With a bar, and no longer than the terminal is wide; often enough, and not for every step."""
    terminal = Terminal()
    with ProgressLine(terminal, clock=clock) as progress:
        progress.show("tracing the graph", 0, 2)
        assert terminal.seen == "tracing the graph [........................] 0/2"
        clock.now += 0.01
        progress.show("tracing the graph", 1, 2)
        assert " 0/2" in terminal.seen
        clock.now += 5
        progress.show("tracing the graph", 1, 2, "x" * 200)
        assert terminal.seen.startswith("tracing the graph [############............] 1/2, xxx")
        assert len(terminal.seen) == 99
        progress.show("tracing the graph", 2, 2)
        assert terminal.seen == "tracing the graph [########################] 2/2, 0 s left"
        assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("left\n")


def test_what_is_said_stands_above_the_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output; the line is wiped before, and drawn again behind it at once."""
    terminal = Terminal()
    progress = ProgressLine(terminal, clock=clock)
    progress.show("training", 1, 9)
    progress.say("epoch 1: loss 0.5")
    assert capsys.readouterr().out == "epoch 1: loss 0.5\n"
    assert terminal.seen == ""
    progress.show("training", 2, 9)
    assert " 2/9" in terminal.seen


def test_nothing_is_written_where_nothing_was_done() -> None:
    """A command that is refused ends in its message alone."""
    terminal = Terminal()
    with ProgressLine(terminal):
        pass
    assert terminal.getvalue() == ""

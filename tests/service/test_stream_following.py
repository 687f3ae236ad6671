"""service.stream_following: models get streams for several texts, and give them back; ticks are fast here."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from model.runtime.bundle import BundleError
from service import stream_following
from service.stream_following import StreamFollower
from tests.fakes import HANG_LIMIT_S, until


class Changes:
    """Notes what it is told; fails with ``error``, and hangs while its gate is shut."""

    most = 2

    def __init__(self) -> None:
        self.wanted = 1
        self.changes: list[int] = []
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def change(self, streams: int) -> None:
        """Called in the follower's thread."""
        self.wanted = streams
        self.changes.append(streams)
        assert self.gate.wait(HANG_LIMIT_S)
        if self.error is not None:
            raise self.error


@dataclass
class Model:
    """A served model with so much to do."""

    name: str
    demand: int = 0
    stream_changes: Changes | None = field(default_factory=Changes)
    told: int = 0

    def streams_changed(self) -> None:
        """Count."""
        self.told += 1


Follow = Callable[[list[Model]], StreamFollower]


@pytest.fixture
async def follow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Follow]:
    """Start a follower of these models, of which there may be more and fewer later."""
    monkeypatch.setattr(stream_following, "_TICK_S", 0.002)
    begun: list[StreamFollower] = []

    def start(models: list[Model]) -> StreamFollower:
        follower = StreamFollower(models)  # type: ignore[arg-type]
        follower.start()
        begun.append(follower)
        return follower

    yield start
    for follower in begun:
        await follower.close()


def changes_of(model: Model) -> Changes:
    """Its own, of which it has some."""
    assert model.stream_changes is not None
    return model.stream_changes


async def ticks(number: int) -> None:
    """Let so many go by, about."""
    for _ in range(number):
        await asyncio.sleep(0.003)


async def test_streams_come_with_several_texts_and_go_with_them(follow: Follow) -> None:
    """And the batcher is told of each change."""
    model = Model("one")
    follow([model])
    await ticks(10)
    assert changes_of(model).changes == []
    model.demand = 5
    await until(lambda: model.told == 1)
    assert changes_of(model).changes == [2]
    await ticks(40)
    assert changes_of(model).changes == [2]
    model.demand = 0
    await until(lambda: model.told == 2)
    assert changes_of(model).changes == [2, 1]


async def test_a_text_at_a_time_is_no_load(follow: Follow) -> None:
    """However long it takes: with more streams it would have fewer threads."""
    model = Model("one", demand=1)
    follow([model])
    await ticks(40)
    assert changes_of(model).changes == []


async def test_all_models_at_work_are_changed_and_no_others(follow: Follow) -> None:
    """Two that take turns with all threads get less done than with a thread each; who rests pays nothing."""
    one, two, idle = Model("one", demand=1), Model("two", demand=1), Model("idle")
    fixed = Model("fixed", demand=1, stream_changes=None)
    models = [idle, fixed, one, two]
    follow(models)
    await until(lambda: one.told == two.told == 1)
    assert (changes_of(idle).changes, fixed.told) == ([], 0)
    models.remove(one)  # unloaded
    two.demand = fixed.demand = 0
    await until(lambda: two.told == 2)
    assert (changes_of(one).changes, changes_of(two).changes) == ([2], [2, 1])


@pytest.mark.parametrize(
    "error",
    [BundleError("graph", "no memory"), RuntimeError("no"), OSError("gone"), AttributeError("our fault")],
)
async def test_what_cannot_be_changed_is_told_once_and_tried_again_with_the_next_load(
    follow: Follow, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    """Trying at each tick would cost more than there is to gain."""
    model = Model("one", demand=3)
    changes_of(model).error = error
    with caplog.at_level(logging.WARNING):
        follow([model])
        await until(lambda: model.told == 1)
        await ticks(20)
        assert changes_of(model).changes == [2]
        ours = isinstance(error, AttributeError)
        assert ("AttributeError: our fault" in caplog.text) == ours
        said = "AttributeError" if ours else str(error)
        assert caplog.messages[-1] == f"one cannot run 2 batches at a time: {said}"
        assert len(caplog.messages) == 1 + ours
        changes_of(model).error = None
        model.demand = 0
        await until(lambda: model.told == 2)
        model.demand = 3
        await until(lambda: model.told == 3)
    assert changes_of(model).changes == [2, 1, 2]


async def test_nothing_is_told_of_a_model_that_was_unloaded_meanwhile(
    follow: Follow, caplog: pytest.LogCaptureFixture
) -> None:
    """Its engine is closed, as it should be."""
    models = [Model("one", demand=3)]
    changes = changes_of(models[0])
    changes.gate.clear()
    changes.error = RuntimeError("the engine is closed")
    with caplog.at_level(logging.WARNING):
        follow(models)
        await until(lambda: changes.changes == [2])
        model = models.pop()
        changes.gate.set()
        await until(lambda: model.told == 1)
    assert caplog.messages == []


async def test_nothing_changes_while_the_service_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would take a core from the requests that are still to be answered."""
    monkeypatch.setattr(stream_following, "_TICK_S", 0.002)
    model, paused = Model("one", demand=3), [True]
    follower = StreamFollower([model], paused=lambda: paused[0])  # type: ignore[list-item]
    follower.start()
    await ticks(20)
    assert changes_of(model).changes == []
    paused[0] = False
    await until(lambda: model.told == 1)
    await follower.close()


async def test_what_turns_out_to_have_no_more_streams_is_left_alone(follow: Follow) -> None:
    """There are fewer cores than threads, say."""
    model = Model("one", demand=3)
    changes_of(model).most = 1
    follow([model])
    await ticks(20)
    assert changes_of(model).changes == []


async def test_a_change_that_hangs_is_the_last(
    follow: Follow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models go on with the streams they have."""
    monkeypatch.setattr(stream_following, "_STALL_S", 0.05)
    monkeypatch.setattr(stream_following, "_END_S", 0.05)
    model = Model("one", demand=3)
    changes_of(model).gate.clear()
    with caplog.at_level(logging.ERROR):
        follower = follow([model])
        await until(lambda: len(caplog.messages) == 1)
        assert "compiling one for 2 batches at a time made no progress for 0.05 s" in caplog.text
        await follower.close()
    changes_of(model).gate.set()


async def test_the_end_waits_for_a_change(follow: Follow) -> None:
    """The process would else exit while native code compiles, and may crash."""
    model = Model("one", demand=3)
    changes_of(model).gate.clear()
    follower = follow([model])
    await until(lambda: changes_of(model).changes == [2])
    closing = asyncio.create_task(follower.close())
    await ticks(10)
    assert not closing.done()
    changes_of(model).gate.set()
    await closing
    model.demand = 0
    await ticks(40)
    assert changes_of(model).changes == [2]


async def test_where_load_comes_and_goes_streams_stay_longer(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to a bound; and as briefly as at first when it stayed away for a while."""
    monkeypatch.setattr(stream_following, "_MOST_FALL_TICKS", 3 * stream_following._FALL_TICKS)
    model = Model("one")
    follower = follow([model])

    looks = 0
    real = follower._look

    def look() -> object:
        nonlocal looks
        looks += 1
        return real()

    follower._look = look  # type: ignore[method-assign,assignment]

    async def rise_and_fall() -> int:
        """How many times as long as at first it stayed up without load."""
        model.demand = 3
        told = model.told
        await until(lambda: model.told == told + 1)
        model.demand = 0
        began = looks
        await until(lambda: model.told == told + 2)
        return round((looks - began) / stream_following._FALL_TICKS)

    assert [await rise_and_fall() for _ in range(4)] == [1, 2, 3, 3]
    monkeypatch.setattr(stream_following, "_SOON_S", 0.0)
    assert await rise_and_fall() == 1


async def test_an_error_keeps_nothing_alive(follow: Follow) -> None:
    """What was being changed has some hundred megabytes; its engine may be closed by now."""

    class Closed(Changes):
        def change(self, streams: int) -> None:
            super().change(streams)
            raise RuntimeError("the engine is closed")

    gc.disable()
    try:
        models = [Model("one", demand=3, stream_changes=Closed())]
        follow(models)
        kept = weakref.ref(changes_of(models[0]))
        await until(lambda: models[0].told == 1)
        models.clear()
        await ticks(5)
        assert kept() is None
    finally:
        gc.enable()

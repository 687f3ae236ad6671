"""service.batching: batches, admission, failure and the end, driven by events rather than by time."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.runtime import engine_choice
from service.batching import BatchingLimits, BatchStats, BrokenModelError, DynamicBatcher
from service.errors import InferenceError, OverloadedError, UnavailableError
from service.execution import ExecutionThreads
from service.waiting_room import Entry, Request, WaitingRoom
from tests.fakes import HANG_LIMIT_S, FakeModel, Job, settle, until


def _batcher(
    model: FakeModel, execution: ExecutionThreads, limits: BatchingLimits | None = None, **options: object
) -> DynamicBatcher[Job, int]:
    return DynamicBatcher(
        model.run,
        length=lambda job: job.length,
        execution=execution,
        limits=limits or BatchingLimits(),
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
async def execution() -> AsyncIterator[ExecutionThreads]:
    """The shared thread, ended after the test."""
    thread = ExecutionThreads()
    yield thread
    thread.close()


def _jobs(lengths: Sequence[int], first: int = 0) -> list[Job]:
    return [Job(first + position, length) for position, length in enumerate(lengths)]


# -- batches ---------------------------------------------------------------------------------------------


async def test_an_idle_batcher_runs_a_lone_item_at_once(execution: ExecutionThreads) -> None:
    """No timer: with nothing else to do, waiting for company would be pure delay."""
    model = FakeModel()
    async with _batcher(model, execution) as batcher:
        assert await batcher.submit(Job(7, 3)) == 7
    assert model.batches == [[Job(7, 3)]]


async def test_what_queues_during_a_run_becomes_the_next_batch(execution: ExecutionThreads) -> None:
    """That is the whole of the batching policy: load makes its own batches."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 4)))
        await model.started()
        others = [asyncio.create_task(batcher.submit(Job(n, 4))) for n in range(1, 9)]
        await settle()
        model.gate.set()
        assert await asyncio.gather(first, *others) == list(range(9))
    assert [len(batch) for batch in model.batches] == [1, 8]


async def test_a_long_row_does_not_make_short_ones_pay_for_its_length(execution: ExecutionThreads) -> None:
    """In arrival order every other row would be padded from 5 to 500 tokens."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution) as batcher:
        first = asyncio.create_task(batcher.submit(Job(99, 1)))
        await model.started()
        mixed = asyncio.create_task(batcher.submit_many(_jobs([5, 500, 5, 500, 5, 500, 5])))
        await settle()
        model.gate.set()
        assert await mixed == list(range(7))
        await first
    assert [{job.length for job in batch} for batch in model.batches] == [{1}, {5}, {500}]


async def test_a_request_is_told_what_its_own_rows_took(execution: ExecutionThreads) -> None:
    """The mean wait of its rows, and every run that held one of them; not the runs of others."""
    seen: list[BatchStats] = []
    model = FakeModel(gate_open=False)
    limits = BatchingLimits(max_batch_size=2)
    async with _batcher(model, execution, limits, on_batch=seen.append) as batcher:
        first = asyncio.create_task(batcher.submit_timed([Job(0, 4)]))
        await model.started()
        second = asyncio.create_task(batcher.submit_timed(_jobs([4, 4, 4], first=1)))
        await settle()
        model.gate.set()
        (_, of_first), (results, of_second) = await asyncio.gather(first, second)
        assert (await batcher.submit_timed([]))[0] == []
    assert results == [1, 2, 3]
    assert [stats.size for stats in seen] == [1, 2, 1]
    assert of_first.run_seconds == seen[0].run_seconds
    assert of_second.run_seconds == pytest.approx(seen[1].run_seconds + seen[2].run_seconds)
    waits = [*seen[1].queue_seconds, *seen[2].queue_seconds]
    assert of_second.queue_seconds == pytest.approx(sum(waits) / 3)
    assert of_first.queue_seconds == seen[0].queue_seconds[0]


async def test_a_row_longer_than_the_budget_runs_alone(execution: ExecutionThreads) -> None:
    """Any text either runs or is refused; one over the budget must not loop for ever."""
    model = FakeModel()
    async with _batcher(model, execution, BatchingLimits(max_batch_tokens=16)) as batcher:
        assert await batcher.submit_many(_jobs([40, 40, 8, 8])) == [0, 1, 2, 3]
    assert sorted(len(batch) for batch in model.batches) == [1, 1, 2]


async def test_with_a_wait_set_a_lone_item_is_held_back_until_the_batch_is_full(
    execution: ExecutionThreads,
) -> None:
    """``max_wait_s`` is a choice for those who prefer fuller batches; a full one does not wait."""
    model = FakeModel()
    limits = BatchingLimits(max_batch_tokens=8, max_wait_s=HANG_LIMIT_S * 10)
    async with _batcher(model, execution, limits) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 4)))
        await settle()
        assert model.batches == []
        second = asyncio.create_task(batcher.submit(Job(1, 4)))
        assert await asyncio.wait_for(asyncio.gather(first, second), HANG_LIMIT_S) == [0, 1]
    assert [len(batch) for batch in model.batches] == [2]


async def test_a_batch_that_is_full_by_rows_is_not_held_back(execution: ExecutionThreads) -> None:
    """Nobody could join it, whatever the tokens; waiting on would be pure delay."""
    model = FakeModel()
    limits = BatchingLimits(max_batch_size=2, max_wait_s=HANG_LIMIT_S * 10)
    async with _batcher(model, execution, limits) as batcher:
        pair = batcher.submit_many(_jobs([4, 4]))
        assert await asyncio.wait_for(pair, HANG_LIMIT_S) == [0, 1]


async def test_a_held_back_item_runs_when_it_is_due(execution: ExecutionThreads) -> None:
    """The wait ends by itself, without company."""
    model = FakeModel()
    async with _batcher(model, execution, BatchingLimits(max_wait_s=0.001)) as batcher:
        assert await batcher.submit(Job(3, 1)) == 3


async def test_an_empty_request_is_answered_without_a_run(execution: ExecutionThreads) -> None:
    """Callers need no special case."""
    model = FakeModel()
    async with _batcher(model, execution) as batcher:
        assert await batcher.submit_many([]) == []
    assert model.batches == []


def _fill(lengths: Sequence[int]) -> tuple[WaitingRoom[Job, int], list[Entry[Job, int]]]:
    """A waiting room with one request per length; needs a running loop for the futures."""
    room: WaitingRoom[Job, int] = WaitingRoom()
    entries = []
    for job in _jobs(lengths):
        request: Request[Job, int] = Request([job], [job.length], asyncio.get_running_loop().create_future())
        (entry,) = request.upcoming
        room.add(entry)
        entries.append(entry)
    return room, entries


LIMITS = st.builds(
    BatchingLimits,
    max_batch_tokens=st.integers(1, 200),
    max_batch_size=st.integers(1, 12),
    max_overtake_tokens=st.integers(0, 300),
    max_padding_ratio=st.floats(1.0, 3.0),
    free_padding_tokens=st.integers(0, 50),
)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=80),
    limits=LIMITS,
    cost=st.sampled_from((1.0, 0.5, 0.0)),
)
@settings(max_examples=150, deadline=None)
def test_choosing_keeps_budget_and_order(lengths: list[int], limits: BatchingLimits, cost: float) -> None:
    """Each batch holds the oldest, keeps every bound, and no one is overtaken from beyond the horizon."""

    async def drain() -> None:
        room, entries = _fill(lengths)
        waiting = {entry.ticket: entry for entry in entries}
        while waiting:
            batch = room.choose(limits, cost)
            oldest = min(waiting)
            assert oldest in {entry.ticket for entry in batch}
            assert len({entry.ticket for entry in batch}) == len(batch) <= limits.max_batch_size
            longest = max(entry.length for entry in batch)
            real = sum(entry.length for entry in batch)
            padding = cost * (longest * len(batch) - real)
            assert real + padding <= limits.max_batch_tokens or len(batch) == 1
            allowed = max(limits.free_padding_tokens, (limits.max_padding_ratio - 1) * real)
            assert padding <= allowed + 1e-9
            for entry in batch:
                assert entry.ticket <= oldest + limits.overtake_tokens
                same_length_left = [
                    ticket
                    for ticket, other in waiting.items()
                    if other.length == entry.length and ticket < entry.ticket
                ]
                assert set(same_length_left) <= {entry.ticket for entry in batch}
            for entry in batch:
                room.remove(waiting.pop(entry.ticket))
        assert len(room) == 0
        assert room.tokens == 0

    asyncio.run(drain())


@pytest.mark.parametrize("cost", [1.0, 0.15])
def test_engines_are_measured_in_batches_as_they_are_chosen_here(cost: float) -> None:
    """`model` cannot ask the service for its rules, so it has them once more."""

    async def chosen() -> list[list[int]]:
        room, _ = _fill(engine_choice._TOGETHER)
        batches = []
        while room:
            batch = room.choose(BatchingLimits(), cost)
            batches.append(sorted(entry.length for entry in batch))
            for entry in batch:
                room.remove(entry)
        return batches

    assert engine_choice.grouped(engine_choice._TOGETHER, cost) == asyncio.run(chosen())


@given(
    plan=st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), min_size=1, max_size=30),  # the texts of one request
            st.integers(0, 3),  # turns of the loop before it is sent
            st.booleans(),  # whether its caller gives up
        ),
        min_size=1,
        max_size=12,
    ),
    limits=st.builds(
        BatchingLimits,
        max_batch_tokens=st.integers(8, 120),
        max_batch_size=st.integers(1, 16),
        max_queue_tokens=st.integers(20, 400),
        max_queue_items=st.integers(4, 60),
        max_overtake_tokens=st.integers(0, 200),
    ),
)
@settings(max_examples=60, deadline=None)
def test_everyone_gets_their_own_results_whatever_the_interleaving(
    plan: list[tuple[list[int], int, bool]], limits: BatchingLimits
) -> None:
    """Length grouping, splitting, feeding and cancelling must never mix up owners or lose a place."""

    async def play() -> None:
        model, execution = FakeModel(), ExecutionThreads()
        batcher = _batcher(model, execution, limits)
        batcher.start()

        async def call(first: int, lengths: list[int], turns: int) -> list[int]:
            await settle(turns)
            return await batcher.submit_many(_jobs(lengths, first))

        calls, first = [], 0
        for lengths, turns, gives_up in plan:
            task = asyncio.create_task(call(first, lengths, turns))
            if gives_up:
                asyncio.get_running_loop().call_later(0, task.cancel)
            calls.append((task, list(range(first, first + len(lengths)))))
            first += len(lengths)
        async with asyncio.timeout(HANG_LIMIT_S):
            answers = await asyncio.gather(*(task for task, _ in calls), return_exceptions=True)
        for answer, (_, expected) in zip(answers, calls, strict=True):
            assert answer == expected or isinstance(answer, OverloadedError | asyncio.CancelledError)
        assert (batcher.queued_items, batcher.queued_tokens) == (0, 0)
        await batcher.close()
        execution.close()
        for batch in model.batches:
            padded = len(batch) * max(job.length for job in batch)
            assert padded <= limits.max_batch_tokens or len(batch) == 1
            assert len(batch) <= limits.max_batch_size
        names = [job.name for batch in model.batches for job in batch]
        assert len(names) == len(set(names))

    asyncio.run(play())


# -- streams ---------------------------------------------------------------------------------------------


@pytest.fixture
async def streams() -> AsyncIterator[ExecutionThreads]:
    """Two threads, ended after the test."""
    threads = ExecutionThreads(threads=2)
    yield threads
    threads.close()


async def test_so_many_batches_run_at_a_time_as_there_are_threads(streams: ExecutionThreads) -> None:
    """And not one more; what comes meanwhile waits, and goes together."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, streams) as batcher:
        calls = [asyncio.create_task(batcher.submit(Job(0, 1)))]
        await model.started()
        calls.append(asyncio.create_task(batcher.submit(Job(1, 1))))
        await model.started()
        calls += [asyncio.create_task(batcher.submit(Job(n, 1))) for n in (2, 3, 4)]
        await settle()
        assert [len(batch) for batch in model.batches] == [1, 1]
        model.gate.set()
        assert await asyncio.gather(*calls) == [0, 1, 2, 3, 4]
        assert model.threads == {"conche-inference", "conche-inference-2"}


async def test_a_model_of_fewer_streams_leaves_threads_to_others(streams: ExecutionThreads) -> None:
    """Its engine would have the second batch wait, in a thread that another model could use."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, streams, most_streams=1) as batcher:
        calls = [asyncio.create_task(batcher.submit(Job(0, 1)))]
        await model.started()
        calls += [asyncio.create_task(batcher.submit(Job(n, 1))) for n in (1, 2)]
        await settle()
        assert [len(batch) for batch in model.batches] == [1]
        assert streams.free == 1
        model.gate.set()
        assert await asyncio.gather(*calls) == [0, 1, 2]


@pytest.mark.parametrize(
    ("lent_to", "callers", "at_least", "at_most"), [(1, 1, 2, 2), (1, 2, 1, 2), (2, 1, 1, 1)]
)
async def test_a_run_that_has_all_threads_counts_for_all_streams(
    streams: ExecutionThreads, lent_to: int, callers: int, at_least: float, at_most: float
) -> None:
    """Else an engine that one caller keeps busy would be shown as half idle."""
    stats: list[BatchStats] = []

    def run(jobs: Sequence[Job]) -> list[int]:
        time.sleep(0.05)
        return [0] * len(jobs)

    batcher: DynamicBatcher[Job, int] = DynamicBatcher(
        run,
        length=lambda job: job.length,
        execution=streams,
        lends_threads=lambda rows: rows == lent_to,
        on_batch=stats.append,
    )
    async with batcher:
        await asyncio.gather(*(batcher.submit(Job(n, 1)) for n in range(callers)))
    for one in stats:
        assert at_least * one.run_seconds * 0.99 <= one.stream_seconds <= at_most * one.run_seconds * 1.01


async def test_a_request_is_divided_among_idle_streams(streams: ExecutionThreads) -> None:
    """By itself it would else have one core of two; its answers are in order all the same."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, streams) as batcher:
        await settle()
        call = asyncio.create_task(batcher.submit_many(_jobs([4, 4, 4, 4, 8, 8])))
        await model.started()
        await model.started()
        assert [sum(job.length for job in batch) for batch in model.batches] == [16, 16]
        model.gate.set()
        assert await call == [0, 1, 2, 3, 4, 5]


async def test_while_one_stream_works_the_other_takes_whole_batches(streams: ExecutionThreads) -> None:
    """Smaller ones would cost more, and there is nobody to share them with."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, streams) as batcher:
        await settle()
        first = asyncio.create_task(batcher.submit(Job(9, 1)))
        await model.started()
        second = asyncio.create_task(batcher.submit_many(_jobs([4] * 6)))
        await model.started()
        assert [len(batch) for batch in model.batches] == [1, 6]
        model.gate.set()
        assert await first == 9
        assert await second == [0, 1, 2, 3, 4, 5]


async def test_nothing_is_left_to_streams_whose_threads_are_taken(streams: ExecutionThreads) -> None:
    """Another model's run has the second one: two small batches, one after the other, would cost more."""
    gate = threading.Event()
    streams.submit(lambda: gate.wait(HANG_LIMIT_S))
    await until(lambda: streams.free == 1)
    model = FakeModel()
    async with _batcher(model, streams) as batcher:
        await settle()
        assert await batcher.submit_many(_jobs([4] * 6)) == [0, 1, 2, 3, 4, 5]
        assert [len(batch) for batch in model.batches] == [6]
        gate.set()


async def test_streams_may_become_more_and_fewer(streams: ExecutionThreads) -> None:
    """Runs at work go on; what waits is not divided among streams that may not run."""
    model, now = FakeModel(gate_open=False), [1]
    async with _batcher(model, streams, streams=lambda: now[0]) as batcher:
        await settle()
        calls = [asyncio.create_task(batcher.submit_many(_jobs([4] * 4)))]
        await model.started()
        calls.append(asyncio.create_task(batcher.submit_many(_jobs([4] * 3))))
        await settle()
        assert [len(batch) for batch in model.batches] == [4]
        assert batcher.demand == 4 + 3
        now[0] = 2
        batcher.streams_changed()
        await model.started()
        assert [len(batch) for batch in model.batches] == [4, 3]
        assert batcher.demand == 7
        now[0] = 1
        batcher.streams_changed()
        calls.append(asyncio.create_task(batcher.submit_many(_jobs([4] * 2))))
        await settle()
        assert len(model.batches) == 2
        model.gate.set()
        assert await asyncio.gather(*calls) == [[0, 1, 2, 3], [0, 1, 2], [0, 1]]
        assert batcher.demand == 0
    assert len(model.batches) == 3


@pytest.mark.parametrize("now", [1, 2])
async def test_the_end_does_not_wait_for_a_stream_whose_turn_never_came(
    streams: ExecutionThreads, now: int
) -> None:
    """It is woken when the last run ends, and finds nothing left."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, streams, BatchingLimits(max_batch_size=1), streams=lambda: now)
    batcher.start()
    calls = [asyncio.create_task(batcher.submit(Job(n, 1))) for n in range(4)]
    await model.started()
    closing = asyncio.create_task(batcher.close(HANG_LIMIT_S))
    await settle()
    model.gate.set()
    assert await asyncio.gather(*calls) == [0, 1, 2, 3]
    async with asyncio.timeout(HANG_LIMIT_S / 2):
        await closing


async def test_the_end_does_not_wait_where_the_last_that_waited_went(streams: ExecutionThreads) -> None:
    """Its caller gave up while it waited for its turn: its stream has nothing to wait for any more."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, streams, BatchingLimits(max_batch_size=1), streams=lambda: 1)
    batcher.start()
    calls = [asyncio.create_task(batcher.submit(Job(n, 1))) for n in range(2)]
    await model.started()
    closing = asyncio.create_task(batcher.close(HANG_LIMIT_S))
    await settle()
    calls[1].cancel()
    await settle()
    model.gate.set()
    async with asyncio.timeout(HANG_LIMIT_S / 2):
        await closing
    assert await calls[0] == 0


async def test_demand_is_nothing_after_a_batch_that_failed(streams: ExecutionThreads) -> None:
    """Also where it was run in halves."""
    model = FakeModel()
    model.error = ValueError("no")
    async with _batcher(model, streams) as batcher:
        with pytest.raises(InferenceError):
            await batcher.submit_many(_jobs([4] * 4))
        assert len(model.batches) > 1
        assert batcher.demand == 0


async def test_whether_a_batch_takes_all_cores_is_asked_for_each(streams: ExecutionThreads) -> None:
    """It changes with the streams: two models' runs may then be beside each other."""
    one, other, alone = FakeModel(gate_open=False), FakeModel(gate_open=False), [True]
    options = {"streams": lambda: 1, "exclusive": lambda: alone[0]}
    async with _batcher(one, streams, **options) as first, _batcher(other, streams, **options) as second:
        calls = [asyncio.create_task(first.submit(Job(1, 1)))]
        await one.started()
        calls.append(asyncio.create_task(second.submit(Job(2, 1))))
        await settle()
        assert other.batches == []
        one.gate.set()
        await other.started()
        await calls[0]
        alone[0] = False
        one.gate.clear()
        other.gate.set()
        await calls[1]
        other.gate.clear()
        calls = [asyncio.create_task(first.submit(Job(1, 1))), asyncio.create_task(second.submit(Job(2, 1)))]
        await one.started()
        await other.started()
        one.gate.set()
        other.gate.set()
        assert await asyncio.gather(*calls) == [1, 2]


async def test_runs_of_a_request_at_the_same_time_count_once(streams: ExecutionThreads) -> None:
    """What the answer's headers tell is time by the clock, and no more than the request took."""
    together = threading.Barrier(2)

    def run(jobs: Sequence[Job]) -> list[int]:
        together.wait(HANG_LIMIT_S)
        return [job.name for job in jobs]

    stats: list[BatchStats] = []
    batcher: DynamicBatcher[Job, int] = DynamicBatcher(
        run, length=lambda job: job.length, execution=streams, on_batch=stats.append
    )
    async with batcher:
        await settle()
        began = time.monotonic()
        _, times = await batcher.submit_timed(_jobs([4, 4]))
        assert times.run_seconds <= time.monotonic() - began
    assert len(stats) == 2


async def test_a_stream_that_hangs_is_told_beside_one_that_works(streams: ExecutionThreads) -> None:
    """The other's progress must not hide it; half a service that looks whole is what others have had."""
    gate, hung = threading.Event(), threading.Event()

    def run(jobs: Sequence[Job]) -> list[int]:
        if any(job.name == 0 for job in jobs):
            hung.set()
            gate.wait(HANG_LIMIT_S)
        return [job.name for job in jobs]

    batcher: DynamicBatcher[Job, int] = DynamicBatcher(
        run, length=lambda job: job.length, execution=streams, limits=BatchingLimits(stall_timeout_s=0.1)
    )
    batcher.start()
    call = asyncio.create_task(batcher.submit(Job(0, 1)))
    await until(hung.is_set)
    answered = 0
    async with asyncio.timeout(HANG_LIMIT_S):
        while not call.done():
            with contextlib.suppress(UnavailableError):
                answered += await batcher.submit(Job(1, 1))
            await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="no progress"):
        await call
    assert answered > 10
    assert not batcher.healthy
    with pytest.raises(UnavailableError, match="no progress"):
        await batcher.submit(Job(2, 1))
    gate.set()
    await batcher.close()


async def test_closing_waits_for_every_stream(streams: ExecutionThreads) -> None:
    """The first to find nothing left must not end the others' requests."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, streams)
    batcher.start()
    calls = [asyncio.create_task(batcher.submit(Job(0, 1)))]
    await model.started()
    closing = asyncio.create_task(batcher.close())
    await settle()
    assert not closing.done()
    model.gate.set()
    assert await asyncio.gather(*calls) == [0]
    await closing
    assert batcher.failure is None


async def test_a_failure_in_one_stream_fails_everyone(streams: ExecutionThreads) -> None:
    """What runs in the other as well: the process is to be replaced, and nobody waits for that."""
    gate, begun = threading.Event(), threading.Event()

    def run(jobs: Sequence[Job]) -> list[int]:
        if jobs[0].name == 0:
            begun.set()
            gate.wait(HANG_LIMIT_S)
            return [0]
        raise BrokenModelError("it fails on everything")

    batcher: DynamicBatcher[Job, int] = DynamicBatcher(run, length=lambda job: job.length, execution=streams)
    batcher.start()
    running = asyncio.create_task(batcher.submit(Job(0, 1)))
    await until(begun.is_set)
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(batcher.submit(Job(1, 1)), running, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnavailableError, UnavailableError]
    assert not batcher.healthy
    gate.set()
    await batcher.close()


@pytest.mark.parametrize(("threads", "least", "most"), [(1, 100, 100), (2, 150, 200)])
async def test_the_pace_is_that_of_all_streams_together(
    monkeypatch: pytest.MonkeyPatch, threads: int, least: int, most: int
) -> None:
    """What may wait by time, and when to come again, would else be half of what is true."""
    began = time.monotonic() + 1000  # after whatever is admitted
    now = began
    monkeypatch.setattr("service.batching.time", SimpleNamespace(monotonic=lambda: now))
    together = threading.Barrier(threads)

    def run(jobs: Sequence[Job]) -> list[int]:
        nonlocal now
        together.wait(HANG_LIMIT_S)  # all were dispatched
        now = began + 1
        together.wait(HANG_LIMIT_S)
        return [job.name for job in jobs]

    execution = ExecutionThreads(threads=threads)
    batcher: DynamicBatcher[Job, int] = DynamicBatcher(
        run,
        length=lambda job: job.length,
        execution=execution,
        limits=BatchingLimits(max_batch_tokens=10, max_queue_s=10),
    )
    async with batcher:
        await batcher.submit_many(_jobs([10] * threads))
        # 10 tokens in a second each; of two, the one whose end is seen later had no other beside it by then.
        assert least <= batcher.queue_limit_tokens <= most
    execution.close()


# -- admission -------------------------------------------------------------------------------------------


async def test_a_request_is_refused_as_a_whole_and_nothing_of_it_runs(execution: ExecutionThreads) -> None:
    """Half a request done is work thrown away, and the retry pays again."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution, BatchingLimits(max_queue_items=4)) as batcher:
        running = asyncio.create_task(batcher.submit(Job(0, 1)))
        await model.started()
        waiting = [asyncio.create_task(batcher.submit(Job(n, 1))) for n in (1, 2, 3)]
        await settle()
        with pytest.raises(OverloadedError, match="3 of 4 texts") as refused:
            await batcher.submit_many(_jobs([1, 1], first=10))
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 1
        model.gate.set()
        assert await asyncio.gather(running, *waiting) == [0, 1, 2, 3]
    assert {job.name for batch in model.batches for job in batch} == {0, 1, 2, 3}


async def test_the_queue_is_bounded_in_tokens_too(execution: ExecutionThreads) -> None:
    """A few long texts are as much work as many short ones."""
    model = FakeModel(gate_open=False)
    limits = BatchingLimits(max_batch_tokens=100, max_queue_tokens=400)
    async with _batcher(model, execution, limits) as batcher:
        running = asyncio.create_task(batcher.submit(Job(0, 1)))
        await model.started()
        waiting = [asyncio.create_task(batcher.submit(Job(n, 45))) for n in range(1, 9)]
        await settle()
        assert (batcher.queued_items, batcher.queued_tokens) == (8, 360)
        with pytest.raises(OverloadedError, match="360 of 400 tokens"):
            await batcher.submit(Job(9, 41))
        with pytest.raises(OverloadedError):
            batcher.ensure_room(1, 41)
        batcher.ensure_room(1, 40)
        model.gate.set()
        await asyncio.gather(running, *waiting)


async def test_a_request_larger_than_the_queue_is_fed_as_room_appears(execution: ExecutionThreads) -> None:
    """2,048 texts of 512 tokens are one ordinary OpenAI request; a limit it can never meet is no limit."""
    model = FakeModel()
    limits = BatchingLimits(max_queue_items=128, max_queue_tokens=20_000)
    async with _batcher(model, execution, limits) as batcher:
        results = await batcher.submit_many(_jobs([512] * 2048))
    assert results == list(range(2048))
    assert max(len(batch) for batch in model.batches) == BatchingLimits().max_batch_tokens // 512


@pytest.mark.parametrize("limits", [BatchingLimits(max_queue_items=8), BatchingLimits(max_queue_tokens=16)])
async def test_a_bulk_request_needs_no_empty_queue(
    execution: ExecutionThreads, limits: BatchingLimits
) -> None:
    """Its share must be free, not its size: on a busy service the queue may never be empty."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution, limits) as batcher:
        running = asyncio.create_task(batcher.submit(Job(0, 2)))
        await model.started()
        waiting = [asyncio.create_task(batcher.submit(Job(n, 2))) for n in (1, 2)]
        await settle()
        bulk = asyncio.create_task(batcher.submit_many(_jobs([2] * 100, first=3)))
        await settle()
        assert not bulk.done()
        model.gate.set()
        assert await bulk == list(range(3, 103))
        await asyncio.gather(running, *waiting)


async def test_any_number_of_bulk_requests_leaves_room_for_small_ones(execution: ExecutionThreads) -> None:
    """Two callers with a long list each must not answer 429 to everyone else for minutes."""
    model = FakeModel(gate_open=False)
    limits = BatchingLimits(max_batch_size=4, max_queue_items=64, max_queue_tokens=640)
    async with _batcher(model, execution, limits) as batcher:
        running = asyncio.create_task(batcher.submit(Job(0, 1)))
        await model.started()
        bulk = [
            asyncio.create_task(batcher.submit_many(_jobs([4] * 500, first=1000 * n))) for n in range(1, 11)
        ]
        await settle()
        admitted = [n for n, task in enumerate(bulk) if not task.done()]
        assert admitted == [0, 1, 2]  # half, a quarter and an eighth of the queue
        small = [asyncio.create_task(batcher.submit(Job(n, 4))) for n in range(1, 9)]
        await settle()
        assert not any(task.done() for task in small)
        with pytest.raises(OverloadedError):  # now it is full indeed
            await batcher.submit(Job(9, 4))
        model.gate.set()
        assert await asyncio.gather(running, *small) == list(range(9))
        for n in admitted:
            assert await bulk[n] == list(range(1000 * (n + 1), 1000 * (n + 1) + 500))
        refused = await asyncio.gather(*bulk[3:], return_exceptions=True)
        assert all(isinstance(answer, OverloadedError) for answer in refused)


async def test_others_find_room_and_their_turn_beside_a_bulk_request(execution: ExecutionThreads) -> None:
    """The bulk request holds half of the queue at most, and its later texts count as younger."""
    model = FakeModel(gate_open=False)
    limits = BatchingLimits(
        max_batch_tokens=16,
        max_batch_size=4,
        max_queue_items=16,
        max_queue_tokens=1000,
        max_overtake_tokens=0,
    )
    async with _batcher(model, execution, limits) as batcher:
        bulk = asyncio.create_task(batcher.submit_many(_jobs([4] * 400)))
        await model.started()
        assert batcher.queued_items == 8
        small = asyncio.create_task(batcher.submit(Job(1000, 4)))
        await settle()
        assert batcher.queued_items == 9
        model.gate.set()
        assert await small == 1000
        assert await bulk == list(range(400))
    position = next(n for n, batch in enumerate(model.batches) if Job(1000, 4) in batch)
    assert position <= 1 + 9  # eight places of the bulk request were ahead of it, and the running batch


async def test_the_longest_waiting_item_is_in_the_next_batch(execution: ExecutionThreads) -> None:
    """A rare length must not starve behind a stream of common ones."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution, BatchingLimits(max_batch_tokens=64)) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 4)))
        await model.started()
        rare = asyncio.create_task(batcher.submit(Job(1, 50)))
        await settle()
        common = [asyncio.create_task(batcher.submit(Job(n, 4))) for n in range(2, 40)]
        await settle()
        model.gate.set()
        await asyncio.gather(first, rare, *common)
    assert Job(1, 50) in model.batches[1]


async def test_no_more_waits_than_runs_within_the_time_that_is_set(execution: ExecutionThreads) -> None:
    """The bound follows the pace of large batches, from two full ones up to the limit in tokens."""
    model = FakeModel(gate_open=False)
    limits = BatchingLimits(max_batch_tokens=16, max_queue_tokens=1000, max_queue_s=2)
    batcher = _batcher(model, execution, limits)
    assert batcher.queue_limit_tokens == 1000  # nothing is known yet
    batcher._bound_queue_by_time(50.0)
    assert batcher.queue_limit_tokens == 100
    batcher.start()
    running = asyncio.create_task(batcher.submit(Job(0, 4)))
    await model.started()
    waiting = [asyncio.create_task(batcher.submit(Job(n, 10))) for n in range(1, 11)]
    await settle()
    with pytest.raises(
        OverloadedError, match=r"100 of 100 tokens \(2 s of work, CONCHE_BATCHING__MAX_QUEUE_S"
    ):
        await batcher.submit(Job(99, 1))
    batcher._bound_queue_by_time(0.0)  # slower: what waits stays, nothing comes in
    assert batcher.queue_limit_tokens == 80
    with pytest.raises(OverloadedError):
        await batcher.submit_many(_jobs([10] * 50))
    model.gate.set()
    await asyncio.gather(running, *waiting)
    for rate, limit in ((0.0, 32), (1e9, 1000)):
        for _ in range(100):  # however quick the runs above were
            batcher._bound_queue_by_time(rate)
        assert batcher.queue_limit_tokens == limit
    await batcher.close()


async def test_small_batches_say_nothing_about_the_pace(execution: ExecutionThreads) -> None:
    """One text at a time is slow a token; a burst after it must not be refused for that."""
    model = FakeModel()
    limits = BatchingLimits(max_batch_tokens=16, max_queue_tokens=1000, max_queue_s=1e-9)
    async with _batcher(model, execution, limits) as batcher:
        await batcher.submit(Job(0, 7))
        assert batcher.queue_limit_tokens == 1000
        await batcher.submit(Job(1, 8))
        assert batcher.queue_limit_tokens == 32


async def test_batches_are_large_by_rows_too(execution: ExecutionThreads) -> None:
    """Where rows fill a batch it never has half of its tokens, and the bound by time would never hold."""
    limits = BatchingLimits(max_batch_tokens=100, max_batch_size=4, max_queue_tokens=1000, max_queue_s=1e-9)
    async with _batcher(FakeModel(), execution, limits) as batcher:
        await batcher.submit(Job(0, 3))
        assert batcher.queue_limit_tokens == 1000
        await batcher.submit_many(_jobs([3] * 2))
        assert batcher.queue_limit_tokens == 200


async def test_the_retry_hint_grows_with_the_backlog(execution: ExecutionThreads) -> None:
    """A fixed hint sends everyone back too early when the queue is long."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution, BatchingLimits(max_queue_items=10, max_queue_tokens=10**9))
    batcher._tokens_per_second = 100.0
    batcher.start()
    running = asyncio.create_task(batcher.submit(Job(0, 1)))
    await model.started()
    waiting = [asyncio.create_task(batcher.submit(Job(n, 200))) for n in range(1, 11)]
    await settle()
    with pytest.raises(OverloadedError) as refused:
        await batcher.submit(Job(99, 1))
    assert refused.value.retry_after_s == pytest.approx(20.0)
    model.gate.set()
    await asyncio.gather(running, *waiting)
    await batcher.close()


# -- callers that go -------------------------------------------------------------------------------------


async def test_a_cancelled_caller_is_not_run_and_frees_its_place_at_once(execution: ExecutionThreads) -> None:
    """A closed browser tab must not cost a model run, nor a 429 for someone else."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution, BatchingLimits(max_queue_items=6)) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 1)))
        await model.started()
        gone = asyncio.create_task(batcher.submit_many(_jobs([1] * 40, first=100)))
        stays = asyncio.create_task(batcher.submit(Job(1, 1)))
        await settle()
        assert batcher.queued_items == 4
        gone.cancel()
        await settle()
        assert batcher.queued_items == 1
        model.gate.set()
        assert await asyncio.gather(first, stays) == [0, 1]
        with pytest.raises(asyncio.CancelledError):
            await gone
    assert [[job.name for job in batch] for batch in model.batches] == [[0], [1]]


async def test_a_caller_that_goes_during_the_run_disturbs_no_one(execution: ExecutionThreads) -> None:
    """Its result has no taker; its batch-mates' have."""
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 1)))
        await model.started()
        pair = [asyncio.create_task(batcher.submit(Job(n, 1))) for n in (1, 2)]
        await settle()
        first.cancel()
        model.gate.set()
        await model.started()
        pair[0].cancel()
        assert await pair[1] == 2
        assert batcher.healthy


# -- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration(), MemoryError()])
async def test_a_failing_run_fails_its_own_batch_only(execution: ExecutionThreads, error: Exception) -> None:
    """The next batch is served as if nothing had happened; the cause stays inside."""
    model = FakeModel()
    async with _batcher(model, execution) as batcher:
        model.error = error
        with pytest.raises(InferenceError) as failed:
            await batcher.submit(Job(0, 1))
        assert failed.value.__cause__ is error
        assert str(error) not in failed.value.message or not str(error)
        model.error = None
        assert await batcher.submit(Job(1, 1)) == 1
        assert batcher.healthy


async def test_a_run_with_the_wrong_number_of_results_is_a_failure(execution: ExecutionThreads) -> None:
    """Zipping what there is would hand someone else's result to a caller."""
    batcher: DynamicBatcher[int, int] = DynamicBatcher(
        lambda items: items[1:], length=lambda _: 1, execution=execution
    )
    async with batcher:
        with pytest.raises(InferenceError):
            await batcher.submit(5)


async def test_a_failed_batch_takes_the_rest_of_its_request_out_of_the_queue(
    execution: ExecutionThreads,
) -> None:
    """The caller has its answer; running what is left would be for nobody."""
    model = FakeModel()
    model.error = ValueError("bad")
    async with _batcher(model, execution, BatchingLimits(max_batch_tokens=4)) as batcher:
        with pytest.raises(InferenceError):
            await batcher.submit_many(_jobs([4] * 50))
        assert (batcher.queued_items, batcher.queued_tokens) == (0, 0)
    assert len(model.batches) == 1


class _Poisoned(FakeModel):
    """Fails on every batch that holds one of the jobs named in ``poison``; on all if it is None."""

    def __init__(self, poison: set[int] | None) -> None:
        super().__init__()
        self.poison = poison

    def run(self, jobs: Sequence[Job]) -> list[int]:
        names = super().run(jobs)
        if self.poison is None or self.poison.intersection(names):
            raise ValueError("bad row")
        return names


async def _one_batch(
    model: FakeModel, batcher: DynamicBatcher[Job, int], sizes: Sequence[int]
) -> list[list[int] | BaseException]:
    """Requests of so many items, numbered from 1 throughout, that queue during a run and share a batch."""
    model.gate.clear()
    first = asyncio.create_task(batcher.submit(Job(0, 1)))
    await model.started()
    calls, name = [], 1
    for size in sizes:
        calls.append(asyncio.create_task(batcher.submit_many(_jobs([1] * size, first=name))))
        name += size
    await settle()
    model.gate.set()
    await asyncio.gather(first, return_exceptions=True)
    return await asyncio.gather(*calls, return_exceptions=True)


async def test_a_row_that_the_model_fails_on_fails_its_own_request_only(execution: ExecutionThreads) -> None:
    """Batch-mates are chosen by length alone; another's bad text is no reason for a 500."""
    model = _Poisoned({7, 100})
    async with _batcher(model, execution) as batcher:
        answers = await _one_batch(model, batcher, [1] * 90 + [20])
        assert batcher.healthy
        assert (batcher.queued_items, batcher.queued_tokens) == (0, 0)
    for position, answer in enumerate(answers[:90]):
        assert isinstance(answer, InferenceError) if position == 6 else answer == [position + 1]
    assert isinstance(answers[90], InferenceError)
    assert len(model.batches[1]) == 110
    assert len(model.batches) <= 2 + 4 * 7  # two halves at each level, for either of the two


async def test_a_model_that_fails_on_everything_is_not_asked_row_by_row(execution: ExecutionThreads) -> None:
    """The second chance is bounded, or a broken model would keep everyone waiting for their error."""
    model = _Poisoned(None)
    async with _batcher(model, execution) as batcher:
        answers = await _one_batch(model, batcher, [1] * 200)
        assert all(isinstance(answer, InferenceError) for answer in answers)
        assert batcher.healthy
    assert len(model.batches) <= 1 + 32 + 8


@pytest.mark.parametrize("where", ["choose", "remove"])
async def test_whatever_ends_the_worker_everyone_fails_at_once(
    execution: ExecutionThreads, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A dead worker behind a green probe answers 429 for ever: the worst failure others have had."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution)
    batcher.start()
    running = asyncio.create_task(batcher.submit(Job(0, 1)))
    await model.started()
    waiting = [asyncio.create_task(batcher.submit_many(_jobs([1, 2, 3]))) for _ in range(5)]
    await settle()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(batcher._room, where, broken)
    model.gate.set()
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(running, *waiting, return_exceptions=True)
    assert answers[0] == 0
    assert all(isinstance(answer, UnavailableError) for answer in answers[1:])
    assert not batcher.healthy
    assert batcher.failure is not None
    assert "RuntimeError" in batcher.failure
    with pytest.raises(UnavailableError, match="RuntimeError"):
        await batcher.submit(Job(9, 1))
    await batcher.close()


def test_what_ends_the_process_is_told_first(caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit ends the event loop at once; that it came out of a run would be known to nobody."""
    model, kept = FakeModel(), []
    model.error = SystemExit(3)

    async def serve() -> None:
        execution = ExecutionThreads()
        batcher = _batcher(model, execution)
        kept.append(batcher)
        batcher.start()
        await batcher.submit(Job(0, 1))

    with pytest.raises(SystemExit):
        asyncio.run(serve())
    assert kept[0].failure == "the batcher of model stopped after SystemExit"
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


async def test_a_killed_worker_task_leaves_nobody_waiting(execution: ExecutionThreads) -> None:
    """Even cancelled from outside, during a run."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution)
    batcher.start()
    calls = [asyncio.create_task(batcher.submit(Job(n, 1))) for n in range(3)]
    await model.started()
    assert batcher._worker is not None
    batcher._worker.cancel()
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, UnavailableError) for answer in answers)
    assert not batcher.healthy
    model.gate.set()


async def test_a_caller_cancelled_as_the_worker_dies_is_cancelled_and_nothing_else(
    execution: ExecutionThreads,
) -> None:
    """In one turn of the loop its future is done, but it has yet to take its texts out of the queue."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution)
    batcher.start()
    calls = [asyncio.create_task(batcher.submit(Job(0, 1)))]
    await model.started()
    calls += [asyncio.create_task(batcher.submit(Job(n, 1))) for n in (1, 2)]
    await settle()
    assert batcher._worker is not None
    batcher._worker.cancel()
    calls[2].cancel()
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [
        UnavailableError,
        UnavailableError,
        asyncio.CancelledError,
    ]
    assert (batcher.queued_items, batcher.queued_tokens) == (0, 0)
    model.gate.set()


async def test_a_hung_run_turns_health_red_and_fails_its_callers(execution: ExecutionThreads) -> None:
    """The thread cannot be killed, but nobody has to wait for it."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution, BatchingLimits(stall_timeout_s=0.02))
    batcher.start()
    async with asyncio.timeout(HANG_LIMIT_S):
        with pytest.raises(UnavailableError, match="no progress"):
            await batcher.submit(Job(0, 1))
    assert not batcher.healthy
    with pytest.raises(UnavailableError, match="no progress"):
        await batcher.submit(Job(1, 1))
    model.gate.set()
    await batcher.close()


async def test_a_hang_is_shared_by_all_batchers_of_the_thread(execution: ExecutionThreads) -> None:
    """The other model's work would wait behind the hung run for ever, so it is red as well."""
    hung, other = FakeModel(gate_open=False), FakeModel()
    one = _batcher(hung, execution, BatchingLimits(stall_timeout_s=0.02))
    two = _batcher(other, execution, BatchingLimits(stall_timeout_s=HANG_LIMIT_S * 10))
    one.start()
    two.start()
    first = asyncio.create_task(one.submit(Job(0, 1)))
    await hung.started()
    behind = asyncio.create_task(two.submit(Job(1, 1)))
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(first, behind, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnavailableError, UnavailableError]
    assert not two.healthy
    hung.gate.set()
    await one.close()
    await two.close()
    assert other.batches == []


async def test_waiting_behind_a_busy_model_is_no_hang() -> None:
    """Progress of the thread, not the age of the batch, decides: after each look another job ends."""
    hold = threading.Semaphore(0)

    class Watched(ExecutionThreads):
        looks = 0

        def _seen(self, future: Future[object]) -> int | None:
            seen = super()._seen(future)
            self.looks += 1
            hold.release()
            return seen

    execution, model = Watched(), FakeModel()
    jobs = [execution.submit(lambda: hold.acquire(timeout=HANG_LIMIT_S)) for _ in range(12)]
    batcher = _batcher(model, execution, BatchingLimits(stall_timeout_s=0.02))
    batcher.start()
    assert await batcher.submit(Job(5, 1)) == 5
    assert all(job.result() for job in jobs)
    assert execution.looks >= len(jobs)  # three times as many as it takes to call a run hung
    assert batcher.healthy
    await batcher.close()
    execution.close()


async def test_an_observer_that_fails_cannot_stop_the_worker(execution: ExecutionThreads) -> None:
    """Metrics are worth less than answers."""

    def broken(stats: BatchStats) -> None:
        raise RuntimeError("metrics")

    model = FakeModel()
    async with _batcher(model, execution, on_batch=broken) as batcher:
        assert await batcher.submit(Job(0, 1)) == 0
        assert await batcher.submit(Job(1, 1)) == 1
        assert batcher.healthy


async def test_the_observer_sees_what_was_run(execution: ExecutionThreads) -> None:
    """Padding counted, failures included: an average over successes only hides the bad minutes."""
    seen: list[BatchStats] = []
    model = FakeModel(gate_open=False)
    async with _batcher(model, execution, on_batch=seen.append) as batcher:
        first = asyncio.create_task(batcher.submit(Job(0, 5)))
        await model.started()
        pair = asyncio.create_task(batcher.submit_many(_jobs([3, 5])))
        await settle()
        model.gate.set()
        await asyncio.gather(first, pair)
        model.error = ValueError("bad")
        with pytest.raises(InferenceError):
            await batcher.submit(Job(4, 2))
    assert [(stats.size, stats.tokens, stats.padded_tokens, stats.failed) for stats in seen] == [
        (1, 5, 5, False),
        (2, 8, 10, False),
        (1, 2, 2, True),
    ]
    assert all(len(stats.queue_seconds) == stats.size for stats in seen)
    assert all(stats.run_seconds >= 0 and min(stats.queue_seconds) >= 0 for stats in seen)


# -- life ------------------------------------------------------------------------------------------------


async def test_closing_finishes_what_was_admitted_and_takes_nothing_new(execution: ExecutionThreads) -> None:
    """A rolling update must not lose a request."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution, BatchingLimits(max_batch_tokens=8, max_queue_items=4))
    batcher.start()
    bulk = asyncio.create_task(batcher.submit_many(_jobs([4] * 30)))
    await model.started()
    closing = asyncio.create_task(batcher.close(deadline_s=HANG_LIMIT_S))
    await settle()
    assert not batcher.healthy
    with pytest.raises(UnavailableError, match="not accepting"):
        await batcher.submit(Job(99, 1))
    model.gate.set()
    await closing
    assert await bulk == list(range(30))
    assert batcher.failure is None


async def test_closing_gives_up_after_the_deadline(execution: ExecutionThreads) -> None:
    """Better an error now than a kill later."""
    model = FakeModel(gate_open=False)
    batcher = _batcher(model, execution, BatchingLimits(max_batch_tokens=8))
    batcher.start()
    bulk = asyncio.create_task(batcher.submit_many(_jobs([4] * 30)))
    await model.started()
    await batcher.close(deadline_s=0.0)
    with pytest.raises(UnavailableError):
        await bulk
    model.gate.set()
    assert len(model.batches) == 1


async def test_before_the_start_and_after_the_end_work_is_refused(execution: ExecutionThreads) -> None:
    """Never a wait for a worker that is not there."""
    batcher = _batcher(FakeModel(), execution)
    with pytest.raises(UnavailableError):
        await batcher.submit(Job(0, 1))
    await batcher.close()
    batcher = _batcher(FakeModel(), execution)
    async with batcher:
        assert batcher.healthy
    with pytest.raises(UnavailableError):
        await batcher.submit(Job(0, 1))
    with pytest.raises(RuntimeError):
        batcher.start()


async def test_every_run_is_on_the_shared_thread(execution: ExecutionThreads) -> None:
    """Neither the event loop nor a second thread ever runs a model."""
    models = [FakeModel(), FakeModel()]
    async with _batcher(models[0], execution) as one, _batcher(models[1], execution) as two:
        await asyncio.gather(*(batcher.submit(Job(n, 1)) for n in range(20) for batcher in (one, two)))
    assert models[0].threads == models[1].threads == {"conche-inference"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_batch_tokens": 0},
        {"max_batch_size": 0},
        {"max_queue_tokens": 0},
        {"max_queue_s": 0},
        {"max_queue_items": 0},
        {"max_wait_s": -1.0},
        {"free_padding_tokens": -1},
        {"max_overtake_tokens": -1},
        {"max_padding_ratio": 0.9},
        {"stall_timeout_s": 0.0},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """Once, where they are held, with the number in the message."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BatchingLimits(**wrong)  # type: ignore[arg-type]

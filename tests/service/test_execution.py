"""service.execution: the threads that run the models of a process."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

from service.execution import ExecutionThreads, StalledError
from tests.fakes import HANG_LIMIT_S, settle, until


def test_jobs_run_one_at_a_time_in_order_on_one_thread() -> None:
    """Two models at once would each take every core; the thread is what keeps them apart."""
    execution = ExecutionThreads("models")
    seen: list[tuple[int, str]] = []
    futures = [
        execution.submit(lambda n=n: seen.append((n, threading.current_thread().name)))  # type: ignore[misc]
        for n in range(20)
    ]
    for future in futures:
        future.result(HANG_LIMIT_S)
    execution.close()
    assert seen == [(n, "models") for n in range(20)]


def test_the_thread_survives_what_a_job_raises() -> None:
    """The waiter gets the error, SystemExit included; the next job runs."""
    execution = ExecutionThreads()
    for error in (ValueError("no"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            execution.submit(fail).result(HANG_LIMIT_S)
    assert execution.submit(lambda: 7).result(HANG_LIMIT_S) == 7
    execution.close()


def test_progress_stands_still_only_while_a_job_runs() -> None:
    """A batcher tells a hang from a queue by this count."""
    execution = ExecutionThreads()
    begun, gate = threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        gate.wait(HANG_LIMIT_S)

    before = execution.progress
    future = execution.submit(job)
    assert begun.wait(HANG_LIMIT_S)
    assert execution.progress == before + 1
    gate.set()
    future.result(HANG_LIMIT_S)
    execution.submit(lambda: None).result(HANG_LIMIT_S)
    assert execution.progress >= before + 3
    execution.close()


def test_giving_up_fails_the_jobs_behind_the_hung_one_at_once() -> None:
    """They would wait for ever; and nothing new may join them."""
    execution = ExecutionThreads()
    begun, gate = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait(HANG_LIMIT_S)

    hung = execution.submit(hang)
    assert begun.wait(HANG_LIMIT_S)
    behind = execution.submit(lambda: 1)
    execution.give_up("it hangs")
    with pytest.raises(StalledError, match="it hangs"):
        behind.result(HANG_LIMIT_S)
    with pytest.raises(StalledError):
        execution.submit(lambda: 2)
    assert execution.failure == "it hangs"
    gate.set()
    hung.result(HANG_LIMIT_S)  # should it end after all, nothing breaks


def test_a_hung_job_does_not_keep_the_process_alive() -> None:
    """A thread that the interpreter joins at exit would turn SIGTERM into a wait for SIGKILL."""
    execution = ExecutionThreads("daemon")
    execution.submit(lambda: None).result(HANG_LIMIT_S)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "daemon"]
    assert thread.daemon
    execution.close()
    thread.join(HANG_LIMIT_S)
    assert not thread.is_alive()


async def test_whoever_waits_for_a_job_that_hangs_is_told() -> None:
    """The job's own caller and the one behind it, and the thread is lost from then on."""
    execution = ExecutionThreads()
    gate = threading.Event()

    async def call(job: Callable[[], object], stall_timeout_s: float) -> object:
        return await execution.run(job, name="the job", stall_timeout_s=stall_timeout_s)

    waiting = [
        asyncio.create_task(call(lambda: gate.wait(HANG_LIMIT_S), 0.02)),
        asyncio.create_task(call(lambda: 1, HANG_LIMIT_S * 10)),
    ]
    async with asyncio.timeout(HANG_LIMIT_S):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [StalledError, StalledError]
    assert execution.failure == "the job made no progress for 0.02 s"
    gate.set()


async def test_a_job_whose_caller_went_before_it_began_is_not_run() -> None:
    """Nobody would read its result."""
    execution = ExecutionThreads()
    gate, ran = threading.Event(), []
    first = asyncio.create_task(
        execution.run(lambda: gate.wait(HANG_LIMIT_S), name="first", stall_timeout_s=HANG_LIMIT_S)
    )
    second = asyncio.create_task(
        execution.run(lambda: ran.append(2), name="second", stall_timeout_s=HANG_LIMIT_S)
    )
    await settle()
    second.cancel()
    await settle()
    gate.set()
    assert await first
    assert (await execution.run(lambda: 3, name="third", stall_timeout_s=HANG_LIMIT_S), ran) == (3, [])
    execution.close()


def test_jobs_that_come_one_at_a_time_stay_with_one_thread() -> None:
    """What it ran is in the caches of a core; of two in turn each would have to fetch it again."""
    execution = ExecutionThreads("models", 3)
    names = {execution.submit(lambda: threading.current_thread().name).result(HANG_LIMIT_S) for _ in range(9)}
    assert len(names) == 1
    execution.close()


async def test_threads_come_to_those_that_there_are() -> None:
    """A model with more streams is loaded; never are there fewer again."""
    execution = ExecutionThreads("models")
    gate = threading.Event()
    waiting = [execution.submit(lambda: gate.wait(HANG_LIMIT_S)) for _ in range(3)]
    await until(waiting[0].running)
    assert (execution.threads, execution.free) == (1, 0)
    execution.grow(2)
    await until(waiting[1].running)
    assert not waiting[2].running()
    execution.grow(1)
    assert execution.threads == 2
    gate.set()
    for job in waiting:
        assert job.result(HANG_LIMIT_S)
    await until(lambda: execution.free == 2)
    execution.close()


async def test_who_uses_all_cores_has_them() -> None:
    """Two models with several threads each would wait for each other's; one's own runs share theirs."""
    execution = ExecutionThreads("models", 3)
    gates = {name: threading.Event() for name in "abc"}
    begun: list[str] = []

    def submit(owner: str, *, exclusive: bool = True) -> Future[bool]:
        def job() -> bool:
            begun.append(owner)
            return gates[owner].wait(HANG_LIMIT_S)

        return execution.submit(job, owner=owner, exclusive=exclusive)

    jobs = [submit("a"), submit("a"), submit("b"), submit("a"), submit("c", exclusive=False)]
    await until(lambda: len(begun) == 2)
    await settle()
    # The third thread has nothing to do: it is the turn of b.
    assert (begun, execution.free) == (["a", "a"], 0)
    gates["a"].set()
    await until(lambda: len(begun) == 3)
    assert begun[2] == "b"
    gates["b"].set()
    await until(lambda: len(begun) >= 4)
    gates["c"].set()
    assert [job.result(HANG_LIMIT_S) for job in jobs] == [True] * 5
    assert begun == ["a", "a", "b", "a", "c"]
    await until(lambda: execution.free == 3)
    execution.close()


async def test_who_leaves_cores_to_others_runs_beside_them() -> None:
    """Runs of one thread each, of whichever models."""
    execution = ExecutionThreads("models", 2)
    both = threading.Barrier(2, timeout=HANG_LIMIT_S)
    jobs = [execution.submit(both.wait, owner=owner) for owner in "ab"]
    assert sorted(job.result(HANG_LIMIT_S) for job in jobs) == [0, 1]
    execution.close()


async def test_a_thread_that_the_system_refuses_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its job would wait for ever, while others make progress."""
    execution = ExecutionThreads("models")
    gate = threading.Event()
    jobs = [execution.submit(lambda: gate.wait(HANG_LIMIT_S)) for _ in range(2)]
    await until(jobs[0].running)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            execution.grow(2)
    assert execution.threads == 1
    gate.set()
    assert [job.result(HANG_LIMIT_S) for job in jobs] == [True, True]
    execution.grow(2)
    await until(lambda: execution.free == 2)
    execution.close()


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_thread_that_ends_leaves_no_place_behind() -> None:
    """What it was handed another thread does; what is submitted afterwards fails at once."""
    broken = threading.Event()

    def at_start() -> None:
        if threading.current_thread().name != "models":
            broken.wait(HANG_LIMIT_S)
            raise MemoryError

    execution = ExecutionThreads("models", 2, at_start=at_start)
    handed = execution.submit(
        lambda: threading.current_thread().name
    )  # to the second, which has begun to wait last
    broken.set()
    assert handed.result(HANG_LIMIT_S) == "models"
    with pytest.raises(StalledError, match="models-2 ended"):
        execution.submit(lambda: None)


def test_the_shares_of_jobs_come_to_the_time_in_which_any_was_at_work() -> None:
    """Long and short ones, some beside others and some alone."""
    execution = ExecutionThreads("models", 2)

    def job(seconds: float) -> float:
        began = execution.shared_seconds()
        time.sleep(seconds)
        return execution.shared_seconds() - began

    for lengths in ([0.1], [0.1, 0.1], [0.2, 0.05], [0.05, 0.1, 0.05, 0.1, 0.15]):
        began = time.monotonic()
        jobs = [execution.submit(partial(job, seconds)) for seconds in lengths]
        shares = [one.result(HANG_LIMIT_S) for one in jobs]
        took = time.monotonic() - began
        assert sum(shares) <= took
        assert sum(shares) == pytest.approx(took, rel=0.2, abs=0.05)
        if lengths == [0.2, 0.05]:
            assert shares[0] > 4 * shares[1]
    execution.close()


def test_of_several_threads_each_takes_the_next_job() -> None:
    """As many at a time as there are threads; none waits behind a long one while another is free."""
    execution = ExecutionThreads("models", 2)
    gate = threading.Event()
    long = execution.submit(lambda: gate.wait(HANG_LIMIT_S))
    names = {execution.submit(lambda: threading.current_thread().name).result(HANG_LIMIT_S) for _ in range(5)}
    assert len(names) == 1
    assert names < {"models", "models-2"}
    assert not long.done()
    gate.set()
    assert long.result(HANG_LIMIT_S)
    execution.close()
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("models")]
    for thread in threads:
        thread.join(HANG_LIMIT_S)
        assert not thread.is_alive()


async def test_a_job_that_hangs_is_told_while_other_threads_work() -> None:
    """Their progress is not its own."""
    execution = ExecutionThreads("models", 2)
    gate = threading.Event()
    hung = asyncio.create_task(
        execution.run(lambda: gate.wait(HANG_LIMIT_S), name="the job", stall_timeout_s=0.05)
    )
    async with asyncio.timeout(HANG_LIMIT_S):
        while execution.failure is None:
            try:
                await execution.run(lambda: None, name="another", stall_timeout_s=HANG_LIMIT_S)
            except StalledError:
                break
    with pytest.raises(StalledError, match=r"the job made no progress for 0.05 s"):
        await hung
    gate.set()


@pytest.mark.parametrize("threads", [1, 2])
async def test_a_job_that_hangs_is_told_when_its_caller_has_gone(threads: int) -> None:
    """A model that is unloaded meanwhile, say; other threads go on, and one would be missing for good."""
    execution = ExecutionThreads("models", threads)
    begun, gate = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        gate.wait(HANG_LIMIT_S)

    caller = asyncio.create_task(execution.run(hang, name="the job", stall_timeout_s=0.05))
    await until(begun.is_set)
    caller.cancel()
    await until(lambda: execution.failure is not None)
    assert execution.failure == "the job made no progress for 0.05 s"
    gate.set()


async def test_a_job_that_ends_after_its_caller_has_gone_is_no_hang() -> None:
    """Most do."""
    execution = ExecutionThreads("models")
    begun, gate, looked = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        gate.wait(HANG_LIMIT_S)

    caller = asyncio.create_task(execution.run(job, name="the job", stall_timeout_s=0.05))
    await until(begun.is_set)
    caller.cancel()
    await settle()
    gate.set()
    asyncio.get_running_loop().call_later(0.1, looked.set)  # after the last look
    await until(looked.is_set)
    assert execution.failure is None
    assert await execution.run(lambda: 3, name="another", stall_timeout_s=HANG_LIMIT_S) == 3
    execution.close()


def test_free_threads_are_those_without_a_job() -> None:
    """Jobs that wait will take one each."""
    execution = ExecutionThreads("models", 2)
    gate = threading.Event()
    assert execution.free == 2
    jobs = [execution.submit(lambda: gate.wait(HANG_LIMIT_S)) for _ in range(3)]
    assert execution.free == 0
    gate.set()
    for job in jobs:
        job.result(HANG_LIMIT_S)
    assert execution.free == 2
    execution.close()


async def test_a_thread_that_ends_is_told_of_at_once() -> None:
    """Those who wait would else wait for as long as a hang is waited for, to be told that something hung."""

    def broken() -> None:
        raise MemoryError

    execution = ExecutionThreads("lost", at_start=broken)
    await until(lambda: execution.failure is not None)
    assert execution.failure == "the thread lost ended after MemoryError"
    with pytest.raises(StalledError, match="ended after MemoryError"):
        await execution.run(lambda: 1, name="a job", stall_timeout_s=HANG_LIMIT_S * 10)


async def test_a_thread_that_ends_between_two_jobs_fails_both() -> None:
    """The one whose result it could not hand over, and the one behind."""
    execution = ExecutionThreads("lost")
    gate = threading.Event()
    first = execution.submit(lambda: gate.wait(HANG_LIMIT_S))
    behind = execution.submit(lambda: 1)

    def cannot(result: object) -> None:
        raise SystemExit(3)

    first.set_result = cannot  # type: ignore[method-assign]
    gate.set()
    for future in (first, behind):
        with pytest.raises(StalledError, match="the thread lost ended after SystemExit"):
            future.result(HANG_LIMIT_S)
    assert execution.failure is not None


async def test_what_a_job_raises_keeps_nothing_alive() -> None:
    """Its trace has the job's frames, and with them whatever it worked on."""
    execution = ExecutionThreads()

    class Large:
        """What a job works on."""

    kept: list[weakref.ref[Large]] = []

    def fail() -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise ValueError("no")

    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            await execution.run(fail, name="a job", stall_timeout_s=HANG_LIMIT_S)
        await until(lambda: execution.free == 1)
        assert kept[0]() is None
    finally:
        gc.enable()
        execution.close()

"""The commander: starting, ending, other threads, running inside a loop, and the watchdog."""

import asyncio
import contextlib
import gc
import logging
import threading
import time
import weakref
from typing import Any

import pytest

from tenuto.flow import (
    PASS_WORD,
    Blockage,
    Commander,
    CommanderAlreadyRunningError,
    CommanderNotRunError,
    HandlerCoroutine,
    Job,
    TooManyJobsError,
    get_null_logger,
    handler,
    tasker,
)

pytestmark = pytest.mark.timeout(20)


class Count(Job):
    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts

    @tasker(PASS_WORD)
    async def task(self) -> None:
        self.counts[0] += 1


class Leave(Job):
    @tasker(PASS_WORD)
    async def task(self) -> None:
        await self.exit_commander("bye")


def started(commander: Commander[Any], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=commander.run, args=arguments)
    thread.start()
    while not commander.running_status:
        time.sleep(0.001)
    return thread


def test_run_returns_what_exit_was_given_and_forgets_it() -> None:
    commander = Commander[str]()
    assert commander.run(Leave()) == "bye"
    assert commander.wait_for_exit() == "bye"
    assert commander.run(Count([0]), auto_exit=True) is None
    assert commander.run(auto_exit=True) is None


def test_exit_from_another_thread() -> None:
    commander = Commander[int]()
    results: list[int | None] = []
    thread = threading.Thread(target=lambda: results.append(commander.run()))
    thread.start()
    while not commander.running_status:
        time.sleep(0.001)
    with pytest.raises(CommanderAlreadyRunningError):
        commander.run()
    commander.exit(7)
    assert not commander.running_status
    assert commander.wait_for_exit() == 7
    commander.exit(8)
    thread.join()
    assert results == [7]
    with pytest.raises(CommanderNotRunError):
        commander.put_job_threadsafe(Count([0]))


def test_run_auto_joins_a_running_commander() -> None:
    commander = Commander[None]()
    counts = [0]
    assert commander.run_auto(Count(counts)) is True
    thread = started(commander)
    assert commander.run_auto([Count(counts), Count(counts)]) is False
    while counts[0] < 3:
        time.sleep(0.001)
    commander.exit()
    thread.join()
    assert counts == [3]


def test_eight_threads_put_a_thousand_jobs_each_and_all_run() -> None:
    commander = Commander[None]()
    counts = [0]
    runner = started(commander)

    def put() -> None:
        for _ in range(1_000):
            commander.put_job_threadsafe(Count(counts))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not commander.is_empty():
        time.sleep(0.001)
    assert counts == [8_000]
    commander.exit()
    runner.join()


def test_run_auto_from_many_threads_loses_nothing_at_the_ends() -> None:
    """The commander ends by itself again and again while others hand it Jobs."""
    commander = Commander[None]()
    counts = [0]

    def put() -> None:
        for _ in range(100):
            commander.run_auto(Count(counts))

    threads = [threading.Thread(target=put) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    commander.wait_for_exit()
    assert counts == [600]
    assert commander.is_empty()


def test_jobs_that_wait_at_the_end_are_kept_for_a_run_without_new_queue() -> None:
    counts = [0]
    waiting = [Count(counts), Count(counts)]
    commander = Commander[str]()
    assert commander.run([Leave(), *waiting]) == "bye"
    assert counts == [0]
    assert not commander.is_empty()
    assert [job.state for job in waiting] == ["PENDING", "PENDING"]
    commander.run(auto_exit=True, new_queue=False)
    assert counts == [2]
    told: list[str] = []
    dropped = Count(counts)
    dropped.add_callback_functions("at_terminate", {"function": lambda: told.append("dropped")})
    commander.run([Leave(), dropped])
    commander.run(auto_exit=True)
    assert counts == [2]
    assert (dropped.state, told) == ("TERMINATED", ["dropped"])


def test_exit_lets_the_running_job_finish_within_the_grace_and_cancels_handlers() -> None:
    log: list[str] = []

    @handler(PASS_WORD)
    async def long(self_handler: HandlerCoroutine[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            log.append("handler gone")

    class Busy(Job):
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds

        @tasker(PASS_WORD)
        async def task(self) -> None:
            self.call_handler(long())
            await asyncio.sleep(self.seconds)
            log.append("job done")

    for seconds, expected in ((0.1, ["job done", "handler gone"]), (60, ["handler gone"])):
        log.clear()
        commander = Commander[None](exit_grace_seconds=0.3)
        job = Busy(seconds)
        thread = started(commander, job)
        time.sleep(0.03)
        commander.exit()
        thread.join()
        assert log == expected
        assert job.state == "TERMINATED", "its handler was still there"
        assert commander.is_empty()


def test_work_that_does_not_heed_its_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    @handler(PASS_WORD)
    async def stubborn(self_handler: HandlerCoroutine[Any]) -> None:
        for _ in range(40):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)

    class Start(Job):
        @tasker(PASS_WORD)
        async def task(self) -> HandlerCoroutine[Any]:
            await self.exit_commander("left")
            return stubborn()

    async def main() -> None:
        commander = Commander[str](exit_grace_seconds=0.1)
        begin = time.monotonic()
        assert await commander.run_async(Start()) == "left"
        assert time.monotonic() - begin < 1.5
        assert commander.is_empty()

    with caplog.at_level(logging.ERROR, logger="tenuto.flow"):
        asyncio.run(main())
    assert "does not heed" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through_and_the_commander_can_run_again(error: type[BaseException]) -> None:
    class Interrupt(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            raise error

    @handler(PASS_WORD)
    async def interrupt(self_handler: HandlerCoroutine[Any]) -> None:
        raise error

    class Calls(Job):
        @tasker(PASS_WORD)
        async def task(self) -> HandlerCoroutine[Any]:
            return interrupt()

    commander = Commander[None]()
    counts = [0]
    for job in (Interrupt(), Calls()):
        with pytest.raises(error):
            commander.run([job, Count(counts)])
        assert not commander.running_status
    commander.run(Count(counts), auto_exit=True)
    assert counts[0] >= 1


def test_an_interrupt_of_the_end_leaves_nothing_behind() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    class Twice(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            for moment in ("at_terminate", "at_exception"):
                self.add_callback_functions(moment, {"function": interrupt})
            self.call_handler(blocks_for_long())
            await asyncio.sleep(0)
            raise ValueError

    @handler(PASS_WORD)
    async def blocks_for_long(self_handler: HandlerCoroutine[Any]) -> None:
        self_handler.add_callback_functions("at_terminate", {"function": interrupt})
        await asyncio.sleep(60)

    commander = Commander[None](logger=get_null_logger())
    with pytest.raises(KeyboardInterrupt):
        commander.run(Twice(), auto_exit=True)
    assert commander.is_empty()
    counts = [0]
    commander.run(Count(counts), auto_exit=True)
    assert counts == [1]


def test_a_commander_that_has_ended_is_let_go() -> None:
    commander = Commander[None](blocked_after_seconds=0.05)
    commander.run(Count([0]), auto_exit=True)
    gone = weakref.ref(commander)
    del commander
    deadline = time.monotonic() + 5
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert gone() is None


async def test_run_async_inside_a_loop() -> None:
    commander = Commander[str]()
    counts = [0]
    assert await commander.run_async([Count(counts), Leave()]) == "bye"
    assert await commander.run_async(Count(counts), auto_exit=True) is None
    assert counts == [2]
    running = asyncio.create_task(commander.run_async())
    await asyncio.sleep(0.01)
    with pytest.raises(CommanderAlreadyRunningError):
        await commander.run_async()
    await asyncio.to_thread(commander.put_job_threadsafe, Count(counts))
    while not commander.is_empty():  # noqa: ASYNC110 - another thread hands it in
        await asyncio.sleep(0.001)
    assert counts == [3]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not commander.running_status
    running = asyncio.create_task(commander.run_async())
    await asyncio.sleep(0.01)
    commander.exit("from the loop")
    assert await running == "from the loop"


async def test_two_commanders_in_one_loop() -> None:
    counts = [0]
    await asyncio.gather(
        *(Commander[None]().run_async([Count(counts)] * 3, auto_exit=True) for _ in range(5))
    )
    assert counts == [15]


def test_nodes_may_be_used_from_other_threads() -> None:
    """put_job, call_handler and close in a thread are carried out in the commander's own."""
    log: list[Any] = []

    @handler(PASS_WORD)
    async def note(self_handler: HandlerCoroutine[Any]) -> None:
        log.append(threading.get_ident())

    @handler(PASS_WORD)
    async def wait(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(60)

    class Delegates(Job):
        @tasker(PASS_WORD)
        async def task(self) -> HandlerCoroutine[Any]:
            return delegate(self)

    @handler(PASS_WORD)
    async def delegate(self_handler: HandlerCoroutine[Any], job: Job) -> None:
        endless = wait()
        self_handler.call_handler(endless)

        def elsewhere() -> None:
            self_handler.call_handler(note())
            asyncio.run(self_handler.put_job(Count(log_counts)))
            asyncio.run(endless.close_task_node())

        await asyncio.to_thread(elsewhere)
        log.append(endless.state)

    log_counts = [0]
    Commander[None]().run(Delegates(), auto_exit=True)
    assert log_counts == [1]
    assert sorted(map(str, log)) == sorted([str(threading.get_ident()), "TERMINATED"])


def test_the_queue_has_a_bound() -> None:
    commander = Commander[None](max_waiting_jobs=3, logger=get_null_logger())
    counts = [0]

    class Greedy(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            for _ in range(10):
                await self.put_job(Count(counts))

    greedy = Greedy()
    commander.run(greedy, auto_exit=True)
    assert isinstance(greedy.exception, TooManyJobsError)
    assert counts == [3]


class Blocks(Job):
    @tasker(PASS_WORD)
    async def task(self) -> HandlerCoroutine[Any]:
        time.sleep(0.4)  # noqa: ASYNC251 - the oath is broken on purpose
        return blocks()


@handler(PASS_WORD)
async def blocks(self_handler: HandlerCoroutine[Any]) -> None:
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251 - the oath is broken on purpose


def test_the_watchdog_names_who_blocks(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Blockage] = []
    commander = Commander[None](blocked_after_seconds=0.1, on_blocked=seen.append)
    job = Blocks()
    with caplog.at_level(logging.WARNING, logger="tenuto.flow"):
        commander.run(job, auto_exit=True)
    assert [blockage.node for blockage in seen] == [job, job.result]
    assert list(commander.blockages) == seen
    assert all(0.1 < blockage.seconds < 0.4 for blockage in seen)
    assert "time.sleep(0.4)" in seen[0].stack
    assert "Blocks" in caplog.text


def test_the_watchdog_can_be_off_and_does_not_mind_waiting() -> None:
    off = Commander[None](blocked_after_seconds=None)
    off.run(Blocks(), auto_exit=True)
    assert not off.blockages

    class Waits(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await asyncio.sleep(0.4)

    waiting = Commander[None](blocked_after_seconds=0.2)
    waiting.run(Waits(), auto_exit=True)
    assert not waiting.blockages

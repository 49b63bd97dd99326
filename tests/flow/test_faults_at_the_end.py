"""Ends, cancellation and handlers that must not hang. Every test here ends within five seconds."""

import asyncio
import threading
from typing import Any

import pytest
from tests.flow.shared import Note, nothing, silent

from tenuto.flow import (
    PASS_WORD,
    BasicJob,
    Callback,
    CommanderNotRunError,
    CycleError,
    HandlerCoroutine,
    HandlerTerminatedError,
    Job,
    NestedLoopError,
    NotHandlerError,
    handler,
)

pytestmark = pytest.mark.timeout(5)


# --- ends -----------------------------------------------------------------------------------------------


def test_a_second_run_after_exit_commander() -> None:
    @handler(PASS_WORD)
    async def endless(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(60)

    notes: list[str] = []

    async def leave(job: Job) -> None:
        job.call_handler(endless())
        await job.put_job(Note("never", notes))
        await job.exit_commander("first result")

    commander = silent()
    assert commander.run(Note("leave", notes, leave)) == "first result"
    assert commander.run(Note("again", notes), auto_exit=True) is None
    assert notes == ["leave", "again"]
    assert commander.is_empty()


def test_exit_inside_a_job_a_handler_and_a_callback_does_not_wait_for_itself() -> None:
    @handler(PASS_WORD)
    async def leave(self_handler: HandlerCoroutine[Any]) -> None:
        self_handler.commander.exit("handler")

    last = Note("last", [])
    last.add_callback_functions("at_job_end", {"function": lambda: last.commander.exit("callback")})
    commander = silent()
    assert commander.run(Note("job", [], lambda job: job.commander.exit("job"))) == "job"
    assert commander.run(BasicJob(leave())) == "handler"
    assert commander.run(last) == "callback"


def test_what_would_block_the_loop_that_has_to_work_is_refused() -> None:
    failures: list[type[BaseException]] = []

    def misuse(job: Job) -> None:
        for call in (
            job.commander.wait_for_exit,
            lambda: job.commander.run(Note("no", [])),
            lambda: silent().run(Note("no", [])),
            lambda: silent().run_auto(Note("no", [])),
        ):
            try:
                call()
            except NestedLoopError as error:
                failures.append(type(error))

    commander = silent()
    commander.run(Note("job", [], misuse), auto_exit=True)
    assert failures == [NestedLoopError] * 4
    assert not commander.running_status


# --- handlers -------------------------------------------------------------------------------------------


def test_a_handler_can_be_awaited_in_a_job_and_a_handler() -> None:
    @handler(PASS_WORD)
    async def outer(self_handler: HandlerCoroutine[Any]) -> list[Any]:
        inner = nothing()
        both = await asyncio.gather(inner, nothing())
        return [*both, inner.parent is self_handler, await inner]

    results: list[Any] = []

    async def wait(job: Job) -> None:
        call = outer()
        results.append(await call)
        results.append(call.parent is job)

    job = Note("job", [], wait)
    silent().run(job, auto_exit=True)
    assert results == [["done", "done", True, "done"], True]
    assert job.state == "COMPLETED"


async def test_a_handler_can_be_awaited_without_a_commander() -> None:
    call = nothing()
    assert await call == "done"
    assert call.state == "COMPLETED"
    assert await call == "done"


def test_a_handler_that_fails_raises_where_it_is_awaited_and_not_where_it_is_called() -> None:
    @handler(PASS_WORD)
    async def fail(self_handler: HandlerCoroutine[Any]) -> None:
        raise ValueError("no")

    async def wait(job: Job) -> None:
        await fail()

    awaiting, calling = Note("a", [], wait), Note("b", [], lambda job: job.call_handler(fail()))
    silent().run([awaiting, calling], auto_exit=True)
    assert awaiting.state == "EXCEPTION"
    assert isinstance(awaiting.exception, ValueError)
    assert calling.state == "COMPLETED"


@pytest.mark.parametrize("way", ["terminate_task_node", "close_task_node"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_closed_handler_has_no_later_effect(way: str, stubborn: bool) -> None:
    effects: list[str] = []
    moments: list[str] = []

    @handler(PASS_WORD)
    async def grandchild(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(0.1)
        effects.append("grandchild")

    @handler(PASS_WORD)
    async def child(self_handler: HandlerCoroutine[Any]) -> None:
        self_handler.call_handler(grandchild())
        await self_handler.put_job(Note("queued", effects))
        try:
            await asyncio.sleep(0.1)
            effects.append("child")
        except asyncio.CancelledError:
            if not stubborn:
                raise
        self_handler.call_handler(grandchild())
        await self_handler.put_job(Note("put too late", effects), parent=self_handler.commander)
        await self_handler.exit_commander("too late")

    async def close(job: Job) -> None:
        call = child()
        for which in ("at_terminate", "at_handler_end", "at_exception"):
            call.add_callback_functions(which, {"function": moments.append, "params": {"args": (which,)}})
        job.call_handler(call)
        await asyncio.sleep(0.02)
        await getattr(call, way)()
        moments.append(call.state)
        await asyncio.sleep(0.2)

    job = Note("job", [], close)
    assert silent().run(job, auto_exit=True) is None
    assert effects == []
    assert moments == ["at_terminate", "TERMINATED"]
    assert job.state == "COMPLETED"


def test_a_cancelled_handler_is_terminated_not_completed() -> None:
    moments: list[str] = []

    @handler(PASS_WORD)
    async def wait(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(60)

    @handler(PASS_WORD)
    async def cancel_itself(self_handler: HandlerCoroutine[Any]) -> None:
        raise asyncio.CancelledError

    calls = [wait(), wait(), cancel_itself()]

    async def cancel(job: Job) -> None:
        for call in calls:
            call.add_callback_functions("at_terminate", {"function": lambda: moments.append("terminated")})
            call.add_callback_functions("at_handler_end", {"function": lambda: moments.append("ended")})
        before_its_first_step = job.commander._call_handler(calls[0], job)
        assert before_its_first_step is not None
        before_its_first_step.cancel()
        while_it_waits = job.commander._call_handler(calls[1], job)
        assert while_it_waits is not None
        job.call_handler(calls[2])
        await asyncio.sleep(0.01)
        while_it_waits.cancel()

    job = Note("job", [], cancel)
    silent().run(job, auto_exit=True)
    assert [call.state for call in calls] == ["TERMINATED"] * 3
    assert moments == ["terminated"] * 3
    assert job.state == "COMPLETED"


def test_awaiting_a_handler_that_is_closed_raises() -> None:
    @handler(PASS_WORD)
    async def wait(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(60)

    raised: list[BaseException] = []

    async def watch(job: Job) -> None:
        call = wait()
        asyncio.get_running_loop().call_later(0.01, lambda: asyncio.ensure_future(call.close_task_node()))
        try:
            await call
        except HandlerTerminatedError as error:
            raised.append(error)

    silent().run(Note("job", [], watch), auto_exit=True)
    assert len(raised) == 1


def test_handlers_that_await_each_other_are_refused() -> None:
    calls: list[HandlerCoroutine[Any]] = []

    @handler(PASS_WORD)
    async def follow(self_handler: HandlerCoroutine[Any], number: int) -> None:
        await calls[number]

    @handler(PASS_WORD)
    async def child(self_handler: HandlerCoroutine[Any]) -> None:
        await self_handler.parent  # type: ignore[misc]  # that is the point

    @handler(PASS_WORD)
    async def parent(self_handler: HandlerCoroutine[Any]) -> None:
        await child()

    calls += [follow(1), follow(2), follow(0), parent()]

    async def start(job: Job) -> None:
        for call in calls:
            job.call_handler(call)

    silent().run(Note("job", [], start), auto_exit=True)
    assert [call.state for call in calls] == ["EXCEPTION"] * 4
    assert all(isinstance(call.exception, CycleError) for call in calls)


def test_a_commander_that_was_closed_runs_again() -> None:
    notes: list[str] = []
    commander = silent()
    commander.run(Note("close", notes, lambda job: job.commander.close_task_node()), auto_exit=True)
    again = Note("again", notes)
    commander.run(again, auto_exit=True)
    assert (notes, again.state) == (["close", "again"], "COMPLETED")


def test_handlers_in_local_and_nested_classes() -> None:
    class Outer:
        class Inner:
            @handler(PASS_WORD)
            async def method(self, self_handler: HandlerCoroutine[Any], value: int) -> tuple[bool, bool, int]:
                return isinstance(self, Outer.Inner), isinstance(self_handler, HandlerCoroutine), value

            @classmethod
            @handler(PASS_WORD)
            async def of_class(
                cls, self_handler: HandlerCoroutine[Any], value: int
            ) -> tuple[bool, bool, int]:
                return cls is Outer.Inner, isinstance(self_handler, HandlerCoroutine), value

            @staticmethod
            @handler(PASS_WORD)
            async def static(self_handler: HandlerCoroutine[Any], value: int) -> tuple[bool, bool, int]:
                return True, isinstance(self_handler, HandlerCoroutine), value

    async def main() -> None:
        inner = Outer.Inner()
        for call in (
            inner.method(1),
            Outer.Inner.method(inner, 1),
            inner.of_class(1),
            Outer.Inner.of_class(1),
        ):
            assert await call == (True, True, 1)
        for call in (inner.static(1), Outer.Inner.static(1)):
            assert await call == (True, True, 1)

    asyncio.run(main())


def test_a_commander_that_does_not_run_refuses_jobs() -> None:
    commander = silent()
    for use in (
        lambda: commander.put_job_threadsafe(Note("x", [])),
        lambda: commander.call_handler_threadsafe(nothing()),
    ):
        with pytest.raises(CommanderNotRunError):
            use()
    with pytest.raises(NotHandlerError):
        commander.call_handler_threadsafe("x")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(TypeError):
        Callback(at_job_begin=[])  # type: ignore[call-arg]  # that is the point


@pytest.mark.parametrize("moment", ["at_job_start", "at_job_end"])
def test_a_callback_that_never_returns_does_not_hold_the_exit(moment: Any) -> None:
    entered = threading.Event()

    async def forever() -> None:
        entered.set()
        await asyncio.sleep(60)

    job = Note("job", [])
    job.add_callback_functions(moment, {"function": forever})
    commander = silent(exit_grace_seconds=0.1)
    runner = threading.Thread(target=commander.run, args=(job,))
    runner.start()
    entered.wait()
    commander.exit()
    runner.join(4)
    assert not runner.is_alive()
    assert commander.is_empty()
    notes: list[str] = []
    commander.run(Note("again", notes), auto_exit=True)
    assert notes == ["again"]

"""Where the flow must not hang, lose or corrupt work. Every test here ends within five seconds."""

import asyncio
import threading
from typing import Any

import pytest
from tests.flow.shared import Note, nothing, silent

from tenuto.flow import (
    PASS_WORD,
    BasicJob,
    CycleError,
    HandlerCoroutine,
    Job,
    NotHandlerError,
    NotTaskerError,
    handler,
    tasker,
)

pytestmark = pytest.mark.timeout(5)


# --- callbacks that raise -------------------------------------------------------------------------------


def boom(*_: Any, **__: Any) -> None:
    raise RuntimeError("callback")


async def boom_later() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("callback")


async def cancelled_inside() -> None:
    raise asyncio.CancelledError


class Outcome(BaseException):
    """As test libraries raise them: no Exception, and not meant for those in between."""


def outcome() -> None:
    raise Outcome


async def closes() -> None:
    raise GeneratorExit


@pytest.mark.parametrize(
    "bad", [boom, boom_later, cancelled_inside, None, lambda wrong: wrong, outcome, closes]
)
@pytest.mark.parametrize("which", ["at_job_start", "at_job_end", "at_exception", "at_commander_end"])
def test_a_callback_of_a_job_that_raises_stops_nothing(which: Any, bad: Any) -> None:
    commander = silent()
    notes: list[str] = []
    told: list[str] = []

    def fail(job: Job) -> None:
        if which == "at_exception":
            raise ValueError("the job")

    first = Note("first", notes, fail)
    first.add_callback_functions(which, [{"function": bad}, {"function": lambda: told.append(which)}])
    assert commander.run([first, Note("second", notes)], auto_exit=True) is None
    assert notes == ["first", "second"]
    assert told == [which], "the entries behind the bad one run"
    assert first.state == ("EXCEPTION" if which == "at_exception" else "COMPLETED")
    (failure,) = commander.callback_failures
    assert failure.which == which
    assert not commander.running_status
    assert commander.is_empty()


@pytest.mark.parametrize("bad", [boom, boom_later, cancelled_inside, outcome, closes])
@pytest.mark.parametrize("which", ["at_handler_start", "at_handler_end", "at_exception", "at_terminate"])
def test_a_callback_of_a_handler_that_raises_stops_nothing(which: Any, bad: Any) -> None:
    commander = silent()
    ended: list[str] = []

    @handler(PASS_WORD)
    async def work(self_handler: HandlerCoroutine[Any]) -> None:
        if which == "at_exception":
            raise ValueError("the handler")
        if which == "at_terminate":
            await self_handler.close_task_node()

    call = work()
    call.add_callback_functions(which, {"function": bad})
    job = BasicJob(call)
    job.add_callback_functions("at_job_end", {"function": lambda: ended.append(job.state)})
    commander.run(job, auto_exit=True)
    assert ended == ["ACTIVE"], "the parent ends, and is told before its state says so"
    assert job.state == "COMPLETED"
    assert call.state == {"at_exception": "EXCEPTION", "at_terminate": "TERMINATED"}.get(which, "COMPLETED")
    assert [failure.which for failure in commander.callback_failures] == [which]


def test_a_cancellation_ends_the_one_callback_that_it_meets() -> None:
    told: list[str] = []

    async def wait() -> None:
        await asyncio.sleep(60)

    call = nothing()
    call.add_callback_functions(
        "at_handler_end", [{"function": wait}, {"function": lambda: told.append("next")}]
    )

    async def cancel(job: Job) -> None:
        task = job.commander._call_handler(call, job)
        assert task is not None
        await asyncio.sleep(0.01)
        task.cancel()

    commander = silent()
    job = Note("job", [], cancel)
    commander.run(job, auto_exit=True)
    assert told == ["next"]
    assert (call.state, job.state) == ("COMPLETED", "COMPLETED")
    assert [failure.which for failure in commander.callback_failures] == ["at_handler_end"]


@pytest.mark.parametrize("error", [Outcome, GeneratorExit, StopIteration])
def test_work_may_raise_what_is_no_exception(error: type[BaseException]) -> None:
    @handler(PASS_WORD)
    async def fail(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(0)
        raise error

    def raise_it(job: Job) -> None:
        raise error

    notes: list[str] = []
    call, job = fail(), Note("job", notes, raise_it)
    silent().run([job, BasicJob(call), Note("next", notes)], auto_exit=True)
    assert (call.state, job.state) == ("EXCEPTION", "EXCEPTION")
    assert notes == ["job", "next"]


# --- Jobs that are none ---------------------------------------------------------------------------------


class Untasked(Job):
    async def task(self) -> None:
        raise AssertionError("must not run")


def test_a_task_without_tasker_is_refused_before_anything_runs() -> None:
    commander = silent()
    notes: list[str] = []
    bad = Untasked()
    with pytest.raises(NotTaskerError, match="Untasked"):
        commander.run([Note("first", notes), bad], auto_exit=True)
    assert notes == []
    assert bad.state == "EXCEPTION"
    assert isinstance(bad.exception, NotTaskerError)
    assert not commander.running_status
    commander.run(Note("second", notes), auto_exit=True)
    assert notes == ["second"]


def test_a_task_without_tasker_is_refused_to_the_job_that_puts_it() -> None:
    notes: list[str] = []
    told: list[str] = []
    first = Note("first", notes, lambda job: job.put_job(Untasked()))
    first.add_callback_functions("at_exception", {"function": lambda: told.append("told")})
    silent().run([first, Note("second", notes)], auto_exit=True)
    assert notes == ["first", "second"]
    assert isinstance(first.exception, NotTaskerError)
    assert told == ["told"]


@pytest.mark.parametrize("thing", [5, "job", Note, object(), nothing])
def test_what_is_no_job_or_handler_is_refused(thing: Any) -> None:
    commander = silent()
    with pytest.raises(NotTaskerError):
        commander.run([thing], auto_exit=True)
    notes: list[str] = []
    jobs = [
        Note("put", notes, lambda job: job.put_job(thing)),
        Note("call", notes, lambda job: job.call_handler(thing)),
    ]
    commander.run(jobs, auto_exit=True)
    assert isinstance(jobs[0].exception, NotTaskerError)
    assert isinstance(jobs[1].exception, NotHandlerError)


def test_a_job_without_super_init_runs_all_the_same() -> None:
    class Bare(Job):
        def __init__(self, notes: list[str]) -> None:
            self.notes = notes

        @tasker(PASS_WORD)
        async def task(self) -> HandlerCoroutine[Any]:
            self.notes.append("ran")
            return nothing()

    notes: list[str] = []
    job = Bare(notes)
    job.add_callback_functions("at_job_end", {"function": lambda: notes.append("ended")})
    silent().run(job, auto_exit=True)
    assert notes == ["ran", "ended"]
    assert job.state == "COMPLETED"


# --- where a Job belongs --------------------------------------------------------------------------------


def test_a_job_that_another_commander_ran_runs_here() -> None:
    notes: list[str] = []
    job = Note("job", notes)
    first, second = silent(), silent()
    first.run(job, auto_exit=True)
    second.run(job, auto_exit=True)
    assert notes == ["job", "job"]
    assert job.commander is second
    assert job.state == "COMPLETED"


def test_a_job_that_belongs_to_another_running_commander_runs_there_and_is_waited_for() -> None:
    notes: list[str] = []
    threads: list[int] = []
    home = silent()
    runner = threading.Thread(target=home.run)
    runner.start()
    while not home.running_status:
        pass
    theirs = Note("theirs", notes, lambda _: threads.append(threading.get_ident()))
    theirs._commander = home
    ours = Note("ours", notes, lambda job: job.put_job(theirs))
    ours.add_callback_functions("at_job_end", {"function": lambda: notes.append("end of ours")})
    silent().run(ours, auto_exit=True)
    assert notes == ["ours", "theirs", "end of ours"]
    assert threads == [runner.ident]
    home.exit()
    runner.join()


def test_a_commander_that_ends_gives_up_the_jobs_lent_to_it() -> None:
    home = silent()
    started = threading.Event()

    async def stay(job: Job) -> None:
        started.set()
        await asyncio.sleep(60)

    runner = threading.Thread(target=home.run, args=(Note("stay", [], stay),))
    runner.start()
    started.wait()
    theirs = Note("theirs", [])
    theirs._commander = home
    threading.Timer(0.1, home.exit).start()
    ours = Note("ours", [], lambda job: job.put_job(theirs))
    silent().run(ours, auto_exit=True)
    assert ours.state == "COMPLETED"
    runner.join()


def test_a_job_that_is_put_twice_runs_twice() -> None:
    notes: list[str] = []
    job = Note("job", notes)
    job.add_callback_functions("at_job_end", {"function": lambda: notes.append("end")})
    commander = silent()
    commander.run([job, job, Note("other", notes), job], auto_exit=True)
    assert sorted(notes) == ["end", "end", "end", "job", "job", "job", "other"]
    assert notes[:2] == ["job", "end"], "one run at a time"
    assert commander.is_empty()


def test_a_job_under_two_parents_lets_both_end() -> None:
    notes: list[str] = []
    shared = Note("shared", notes, lambda _: nothing())
    parents = [Note(name, notes, lambda job: job.put_job(shared)) for name in ("one", "two")]
    silent().run(parents, auto_exit=True)
    assert notes.count("shared") == 2
    assert [parent.state for parent in parents] == ["COMPLETED", "COMPLETED"]


def test_a_job_that_would_wait_for_itself_is_refused() -> None:
    job = Note("job", [], lambda job: job.put_job(job))
    silent().run(job, auto_exit=True)
    assert isinstance(job.exception, CycleError)


def test_jobs_that_would_wait_for_each_other_are_refused() -> None:
    """Each is put once more under the other while both run: the first may wait, the second would for ever."""
    notes: list[str] = []
    jobs: dict[str, Note] = {}
    both_run = asyncio.Event()

    @handler(PASS_WORD)
    async def put(self_handler: HandlerCoroutine[Any], other: str) -> None:
        await both_run.wait()
        try:
            await self_handler.put_job(jobs[other])
        except CycleError:
            notes.append(f"{other} refused")

    def then(other: str) -> Any:
        def call(job: Note) -> None:
            if len(notes) <= 2:  # its first run
                job.call_handler(put(other))
            if len(notes) == 2:
                both_run.set()

        return call

    jobs |= {name: Note(name, notes, then(other)) for name, other in (("one", "two"), ("two", "one"))}
    silent().run(list(jobs.values()), auto_exit=True)
    assert notes in (["one", "two", "one refused", "two"], ["one", "two", "two refused", "one"])
    assert [job.state for job in jobs.values()] == ["COMPLETED", "COMPLETED"]

"""Workers: taking, renewing, losing and handing over; and that no fault of one thread stops the others."""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import Ledger, at_work, counting, held, rest, until

from tenuto import Agent, ConfigurationError, Runtime, Settings, StoreError, ThreadState, limits, tool
from tenuto.clock import FakeClock
from tenuto.errors import LeaseLost
from tenuto.events import CallFinished, MessageReceived, ThreadId
from tenuto.messages import Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import Claim
from tenuto.store.base import Store


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


async def test_it_takes_no_more_threads_than_its_concurrency_and_all_in_the_end() -> None:
    go, now, most = asyncio.Event(), 0, 0

    async def answer(_: Request) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1
        return "done"

    agent, settings = Agent("ops"), Settings(concurrency=3)
    async with Runtime(
        [agent], "sqlite://:memory:", model=ScriptedModel(answer), settings=settings
    ) as runtime:
        threads = [await runtime.start("ops", "go") for _ in range(12)]
        await _until(lambda: now == 3)
        go.set()
        for thread in threads:
            assert (await rest(runtime, thread)).answer == "done"
    assert most == 3


async def test_it_takes_no_more_threads_of_an_agent_than_its_limit() -> None:
    go = asyncio.Event()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def answering(name: str) -> ScriptedModel:
        async def answer(_: Request) -> str:
            now[name] += 1
            most[name] = max(most[name], now[name])
            await go.wait()
            now[name] -= 1
            return "done"

        return ScriptedModel(answer)

    agents = [Agent(name, model=answering(name)) for name in ("slow", "quick")]
    settings = Settings(concurrency=6, agent_limits={"slow": 2})
    async with Runtime(agents, "sqlite://:memory:", settings=settings) as runtime:
        threads = [await runtime.start(name, "go") for name in ["slow"] * 8 + ["quick"] * 8]
        await _until(lambda: now == {"slow": 2, "quick": 4})
        go.set()
        for thread in threads:
            assert (await rest(runtime, thread)).answer == "done"
    assert most["slow"] == 2


@pytest.mark.parametrize("limit", [{"other": 1}, {"ops": 0}])
def test_a_limit_is_of_an_agent_that_runs_here(limit: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        Runtime([Agent("ops")], "sqlite://:memory:", settings=Settings(agent_limits=limit))


async def test_a_lease_is_renewed_for_as_long_as_a_call_runs(tmp_path: Path) -> None:
    ledger, other = Ledger(), Ledger()
    options: Any = {"database": f"sqlite:///{tmp_path}/t.db", "lease": 1.0}
    async with at_work([held(ledger, "pay", "once")], [call("pay"), "done"], **options) as one:
        thread = await one.start("ops", "go")
        await ledger.entered.wait()
        renewals = []
        renew = one.store.renew

        async def renewing(*arguments: Any, **options: Any) -> Any:
            renewals.append(await renew(*arguments, **options))
            return renewals[-1]

        one.store.renew = renewing  # type: ignore[method-assign]  # counted
        async with at_work([held(other, "pay", "once")], [], **options):
            await _until(lambda: len(renewals) >= 4)  # a third of a lease each
            assert not other
            ledger.go.set()
            assert (await rest(one, thread)).answer == "done"
    assert ledger == {"pay": 1}


async def test_it_dispatches_nothing_once_its_lease_may_have_ended() -> None:
    """By its own monotonic clock, whatever the store would say."""
    ledger, clock = Ledger(), FakeClock()

    async def answer(_: Request) -> Any:
        clock.elapsed_seconds += limits.LEASE_SECONDS  # a machine that slept through the model call
        return call("pay")

    agent, model = Agent("ops", tools=[counting(ledger, "pay", "once")]), ScriptedModel(answer)
    async with Runtime([agent], "sqlite://:memory:", model=model, clock=clock) as runtime:
        thread = await runtime.start("ops", "go")
        await _until(lambda: bool(model.requests) and not runtime.worker._holders)
        assert not ledger
        assert (await runtime.state(thread)).calls[0].phase == "planned"


async def test_a_body_that_stood_in_the_way_past_the_lease_lets_no_other_begin() -> None:
    """Both were dispatched in time; the second one's turn comes when another worker may be at it."""
    ledger, clock = Ledger(), FakeClock()

    @tool(effect="idempotent")
    async def block() -> None:
        clock.elapsed_seconds += limits.LEASE_SECONDS  # as a call that does not give way to the loop would

    agent = Agent("ops", tools=[block, counting(ledger, "pay", "once")])
    model = ScriptedModel([[call("block"), call("pay")]])
    async with Runtime([agent], "sqlite://:memory:", model=model, clock=clock) as runtime:
        thread = await runtime.start("ops", "go")
        await _until(lambda: bool(model.requests) and not runtime.worker._holders)
        assert not ledger
        assert [call.phase for call in (await runtime.state(thread)).calls] == ["started", "started"]


async def test_what_it_learns_of_a_lost_lease_while_it_records_stops_its_calls_at_once() -> None:
    """Recorded in time; the answer comes when the lease is over and another worker has the thread."""
    clock, stopped, recorded = FakeClock(), asyncio.Event(), list[str]()

    @tool(effect="once")
    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @tool(effect="idempotent")
    async def end() -> str:
        await asyncio.sleep(0.01)
        return "done"

    agent, model = Agent("ops", tools=[last, end]), ScriptedModel([[call("last"), call("end")]])
    async with Runtime([agent], "sqlite://:memory:", model=model, clock=clock) as runtime:
        append = runtime.store.append

        async def appending(thread_id: ThreadId, events: Any, **options: Any) -> Any:
            done = await append(thread_id, events, **options)
            if isinstance(events[0], CallFinished):
                clock.elapsed_seconds += limits.LEASE_SECONDS
                recorded.append(events[0].text)
            return done

        async def renewing(*_: Any, **__: Any) -> dict[ThreadId, int]:
            return {}

        runtime.store.append = appending  # type: ignore[method-assign]  # what it says comes late
        runtime.store.renew = renewing  # type: ignore[method-assign]  # another worker has the thread
        await runtime.start("ops", "go")
        async with asyncio.timeout(limits.LEASE_SECONDS / 4):  # sooner than the next renewal
            await stopped.wait()
    assert recorded == ["done"]


async def test_a_store_that_fails_for_a_while_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(limits, "RETRY_LATER_SECONDS", 0.02)
    failures = 0
    async with at_work([], ["done", "done"]) as runtime:
        claim, append = runtime.store.claim, runtime.store.append

        async def claiming(*arguments: Any, **options: Any) -> Any:
            nonlocal failures
            if failures < 3:
                failures += 1
                raise StoreError("disk full")
            return await claim(*arguments, **options)

        async def appending(*arguments: Any, **options: Any) -> Any:
            nonlocal failures
            if options.get("epoch") and failures < 5:
                failures += 1
                raise StoreError("disk full")
            return await append(*arguments, **options)

        runtime.store.claim = claiming  # type: ignore[method-assign]  # it fails at first
        runtime.store.append = appending  # type: ignore[method-assign]  # and so does this
        thread = await runtime.start("ops", "go")
        runtime.model._answers = iter(["done"] * 9)  # type: ignore[attr-defined]  # each failure asks anew
        assert (await rest(runtime, thread)).answer == "done"
        assert failures == 5


async def test_an_append_whose_outcome_is_unknown_is_recorded_once() -> None:
    async with at_work([], ["done"]) as runtime:
        append, lied = runtime.store.append, []

        async def appending(*arguments: Any, **options: Any) -> Any:
            done = await append(*arguments, **options)
            if not lied:
                lied.append(done)
                raise StoreError("commit failed", unknown=True)
            return done

        runtime.store.append = appending  # type: ignore[method-assign]  # it answers wrong, once
        thread = await runtime.start("ops", "go")
        assert (await rest(runtime, thread)).answer == "done"
        assert lied
        types = [type(entry.event).__name__ for entry in await runtime.events(thread)]
        assert types == ["ThreadStarted", "MessageReceived", "ModelReplied", "ThreadCompleted"]


async def test_one_poisoned_thread_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_LATER_SECONDS", 0.01)
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.02)

    def instructions(state: ThreadState) -> str:
        if state.metadata.get("broken"):
            raise LookupError("no template")
        return "Be exact."

    agent = Agent("ops", instructions)
    async with Runtime([agent], "sqlite://:memory:", model=ScriptedModel(lambda _: "done")) as runtime:
        broken = await runtime.start("ops", "go", metadata={"broken": True})
        for _ in range(5):
            assert (await rest(runtime, await runtime.start("ops", "go"))).answer == "done"
        state = await until(runtime, broken, "awaiting_answer")
        assert len(state.interrupts) == 1
        await runtime.cancel(broken, by="ana")
        assert (await until(runtime, broken, "cancelled")).interrupts == []


async def test_a_suspect_that_cannot_be_given_back_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(limits, "SUSPECT_DEATHS", 0)  # so is every thread
    agent, database = Agent("ops"), f"sqlite:///{tmp_path}/tenuto.db"
    async with Runtime([agent], database, settings=Settings(worker=False)) as runtime:
        threads = [await runtime.start("ops", "go") for _ in range(3)]
    refused: list[str] = []

    async def releasing(self: Store, claim: Claim, **options: Any) -> bool:
        if claim.thread_id not in refused and options["status"] == "running":
            refused.append(claim.thread_id)
            raise LeaseLost("another worker has it")
        return await release(self, claim, **options)

    release = Store.release
    monkeypatch.setattr(Store, "release", releasing)
    async with Runtime(
        [agent], database, model=ScriptedModel(lambda _: "done"), settings=Settings(lease_seconds=0.5)
    ) as runtime:
        for thread in threads:
            assert (await rest(runtime, thread)).answer == "done"
    assert len(refused) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_a_model_that_would_end_the_process_holds_up_its_thread_only(error: BaseException) -> None:
    def script(request: Request) -> Any:
        if "bad" in str(request.messages[-1]):
            raise error
        return "fine"

    async with at_work([], script) as runtime:
        bad = await runtime.start("ops", "bad")
        for _ in range(3):
            good = await runtime.start("ops", "good")
            assert (await runtime.wait(good, 10)).answer == "fine"
        assert (await runtime.state(bad)).ended is None
        await runtime.cancel(bad)
        assert (await runtime.wait(bad, 20)).status == "cancelled"


async def test_what_it_cannot_decode_it_leaves_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A newer version wrote it; this worker neither touches it nor spins."""
    path = tmp_path / "t.db"
    off = Settings(worker=False)
    async with Runtime([Agent("ops")], f"sqlite:///{path}", settings=off) as runtime:
        thread = await runtime.start("ops", "go")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET version = 99 WHERE seq = 2")
    connection.close()
    asked = ScriptedModel(lambda _: "done")
    with caplog.at_level(logging.WARNING, "tenuto.worker"):
        async with Runtime([Agent("ops")], f"sqlite:///{path}", model=asked) as runtime:
            await _until(lambda: "left to a newer worker" in caplog.text)
            assert (await rest(runtime, await runtime.start("ops", "another"))).answer == "done"
            row = await runtime.store.thread(thread)
            assert row.ready_at_ms is not None
            assert row.ready_at_ms > runtime.store.now_ms()
    assert caplog.text.count("left to a newer worker") == 1
    assert len(asked.requests) == 1


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("body = X'7b'", "stored event cannot be read"),
        ("body = NULL", "was erased"),
        ("version = 0", "version 0"),
    ],
)
async def test_what_is_damaged_is_not_said_to_be_newer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str, text: str
) -> None:
    path = tmp_path / "t.db"
    async with Runtime([Agent("ops")], f"sqlite:///{path}", settings=Settings(worker=False)) as runtime:
        thread = await runtime.start("ops", "go")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE events SET {damage} WHERE seq = 2")
    connection.close()
    model = ScriptedModel(lambda _: "done")
    with caplog.at_level(logging.WARNING, "tenuto.worker"):
        async with Runtime([Agent("ops")], f"sqlite:///{path}", model=model):
            await _until(lambda: "cannot go on" in caplog.text)
    assert f"thread {thread} cannot go on, here or elsewhere: event 2 of thread {thread}" in caplog.text
    assert text in caplog.text
    assert f"`tenuto verify {thread}` tells more" in caplog.text
    assert "newer" not in caplog.text


async def test_a_message_that_comes_as_a_thread_is_released_is_acted_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the very commit that releases it, so that the holder is told and nobody else."""
    monkeypatch.setattr(limits, "POLL_SECONDS", 30.0)

    @tool(effect="once", approval=True)
    async def pay() -> str:
        return "paid"

    options: Any = {"on_message_while_waiting": "withdraw"}
    async with at_work([pay], [call("pay"), "done"], **options) as runtime:
        release, sent = runtime.store.release, []

        async def releasing(*arguments: Any, **options: Any) -> Any:
            if sent:
                return await release(*arguments, **options)
            done = asyncio.ensure_future(release(*arguments, **options))
            await asyncio.sleep(0)
            sent.append(asyncio.ensure_future(_append(runtime, thread)))
            return await done

        runtime.store.release = releasing  # type: ignore[method-assign]  # somebody is very quick
        thread = await runtime.start("ops", "go")
        assert (await until(runtime, thread, "completed")).answer == "done"
        assert sent


async def _append(runtime: Runtime, thread: ThreadId) -> None:
    await runtime.store.append(thread, [MessageReceived("quick")], append_id="quick")


async def test_stopping_twice_and_closing_after_an_error_are_quick() -> None:
    ledger = Ledger()
    loop = asyncio.get_running_loop()
    started = 0.0
    agent = Agent("ops", tools=[held(ledger, "look", "read")])
    model = ScriptedModel([call("look")])
    with pytest.raises(LookupError):  # noqa: PT012 - the error is what closes it
        async with Runtime([agent], "sqlite://:memory:", model=model) as runtime:
            await runtime.start("ops", "go")
            await ledger.entered.wait()
            started = loop.time()
            raise LookupError
    assert loop.time() - started < 2.0, "an error does not wait for the grace"
    await runtime.worker.stop(0.0)
    assert not runtime.worker._holders


async def test_many_threads_at_once() -> None:
    ledger = Ledger()
    model = ScriptedModel(lambda r: "done" if len(r.messages) > 3 else call("look", n=1), record=False)
    async with at_work([counting(ledger, "look", "idempotent")], model) as runtime:
        threads = [await runtime.start("ops", "go") for _ in range(200)]
        states = await asyncio.gather(*(rest(runtime, thread) for thread in threads))
        assert {state.answer for state in states} == {"done"}
        assert ledger["look"] == 200

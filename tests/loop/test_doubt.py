"""Crashes and calls in doubt: nothing runs twice unless a person or `verify` says that it did not happen."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.loop.audit import early_starts
from tests.loop.world import Ledger, at_work, counting, decide, die, finished, held, of_type, rest, results

from tenuto import DidNotHappen, Happened, Runtime, Unknown, tool
from tenuto.events import CallFinished, CallStarted, InterruptRaised, InterruptResolved
from tenuto.models.scripted import ScriptedModel, call

LEASE = 0.4


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/t.db"


async def _die_in_call(database: str, tools: Any, ledger: Ledger, requests: Any) -> str:
    """Start a thread whose worker dies while the reply's calls run."""
    async with at_work(tools, [requests], database=database, lease=LEASE) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.reached(len(requests))
        die(runtime)
        ledger.go.set()
    return thread


@pytest.mark.parametrize(
    ("verb", "more", "told", "ran"),
    [
        ("happened", {"answer": "receipt 17"}, "receipt 17", 1),
        ("happened", {}, "It happened; a person checked.", 1),
        ("did_not_happen", {}, "pay 5", 2),
        ("drop", {"comment": "leave it"}, "They said: leave it", 1),
    ],
)
async def test_a_once_call_whose_worker_died_is_reviewed_by_a_person(
    database: str, verb: str, more: Any, told: str, ran: int
) -> None:
    ledger = Ledger()
    tools = [held(ledger, "pay", "once", timeout=0.3)]
    thread = await _die_in_call(database, tools, ledger, [call("pay", n=5)])
    async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
        state = await rest(runtime, thread)
        assert state.status == "awaiting_review"
        assert ledger["pay"] == 1
        assert state.interrupts[0].arguments == '{"n":5}'
        assert state.interrupts[0].options == ("happened", "did_not_happen", "drop")
        state = await decide(runtime, state, verb, **more)
        assert state.answer == "done"
        assert told in results(runtime.model.requests[0])[0]
        assert ledger["pay"] == ran


@pytest.mark.parametrize(
    ("verdict", "status", "told", "ran"),
    [
        (Happened("receipt 9"), "completed", "receipt 9", 1),
        (DidNotHappen(), "completed", "pay 5", 2),
        (Unknown("the bank is closed"), "awaiting_review", "the bank is closed", 1),
        (RuntimeError("no line"), "awaiting_review", "no line", 1),
        ("nonsense", "awaiting_review", "verify returned str", 1),
    ],
)
async def test_a_once_call_in_doubt_is_verified_first(
    database: str, verdict: Any, status: str, told: str, ran: int
) -> None:
    ledger = Ledger()
    asked: list[Any] = []

    def verify(arguments: Any, key: str) -> Any:
        asked.append((arguments, key))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    tools = [held(ledger, "pay", "once", timeout=0.3, verify=verify)]
    thread = await _die_in_call(database, tools, ledger, [call("pay", n=5)])
    async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
        state = await rest(runtime, thread)
        assert state.status == status
        first, *again = await of_type(runtime, thread, CallStarted)
        assert asked == [({"n": 5}, first.key)]
        assert ledger["pay"] == ran
        assert [one.key for one in again] == [first.key] * (ran - 1)
        if status == "completed":
            assert told in results(runtime.model.requests[0])[0]
        else:
            assert told in state.interrupts[0].prompt


async def test_verify_waits_for_the_recorded_deadline(database: str) -> None:
    ledger, seen = Ledger(), []

    async def verify(arguments: Any, key: str) -> Any:
        seen.append(runtime.store.now_ms())
        return Happened("yes")

    tools = [held(ledger, "pay", "once", timeout=1.5, verify=verify)]
    thread = await _die_in_call(database, tools, ledger, [call("pay")])
    async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
        assert (await rest(runtime, thread)).answer == "done"
        (started,) = await of_type(runtime, thread, CallStarted)
        assert seen[0] >= started.deadline_ms


async def test_read_and_idempotent_calls_simply_run_again(database: str) -> None:
    ledger, keys = Ledger(), []
    from tenuto import ToolContext

    @tool(effect="idempotent", timeout=0.3)
    async def put(context: ToolContext) -> str:
        keys.append((context.idempotency_key, context.attempt))
        ledger.enter("put")
        await ledger.go.wait()
        return "put"

    tools = [put, held(ledger, "look", "read")]
    thread = await _die_in_call(database, tools, ledger, [call("put"), call("look")])
    async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
        assert (await rest(runtime, thread)).answer == "done"
        assert ledger["put"] == 2
        assert keys[0][0] == keys[1][0]
        assert [attempt for _, attempt in keys] == [1, 2]
        assert not early_starts(await runtime.events(thread))


async def test_of_a_retry_that_fails_the_model_is_told_that_the_first_attempt_may_have_had_its_effect(
    database: str,
) -> None:
    ledger = Ledger()

    @tool(effect="idempotent", timeout=0.3)
    async def put() -> str:
        ledger.enter("put")
        if ledger["put"] > 1:
            raise ConnectionError("down")
        await ledger.go.wait()
        return "put"

    thread = await _die_in_call(database, [put], ledger, [call("put")])
    async with at_work([put], [call("put"), "done"], database=database, lease=LEASE) as runtime:
        await rest(runtime, thread)
        retried, fresh = await finished(runtime, thread)
        assert (retried.ok, retried.unknown) == (False, True)
        assert retried.text.endswith(" (An earlier attempt may have had its effect.)")
        # Of a call that failed at its first attempt, nothing of the kind is true.
        assert (fresh.ok, fresh.unknown) == (False, False)
        assert "earlier attempt" not in fresh.text


@pytest.mark.parametrize("how", ["timeout", "raise", "cancelled", "exit"])
async def test_a_started_once_call_that_does_not_return_is_in_doubt(how: str) -> None:
    ledger = Ledger()

    @tool(effect="once", timeout=0.05)
    async def pay() -> str:
        ledger.enter("pay")
        match how:
            case "raise":
                raise ConnectionError("reset by peer")
            case "cancelled":
                raise asyncio.CancelledError
            case "exit":
                raise SystemExit(1)
        await asyncio.Event().wait()
        return "never"

    async with at_work([pay], [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_review"
        assert not await finished(runtime, state.id)
        state = await decide(runtime, state, "did_not_happen")
        assert state.status == "awaiting_review"
        state = await decide(runtime, state, "drop")
        assert state.answer == "done"
        assert ledger["pay"] == 2
        (result,) = await finished(runtime, state.id)
        assert (result.ok, result.unknown, result.by) == (False, True, "person")


async def test_siblings_go_on_while_a_call_is_reviewed() -> None:
    ledger = Ledger()

    @tool(effect="once")
    async def pay() -> str:
        raise ConnectionError("reset")

    async with at_work(
        [pay, counting(ledger, "look", "once")], [[call("pay"), call("look")], "done"]
    ) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_review"
        assert ledger == {"look": 1}
        assert len(await finished(runtime, state.id)) == 1
        assert (await decide(runtime, state, "happened")).answer == "done"


async def test_a_worker_that_lost_its_lease_records_nothing_and_dispatches_nothing(database: str) -> None:
    ledger, other = Ledger(), Ledger()
    tools = [held(ledger, "pay", "once", timeout=0.2), counting(ledger, "poke", "once")]
    async with at_work(tools, [[call("pay", n=1)]], database=database, lease=LEASE) as zombie:
        thread = await zombie.start("ops", "go")
        await ledger.entered.wait()
        for task in zombie.worker._tasks:  # it renews no more, but goes on
            task.cancel()
        tools = [held(other, "pay", "once", timeout=0.2), counting(other, "poke", "once")]
        async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
            state = await rest(runtime, thread)
            assert state.status == "awaiting_review"
            ledger.go.set()
            while zombie.worker._holders:  # noqa: ASYNC110 - it finds out at its next append
                await asyncio.sleep(0.01)
            assert not await finished(runtime, thread)
            assert (await decide(runtime, state, "happened")).answer == "done"
    assert ledger == {"pay": 1}
    assert not other


async def test_a_decision_is_consumed_once_over_a_crash_right_after_it(database: str) -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay", n=1)], database=database, lease=LEASE) as runtime:
        thread = await runtime.start("ops", "go")
        state = await rest(runtime, thread)
        die(runtime)
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
    assert not ledger
    async with at_work(tools, ["done"], database=database, lease=LEASE) as runtime:
        assert (await rest(runtime, thread)).answer == "done"
        assert ledger == {"pay": 1}
        assert len(await of_type(runtime, thread, InterruptResolved)) == 1


async def test_a_model_call_whose_worker_died_is_asked_again(database: str) -> None:
    entered = asyncio.Event()

    async def hangs(_: Any) -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    async with at_work([], ScriptedModel(hangs), database=database, lease=LEASE) as runtime:
        thread = await runtime.start("ops", "go")
        await entered.wait()
        die(runtime)
    async with at_work([], ["done"], database=database, lease=LEASE) as runtime:
        assert (await rest(runtime, thread)).answer == "done"


PROGRAM = """
import asyncio, os, sys
from tenuto import Agent, Runtime, tool
from tenuto.models.scripted import ScriptedModel, call

@tool(effect="once", approval=True, timeout=0.2)
async def pay(n: int) -> str:
    with open(sys.argv[2], "a") as ledger:
        ledger.write("paid\\n")
        ledger.flush()
    print("inside", flush=True)
    await asyncio.Event().wait()

async def main():
    model = ScriptedModel([call("pay", n=5)])
    async with Runtime([Agent("ops", "Be exact.", [pay])], database=sys.argv[1], model=model) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        print(thread, flush=True)
        if sys.argv[3] == "inside":
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["waiting", "inside"])
async def test_kill_9(database: str, tmp_path: Path, where: str) -> None:
    """In the wait nothing is lost; inside the effect the call is reviewed."""
    ledger = tmp_path / "ledger"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, database, str(ledger), where,
        stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    thread = (await process.stdout.readline()).decode().strip()
    if where == "inside":
        assert await process.stdout.readline() == b"inside\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()

    @tool(effect="once", approval=True, timeout=0.2)
    async def pay(n: int) -> str:
        with ledger.open("a") as file:
            file.write("paid\n")
        return f"paid {n}"

    async with at_work([pay], ["done"], database=database) as runtime:
        state = await rest(runtime, thread)
        if where == "waiting":
            assert state.status == "awaiting_approval"
            assert not ledger.exists()
            state = await decide(runtime, state, "approve")
        else:
            assert state.status == "awaiting_review"
            state = await decide(runtime, state, "happened", answer="paid 5")
        assert state.answer == "done"
        assert results(runtime.model.requests[0]) == ["paid 5"]
        assert ledger.read_text() == "paid\n"
        assert len(await of_type(runtime, thread, CallFinished)) == 1
        assert len(await of_type(runtime, thread, InterruptRaised)) == (1 if where == "waiting" else 2)


async def test_closing_hands_over_what_does_not_come_to_rest(database: str) -> None:
    ledger = Ledger()
    tools = [held(ledger, "look", "read")]
    async with at_work(tools, [call("look")], database=database) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.entered.wait()
    ledger.go.set()
    async with at_work(tools, ["done"], database=database) as runtime:
        assert (await rest(runtime, thread)).answer == "done"
        assert ledger["look"] == 2


async def test_closing_lets_a_quick_call_end(database: str) -> None:
    ledger = Ledger()

    @tool(effect="once")
    async def pay() -> str:
        ledger.enter("pay")
        await asyncio.sleep(0.1)
        return "paid"

    runtime: Runtime
    async with at_work([pay], [call("pay"), "done"], database=database) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.entered.wait()
    async with at_work([pay], [], database=database) as runtime:
        assert (await rest(runtime, thread)).answer == "done"
        assert ledger["pay"] == 1

"""How a turn ends: answered, cancelled, halted, failed; and what goes on after that."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import Ledger, at_work, counting, decide, finished, held, of_type, rest, results, until

from tenuto import Agent, Conflict, ModelError, Runtime, ThreadState, limits, tool, wait_until
from tenuto.context import messages_of
from tenuto.errors import ThreadNotFound
from tenuto.events import (
    CallFinished,
    HistoryRepaired,
    InterruptRaised,
    ModelFailed,
    ModelReplied,
    ThreadCompleted,
    ThreadHalted,
)
from tenuto.messages import AssistantMessage, Message, Reply, ToolMessage, Usage, UserMessage
from tenuto.models.scripted import ScriptedModel, call

# -- cancel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_cancel_in_mid_call_ends_the_thread_within_a_second(effect: Any, is_async: bool) -> None:
    ledger, stopped = Ledger(), threading.Event()
    from tenuto import ToolContext

    if is_async:
        slow = held(ledger, "slow", effect)
    else:
        loop = asyncio.get_running_loop()

        @tool(effect=effect)
        def slow(context: ToolContext) -> str:
            loop.call_soon_threadsafe(ledger.enter, "slow")
            context.stop.wait(30)
            stopped.set()
            return "late"

    tools = [slow, counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [[call("slow"), call("pay")]]) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.entered.wait()
        started = time.monotonic()
        await runtime.cancel(thread, by="ana", reason="enough")
        state = await rest(runtime, thread)
        assert time.monotonic() - started < 1.0
        assert (state.status, state.error, state.interrupts) == ("cancelled", "enough", [])
        slow_result, pay_result = await finished(runtime, thread)
        assert slow_result.unknown is (effect != "read")
        assert (pay_result.ok, pay_result.unknown) == (False, False)
        assert ledger == {"slow": 1}
        if not is_async:
            assert await asyncio.to_thread(stopped.wait, 5)
        with pytest.raises(Conflict):
            await runtime.cancel(thread)


async def test_a_tool_that_refuses_to_stop_does_not_hold_the_cancel_up() -> None:
    ledger = Ledger()

    @tool(effect="once")
    async def stubborn() -> str:
        ledger.enter("stubborn")
        while not ledger.go.is_set():
            try:
                await ledger.go.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    async with at_work([stubborn], [call("stubborn")]) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.entered.wait()
        started = time.monotonic()
        await runtime.cancel(thread)
        assert (await rest(runtime, thread)).status == "cancelled"
        assert time.monotonic() - started < 1.0
        ledger.go.set()
        (result,) = await finished(runtime, thread)
        assert result.unknown


async def test_cancel_breaks_a_model_call_off() -> None:
    entered, broken = asyncio.Event(), asyncio.Event()

    async def hangs(_: Any) -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            broken.set()
        return "never"

    async with at_work([], ScriptedModel(hangs)) as runtime:
        thread = await runtime.start("ops", "go")
        await entered.wait()
        started = time.monotonic()
        await runtime.cancel(thread)
        assert (await rest(runtime, thread)).status == "cancelled"
        assert time.monotonic() - started < 1.0
        assert broken.is_set()
        assert not await of_type(runtime, thread, ModelReplied)


async def test_cancel_withdraws_what_a_person_was_asked_and_a_later_message_goes_on() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        await runtime.cancel(state.id)
        assert (await until(runtime, state.id, "cancelled")).interrupts == []
        assert not await runtime.interrupts()
        await runtime.send(state.id, "on second thought")
        assert (await until(runtime, state.id, "completed")).answer == "done"
        assert "cancelled; it was not run" in results(runtime.model.requests[1])[0]


async def test_a_message_right_behind_a_cancel_begins_a_new_turn() -> None:
    entered, answers = asyncio.Event(), iter(["first", "second"])

    async def hangs_once(_: Any) -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return next(answers)

    async with at_work([], ScriptedModel(hangs_once)) as runtime:
        thread = await runtime.start("ops", "go")
        await entered.wait()
        await asyncio.gather(runtime.cancel(thread), runtime.send(thread, "do this instead"))
        assert (await until(runtime, thread, "completed")).answer == "first"
        assert [m.text for m in runtime.model.requests[1].messages[1:]] == ["go", "do this instead"]


# -- limits ------------------------------------------------------------------------------------------------


async def test_the_step_limit_halts_and_an_extension_goes_on() -> None:
    ledger = Ledger()
    answers = [call("look", n=n) for n in range(4)]
    async with at_work([counting(ledger, "look", "read")], [*answers, "done"], max_steps=2) as runtime:
        thread = await runtime.start("ops", "go")
        state = await rest(runtime, thread)
        assert (state.status, state.limit, ledger["look"]) == ("halted", "steps", 2)
        await runtime.extend(thread, steps=1, by="ana")
        state = await rest(runtime, thread)
        assert (state.status, ledger["look"]) == ("halted", 3)
        await runtime.extend(thread, steps=5)
        assert (await rest(runtime, thread)).answer == "done"
        assert len(await of_type(runtime, thread, ThreadHalted)) == 2


async def test_a_reply_at_the_last_step_that_wants_a_gated_call_halts_before_asking() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True), counting(ledger, "look", "once")]
    async with at_work(tools, [[call("pay"), call("look")], "done"], max_steps=1) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert (state.status, state.limit) == ("halted", "steps")
        assert ledger == {"look": 1}
        assert not await of_type(runtime, state.id, InterruptRaised)
        await runtime.extend(state.id, steps=1)
        state = await rest(runtime, state.id)
        assert state.status == "awaiting_approval"
        assert (await decide(runtime, state, "approve")).answer == "done"


@pytest.mark.parametrize(
    ("limit", "name", "usage"),
    [
        ({"max_tokens": 100}, "tokens", Usage(input=90, output=10)),
        ({"max_cost": 0.5}, "cost", Usage(cost=0.5)),
    ],
)
async def test_the_other_limits_halt_as_well(limit: Any, name: str, usage: Usage) -> None:
    ledger = Ledger()
    answers = [Reply(calls=(call("look"),), usage=usage), "done"]
    async with at_work([counting(ledger, "look", "read")], answers, **limit) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert (state.status, state.limit) == ("halted", name)
        await runtime.extend(state.id, tokens=1, cost=0.1)
        assert (await rest(runtime, state.id)).answer == "done"


# -- messages that slip in ---------------------------------------------------------------------------------


async def test_a_message_during_the_last_model_call_is_answered_not_buried() -> None:
    async def answer(request: Any) -> str:
        if len(request.messages) == 2:
            await runtime.send(thread, "one more thing")
        return f"answer to {request.messages[-1].text}"

    async with at_work([], ScriptedModel(answer), max_steps=1) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await until(runtime, thread, "completed")).answer == "answer to one more thing"
        assert len(await of_type(runtime, thread, ThreadCompleted)) == 1
        second = runtime.model.requests[1].messages
        assert [type(m) for m in second[1:]] == [UserMessage, AssistantMessage, UserMessage]


async def test_many_messages_at_once_are_each_answered_and_lost_never() -> None:
    model = ScriptedModel(lambda request: "done")
    async with at_work([], model) as runtime:
        thread = await runtime.start("ops", "message 0")
        await asyncio.gather(*(runtime.send(thread, f"message {n}") for n in range(1, 30)))
        state = await rest(runtime, thread)
        assert (state.status, state.queued) == ("completed", [])
        read = [m.text for m in model.requests[-1].messages if isinstance(m, UserMessage)]
        assert sorted(read) == sorted(f"message {n}" for n in range(30))


# -- a model that fails ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ModelError("429: too many", attempts=4), "429: too many"),
        (RuntimeError("a bug"), "a bug"),
        (asyncio.CancelledError(), "CancelledError"),
        (Reply(text="x", extra={"bad": "\ud800"}), "cannot be stored"),
    ],
)
async def test_a_model_that_fails_fails_the_thread_which_can_be_told_to_go_on(
    failure: Any, told: str
) -> None:
    async with at_work([], [failure, "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "failed"
        assert told in state.error
        (event,) = await of_type(runtime, state.id, ModelFailed)
        assert event.attempts == getattr(failure, "attempts", 1)
        await runtime.extend(state.id, by="ana")
        assert (await rest(runtime, state.id)).answer == "done"


async def test_a_failed_thread_goes_on_with_a_message() -> None:
    async with at_work([], [ModelError("down"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        await runtime.send(state.id, "again?")
        assert (await rest(runtime, state.id)).answer == "done"
        assert [m.text for m in runtime.model.requests[1].messages[1:]] == ["go", "again?"]


async def test_a_reply_with_lone_surrogates_is_stored_and_sent_without_them() -> None:
    ledger = Ledger()
    reply = Reply(text="a\ud800", reasoning="\udfff", calls=(call("look"),))
    async with at_work([counting(ledger, "look", "read")], [reply, "b\ud800"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.answer == "b�"
        said = runtime.model.requests[1].messages[2]
        assert said.text == "a�"


# -- a thread that cannot be advanced ----------------------------------------------------------------------


async def test_a_poisoned_thread_backs_off_then_asks_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RETRY_LATER_SECONDS", 0.02)
    broken, tried = True, []

    def instructions(state: ThreadState) -> str:
        tried.append(len(tried))
        if broken:
            raise LookupError("no template")
        return "Be exact."

    ops = Agent("ops", instructions)
    async with Runtime([ops], database="sqlite://:memory:", model=ScriptedModel(["done"])) as runtime:
        thread = await runtime.start("ops", "go")
        state = await until(runtime, thread, "awaiting_answer")
        assert len(tried) == limits.POISON_ATTEMPTS
        assert "no template" in state.interrupts[0].prompt
        broken = False
        state = await decide(runtime, state, "answer", answer="mended")
        assert state.answer == "done"


# -- waiting for a time ------------------------------------------------------------------------------------


async def test_wait_until_outlives_its_worker(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/t.db"
    async with at_work([wait_until], [call("wait_until", seconds=0.4)], database=database) as runtime:
        thread = await runtime.start("ops", "go")
        state = await until(runtime, thread, "sleeping")
        due_ms = state.calls[0].until_ms
    async with at_work([wait_until], ["done"], database=database) as runtime:
        state = await until(runtime, thread, "completed")
        assert results(runtime.model.requests[0]) == ["The time has come."]
        (settled,) = [e for e in await runtime.events(thread) if isinstance(e.event, CallFinished)]
        assert settled.at_ms >= due_ms


async def test_a_message_wakes_no_sleeper_early_but_is_not_lost() -> None:
    async with at_work([wait_until], [call("wait_until", seconds=0.3), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        await until(runtime, thread, "sleeping")
        await runtime.send(thread, "sleep well")
        await until(runtime, thread, "completed")
        assert [m.text for m in runtime.model.requests[1].messages[3:]] == [
            "The time has come.",
            "sleep well",
        ]


# -- another renderer --------------------------------------------------------------------------------------


async def test_a_custom_rendering_that_is_malformed_is_mended_and_recorded() -> None:
    ledger = Ledger()

    def careless(state: ThreadState) -> list[Message]:
        messages = [m for item in state.history for m in messages_of(item)]
        kept: list[Message] = [m for m in messages if not isinstance(m, ToolMessage)]
        return [*kept, *(UserMessage(said.text) for said in state.queued)]

    tools = [counting(ledger, "look", "read")]
    async with at_work(tools, [[call("look"), call("look")], "done"], render=careless) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.answer == "done"
        (repaired,) = await of_type(runtime, state.id, HistoryRepaired)
        assert len(repaired.repairs) == 2
        assert [type(m) for m in runtime.model.requests[1].messages] == [
            UserMessage,
            AssistantMessage,
            ToolMessage,
            ToolMessage,
        ]


async def test_a_message_that_slips_in_while_a_repair_is_recorded_is_answered() -> None:
    """The request was rendered before it; so it may not count as read."""
    sent = []

    def careless(state: ThreadState) -> list[Message]:
        if not sent:
            sent.append(asyncio.ensure_future(runtime.send(thread, "slipped in")))
        read = [item.text for item in state.history if not hasattr(item, "calls")]
        messages = [UserMessage(text) for text in [*read, *(said.text for said in state.queued)]]
        return [*messages, ToolMessage("nobody", "asked")]

    model = ScriptedModel(lambda request: " and ".join(m.text for m in request.messages))
    async with at_work([], model, render=careless) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await until(runtime, thread, "completed")).answer == "go and slipped in"
        assert await of_type(runtime, thread, HistoryRepaired)


async def test_there_is_no_thread_to_cancel() -> None:
    async with at_work([], []) as runtime:
        with pytest.raises(ThreadNotFound):
            await runtime.cancel("5e9a1d5e-0000-4000-8000-000000000000")

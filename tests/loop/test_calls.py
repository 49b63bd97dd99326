"""Calls of a reply: side by side, gated, refused, odd. Each tool body is counted."""

import asyncio
import time
from typing import Any

import pytest
from tests.loop.world import Ledger, at_work, counting, decide, finished, held, of_type, rest, results

from tenuto import NotDone, Until, tool
from tenuto.errors import TenutoError
from tenuto.events import CallFinished, CallStarted, InterruptRaised, ModelReplied
from tenuto.limits import MAX_RESULT_CHARACTERS
from tenuto.messages import AssistantMessage, CallRequest, Reply
from tenuto.models.scripted import ScriptedModel, call


async def test_calls_of_a_reply_run_side_by_side() -> None:
    ledger, met = Ledger(), asyncio.Barrier(3)

    @tool(effect="read")
    async def meet(n: int) -> int:
        await met.wait()  # only together they come through
        ledger.enter("meet")
        return n

    async with at_work(
        [meet], [[call("meet", n=1), call("meet", n=2), call("meet", n=3)], "done"]
    ) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert (state.status, state.answer) == ("completed", "done")
        assert results(runtime.model.requests[1]) == ["1", "2", "3"]
        assert ledger["meet"] == 3


async def test_more_calls_than_run_at_a_time_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto import limits

    monkeypatch.setattr(limits, "MAX_CONCURRENT_CALLS", 4)
    ledger = Ledger()
    tools = [counting(ledger, "look", "read"), counting(ledger, "poke", "once")]
    calls = [call("poke" if n % 2 else "look", n=n) for n in range(21)]
    async with at_work(tools, [calls, "done"]) as runtime:
        await rest(runtime, await runtime.start("ops", "go"))
        assert results(runtime.model.requests[1]) == [f"{'poke' if n % 2 else 'look'} {n}" for n in range(21)]
        assert ledger == {"look": 11, "poke": 10}


async def test_each_gated_call_has_its_own_interrupt_and_ungated_siblings_run_before_any_decision() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True), counting(ledger, "look", "once")]
    calls = [call("pay", n=1), call("look", n=2), call("pay", n=3)]
    async with at_work(tools, [calls, "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_approval"
        assert [raised.arguments for raised in state.interrupts] == ['{"n":1}', '{"n":3}']
        assert ledger == {"look": 1}
        state = await decide(runtime, state, "approve", 1)
        assert ledger == {"look": 1, "pay": 1}
        assert state.status == "awaiting_approval"
        assert len(runtime.model.requests) == 1
        state = await decide(runtime, state, "approve")
        assert state.status == "completed"
        assert results(runtime.model.requests[1]) == ["pay 1", "look 2", "pay 3"]


async def test_a_person_is_asked_while_siblings_still_run() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True), held(ledger, "slow", "read")]
    async with at_work(tools, [[call("pay", n=1), call("slow", n=2)], "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        await ledger.entered.wait()
        async for item in runtime.follow(thread):
            if isinstance(getattr(item, "event", None), InterruptRaised):
                break
        (row,) = await runtime.interrupts()
        await runtime.resolve(row.id, "approve", by="ana")
        async for item in runtime.follow(thread):
            if isinstance(getattr(item, "event", None), CallFinished):
                break
        assert ledger == {"pay": 1, "slow": 1}, "the decision was acted on while the sibling ran"
        ledger.go.set()
        assert (await rest(runtime, thread)).answer == "done"


@pytest.mark.parametrize(
    ("verb", "more", "middle", "ran"),
    [
        ("approve", {}, "pay 2", 1),
        ("reject", {"comment": "no"}, "Error: a person rejected this call; it was not run. They said: no", 0),
        ("edit", {"arguments": {"n": 7}}, '(A person changed the arguments to {"n":7})\npay 7', 1),
    ],
)  # fmt: skip
async def test_three_calls_the_middle_one_gated(verb: str, more: Any, middle: str, ran: int) -> None:
    ledger = Ledger()
    tools = [counting(ledger, "look", "read"), counting(ledger, "pay", "once", approval=True)]
    calls = [call("look", n=1), call("pay", n=2), call("look", n=3)]
    async with at_work(tools, [calls, "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        state = await decide(runtime, state, verb, **more)
        assert state.answer == "done"
        *_, said, first, second, third = runtime.model.requests[1].messages
        assert isinstance(said, AssistantMessage)
        assert [one.arguments for one in said.calls] == ['{"n":1}', '{"n":2}', '{"n":3}']
        assert [first.call_id, second.call_id, third.call_id] == [one.id for one in said.calls]
        assert [first.text, second.text, third.text] == ["look 1", middle, "look 3"]
        assert ledger == ({"look": 2, "pay": 1} if ran else {"look": 2})


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (CallRequest("look", "{"), "JSON"),
        (CallRequest("look", '{"n": "many"}'), "n"),
        (CallRequest("look", '{"n": 1, "m": 2}'), "m"),
        (CallRequest("look", "[1]"), "object"),
        (CallRequest("look", '"{"'), ""),
        (CallRequest("lok", "{}"), "look"),
        (CallRequest("", "{}"), "no tool"),
        (CallRequest("look\ud800", '{"n": "\ud800"}'), "no tool"),
    ],
)
async def test_what_cannot_run_is_told_to_the_model_and_never_guessed(
    request_: CallRequest, told: str
) -> None:
    ledger = Ledger()
    async with at_work([counting(ledger, "look", "read")], [request_, "sorry"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.answer == "sorry"
        (text,) = results(runtime.model.requests[1])
        assert text.startswith("Error: ")
        assert told in text
        assert not ledger
        (said,) = [m for m in runtime.model.requests[1].messages if isinstance(m, AssistantMessage)]
        assert said.calls[0].arguments.startswith("{")


async def test_a_reply_cut_by_its_length_inside_a_call_never_runs_that_call() -> None:
    ledger = Ledger()
    calls = (call("look", n=1), call("look", n=2))
    answers = [Reply(calls=calls, finish="length"), "done"]
    async with at_work([counting(ledger, "look", "read")], answers) as runtime:
        await rest(runtime, await runtime.start("ops", "go"))
        first, second = results(runtime.model.requests[1])
        assert first == "look 1"
        assert "cut off" in second
        assert ledger == {"look": 1}


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_that_takes_too_long_is_told_to_the_model(is_async: bool) -> None:
    if is_async:

        @tool(effect="read", timeout=0.05)
        async def slow() -> str:
            await asyncio.Event().wait()
            return "never"
    else:

        @tool(effect="read", timeout=0.05)
        def slow() -> str:
            time.sleep(0.3)
            return "never"

    async with at_work([slow], [call("slow"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.answer == "done"
        assert results(runtime.model.requests[1]) == ["Error: it did not end within 0.05 s"]


async def test_not_done_is_a_plain_failure_even_of_a_once_call() -> None:
    @tool(effect="once")
    async def pay() -> str:
        raise NotDone("the till is closed")

    async with at_work([pay], [call("pay"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await rest(runtime, thread)).answer == "done"
        (result,) = await finished(runtime, thread)
        assert (result.ok, result.unknown) == (False, False)
        assert "the till is closed" in result.text


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def _raises(error: BaseException) -> Any:
    def act() -> Any:
        raise error

    return act


@pytest.mark.parametrize(
    ("act", "ok", "starts"),
    [
        (lambda: "x" * 5_000_000, True, "xxx"),
        (lambda: "a\x00b", True, "a\x00b"),
        (lambda: "a\ud800b", True, "a�b"),
        (lambda: object(), True, "<object"),
        (lambda: Odd(), True, "<"),
        (lambda: float("nan"), True, "null"),
        (lambda: {1: {2}}, True, '{"1":[2]}'),
        (lambda: b"\xff\x00", True, "/wA="),
        (lambda: None, True, "null"),
        (_raises(BaseException("deep")), False, "Error: BaseException: deep"),
        (_raises(SystemExit(3)), False, "Error: SystemExit: 3"),
        (_raises(KeyboardInterrupt()), False, "Error: KeyboardInterrupt"),
        (_raises(GeneratorExit()), False, "Error: GeneratorExit"),
        (_raises(asyncio.CancelledError()), False, "Error: it raised CancelledError"),
        (_raises(TimeoutError("the other side's")), False, "Error: TimeoutError: the other side's"),
        (_raises(TenutoError("our own")), False, "Error: TenutoError: our own"),
        (_raises(Exception("\ud800" * 20_000)), False, "Error: Exception: �"),
        (_raises(StopIteration(1)), False, "Error: "),
        (lambda: Until(0), True, "The time has come."),
        (lambda: Until(12.5), True, "The time has come."),  # type: ignore[arg-type]  # on purpose
        (lambda: Until("soon"), True, "The time has come."),  # type: ignore[arg-type]  # on purpose
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_whatever_a_tool_returns_or_raises_is_a_result(
    act: Any, ok: bool, starts: str, is_async: bool
) -> None:
    if is_async:

        @tool(effect="read")
        async def odd() -> Any:
            return act()
    else:

        @tool(effect="read")
        def odd() -> Any:
            return act()

    async with at_work([odd], [call("odd"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await rest(runtime, thread)).answer == "done"
        (result,) = await finished(runtime, thread)
        assert (result.ok, result.text[: len(starts)]) == (ok, starts)
        assert len(result.text) <= MAX_RESULT_CHARACTERS
        assert results(runtime.model.requests[1]) == [result.text]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_a_once_call_that_would_end_the_process_is_in_doubt(error: BaseException) -> None:
    @tool(effect="once")
    def pay() -> str:
        raise error

    async with at_work([pay], [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_review"
        assert type(error).__name__ in state.interrupts[0].prompt
        await runtime.resolve(state.interrupts[0].id, "drop", by="ana")
        assert (await rest(runtime, state.id)).answer == "done"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_a_policy_that_would_end_the_process_asks_a_person(error: BaseException) -> None:
    def policy() -> bool:
        raise error

    @tool(effect="once", approval=policy)
    def pay() -> str:
        return "paid"

    async with at_work([pay], [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_approval"
        assert type(error).__name__ in state.interrupts[0].prompt


async def test_intents_are_recorded_before_effects_and_not_for_reads() -> None:
    ledger = Ledger()
    tools = [counting(ledger, name, name) for name in ("read", "idempotent", "once")]
    async with at_work(tools, [[call("read"), call("idempotent"), call("once")], "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        await rest(runtime, thread)
        (reply, _) = await of_type(runtime, thread, ModelReplied)
        started = await of_type(runtime, thread, CallStarted)
        assert [one.call_id for one in started] == [reply.calls[1].id, reply.calls[2].id]
        assert len({one.key for one in started}) == 2
        assert all(one.deadline_ms and one.worker == runtime.owner for one in started)


async def test_a_script_can_be_longer_than_a_thousand_events() -> None:
    ledger = Ledger()
    model = ScriptedModel(lambda request: "done" if len(request.messages) > 600 else call("look"))
    async with at_work([counting(ledger, "look", "read")], model, max_steps=0) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.answer == "done"
        assert ledger["look"] == 300

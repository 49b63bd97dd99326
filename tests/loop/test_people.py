"""What people say and when: decisions, expiries, messages, questions, and an agent that was changed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import Ledger, at_work, counting, decide, finished, of_type, rest, results, until

from tenuto import AlreadyDecided, InvalidInput, Runtime, Stale, ask_person, tool
from tenuto.clock import FakeClock
from tenuto.events import AgentChanged, CallFinished, InterruptRaised, InterruptResolved
from tenuto.messages import ToolMessage, UserMessage
from tenuto.models.scripted import ScriptedModel, call
from tenuto.store.sqlite import SQLiteStore


def _texts(request: Any) -> list[str]:
    return [m.text for m in request.messages if isinstance(m, UserMessage | ToolMessage)]


async def test_edited_arguments_are_validated_again_and_are_what_runs() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay", n=1), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        raised = state.interrupts[0]
        for wrong in ({"n": "many"}, "[1]", "{", {"m": 1}, None):
            with pytest.raises(InvalidInput):
                await runtime.resolve(raised.id, "edit", by="ana", arguments=wrong)
        state = await decide(runtime, state, "edit", arguments={"n": "9"}, comment="more")
        assert results(runtime.model.requests[1]) == ['(A person changed the arguments to {"n":9})\npay 9']
        (event,) = await of_type(runtime, state.id, InterruptResolved)
        assert (event.outcome, event.arguments, event.by, event.comment) == (
            "edited",
            '{"n":9}',
            "ana",
            "more",
        )
        assert event.digest not in ("", raised.digest)


async def test_an_approval_expires_by_itself() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True, expires_after=0.1)]
    async with at_work(tools, [call("pay"), "done"]) as runtime:
        thread = await runtime.start("ops", "go")
        await until(runtime, thread, "completed")
        assert results(runtime.model.requests[1]) == ["Error: nobody decided in time; this call was not run."]
        (event,) = await of_type(runtime, thread, InterruptResolved)
        assert (event.outcome, event.by) == ("expired", "runtime")
        assert not ledger


async def test_a_late_decision_is_an_expiry_whoever_comes_first() -> None:
    ledger, clock = Ledger(), FakeClock()
    store: Any = SQLiteStore(":memory:", clock=clock)
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay"), "done"], database=store) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.interrupts[0].expires_at_ms == clock.now_ms() + 86_400_000
        clock.advance(86_400)
        with pytest.raises(AlreadyDecided) as refused:
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (refused.value.outcome, refused.value.by) == ("expired", "")
        assert (await rest(runtime, state.id)).answer == "done"
        assert not ledger


async def test_of_racing_decisions_one_wins_and_the_others_hear_who_did() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        raised = state.interrupts[0]
        with pytest.raises(Stale):
            await runtime.resolve(raised.id, "approve", by="bob", digest="0" * 32)
        deciding = [
            runtime.resolve(raised.id, "approve", by=f"p{n}", digest=raised.digest) for n in range(20)
        ]
        outcomes = await asyncio.gather(*deciding, return_exceptions=True)
        (winner,) = [one for one in outcomes if isinstance(one, InterruptResolved)]
        losers = [one for one in outcomes if isinstance(one, AlreadyDecided)]
        assert len(losers) == 19
        assert {(one.by, one.outcome) for one in losers} == {(winner.by, "approved")}
        assert (await rest(runtime, state.id)).answer == "done"
        assert ledger == {"pay": 1}


async def test_a_message_while_waiting_is_stored_and_seen_after_the_results() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay", n=1), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        await runtime.send(state.id, "hurry", by="eve")
        again = await rest(runtime, state.id)
        assert (again.status, [said.text for said in again.queued]) == ("awaiting_approval", ["hurry"])
        await decide(runtime, again, "approve")
        assert _texts(runtime.model.requests[1]) == ["go", "pay 1", "hurry"]


async def test_with_the_policy_withdraw_a_message_takes_pending_approvals_back() -> None:
    ledger = Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    answers = [[call("pay", n=1), call("pay", n=2)], "done"]
    async with at_work(
        tools, answers, on_message_while_waiting="withdraw", max_consecutive_errors=2
    ) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        await runtime.send(state.id, "stop that")
        assert (await rest(runtime, state.id)).answer == "done"
        first, second = results(runtime.model.requests[1])
        assert first == second
        assert "withdrawn (a new message came in)" in first
        assert _texts(runtime.model.requests[1])[-1] == "stop that"
        with pytest.raises(AlreadyDecided):
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert not ledger


async def test_an_approval_that_expired_and_is_withdrawn_at_once_is_settled_once(tmp_path: Path) -> None:
    """The worker was away: meanwhile the approval expired and a message came in."""
    clock, ledger = FakeClock(), Ledger()
    tools = [counting(ledger, "pay", "once", approval=True)]
    path = str(tmp_path / "t.db")
    options: Any = {"on_message_while_waiting": "withdraw"}
    async with at_work(tools, [call("pay")], database=_store(path, clock), **options) as runtime:
        thread = await runtime.start("ops", "go")
        await rest(runtime, thread)
    clock.advance(90_000)
    store = _store(path, clock)
    async with Runtime([], database=store) as elsewhere:
        await elsewhere.send(thread, "hello?")
    async with at_work(tools, ["done"], database=_store(path, clock), **options) as runtime:
        assert (await rest(runtime, thread)).answer == "done"


def _store(path: str, clock: FakeClock) -> Any:
    return SQLiteStore(path, clock=clock)


async def test_three_errors_in_a_row_ask_a_person_and_the_answer_goes_on() -> None:
    @tool(effect="read")
    async def look(n: int) -> str:
        if n < 0:
            raise ValueError("below zero")
        return str(n)

    answers = [
        call("look", n=-1),
        call("look", n=1),
        call("look", n=-1),
        call("look", n=-2),
        call("look", n="x"),
    ]
    async with at_work([look], [*answers, call("look", n=2), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_answer"
        assert len(runtime.model.requests) == 5
        assert "3 tool calls in a row have failed" in state.interrupts[0].prompt
        with pytest.raises(InvalidInput):
            await runtime.resolve(state.interrupts[0].id, "answer", by="ana", answer=" ")
        with pytest.raises(InvalidInput):
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        state = await decide(runtime, state, "answer", answer="use two")
        assert state.answer == "done"
        assert _texts(runtime.model.requests[5])[-1] == "use two"


async def test_a_question_that_nobody_answers_halts_the_thread_which_can_be_told_to_go_on() -> None:
    answers = [call("nothing"), "done"]
    limits: Any = {"max_consecutive_errors": 1, "question_expires_after": 0.1}
    async with at_work([], answers, **limits) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await until(runtime, thread, "halted")).limit == "errors"
        await runtime.extend(thread, by="ana")
        assert (await rest(runtime, thread)).answer == "done"


async def test_ask_person_is_answered_by_a_person() -> None:
    async with at_work([ask_person], [call("ask_person", question="Which colour?"), "blue it is"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert state.status == "awaiting_answer"
        assert state.interrupts[0].prompt == "Which colour?"
        state = await decide(runtime, state, "answer", answer="blue")
        assert state.answer == "blue it is"
        assert results(runtime.model.requests[1]) == ["blue"]
        (result,) = await finished(runtime, state.id)
        assert (result.ok, result.by) == (True, "person")


@pytest.mark.parametrize("removed", [False, True])
async def test_a_changed_agent_voids_what_was_asked_and_asks_again(tmp_path: Path, removed: bool) -> None:
    old, new = Ledger(), Ledger()
    database = f"sqlite:///{tmp_path}/t.db"
    tools = [counting(old, "pay", "once", approval=True), counting(old, "put", "once", approval=True)]
    async with at_work(tools, [[call("pay", n=1), call("put", n=2)]], database=database) as runtime:
        thread = await runtime.start("ops", "go")
        before = await rest(runtime, thread)
    tools = [counting(new, "put", "once", approval=True)]
    if not removed:
        tools.append(counting(new, "pay", "once", approval=True, version="2"))
    async with at_work(tools, ["done"], database=database) as runtime:
        await runtime.send(thread, "still there?")
        after = await rest(runtime, thread)
        with pytest.raises(AlreadyDecided) as refused:
            await runtime.resolve(before.interrupts[0].id, "approve", by="ana")
        assert refused.value.outcome == "withdrawn"
        assert before.interrupts[1] in after.interrupts, "the unchanged call is still asked under the same id"
        assert len(after.interrupts) == 2 - removed
        for raised in after.interrupts:
            await runtime.resolve(raised.id, "approve", by="ana")
        assert (await rest(runtime, thread)).answer == "done"
        assert new == ({"put": 1} if removed else {"pay": 1, "put": 1})
        assert len(await of_type(runtime, thread, AgentChanged)) == 1
        first, second = results(runtime.model.requests[0])
        assert second == "put 2"
        assert ("there is no tool 'pay'" in first) is removed
    assert not old


async def test_an_approval_given_before_a_change_does_not_run_new_code(tmp_path: Path) -> None:
    """Approved while no worker lived; the next one has another version of the tool."""
    ledger = Ledger()
    database = f"sqlite:///{tmp_path}/t.db"
    tools = [counting(ledger, "pay", "once", approval=True)]
    async with at_work(tools, [call("pay", n=1)], database=database) as runtime:
        thread = await runtime.start("ops", "go")
        state = await rest(runtime, thread)
        await runtime.worker.stop(0.0)
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
    tools = [counting(ledger, "pay", "once", approval=lambda n: n > 0)]
    async with at_work(tools, ["done"], database=database) as runtime:
        state = await rest(runtime, thread)
        assert state.status == "awaiting_approval"
        assert not ledger
        assert (await decide(runtime, state, "reject")).answer == "done"
    assert not ledger


async def test_a_policy_that_fails_gates_the_call_and_says_why() -> None:
    def policy(n: int) -> bool:
        raise LookupError("no table")

    ledger = Ledger()
    async with at_work([counting(ledger, "pay", "once", approval=policy)], [call("pay"), "done"]) as runtime:
        state = await rest(runtime, await runtime.start("ops", "go"))
        assert "no table" in state.interrupts[0].prompt
        assert (await decide(runtime, state, "reject")).answer == "done"


async def test_a_finished_thread_goes_on_with_a_new_message_and_a_new_budget() -> None:
    model = ScriptedModel(
        lambda request: f"answer {sum(isinstance(m, UserMessage) for m in request.messages)}"
    )
    async with at_work([], model, max_steps=1) as runtime:
        thread = await runtime.start("ops", "one")
        assert (await rest(runtime, thread)).answer == "answer 1"
        for number in (2, 3):
            await runtime.send(thread, f"message {number}")
            assert (await rest(runtime, thread)).answer == f"answer {number}"
        assert not await of_type(runtime, thread, InterruptRaised)
        assert not await of_type(runtime, thread, CallFinished)

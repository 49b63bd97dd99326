"""The rules, one by one: a state, a time, and the one thing to do."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.test_thread import folded

from tenuto.events import (
    Call,
    CallFinished,
    CallId,
    CallStarted,
    CancelRequested,
    Event,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    Limits,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Policy,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadStarted,
)
from tenuto.steps import (
    AskPerson,
    CallModel,
    Finish,
    Local,
    RunCalls,
    Settle,
    StopCalls,
    Wait,
    _clock,
    next_step,
)

NOW = 100_000
ONCE = Call(CallId("once"), "pay", "{}", effect="once", timeout_ms=1000)
CHECKED = Call(CallId("checked"), "pay", "{}", effect="once", verifiable=True, timeout_ms=1000)
IDEMPOTENT = Call(CallId("idempotent"), "put", "{}", effect="idempotent", timeout_ms=1000)
READ = Call(CallId("read"), "look", "{}")
GATED = Call(CallId("gated"), "pay", "{}", effect="once", gated=True, digest="d", expires_ms=500)


def after(*events: Event, limits: Limits = Limits(), policy: Policy = Policy()) -> Any:  # noqa: B008 - frozen
    return folded(ThreadStarted("ops", "f", limits, policy), MessageReceived("go"), *events)


def reply(*calls: Call) -> ModelReplied:
    return ModelReplied(1, 2, calls=calls)


def started(call: Call, deadline_ms: int = NOW) -> CallStarted:
    return CallStarted(call.id, deadline_ms=deadline_ms, worker="w1")


def ids(calls: Any) -> list[str]:
    return [call.id for call in calls]


def test_the_model_is_asked_when_there_is_something_new_and_nothing_open() -> None:
    assert next_step(after(), NOW) == CallModel()
    assert next_step(after(reply(READ), CallFinished(READ.id)), NOW) == CallModel()
    assert next_step(after(ModelReplied(1, 2, "hi")), NOW) == Finish(ThreadCompleted("hi"))
    assert next_step(after(ModelReplied(1, 2, "hi"), MessageReceived("and?")), NOW) == CallModel()
    assert next_step(after(ModelReplied(1, 2, "hi"), ThreadCompleted("hi")), NOW) == Wait()
    assert next_step(folded(ThreadStarted("ops", "f")), NOW) == Wait()
    assert next_step(folded(), NOW) == Wait()


def test_people_are_asked_before_calls_are_dispatched() -> None:
    step = next_step(after(reply(GATED, READ, ONCE)), NOW)
    assert isinstance(step, AskPerson)
    (raised,) = step.events
    assert isinstance(raised, InterruptRaised)
    assert (raised.kind, raised.call_id, raised.digest) == ("approval", "gated", "d")
    assert (raised.expires_at_ms, raised.options) == (NOW + 500, ("approve", "reject", "edit"))
    asked = after(reply(GATED, READ, ONCE), raised)
    run = next_step(asked, NOW)
    assert isinstance(run, RunCalls)
    assert ids(run.run) == ["read", "once"]
    assert next_step(asked, NOW, Local(frozenset({READ.id, ONCE.id}))) == Wait(NOW + 500)


def test_the_same_state_raises_the_same_interrupt_in_any_worker() -> None:
    assert next_step(after(reply(GATED)), NOW) == next_step(after(reply(GATED)), NOW)


def test_what_cannot_run_is_settled_before_anything_else() -> None:
    bad = msgspec.structs.replace(READ, error="there is no tool 'look'")
    step = next_step(after(reply(bad, GATED)), NOW)
    told = "Error: there is no tool 'look'"
    assert step == Settle((CallFinished(bad.id, ok=False, text=told, by="runtime"),))


@pytest.mark.parametrize(
    ("call", "now", "expected"),
    [
        (IDEMPOTENT, NOW - 1, "wait"),
        (IDEMPOTENT, NOW, "run"),
        (CHECKED, NOW - 1, "wait"),
        (CHECKED, NOW, "verify"),
        (ONCE, NOW - 1, "review"),
        (ONCE, NOW, "review"),
    ],
)
def test_a_started_call_that_nobody_runs_is_in_doubt(call: Call, now: int, expected: str) -> None:
    step = next_step(after(reply(call), started(call)), now)
    match expected:
        case "wait":
            assert step == Wait(NOW)
        case "run":
            assert isinstance(step, RunCalls)
            assert (ids(step.run), ids(step.verify)) == ([call.id], [])
        case "verify":
            assert isinstance(step, RunCalls)
            assert (ids(step.run), ids(step.verify)) == ([], [call.id])
        case "review":
            assert isinstance(step, AskPerson)
            (raised,) = step.events
            assert isinstance(raised, InterruptRaised)
            assert (raised.kind, raised.expires_at_ms) == ("review", 0)
            assert raised.options == ("happened", "did_not_happen", "drop")
            assert "w1" in raised.prompt


def test_verify_decides_what_it_can_and_a_person_the_rest() -> None:
    state = after(reply(CHECKED), started(CHECKED))
    again = next_step(state, NOW, Local(verdicts={CHECKED.id: "did_not_happen"}))
    assert isinstance(again, RunCalls)
    assert ids(again.run) == ["checked"]
    step = next_step(state, NOW, Local(verdicts={CHECKED.id: "unknown"}, doubts={CHECKED.id: "no line"}))
    assert isinstance(step, AskPerson)
    (raised,) = step.events
    assert isinstance(raised, InterruptRaised)
    assert raised.kind == "review"
    assert "no line" in raised.prompt


def test_a_reviewed_call_runs_again_only_after_its_deadline() -> None:
    asked = InterruptRaised(InterruptId("i"), "review", ONCE.id)
    state = after(reply(ONCE), started(ONCE), asked, InterruptResolved(asked.id, "did_not_happen"))
    assert next_step(state, NOW - 1) == Wait(NOW)
    step = next_step(state, NOW)
    assert isinstance(step, RunCalls)
    assert ids(step.run) == ["once"]


def test_expiry_is_settled_at_its_time_and_once_even_when_also_withdrawn() -> None:
    raised = InterruptRaised(InterruptId("i"), "approval", GATED.id, digest="d", expires_at_ms=NOW)
    policy = Policy(on_message="withdraw")
    state = after(reply(GATED), raised, MessageReceived("new"), policy=policy)
    assert next_step(state, NOW) == Settle((InterruptResolved(raised.id, "expired", by="runtime"),))
    step = next_step(state, NOW - 1)
    assert isinstance(step, Settle)
    assert [event.outcome for event in step.events if isinstance(event, InterruptResolved)] == ["withdrawn"]
    assert next_step(after(reply(GATED), raised), NOW - 1) == Wait(NOW)


def test_limits_halt_before_the_next_request_and_before_asking() -> None:
    one = Limits(steps=1)
    spent = after(reply(READ), CallFinished(READ.id), limits=one)
    assert next_step(spent, NOW) == Finish(ThreadHalted("steps"))
    assert next_step(after(reply(GATED), limits=one), NOW) == Finish(ThreadHalted("steps"))
    run = next_step(after(reply(GATED, READ), limits=one), NOW)
    assert isinstance(run, RunCalls)
    assert ids(run.run) == ["read"]
    assert next_step(after(ModelReplied(1, 2, "hi"), limits=one), NOW) == Finish(ThreadCompleted("hi"))
    again = after(ModelReplied(1, 2, "hi"), MessageReceived("and?"), limits=one)
    assert next_step(again, NOW) == CallModel(), "an answer ends the turn; what comes then begins another"


def test_a_waiting_call_is_settled_when_its_time_has_come() -> None:
    state = after(reply(READ), CallStarted(READ.id, until_ms=NOW))
    assert next_step(state, NOW - 1) == Wait(NOW)
    assert next_step(state, NOW) == Settle((CallFinished(READ.id, text="The time has come.", by="runtime"),))


def test_errors_in_a_row_ask_a_person_and_silence_halts() -> None:
    policy = Policy(consecutive_errors=1)
    failed = [reply(READ), CallFinished(READ.id, ok=False, text="Error: no")]
    step = next_step(after(*failed, policy=policy), NOW)
    assert isinstance(step, AskPerson)
    (raised,) = step.events
    assert isinstance(raised, InterruptRaised)
    assert (raised.kind, raised.call_id) == ("question", "")
    assert "Error: no" in raised.prompt
    asked = [*failed, raised]
    assert next_step(after(*asked, policy=policy), NOW) == Wait(raised.expires_at_ms)
    answered = InterruptResolved(raised.id, "answered", answer="go on")
    assert next_step(after(*asked, answered, policy=policy), NOW) == CallModel()
    silence = InterruptResolved(raised.id, "expired")
    assert next_step(after(*asked, silence, policy=policy), NOW) == Finish(ThreadHalted("errors"))
    assert next_step(after(*failed, policy=Policy(consecutive_errors=0)), NOW) == CallModel()


def test_a_cancel_goes_before_everything() -> None:
    raised = InterruptRaised(InterruptId("i"), "approval", GATED.id, expires_at_ms=1)
    state = after(reply(GATED, ONCE, READ), raised, started(ONCE), CancelRequested("ana", "no"))
    assert next_step(state, NOW, Local(frozenset({READ.id}))) == StopCalls(frozenset({READ.id}))
    step = next_step(state, NOW)
    assert isinstance(step, Settle)
    resolved, *results = step.events
    assert isinstance(resolved, InterruptResolved)
    assert resolved.outcome == "withdrawn"
    unknown = {r.call_id: r.unknown for r in results if isinstance(r, CallFinished)}
    assert unknown == {"gated": False, "once": True, "read": False}
    done = after(reply(READ), CallFinished(READ.id), CancelRequested("ana", "no"))
    assert next_step(done, NOW) == Finish(ThreadCancelled("ana", "no"))


def test_a_model_that_stays_down_fails_the_thread() -> None:
    assert next_step(after(ModelFailed(1, "down")), NOW) == Finish(ThreadFailed("down"))


@given(st.integers(0, 253_402_300_799_999))
@example(951_782_400_000)  # 29 February 2000
@example(1_709_251_199_999)
@example(4_107_542_400_000)  # 1 March 2100, after no leap day
def test_the_time_of_a_call_in_doubt_has_its_date(at_ms: int) -> None:
    expected = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert _clock(at_ms) == expected

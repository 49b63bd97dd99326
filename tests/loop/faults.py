"""Deliberate faults in the fold, the rules and the rendering: the machine has to find every one of them.

Each is a function that makes the fault for as long as its `MonkeyPatch` lives.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenuto import steps, thread
from tenuto.context import render
from tenuto.events import (
    AgentChanged,
    CallFinished,
    CallStarted,
    CancelRequested,
    InterruptRaised,
    InterruptResolved,
    MessageReceived,
    ModelReplied,
    ThreadCompleted,
)

Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[Fault] = []


def _fault(make: Fault) -> Fault:
    FAULTS.append(make)
    return make


def _after(patch: pytest.MonkeyPatch, kind: type, then: Callable[[Any, Any], None]) -> None:
    """Applying an event of this kind does something more."""
    original = thread._APPLY[kind]

    def applied(state: Any, entry: Any, event: Any) -> None:
        original(state, entry, event)
        then(state, event)

    patch.setitem(thread._APPLY, kind, applied)


def _instead(patch: pytest.MonkeyPatch, name: str, wrong: Callable[..., Any]) -> None:
    """A rule is replaced by one that is given the right one first."""
    original = getattr(steps, name)
    patch.setattr(steps, name, lambda *arguments: wrong(original, *arguments))


@_fault
def runs_a_once_call_again_instead_of_asking(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, state: Any, calls: Any, now_ms: int, local: Any) -> Any:
        step = right(state, calls, now_ms, local)
        if isinstance(step, steps.AskPerson):
            reviewed = {event.call_id for event in step.events if event.kind == "review"}
            if reviewed:
                return steps.RunCalls(tuple(call for call in calls if call.id in reviewed))
        return step

    _instead(patch, "_open", wrong)


@_fault
def forgets_the_deadline(patch: pytest.MonkeyPatch) -> None:
    _after(patch, CallStarted, lambda state, event: setattr(state.call(event.call_id), "deadline_ms", 0))


@_fault
def completes_over_an_unseen_message(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, state: Any) -> Any:
        last = state.history[-1] if state.history else None
        if isinstance(last, thread.Replied) and not last.calls and not state.interrupts:
            return steps.Finish(ThreadCompleted(last.event.text))
        return right(state)

    _instead(patch, "_decide", wrong)


@_fault
def drops_the_queue_on_a_reply(patch: pytest.MonkeyPatch) -> None:
    _after(patch, ModelReplied, lambda state, event: state.queued.clear())


@_fault
def takes_every_queued_message_for_read(patch: pytest.MonkeyPatch) -> None:
    original = thread._APPLY[ModelReplied]

    def applied(state: Any, entry: Any, event: Any) -> None:
        original(state, entry, msgspec.structs.replace(event, seen_seq=entry.seq))

    patch.setitem(thread._APPLY, ModelReplied, applied)


@_fault
def records_a_result_twice(patch: pytest.MonkeyPatch) -> None:
    _instead(patch, "_settled", lambda right, *facts: [*right(*facts), *right(*facts)])


@_fault
def runs_a_gated_call_unasked(patch: pytest.MonkeyPatch) -> None:
    def ungate(state: Any, event: Any) -> None:
        for call in state.calls:
            if call.call.gated and not call.call.question:
                call.phase = "allowed"

    _after(patch, ModelReplied, ungate)


@_fault
def takes_an_expiry_for_consent(patch: pytest.MonkeyPatch) -> None:
    def allow(state: Any, event: Any) -> None:
        if event.outcome == "expired":
            for call in state.calls:
                if call.decision is event and not call.call.question:
                    call.phase = "allowed"

    _after(patch, InterruptResolved, allow)


@_fault
def runs_what_was_proposed_not_what_was_edited(patch: pytest.MonkeyPatch) -> None:
    def proposed(state: Any, event: Any) -> None:
        for call in state.calls:
            if call.decision is event and event.outcome == "edited":
                call.arguments, call.digest = call.call.exact, call.call.digest

    _after(patch, InterruptResolved, proposed)


@_fault
def keeps_an_approval_over_a_change_of_agents(patch: pytest.MonkeyPatch) -> None:
    def keep(state: Any, event: Any) -> None:
        for call in event.calls:
            if not call.error:
                state.call(call.id).phase = "allowed"

    _after(patch, AgentChanged, keep)


@_fault
def never_hears_a_cancel(patch: pytest.MonkeyPatch) -> None:
    _after(patch, CancelRequested, lambda state, event: setattr(state, "cancel", None))


@_fault
def counts_one_step_too_few(patch: pytest.MonkeyPatch) -> None:
    def uncount(state: Any, event: Any) -> None:
        if state.used.steps == 1:
            state.used.steps = 0

    _after(patch, ModelReplied, uncount)


@_fault
def lets_nothing_expire(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "_expired", lambda state, now_ms: ())


@_fault
def asks_about_a_call_for_ever(patch: pytest.MonkeyPatch) -> None:
    def forget(state: Any, event: Any) -> None:
        if event.call_id and event.kind != "review":
            state.call(event.call_id).interrupt = None
            state.call(event.call_id).phase = "planned"

    _after(patch, InterruptRaised, forget)


@_fault
def shows_results_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    original = render.messages_of

    def wrong(item: Any) -> Any:
        first, *rest = original(item)
        return [first, *reversed(rest)]

    patch.setattr(render, "messages_of", wrong)


@_fault
def forgets_a_result_in_the_history(patch: pytest.MonkeyPatch) -> None:
    original = render.messages_of
    patch.setattr(render, "messages_of", lambda item: original(item)[:3])


@_fault
def puts_a_message_before_the_results(patch: pytest.MonkeyPatch) -> None:
    original = thread._APPLY[MessageReceived]

    def applied(state: Any, entry: Any, event: Any) -> None:
        original(state, entry, event)
        if state.open:
            state.history.append(state.queued.pop())

    patch.setitem(thread._APPLY, MessageReceived, applied)


@_fault
def settles_what_still_runs(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, state: Any, calls: Any, now_ms: int, local: Any) -> Any:
        if local.running and any(call.call.effect == "once" for call in calls):
            return steps.Settle(tuple(CallFinished(call.id, text="surely") for call in calls[:1]))
        return right(state, calls, now_ms, local)

    _instead(patch, "_open", wrong)


@_fault
def loses_the_answer_to_a_question(patch: pytest.MonkeyPatch) -> None:
    def lose(state: Any, event: Any) -> None:
        state.queued = [said for said in state.queued if said.text != event.answer]

    _after(patch, InterruptResolved, lose)


@_fault
def forgets_that_a_call_waits(patch: pytest.MonkeyPatch) -> None:
    _after(patch, CallStarted, lambda state, event: setattr(state.call(event.call_id), "until_ms", 0))

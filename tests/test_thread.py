"""The fold: what each event makes true, and which logs it refuses."""

from typing import Any

import pytest

from tenuto.events import (
    Call,
    CallFinished,
    CallId,
    CallStarted,
    CancelRequested,
    Entry,
    Event,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    Limits,
    LimitsExtended,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadStarted,
)
from tenuto.messages import Usage
from tenuto.rows import ENDED
from tenuto.thread import CorruptLog, ThreadState, apply, fold

PAY = Call(CallId("s0001c000"), "pay", '{"n":1}', effect="once", gated=True, digest="d1", timeout_ms=1000)
LOOK = Call(CallId("s0001c001"), "look", "{}")
ASKED = InterruptRaised(InterruptId("i1"), "approval", PAY.id, "pay", '{"n":1}', digest="d1")
BEGIN: list[Event] = [ThreadStarted("ops", "f"), MessageReceived("go")]
CALLED: list[Event] = [*BEGIN, ModelReplied(1, 2, calls=(PAY, LOOK))]


def folded(*events: Event) -> ThreadState:
    return fold(Entry(seq, 1000 + seq, event) for seq, event in enumerate(events, 1))  # type: ignore[arg-type]  # the root


@pytest.mark.parametrize(
    "wrong",
    [
        [CallFinished(LOOK.id), CallFinished(LOOK.id)],
        [CallFinished(LOOK.id), CallStarted(LOOK.id)],
        [CallFinished(CallId("s0009c000"))],
        [ModelReplied(2, 3)],
        [ThreadCompleted()],
        [ThreadCancelled()],
        [ThreadFailed("x")],
        [InterruptResolved(InterruptId("i1"), "approved")],
        [ASKED, InterruptResolved(ASKED.id, "approved"), InterruptResolved(ASKED.id, "rejected")],
        [ASKED, ThreadHalted("steps")],
        [ThreadHalted("steps"), ThreadHalted("steps")],
    ],
)
def test_a_log_that_contradicts_itself_is_refused(wrong: list[Event]) -> None:
    with pytest.raises(CorruptLog):
        folded(*CALLED, *wrong)


def test_a_gap_is_refused() -> None:
    state = folded(*BEGIN)
    for seq in (2, 4):
        with pytest.raises(CorruptLog):
            apply(state, Entry(seq, 1, MessageReceived("x")))


@pytest.mark.parametrize(
    ("events", "status"),
    [
        (BEGIN, "running"),
        (CALLED, "running"),
        ([*CALLED, ASKED], "awaiting_approval"),
        ([*CALLED, InterruptRaised(InterruptId("i"), "question")], "awaiting_answer"),
        ([*CALLED, InterruptRaised(InterruptId("i"), "review", PAY.id)], "awaiting_review"),
        ([*CALLED, CallStarted(LOOK.id, until_ms=9)], "sleeping"),
        ([*BEGIN, ModelReplied(1, 2, "hi"), ThreadCompleted("hi")], "completed"),
        ([*BEGIN, ModelFailed(1, "x"), ThreadFailed("x")], "failed"),
        ([*CALLED, ThreadHalted("steps")], "halted"),
        ([*BEGIN, CancelRequested(), ThreadCancelled()], "cancelled"),
    ],
)
def test_the_status(events: list[Event], status: str) -> None:
    state = folded(*events)
    assert state.status == status
    assert (state.ended is not None) is (status in ENDED)


def test_used_is_counted_from_replies_and_calls() -> None:
    reply = ModelReplied(1, 2, calls=(LOOK,), usage=Usage(input=7, output=5, cost=0.25), duration_ms=500)
    state = folded(*BEGIN, reply, CallFinished(LOOK.id, duration_ms=1500))
    used = state.used
    assert (used.steps, used.tokens, used.cost, used.seconds) == (1, 12, 0.25, 2.0)


@pytest.mark.parametrize(
    ("result", "errors"),
    [
        (CallFinished(LOOK.id, ok=False, by="tool"), 2),
        (CallFinished(LOOK.id, ok=False, by="runtime"), 2),
        (CallFinished(LOOK.id, ok=False, by="person"), 1),
        (CallFinished(LOOK.id), 0),
    ],
)
def test_errors_count_until_a_success_and_people_are_no_errors(result: CallFinished, errors: int) -> None:
    assert folded(*CALLED, CallFinished(PAY.id, ok=False), result).consecutive_errors == errors


def test_a_message_is_history_once_a_reply_has_seen_it() -> None:
    late = MessageReceived("late")
    state = folded(*BEGIN, late, ModelReplied(1, 2, calls=(LOOK,)))
    assert [said.text for said in state.queued] == ["late"]
    state = folded(*BEGIN, late, ModelReplied(1, 3, calls=(LOOK,)))
    assert state.queued == []
    assert [getattr(item, "text", "reply") for item in state.history] == ["go", "late", "reply"]


def test_a_message_to_an_ended_thread_begins_a_new_turn() -> None:
    for end in (
        [ModelReplied(1, 2, "hi"), ThreadCompleted("hi")],
        [ModelFailed(1, "down"), ThreadFailed("down")],
        [CancelRequested(), ThreadCancelled(reason="no")],
        [ModelReplied(1, 2, calls=(LOOK,)), CallFinished(LOOK.id), ThreadHalted("steps")],
    ):
        state = folded(*BEGIN, *end, MessageReceived("again"))
        assert (state.ended, state.used.steps, state.answer, state.error, state.limit) == (
            None,
            0,
            "",
            "",
            "",
        )
        assert state.queued[-1].text == "again"


def test_an_answer_ends_the_turn_for_what_came_in_meanwhile() -> None:
    state = folded(*BEGIN, MessageReceived("meanwhile"), ModelReplied(1, 2, "hi"))
    assert (state.used.steps, state.ended) == (0, None)
    assert folded(*BEGIN, MessageReceived("meanwhile"), ModelReplied(1, 2, calls=(LOOK,))).used.steps == 1


def test_a_message_behind_a_failure_asks_again() -> None:
    assert folded(*BEGIN, ModelFailed(1, "down")).model_failure is not None
    assert folded(*BEGIN, ModelFailed(1, "down"), MessageReceived("try")).model_failure is None


def test_an_extension_goes_on_only_from_a_halt_or_a_failure() -> None:
    more = LimitsExtended(Limits(steps=2))
    halted = folded(
        *BEGIN, ModelReplied(1, 2, calls=(LOOK,)), CallFinished(LOOK.id), ThreadHalted("steps"), more
    )
    assert (halted.ended, halted.more.steps, halted.used.steps) == (None, 2, 1)
    assert folded(*BEGIN, ModelReplied(1, 2, "hi"), ThreadCompleted("hi"), more).ended == "completed"
    assert folded(*BEGIN, more, more).more.steps == 4


def test_a_cancel_of_an_ended_thread_is_no_cancel() -> None:
    state = folded(*BEGIN, ModelReplied(1, 2, "hi"), ThreadCompleted("hi"), CancelRequested())
    assert (state.cancel, state.ended) == (None, "completed")


def test_what_came_after_the_cancel_begins_a_new_turn_and_what_came_before_does_not() -> None:
    before = folded(*BEGIN, MessageReceived("m"), CancelRequested("ana", "no"), ThreadCancelled("ana", "no"))
    assert (before.ended, before.error, before.cancel) == ("cancelled", "no", None)
    after = folded(*BEGIN, CancelRequested(), MessageReceived("m"), ThreadCancelled())
    assert (after.ended, after.cancel) == (None, None)
    assert [said.text for said in after.queued] == ["go", "m"]


@pytest.mark.parametrize(
    ("outcome", "phase", "arguments"),
    [
        ("approved", "allowed", '{"n":1}'),
        ("edited", "allowed", '{"n":2}'),
        ("rejected", "refused", '{"n":1}'),
        ("expired", "refused", '{"n":1}'),
        ("withdrawn", "refused", '{"n":1}'),
    ],
)
def test_what_a_decision_makes_of_a_call(outcome: Any, phase: str, arguments: str) -> None:
    decision = InterruptResolved(ASKED.id, outcome, arguments='{"n":2}', digest="d2")
    call = folded(*CALLED, ASKED, decision).call(PAY.id)
    assert (call.phase, call.arguments, call.interrupt, call.decision) == (phase, arguments, None, decision)
    assert call.digest == ("d2" if outcome == "edited" else "d1")


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [("happened", "reviewed"), ("dropped", "reviewed"), ("did_not_happen", "allowed")],
)
def test_what_a_review_makes_of_a_call(outcome: Any, phase: str) -> None:
    asked = InterruptRaised(InterruptId("i1"), "review", PAY.id)
    events = [*CALLED, CallStarted(PAY.id, deadline_ms=5000), asked]
    assert folded(*events).call(PAY.id).phase == "started"
    call = folded(*events, InterruptResolved(asked.id, outcome)).call(PAY.id)
    assert (call.phase, call.deadline_ms) == (phase, 5000)


def test_an_answer_to_a_free_question_is_queued_and_forgives_the_errors() -> None:
    asked = InterruptRaised(InterruptId("i1"), "question")
    failed = [CallFinished(PAY.id, ok=False), CallFinished(LOOK.id, ok=False)]
    state = folded(*CALLED, *failed, asked, InterruptResolved(asked.id, "answered", "ana", answer="so"))
    assert ([said.text for said in state.queued], state.consecutive_errors) == (["so"], 0)
    state = folded(*CALLED, *failed, asked, InterruptResolved(asked.id, "expired"))
    assert (state.question_expired, state.consecutive_errors) == (True, 2)

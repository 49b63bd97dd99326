"""What to do next: `next_step(state, now_ms)`, the whole of the rules, pure.

It is asked again after every event. Steps that need nothing from outside carry the events to append;
the others name what to do. In doubt means: started, without a result, and not running in this worker.

Order matters, and is the order below: a cancel goes before everything; what is decided is settled before
anything new is asked; people are asked before calls are dispatched, so that a question is visible while
its siblings run; the model is asked again only when every call of its last reply is settled.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Literal, assert_never

import msgspec

from tenuto.events import (
    CallFinished,
    CallId,
    Entry,
    Event,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    LimitName,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
)
from tenuto.thread import CallState, Replied, ThreadState, apply

REVIEW_OPTIONS = ("happened", "did_not_happen", "drop")
APPROVAL_OPTIONS = ("approve", "reject", "edit")
QUESTION_OPTIONS = ("answer",)
Verdict = Literal["did_not_happen", "unknown"]


class Local(msgspec.Struct, frozen=True):
    """What only this worker knows: the calls that it is running, why others are in doubt, and what their
    tools' `verify` said of them.
    """

    running: frozenset[CallId] = frozenset()
    doubts: Mapping[CallId, str] = {}
    verdicts: Mapping[CallId, Verdict] = {}


class CallModel(msgspec.Struct, frozen=True):
    """Ask the model with the history and the queued messages."""


class RunCalls(msgspec.Struct, frozen=True):
    """Dispatch `run` side by side; ask the tools of `verify` whether their call happened."""

    run: tuple[CallState, ...] = ()
    verify: tuple[CallState, ...] = ()


class StopCalls(msgspec.Struct, frozen=True):
    """Stop what runs here: the thread is being cancelled."""

    call_ids: frozenset[CallId]


class AskPerson(msgspec.Struct, frozen=True):
    """Append these `interrupt_raised`."""

    events: tuple[Event, ...]


class Settle(msgspec.Struct, frozen=True):
    """Append these results and resolutions, which need nothing from outside."""

    events: tuple[Event, ...]


class Finish(msgspec.Struct, frozen=True):
    """Append this terminal event, if nothing came in that the state does not know."""

    event: Event


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do before `until_ms` (None: before somebody else does something)."""

    until_ms: int | None = None


Step = CallModel | RunCalls | StopCalls | AskPerson | Settle | Finish | Wait
_NOTHING = Local()


def next_step(state: ThreadState, now_ms: int, local: Local = _NOTHING) -> Step:
    """The one thing to do next. Total: every state that the fold can build has an answer."""
    if state.ended is not None or not state.agent:
        return Wait()
    if state.cancel is not None:
        return _cancel(state, local)
    if settled := [*_expired(state, now_ms), *_withdrawn(state, now_ms), *_settled(state, now_ms)]:
        return Settle(tuple(settled))
    open_calls = state.open
    if open_calls:
        return _open(state, open_calls, now_ms, local)
    return _decide(state)


def questions_after(
    state: ThreadState, events: Iterable[Event], now_ms: int, local: Local
) -> tuple[Event, ...]:
    """What people are asked first once this reply and its results are recorded: one append can hold both."""
    ahead = msgspec.structs.replace(state, history=[], used=msgspec.structs.replace(state.used))
    for seq, event in enumerate(events, state.head_seq + 1):
        apply(ahead, Entry(seq, now_ms, event))  # type: ignore[arg-type]  # Event is the union's root
    step = next_step(ahead, now_ms, local)
    return step.events if isinstance(step, AskPerson) else ()


def _cancel(state: ThreadState, local: Local) -> Step:
    if local.running:
        return StopCalls(local.running)
    cancel = state.cancel
    assert cancel is not None
    events: list[Event] = [
        InterruptResolved(raised.id, "withdrawn", by="runtime", comment="the thread was cancelled")
        for raised in state.interrupts
    ]
    for call in state.open:
        started = call.phase == "started" and not call.until_ms
        unknown = (started or call.phase == "reviewed") and call.call.effect != "read"
        text = "cancelled; " + ("it is unknown whether it ran" if unknown else "it was not run")
        if call.call.effect == "read" and call.phase in ("planned", "allowed"):
            text = "cancelled before it had a result"  # it may have run: reads leave no trace of their start
        events.append(CallFinished(call.id, ok=False, text=f"Error: {text}.", by="runtime", unknown=unknown))
    if events:
        return Settle(tuple(events))
    return Finish(ThreadCancelled(by=cancel.by, reason=cancel.reason))


def _is_late(raised: InterruptRaised, now_ms: int) -> bool:
    return 0 < raised.expires_at_ms <= now_ms


def _expired(state: ThreadState, now_ms: int) -> Iterable[Event]:
    for raised in state.interrupts:
        if _is_late(raised, now_ms):
            yield InterruptResolved(raised.id, "expired", by="runtime")


def _withdrawn(state: ThreadState, now_ms: int) -> Iterable[Event]:
    if state.policy.on_message == "withdraw" and state.queued:
        for raised in state.interrupts:
            if raised.kind == "approval" and not _is_late(raised, now_ms):
                yield InterruptResolved(raised.id, "withdrawn", by="runtime", comment="a new message came in")


def _settled(state: ThreadState, now_ms: int) -> Iterable[Event]:
    for call in state.open:
        match call.phase:
            case "planned" if call.call.error:
                yield CallFinished(call.id, ok=False, text=f"Error: {call.call.error}", by="runtime")
            case "refused" | "answered" | "reviewed":
                yield _decided(call)
            case "started" if call.until_ms and now_ms >= call.until_ms:
                yield CallFinished(call.id, text="The time has come.", by="runtime")


def _decided(call: CallState) -> CallFinished:
    """The result of a call that a person (or the lack of one) settled."""
    decision = call.decision
    assert decision is not None
    comment = f" They said: {decision.comment}" if decision.comment else ""
    match decision.outcome:
        case "answered":
            return CallFinished(call.id, text=decision.answer, by="person")
        case "happened":
            text = decision.answer or "It happened; a person checked." + comment
            return CallFinished(call.id, text=text, by="person")
        case "rejected":
            text = f"Error: a person rejected this call; it was not run.{comment}"
            return CallFinished(call.id, ok=False, text=text, by="person")
        case "dropped":
            text = f"Error: this call was started and its outcome is unknown; a person dropped it.{comment}"
            return CallFinished(call.id, ok=False, text=text, by="person", unknown=True)
        case "expired":
            text = "Error: nobody decided in time; this call was not run."
            return CallFinished(call.id, ok=False, text=text, by="runtime")
        case "withdrawn":
            text = f"Error: the request to run this call was withdrawn ({decision.comment}); it was not run."
            # By the person whose message came in: that is no failure of the tool.
            return CallFinished(call.id, ok=False, text=text, by="person")
        case "approved" | "edited" | "did_not_happen":
            raise AssertionError(f"call {call.id} is {call.phase} after {decision.outcome}")
        case _:
            assert_never(decision.outcome)


def _open(state: ThreadState, calls: list[CallState], now_ms: int, local: Local) -> Step:
    asks: list[Event] = []
    run: list[CallState] = []
    verify: list[CallState] = []
    times = [raised.expires_at_ms for raised in state.interrupts if raised.expires_at_ms]
    halted = _exhausted(state) is not None
    waiting = bool(state.interrupts or local.running)
    for call in () if state.doubted else calls:
        if call.id in local.running or call.interrupt is not None:
            continue
        if call.phase == "planned" and call.call.gated:
            if not halted:
                asks.append(_approval(state, call, now_ms, len(asks)))
        elif call.phase in ("planned", "allowed"):
            if now_ms >= call.deadline_ms:
                run.append(call)
            else:
                times.append(call.deadline_ms)
        elif call.until_ms:
            times.append(call.until_ms)
        elif (verdict := local.verdicts.get(call.id)) == "did_not_happen":
            run.append(call)
        elif call.call.effect == "once" and (verdict == "unknown" or not call.call.verifiable):
            asks.append(review(state, call, local.doubts.get(call.id, ""), len(asks)))
        elif now_ms < call.deadline_ms:
            # Nobody may look or run again while the first attempt may still be at work.
            times.append(call.deadline_ms)
        elif call.call.effect == "once":
            verify.append(call)
        else:
            run.append(call)
    if asks:
        return AskPerson(tuple(asks))
    if run or verify:
        return RunCalls(tuple(run), tuple(verify))
    if times or waiting:
        return Wait(min(times, default=None))
    return _halt(state)


def _decide(state: ThreadState) -> Step:
    """All calls are settled, or there was no reply yet."""
    if state.interrupts:
        return Wait(min((r.expires_at_ms for r in state.interrupts if r.expires_at_ms), default=None))
    if state.model_failure is not None:
        return Finish(ThreadFailed(error=state.model_failure.error))
    limit = state.policy.consecutive_errors
    if limit and state.consecutive_errors >= limit:
        if state.question_expired:
            return Finish(ThreadHalted(limit="errors"))
        return AskPerson((_question(state),))
    last = state.history[-1] if state.history else None
    if isinstance(last, Replied) and not last.calls and not state.queued:
        return Finish(ThreadCompleted(answer=last.event.text))
    if last is None and not state.queued:
        return Wait()
    return CallModel() if _exhausted(state) is None else _halt(state)


def _halt(state: ThreadState) -> Step:
    limit = _exhausted(state)
    assert limit is not None, "a thread halts only at a limit"
    return Finish(ThreadHalted(limit=limit))


def _exhausted(state: ThreadState) -> LimitName | None:
    """The limit that this turn has reached, so that one more model call would exceed it."""
    limits, more, used = state.limits, state.more, state.used
    if limits.steps and used.steps >= limits.steps + more.steps:
        return "steps"
    if limits.tokens and used.tokens >= limits.tokens + more.tokens:
        return "tokens"
    if limits.cost and used.cost >= limits.cost + more.cost:
        return "cost"
    if limits.seconds and used.seconds >= limits.seconds + more.seconds:
        return "seconds"
    return None


# -- interrupts --------------------------------------------------------------------------------------


def _interrupt_id(state: ThreadState, offset: int) -> InterruptId:
    """The same state raises the same interrupt under the same id, in whichever worker."""
    name = f"tenuto:{state.id}:interrupt:{state.raised + offset}"
    return InterruptId(str(uuid.uuid5(uuid.NAMESPACE_URL, name)))


def _approval(state: ThreadState, call: CallState, now_ms: int, offset: int) -> InterruptRaised:
    question = bool(call.call.question)
    return InterruptRaised(
        _interrupt_id(state, offset),
        "question" if question else "approval",
        call_id=call.id,
        name=call.call.name,
        arguments=call.arguments,
        prompt=call.call.question or call.call.prompt,
        digest=call.digest,
        options=QUESTION_OPTIONS if question else APPROVAL_OPTIONS,
        expires_at_ms=now_ms + call.call.expires_ms if call.call.expires_ms else 0,
    )


def review(state: ThreadState, call: CallState, reason: str, offset: int = 0) -> InterruptRaised:
    """Ask a person what became of a started call. It never expires: nothing may decide that for them."""
    why = reason or "no result of it was recorded"
    return InterruptRaised(
        _interrupt_id(state, offset),
        "review",
        call_id=call.id,
        name=call.call.name,
        arguments=call.arguments,
        prompt=f"{said_of(call)} and its outcome is unknown: {why}",
        digest=call.digest,
        options=REVIEW_OPTIONS,
    )


def said_of(call: CallState) -> str:
    """Which call was started, when and by whom, for people."""
    arguments = call.arguments if len(call.arguments) <= 200 else f"{call.arguments[:200]}…"
    worker = call.worker or "unknown"
    return f"{call.call.name}({arguments}) was started {_clock(call.started_at_ms)} by worker {worker}"


def _clock(at_ms: int) -> str:
    """The date and time of `at_ms`, UTC, for people: a review may be read days later. `civil_from_days` of
    Howard Hinnant's chrono-Compatible Low-Level Date Algorithms: its years begin with March.
    """
    days, seconds = divmod(at_ms // 1000, 86_400)
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    date = f"{year + 400 * era + (month > 9):04}-{month + (3 if month < 10 else -9):02}-{day:02}"
    return f"{date} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} UTC"


def _question(state: ThreadState) -> InterruptRaised:
    failed = [call for call in state.calls if call.result is not None and not call.result.ok]
    last = (
        f" The last: {failed[-1].call.name}: {failed[-1].result.text}" if failed and failed[-1].result else ""
    )
    return _ask(
        state,
        f"{state.consecutive_errors} tool calls in a row have failed. How should the agent go on?{last}",
    )


def trouble(state: ThreadState, error: str, attempts: int) -> InterruptRaised:
    """A question for a thread that no worker can advance; the answer makes it ready again."""
    return _ask(
        state, f"Advancing this thread failed {attempts} times: {error}. Answer to try again, or cancel."
    )


def deadly(state: ThreadState, deaths: int) -> InterruptRaised:
    """A question for a thread whose holders died one after the other; the answer lets it go on."""
    calls = ", ".join(
        call.call.name for call in state.open if call.phase in ("planned", "allowed", "started")
    )
    what = f" It has to run: {calls}." if calls else ""
    return _ask(
        state,
        f"{deaths} workers in a row died or stood still while they held this thread, so it may be what kills "
        f"them.{what} Answer to let it go on, or cancel.",
    )


def _ask(state: ThreadState, prompt: str) -> InterruptRaised:
    expires_ms = state.policy.question_expires_ms
    return InterruptRaised(
        _interrupt_id(state, 0),
        "question",
        prompt=prompt,
        options=QUESTION_OPTIONS,
        expires_at_ms=state.at_ms + expires_ms if expires_ms else 0,
    )

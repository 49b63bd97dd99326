"""What is true of a thread: the fold of its events. Pure: no clock, no randomness, no input or output.

`fold(entries)` builds a `ThreadState`; `apply(state, entry)` moves one on by one event, in place. What to
do about a state is decided in `tenuto.steps`. A log that breaks an invariant (a second result for a
call, a gap in `seq`) raises `CorruptLog` rather than being guessed at.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from tenuto.errors import StoreError
from tenuto.events import (
    TERMINAL,
    AgentChanged,
    Call,
    CallFinished,
    CallId,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    Entry,
    Event,
    HistoryRepaired,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    Limits,
    LimitsExtended,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    Policy,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
    ThreadStarted,
)

Ended = Literal["completed", "failed", "halted", "cancelled"]


class CorruptLog(StoreError):
    """The events of this thread contradict each other."""


class CallState(msgspec.Struct, gc=False):
    """One call of the last reply, on its way to exactly one result.

    planned ─► (asked ─► allowed | refused | answered) ─► started ─► settled; a started call whose worker
    died is in doubt, and a `review` decides: settled, or allowed again (`did_not_happen`).
    """

    call: Call
    phase: Literal["planned", "asked", "allowed", "refused", "answered", "started", "reviewed", "settled"]
    arguments: str
    digest: str
    interrupt: InterruptId | None = None
    decision: InterruptResolved | None = None
    attempt: int = 0
    deadline_ms: int = 0
    until_ms: int = 0
    worker: str = ""
    started_at_ms: int = 0
    result: CallFinished | None = None

    @property
    def id(self) -> CallId:
        return self.call.id


class Said(msgspec.Struct, gc=False, frozen=True):
    """A message in the history, at the place where the model read or will read it."""

    seq: int
    text: str
    by: str


class Replied(msgspec.Struct, gc=False, frozen=True):
    """A model reply in the history with the calls that it made."""

    seq: int
    event: ModelReplied
    calls: list[CallState]


class Summary(msgspec.Struct, gc=False, frozen=True):
    """What stands in for everything up to `seq`."""

    seq: int
    text: str


Item = Said | Replied | Summary


class Used(msgspec.Struct):
    """What this turn has used so far, in the units of `Limits`."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class ThreadState(msgspec.Struct):
    """Everything that is true of a thread now.

    `history` is what the model has read, in order; `queued` the messages that it has not read yet.
    `interrupts` are the pending ones, oldest first. `ended` is None while the thread can go on by itself.
    """

    id: ThreadId = ThreadId("")
    agent: str = ""
    fingerprint: str = ""
    metadata: dict[str, Any] = {}
    limits: Limits = Limits()
    policy: Policy = Policy()
    head_seq: int = 0
    at_ms: int = 0
    step: int = 0
    used: Used = msgspec.field(default_factory=Used)
    more: Limits = Limits()
    history: list[Item] = []
    queued: list[Said] = []
    calls: list[CallState] = []
    interrupts: list[InterruptRaised] = []
    raised: int = 0
    consecutive_errors: int = 0
    question_expired: bool = False
    cancel: CancelRequested | None = None
    cancel_seq: int = 0
    model_failure: ModelFailed | None = None
    ended: Ended | None = None
    answer: str = ""
    error: str = ""
    limit: str = ""
    sent: tuple[str, str, str] = ("", "", "")

    @property
    def doubted(self) -> bool:
        """A person is asked about the thread as a whole: until they answer, nothing of it is run."""
        return any(not raised.call_id for raised in self.interrupts)

    @property
    def status(self) -> str:
        """`ended`, else what is being waited for, else "running"."""
        if self.ended is not None:
            return self.ended
        if self.interrupts:
            kind = self.interrupts[0].kind
            return "awaiting_answer" if kind == "question" else f"awaiting_{kind}"
        if any(call.until_ms and call.phase == "started" for call in self.calls):
            return "sleeping"
        return "running"

    @property
    def open(self) -> list[CallState]:
        """The calls of the last reply that have no result yet, in the reply's order."""
        return [call for call in self.calls if call.phase != "settled"]

    def call(self, call_id: str) -> CallState:
        """The call of that id in the last reply. Raises `CorruptLog`."""
        for call in self.calls:
            if call.call.id == call_id:
                return call
        raise CorruptLog(f"thread {self.id}: no call {call_id!r} in the last reply")

    def pending(self, interrupt_id: str) -> InterruptRaised | None:
        """The pending interrupt of that id."""
        return next((raised for raised in self.interrupts if raised.id == interrupt_id), None)


def fold(entries: Iterable[Entry], thread_id: ThreadId = ThreadId("")) -> ThreadState:
    """The state after these events, which begin at seq 1."""
    state = ThreadState(id=thread_id)
    for entry in entries:
        apply(state, entry)
    return state


def apply(state: ThreadState, entry: Entry) -> None:
    """Move `state` on by the next event, in place. Raises `CorruptLog`; the state is then unusable."""
    if entry.seq != state.head_seq + 1:
        raise CorruptLog(f"thread {state.id}: event {entry.seq} follows {state.head_seq}")
    _APPLY[type(entry.event)](state, entry, entry.event)
    state.head_seq = entry.seq
    state.at_ms = entry.at_ms


# -- thread ------------------------------------------------------------------------------------------


def _started(state: ThreadState, entry: Entry, event: ThreadStarted) -> None:
    state.agent, state.fingerprint = event.agent, event.fingerprint
    state.limits, state.policy, state.metadata = event.limits, event.policy, event.metadata


def _message(state: ThreadState, entry: Entry, event: MessageReceived) -> None:
    state.queued.append(Said(entry.seq, event.text, event.by))
    # A message between a model's failure and the end that it would bring: ask again.
    state.model_failure = None
    if state.ended is not None or _is_answered(state):
        _new_turn(state)


def _is_answered(state: ThreadState) -> bool:
    last = state.history[-1] if state.history else None
    return isinstance(last, Replied) and not last.calls


def _new_turn(state: ThreadState) -> None:
    state.used, state.more = Used(), Limits()
    _go_on(state)


def _go_on(state: ThreadState) -> None:
    state.ended, state.model_failure, state.question_expired = None, None, False
    state.answer = state.error = state.limit = ""
    state.consecutive_errors = 0


def _agent_changed(state: ThreadState, entry: Entry, event: AgentChanged) -> None:
    state.fingerprint, state.limits, state.policy = event.fingerprint, event.limits, event.policy
    for call in event.calls:
        old = state.call(call.id)
        new = CallState(
            call, "planned", call.exact, call.digest, attempt=old.attempt, deadline_ms=old.deadline_ms
        )
        for place, present in enumerate(state.calls):
            if present is old:
                state.calls[place] = new


def _extended(state: ThreadState, entry: Entry, event: LimitsExtended) -> None:
    more = state.more
    state.more = Limits(
        more.steps + event.more.steps,
        more.tokens + event.more.tokens,
        more.cost + event.more.cost,
        more.seconds + event.more.seconds,
    )
    if state.ended in ("halted", "failed"):
        _go_on(state)


def _cancel_requested(state: ThreadState, entry: Entry, event: CancelRequested) -> None:
    if state.ended is None and state.cancel is None:
        state.cancel, state.cancel_seq = event, entry.seq


def _ended(state: ThreadState, entry: Entry, event: Event) -> None:
    if state.ended is not None or (state.open and not isinstance(event, ThreadHalted)) or state.interrupts:
        raise CorruptLog(
            f"thread {state.id}: event {entry.seq} ends a thread that has ended or is not settled"
        )
    match event:
        case ThreadCompleted(answer=answer):
            state.ended, state.answer = "completed", answer
        case ThreadFailed(error=error):
            state.ended, state.error = "failed", error
        case ThreadHalted(limit=limit):
            state.ended, state.limit = "halted", limit
        case ThreadCancelled(reason=reason):
            state.ended, state.error = "cancelled", reason
            # A message that came after the cancel was asked for begins a new turn at once.
            if any(said.seq > state.cancel_seq for said in state.queued):
                _new_turn(state)
            state.cancel, state.cancel_seq = None, 0
        case _:
            raise AssertionError(f"{event} ends no thread")


# -- decide ------------------------------------------------------------------------------------------


def _replied(state: ThreadState, entry: Entry, event: ModelReplied) -> None:
    if state.open:
        raise CorruptLog(f"thread {state.id}: reply {entry.seq} while calls are open")
    if state.queued:
        state.history += [said for said in state.queued if said.seq <= event.seen_seq]
        state.queued = [said for said in state.queued if said.seq > event.seen_seq]
    calls = [CallState(call, "planned", call.exact, call.digest) for call in event.calls]
    state.calls = calls
    state.history.append(Replied(entry.seq, event, calls))
    state.step = event.step
    state.model_failure = None
    old = state.sent
    state.sent = (event.prompt or old[0], event.tools or old[1], event.parameters or old[2])
    used = state.used
    used.steps += 1
    used.tokens += event.usage.input + event.usage.output
    used.cost += event.usage.cost
    used.seconds += event.duration_ms / 1000
    if not calls and state.queued:
        # The answer ends the turn; what came in meanwhile begins the next, as it would a moment later.
        state.used, state.more = Used(), Limits()


def _model_failed(state: ThreadState, entry: Entry, event: ModelFailed) -> None:
    state.model_failure = event


def _repaired(state: ThreadState, entry: Entry, event: HistoryRepaired) -> None:
    return


# -- act ---------------------------------------------------------------------------------------------


def _call_started(state: ThreadState, entry: Entry, event: CallStarted) -> None:
    call = state.call(event.call_id)
    if call.phase == "settled":
        raise CorruptLog(f"thread {state.id}: settled call {call.id} starts again at {entry.seq}")
    call.phase = "started"
    call.attempt, call.deadline_ms, call.until_ms = event.attempt, event.deadline_ms, event.until_ms
    call.worker, call.started_at_ms = event.worker, entry.at_ms


def _call_finished(state: ThreadState, entry: Entry, event: CallFinished) -> None:
    call = state.call(event.call_id)
    if call.phase == "settled":
        raise CorruptLog(f"thread {state.id}: call {call.id} has a second result at {entry.seq}")
    call.phase, call.result = "settled", event
    state.used.seconds += event.duration_ms / 1000
    if event.ok:
        state.consecutive_errors = 0
    elif event.by != "person":
        state.consecutive_errors += 1


# -- people ------------------------------------------------------------------------------------------


def _raised(state: ThreadState, entry: Entry, event: InterruptRaised) -> None:
    state.interrupts.append(event)
    state.raised += 1
    if event.call_id:
        call = state.call(event.call_id)
        call.interrupt = event.id
        if event.kind != "review":
            call.phase = "asked"


def _resolved(state: ThreadState, entry: Entry, event: InterruptResolved) -> None:
    raised = state.pending(event.id)
    if raised is None:
        raise CorruptLog(f"thread {state.id}: event {entry.seq} resolves {event.id}, which is not pending")
    state.interrupts.remove(raised)
    if not raised.call_id:
        if event.outcome == "answered":
            state.queued.append(Said(entry.seq, event.answer, event.by))
            state.consecutive_errors = 0
        elif event.outcome == "expired":
            state.question_expired = True
        return
    call = state.call(raised.call_id)
    call.interrupt, call.decision = None, event
    if raised.kind == "review":
        # A review that expired or was withdrawn leaves the call in doubt; one that says nothing happened
        # lets the call run again, with the same key, once its deadline has passed.
        call.phase = "allowed" if event.outcome == "did_not_happen" else "reviewed"
    elif event.outcome in ("approved", "edited"):
        call.phase = "allowed"
        if event.outcome == "edited":
            call.arguments, call.digest = event.arguments, event.digest
    else:
        call.phase = "answered" if event.outcome == "answered" else "refused"


# -- context -----------------------------------------------------------------------------------------


def _compacted(state: ThreadState, entry: Entry, event: ContextCompacted) -> None:
    kept = [item for item in state.history if item.seq > event.upto_seq]
    state.history = [Summary(event.upto_seq, event.summary), *kept]


_APPLY: dict[type, Callable[[ThreadState, Entry, Any], None]] = {
    ThreadStarted: _started,
    MessageReceived: _message,
    AgentChanged: _agent_changed,
    LimitsExtended: _extended,
    CancelRequested: _cancel_requested,
    **dict.fromkeys(TERMINAL, _ended),
    ModelReplied: _replied,
    ModelFailed: _model_failed,
    HistoryRepaired: _repaired,
    CallStarted: _call_started,
    CallFinished: _call_finished,
    InterruptRaised: _raised,
    InterruptResolved: _resolved,
    ContextCompacted: _compacted,
}

"""An auditor of logs: reads events and dispatches, never the fold, and says which promise was broken.

What it knows it has from the promises alone, so that a fault of the fold or of the rules cannot hide here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenuto.events import (
    TERMINAL,
    AgentChanged,
    Call,
    CallFinished,
    CallStarted,
    Entry,
    InterruptRaised,
    InterruptResolved,
    LimitsExtended,
    MessageReceived,
    ModelReplied,
    ThreadCancelled,
    ThreadCompleted,
    ThreadHalted,
    ThreadStarted,
)
from tenuto.messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage


@dataclass(frozen=True)
class Dispatch:
    """A tool's function (or, with `verify`, its verifier) was called after the log had `after_seq` events;
    `freed`: verify answered that nothing had happened.
    """

    call_id: str
    arguments: str
    digest: str
    after_seq: int
    at_ms: int
    verify: bool = False
    freed: bool = False


class _Seen:
    """What the log has said of one call so far."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.allowed: tuple[str, str] | None = None
        self.asked: InterruptRaised | None = None
        self.deadline_ms = 0
        self.waits = False
        self.started = False
        self.cleared = True
        self.finished = False


def audit(log: Sequence[Entry], dispatches: Sequence[Dispatch] = ()) -> None:
    """Raise AssertionError for a broken promise."""
    calls: dict[str, _Seen] = {}
    raised: dict[str, InterruptRaised] = {}
    resolved: set[str] = set()
    todo = sorted([*dispatches], key=lambda one: one.after_seq)
    turn = _Turn()
    for place, entry in enumerate(log, 1):
        assert entry.seq == place, "a gap in seq"
        while todo and todo[0].after_seq < place:
            _dispatched(calls[todo[0].call_id], todo.pop(0))
        turn.saw(entry)
        match entry.event:
            case ModelReplied() as event:
                assert all(seen.finished for seen in calls.values()), "a reply while calls are open"
                for call in event.calls:
                    assert call.id not in calls, "a call id twice in a thread"
                    calls[call.id] = _Seen(call)
            case CallStarted() as event:
                _started(calls[event.call_id], event)
            case CallFinished() as event:
                assert not calls[event.call_id].finished, f"a second result for {event.call_id}"
                calls[event.call_id].finished = True
            case InterruptRaised() as event:
                assert event.id not in raised, "an interrupt id twice"
                raised[event.id] = event
                if event.call_id:
                    assert not calls[event.call_id].finished, "asked about a settled call"
                    calls[event.call_id].asked = event
            case InterruptResolved() as event:
                assert event.id in raised, "a decision about nothing"
                assert event.id not in resolved, "decided twice"
                resolved.add(event.id)
                if raised[event.id].call_id:
                    _decided(calls[raised[event.id].call_id], raised[event.id], event)
            case AgentChanged() as event:
                for call in event.calls:
                    calls[call.id].call, calls[call.id].allowed = call, None
            case event if isinstance(event, TERMINAL):
                assert raised.keys() == resolved, "ended while a person was asked"
                settled = all(seen.finished for seen in calls.values())
                assert settled or isinstance(event, ThreadHalted), "ended with open calls"
            case _:
                pass
    for dispatch in todo:
        _dispatched(calls[dispatch.call_id], dispatch)


def _started(seen: _Seen, event: CallStarted) -> None:
    assert not seen.finished, "started after its result"
    seen.waits = bool(event.until_ms)
    if seen.waits:
        return
    assert seen.call.effect != "read", "a read call needs no intent"
    if seen.call.effect == "once":
        cleared = seen.cleared or event.why == "verify: it did not happen"
        assert cleared, f"{event.call_id} may not start again: nobody said that it did not happen"
    seen.cleared, seen.started = False, False
    seen.deadline_ms = event.deadline_ms


def _decided(seen: _Seen, asked: InterruptRaised, event: InterruptResolved) -> None:
    match event.outcome:
        case "approved":
            seen.allowed = (asked.arguments, asked.digest)
        case "edited":
            seen.allowed = (event.arguments, event.digest)
        case "did_not_happen":
            seen.cleared = True


def _dispatched(seen: _Seen, dispatch: Dispatch) -> None:
    """Called where the dispatch stands in the log, with what the log had said by then."""
    call = seen.call
    if dispatch.freed:
        seen.cleared = True
        return
    assert not seen.finished, f"{call.id} dispatched after its result"
    assert not seen.waits, f"{call.id} dispatched while it waits for a time"
    assert not call.error, f"{call.id} dispatched although it cannot run"
    if dispatch.verify:
        assert call.effect == "once", f"verify of {call.id}, which is {call.effect}"
        assert dispatch.at_ms >= seen.deadline_ms, f"{call.id} verified before its deadline"
        return
    if call.gated:
        assert seen.allowed == (dispatch.arguments, dispatch.digest), f"nobody allowed {dispatch}"
    else:
        assert dispatch.arguments == call.exact
    if call.effect != "read":
        assert not seen.cleared, f"{call.id} dispatched before its intent was recorded"
        assert not seen.started, f"{call.id} dispatched twice for one intent"
    seen.started = True


def early_starts(log: Sequence[Entry]) -> list[str]:
    """Calls that were started again before the deadline of the attempt before."""
    deadlines: dict[str, int] = {}
    early = []
    for entry in log:
        if isinstance(entry.event, CallStarted) and not entry.event.until_ms:
            if entry.at_ms < deadlines.get(entry.event.call_id, 0):
                early.append(entry.event.call_id)
            deadlines[entry.event.call_id] = entry.event.deadline_ms
    return early


class _Turn:
    """How often the model was asked since the turn began, and what it has not read yet."""

    def __init__(self) -> None:
        self.limit = 0
        self.replies = 0
        self.more = 0
        self.ended = True
        self.cancel_seq = 0
        self.unread: list[int] = []
        self.called = False

    def saw(self, entry: Entry) -> None:
        match entry.event:
            case ThreadStarted(limits=limits):
                self.limit, self.ended = limits.steps, False
            case AgentChanged(limits=limits):
                self.limit = limits.steps
            case MessageReceived():
                self.unread.append(entry.seq)
                if self.ended or (self.replies and not self.called):
                    self.begin()
            case LimitsExtended(more=more):
                self.more += more.steps
                self.ended = False
            case ModelReplied() as event:
                self.replies += 1
                assert not self.limit or self.replies <= self.limit + self.more, "more steps than allowed"
                self.unread = [seq for seq in self.unread if seq > event.seen_seq]
                self.called = bool(event.calls)
                if self.unread and not event.calls:
                    self.begin()
            case ThreadCompleted():
                assert not self.unread, f"message {self.unread[0]} was buried under an answer"
                assert not self.called, "completed instead of telling the model its results"
                self.ended = True
            case ThreadCancelled():
                self.ended = True
                if self.unread:
                    self.begin()
            case event if isinstance(event, TERMINAL):
                self.ended = True
            case _:
                pass

    def begin(self) -> None:
        self.replies, self.more, self.ended = 0, 0, False


def check_messages(messages: Sequence[Message], log: Sequence[Entry]) -> None:
    """A request is well formed, and holds every message that the log has, in the log's order."""
    waiting: list[str] = []
    calls: set[str] = set()
    for message in messages:
        match message:
            case ToolMessage(call_id=call_id):
                assert waiting, f"a result for {call_id} without its call"
                assert waiting.pop(0) == call_id, "results out of order"
            case AssistantMessage(calls=made):
                assert not waiting, f"no result for {waiting}"
                waiting = [call.id for call in made]
                assert not calls.intersection(waiting)
                calls.update(waiting)
            case _:
                assert not waiting, f"something stands between a call and its result: {waiting}"
    assert not waiting, f"no result for {waiting}"
    asked = {e.event.id: e.event for e in log if isinstance(e.event, InterruptRaised)}
    said = [
        entry.event.text if isinstance(entry.event, MessageReceived) else entry.event.answer
        for entry in log
        if isinstance(entry.event, MessageReceived)
        or (
            isinstance(entry.event, InterruptResolved)
            and entry.event.outcome == "answered"
            and not asked[entry.event.id].call_id
        )
    ]
    read = [message.text for message in messages if isinstance(message, UserMessage)]
    assert read == said, "a message was lost, doubled or moved"
    finished = {e.event.call_id: e.event.text for e in log if isinstance(e.event, CallFinished)}
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.text.endswith(finished[message.call_id]), "not the recorded result"
    assert all(isinstance(message, SystemMessage) is (place == 0) for place, message in enumerate(messages))

"""A loop without input or output: it does what `next_step` says, on a list instead of a store.

Whoever drives it plays the world: the model, the tools, people, time and crashes.
"""

from collections.abc import Coroutine
from typing import Any

from tests.loop.audit import Dispatch, audit, check_messages, early_starts

from tenuto import steps
from tenuto import thread as facts
from tenuto.agent import Agent
from tenuto.approvals import outcome_of
from tenuto.context import Rendering
from tenuto.errors import NotDone
from tenuto.events import (
    AnyEvent,
    CallFinished,
    CallStarted,
    Entry,
    Event,
    InterruptResolved,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ThreadCompleted,
    ThreadId,
    ThreadStarted,
    decode,
    encode,
)
from tenuto.loop import run
from tenuto.loop.act import _tool
from tenuto.loop.decide import _plan
from tenuto.messages import Message, Reply
from tenuto.tools.tool import call_digest

MAX_QUIET_STEPS = 200
THREAD = ThreadId("5e9a1d5e-0000-4000-8000-000000000000")


class PureLoop:
    """One thread, its log, and a worker that can die at any point."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.now_ms = 1_700_000_000_000
        self.log: list[Entry] = []
        self.dispatches: list[Dispatch] = []
        self.last_request: list[Message] = []
        self.requests = 0
        self.state = facts.ThreadState(id=THREAD)
        self.forget()
        self.append(ThreadStarted(agent.name, agent.fingerprint, agent.limits, agent.policy))
        self.append(MessageReceived("first"))

    def forget(self) -> None:
        """All that only the worker knows is gone."""
        self.running: dict[str, bool] = {}
        self.doubts: dict[str, str] = {}
        self.verdicts: dict[str, steps.Verdict] = {}
        self.asking: int | None = None
        self.rendering = Rendering()
        self.adopted = False

    # -- the log ---------------------------------------------------------------------------------------

    def append(self, *events: Event) -> None:
        """As stored: through the bytes."""
        for event in events:
            entry = Entry(len(self.log) + 1, self.now_ms, decode(encode(event)))
            facts.apply(self.state, entry)
            self.log.append(entry)

    def refold(self) -> facts.ThreadState:
        return facts.fold(self.log, THREAD)

    def crash(self) -> None:
        self.forget()
        self.state = self.refold()

    # -- the worker ------------------------------------------------------------------------------------

    def step(self, slips_in: AnyEvent | None = None, dies_after_intent: bool = False) -> bool:
        """Do one step; False when there is nothing to do. `slips_in` is appended by somebody else between
        the decision and a terminal event's append.
        """
        if not self.adopted:
            _drain(run._adopt(_AsHolder(self)))  # type: ignore[arg-type]  # what it needs of a holder
            self.adopted = True
        if self.asking is not None:
            if self.state.cancel is None:
                return False
            self.asking = None
        step = steps.next_step(self.state, self.now_ms, self._local)
        match step:
            case steps.CallModel():
                self._ask()
            case steps.RunCalls(run=calls, verify=checks):
                self._dispatch(calls, checks, dies_after_intent)
            case steps.StopCalls(call_ids=call_ids):
                for call_id in call_ids:
                    del self.running[call_id]
            case steps.AskPerson(events=events) | steps.Settle(events=events):
                assert events
                self.append(*events)
            case steps.Finish(event=event):
                if slips_in is not None:
                    self.append(slips_in)
                else:
                    self.append(event)
            case steps.Wait(until_ms=until_ms):
                self._may_wait(until_ms)
                return False
        return True

    @property
    def _local(self) -> steps.Local:
        return steps.Local(frozenset(self.running), dict(self.doubts), dict(self.verdicts))  # type: ignore[arg-type]  # ids

    def run_to_rest(self) -> None:
        """Without anything from outside, it comes to rest."""
        for _ in range(MAX_QUIET_STEPS):
            if not self.step():
                break
        else:
            raise AssertionError(f"no rest after {MAX_QUIET_STEPS} steps: {self.log[-3:]}")
        if self.asking is None and not self.running:
            assert self.state.cancel is None, "cancelled, but never ended"

    def _may_wait(self, until_ms: int | None) -> None:
        if until_ms is not None:
            assert until_ms > self.now_ms, "waits for a time that has come"
        elsewhere = self.running or self.state.interrupts or self.state.ended or until_ms
        assert elsewhere, f"waits for nothing: {self.log[-3:]}"

    def _ask(self) -> None:
        messages = list(self.rendering.update(self.state, "Be exact."))
        check_messages(messages, self.log)
        assert messages[: len(self.last_request)] == self.last_request, "what the model had read changed"
        assert messages == Rendering().update(self.state, "Be exact."), "not what a new worker renders"
        self.last_request = messages
        self.requests += 1
        self.asking = self.state.head_seq

    def _dispatch(self, calls: Any, checks: Any, dies_after_intent: bool) -> None:
        for call in calls:
            if call.call.effect != "read":
                self.append(
                    CallStarted(
                        call.id, call.attempt + 1, "key", self.now_ms + call.call.timeout_ms, worker="w"
                    )
                )
        if dies_after_intent:
            self.crash()
            return
        for call in calls:
            self._was_dispatched(call, verify=False)
        for call in checks:
            self._was_dispatched(call, verify=True)

    def _was_dispatched(self, call: facts.CallState, *, verify: bool) -> None:
        assert call.id not in self.running, "dispatched while it runs"
        if not verify:
            try:
                _tool(_AsHolder(self), call)  # type: ignore[arg-type]  # it needs the agent alone
            except NotDone as refusal:
                self.append(CallFinished(call.id, ok=False, text=f"Error: {refusal}"))
                return
        self.running[call.id] = verify
        self.doubts.pop(call.id, None)
        self.verdicts.pop(call.id, None)
        digest = call.digest
        if call.call.gated and not verify:
            digest = call_digest(call.call.name, call.arguments, self.agent.by_name[call.call.name].digest)
        self.dispatches.append(
            Dispatch(call.id, call.arguments, digest, len(self.log), self.now_ms, verify=verify)
        )

    # -- the model and the tools -----------------------------------------------------------------------

    def replies(self, reply: Reply) -> None:
        """What `decide` records of a reply."""
        assert self.asking is not None
        seen_seq, self.asking = self.asking, None
        event = ModelReplied(
            step=self.state.step + 1,
            seen_seq=seen_seq,
            text=reply.text,
            calls=_plan(self, reply),  # type: ignore[arg-type]  # it needs state and agent alone
            usage=reply.usage,
            duration_ms=10,
        )
        if not event.calls and seen_seq == self.state.head_seq:
            self.append(event, ThreadCompleted(reply.text))
        else:
            self.append(event)

    def fails(self) -> None:
        self.asking = None
        self.append(ModelFailed(self.state.step + 1, "it is down"))

    def ends(self, call_id: str, outcome: str) -> None:
        """A running call ended: ok, error, doubt or until; a verification: happened, not or unknown."""
        verify = self.running.pop(call_id)
        call = self.state.call(call_id)
        if verify:
            match outcome:
                case "happened":
                    self.append(CallFinished(call.id, text="it did"))
                case "not":
                    self.doubts[call_id], self.verdicts[call_id] = "not", "did_not_happen"
                    self.dispatches.append(
                        Dispatch(call_id, "", "", len(self.log), self.now_ms, verify=True, freed=True)
                    )
                case _:
                    self.doubts[call_id], self.verdicts[call_id] = "who knows", "unknown"
            return
        match outcome:
            case "until":
                self.append(CallStarted(call.id, call.attempt + 1, until_ms=self.now_ms + 50_000))
            case "doubt" if call.call.effect == "once":
                self.doubts[call_id] = "it raised"
            case _:
                self.append(CallFinished(call.id, ok=outcome == "ok", text=f"{outcome} of {call_id}"))

    # -- people ------------------------------------------------------------------------------------------

    def decide(self, interrupt_id: str, verb: str, edited: str = "") -> None:
        """As the store does it: late means expired, whoever comes first wins."""
        raised = self.state.pending(interrupt_id)
        if raised is None:
            return
        if raised.expires_at_ms and self.now_ms >= raised.expires_at_ms:
            self.append(InterruptResolved(raised.id, "expired"))
            return
        outcome = outcome_of(raised.kind, verb)
        arguments, digest = "", ""
        if outcome == "edited":
            tool = self.agent.by_name.get(raised.name)
            if tool is None:
                return
            arguments = tool.validate(edited)
            digest = call_digest(raised.name, arguments, tool.digest)
        answer = f"answer {len(self.log)}" if outcome in ("answered", "happened") else ""
        self.append(InterruptResolved(raised.id, outcome, "ana", "why not", arguments, digest, answer))

    # -- what must hold at any time ----------------------------------------------------------------------

    def check(self) -> None:
        audit(self.log, self.dispatches)
        assert not early_starts(self.log), "ran again before the deadline"
        assert self.refold() == self.state, "applying one by one is not the fold of all"


class _AsHolder:
    """What `_adopt` wants of a holder."""

    def __init__(self, loop: PureLoop) -> None:
        self.state, self.agent, self._loop = loop.state, loop.agent, loop

    async def append(self, *events: Event, conditional: bool) -> bool:
        assert conditional
        self._loop.append(*events)
        return True


def _drain(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never really waits."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")

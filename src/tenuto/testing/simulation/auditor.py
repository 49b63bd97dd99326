"""The promises, checked from the log and the outside alone: nothing here asks the fold what it thinks.

The first broken one is kept, and ends the run. Names begin with the number of the promise where it has one.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenuto.events import (
    TERMINAL,
    AgentChanged,
    Call,
    CallFinished,
    CallStarted,
    CancelRequested,
    Entry,
    InterruptRaised,
    InterruptResolved,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ThreadCompleted,
    ThreadHalted,
)
from tenuto.messages import AssistantMessage, Message, ToolMessage, UserMessage
from tenuto.rows import Claim, Claimed
from tenuto.thread import fold
from tenuto.tools import Tool, ToolContext
from tenuto.tools.tool import call_digest

if TYPE_CHECKING:
    from tenuto.testing.simulation.process import Process
    from tenuto.testing.simulation.world import World


class BrokenPromise(AssertionError):
    """A promise of the runtime did not hold."""

    def __init__(self, promise: str, detail: str) -> None:
        self.promise = promise
        super().__init__(f"{promise}: {detail}")


class SeenCall:
    """What the log and the outside have said of one call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.asked: InterruptRaised | None = None
        self.allowed: tuple[str, str] | None = None
        self.attempt = 0
        self.deadline_ms = 0
        self.waits = False
        self.cleared = 0  # the attempt of which somebody said that it did not happen
        self.misled = False  # ... who did not know, or lied
        self.deadlines: dict[int, int] = {}  # of each attempt
        self.dispatched: set[int] = set()
        self.finished: CallFinished | None = None


class SeenThread:
    """One log as far as it was read."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.calls: dict[str, SeenCall] = {}
        self.open: set[str] = set()
        self.raised: dict[str, InterruptRaised] = {}
        self.decided: dict[str, InterruptResolved] = {}
        self.said: dict[str, int] = {}
        self.told: list[str] = []  # messages and answers, as the model has to read them
        self.unread: list[int] = []
        self.read: set[str] = set()
        self.cancel_seq = 0
        self.last_calls = False
        self.epoch = 0
        self.holder = ""


class Auditor:
    """Told of all that happens. `broken` is the first promise that did not hold."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.threads: dict[str, SeenThread] = {}
        self.broken: BrokenPromise | None = None

    def check(self, holds: bool, promise: str, detail: object) -> None:
        if not holds and self.broken is None:
            self.broken = BrokenPromise(promise, str(detail))

    # -- the log -------------------------------------------------------------------------------------

    def grown(self, thread_id: str, entries: list[Entry], epoch: int | None) -> None:
        """These events were committed just now, under this epoch (None: from outside)."""
        thread = self.threads.setdefault(thread_id, SeenThread())
        if epoch is not None and entries:
            self.check(epoch == thread.epoch, "fencing", f"epoch {epoch} wrote, {thread.epoch} is valid")
        for entry in entries:
            self.check(entry.seq == len(thread.entries) + 1, "1 log", f"event {entry.seq} is out of place")
            before = thread.entries[-1].at_ms if thread.entries else 0
            self.check(entry.at_ms >= before, "1 log", f"time goes back at {entry.seq}")
            self.world.figures.events += 1
            try:
                self._saw(thread, entry)
            except KeyError as error:
                self.check(False, "log", f"{entry} is about {error}, which is not there")
            thread.entries.append(entry)

    def _saw(self, thread: SeenThread, entry: Entry) -> None:
        match entry.event:
            case MessageReceived() as event:
                # People of the simulation say nothing twice, so a double is a retry that was not recognised.
                self.check(event.text not in thread.said, "1 appends", f"{event.text!r} is there twice")
                thread.said[event.text] = entry.seq
                thread.unread.append(entry.seq)
                thread.told.append(event.text)
            case CancelRequested():
                thread.cancel_seq = thread.cancel_seq or entry.seq
            case ModelReplied() as event:
                self.check(not thread.open, "4 history", f"a reply while {thread.open} are open")
                thread.unread = [seq for seq in thread.unread if seq > event.seen_seq]
                thread.last_calls = bool(event.calls)
                for call in event.calls:
                    self.check(call.id not in thread.calls, "log", f"call {call.id} is there twice")
                    thread.calls[call.id] = SeenCall(call)
                    thread.open.add(call.id)
            case ModelFailed(error=error):
                self.check(error == "overloaded", "nothing fails by itself", f"the model failed: {error}")
            case CallStarted() as event:
                self._started(thread.calls[event.call_id], event)
            case CallFinished() as event:
                self.check(event.call_id in thread.open, "2 one result", f"a second one for {event.call_id}")
                thread.open.discard(event.call_id)
                thread.calls[event.call_id].finished = event
            case InterruptRaised() as event:
                self._raised(thread, event)
            case InterruptResolved() as event:
                self._resolved(thread, entry, event)
            case AgentChanged() as event:
                for call in event.calls:
                    thread.calls[call.id].call, thread.calls[call.id].allowed = call, None
            case event if isinstance(event, TERMINAL):
                self._ended(thread, event)
            case _:
                pass

    def _started(self, seen: SeenCall, event: CallStarted) -> None:
        self.check(seen.finished is None, "log", f"{event.call_id} starts after its result")
        seen.waits = bool(event.until_ms)
        if seen.waits:
            return
        if seen.call.gated:
            self.check(
                seen.allowed is not None, "3 approval", f"{event.call_id} starts and nobody allowed it"
            )
        if seen.attempt:
            late = self.world.latest_ms >= seen.deadline_ms
            self.check(late, "deadline", f"{event.call_id} starts again before its deadline")
            if seen.call.effect == "once":
                known = seen.cleared == seen.attempt
                self.check(known, "2 once", f"{event.call_id} starts again and nobody said it did not happen")
        self.check(event.attempt == seen.attempt + 1, "log", f"{event.call_id}: attempt {event.attempt}")
        seen.attempt, seen.deadline_ms = event.attempt, event.deadline_ms
        seen.deadlines[event.attempt] = event.deadline_ms

    def _raised(self, thread: SeenThread, event: InterruptRaised) -> None:
        self.check(event.id not in thread.raised, "log", f"interrupt {event.id} is there twice")
        thread.raised[event.id] = event
        if event.call_id:
            seen = thread.calls[event.call_id]
            self.check(seen.finished is None, "log", f"asked about {event.call_id}, which has a result")
            seen.asked = event
            if event.kind == "approval":
                exact = event.arguments == seen.call.exact and event.digest == seen.call.digest
                self.check(exact, "3 approval", f"{event} is not about {seen.call}")

    def _resolved(self, thread: SeenThread, entry: Entry, event: InterruptResolved) -> None:
        self.check(event.id not in thread.decided, "2 one decision", f"{event.id} is decided twice")
        thread.decided[event.id] = event
        raised = thread.raised[event.id]
        if event.outcome not in ("expired", "withdrawn"):
            late = 0 < raised.expires_at_ms <= self.world.now_ms()
            self.check(not late, "2 one decision", f"{event} came too late and counts")
        if not raised.call_id:
            if event.outcome == "answered":
                thread.unread.append(entry.seq)
                thread.told.append(event.answer)
            return
        seen = thread.calls[raised.call_id]
        if event.outcome == "approved":
            seen.allowed = (raised.arguments, raised.digest)
        elif event.outcome == "edited":
            seen.allowed = (event.arguments, event.digest)
            self.check(_is_valid(event.arguments), "3 approval", f"{event.arguments} were accepted")
        elif event.outcome == "did_not_happen":
            seen.cleared = seen.attempt

    def _ended(self, thread: SeenThread, event: object) -> None:
        self.check(thread.raised.keys() == thread.decided.keys(), "log", f"{event} while a person is asked")
        self.check(
            not thread.open or isinstance(event, ThreadHalted), "2 one result", f"{event} over open calls"
        )
        if isinstance(event, ThreadCompleted):
            self.check(not thread.unread, "no message lost", f"{thread.unread} were buried under an answer")
            self.check(not thread.last_calls, "4 history", "completed instead of showing results")
        thread.cancel_seq = 0

    # -- verbs ---------------------------------------------------------------------------------------

    def acted(self, process: "Process", verb: str, args: tuple[Any, ...], outcome: Any) -> None:
        """A verb that writes has been carried out."""
        match outcome:
            case Claimed(claims):
                self._claimed(process, *claims)
            case Claim():
                self._claimed(process, outcome)
            case True if verb == "release":
                thread = self.threads[args[0].thread_id]
                status = self.world.look(args[0].thread_id).status
                try:
                    true_status = fold(thread.entries).status
                except Exception as error:  # noqa: BLE001 - a log that cannot be folded
                    self.check(False, "log", error)
                else:
                    # What is handed over says "running", whatever it waits for.
                    fits = status in (true_status, "running")
                    self.check(fits, "projection", f"it says {status}, is {true_status}")
                self.check(args[0].epoch == thread.epoch, "fencing", "a stale holder released the thread")

    def _claimed(self, process: "Process", *claims: Claim) -> None:
        for claim in claims:
            thread = self.threads[claim.thread_id]
            self.check(claim.epoch > thread.epoch, "fencing", f"{claim} after epoch {thread.epoch}")
            thread.epoch, thread.holder = claim.epoch, process.name

    # -- outside -------------------------------------------------------------------------------------

    def dispatched(self, process: "Process", tool: Tool, n: int, context: ToolContext) -> None:
        """The body of a tool begins."""
        thread = self.threads[context.thread_id]
        seen = thread.calls.get(context.call_id)
        if tool.effect == "read" and not tool.approval and (seen is None or not _is(seen.call, tool, n)):
            return  # it began before its reply was recorded, which may then never be
        if seen is None:
            self.check(False, "2 once", f"{tool.name} runs before its reply is recorded")
            return
        self._holding(process, context.thread_id, f"{tool.name} runs")
        if seen.call.gated:
            fits = False
            if seen.allowed is not None:
                arguments, digest = seen.allowed
                fits = json.loads(arguments)["n"] == n
                fits = fits and digest == call_digest(tool.name, arguments, tool.digest)
            self.check(fits, "3 approval", f"{tool.name}({n}) runs, {seen.allowed} was approved")
        else:
            self.check(json.loads(seen.call.exact)["n"] == n, "3 approval", f"{n} is not what was asked for")
        if tool.effect == "read":
            return
        recorded = seen.deadlines.get(context.attempt) == context.deadline_ms
        self.check(recorded, "2 once", f"attempt {context.attempt} of {tool.name} is not the one recorded")
        again = context.attempt in seen.dispatched
        self.check(not again, "2 once", f"attempt {context.attempt} of {context.call_id} runs twice")
        seen.dispatched.add(context.attempt)

    def _holding(self, process: "Process", thread_id: str, what: str) -> None:
        held = process.leases.get(thread_id, -1.0) > self.world.schedule.time
        self.check(held, "fencing", f"{what} on a lease that ended")

    def verifying(self, process: "Process", thread_id: str, call_id: str) -> None:
        self._holding(process, thread_id, f"{call_id} is verified")
        thread = self.threads[thread_id]
        late = max(process.now_ms(), self.world.latest_ms) >= thread.calls[call_id].deadline_ms
        # One that has lost the thread may still ask about an earlier attempt: nobody will hear the answer.
        holds = thread.holder == process.name
        self.check(late or not holds, "deadline", f"{call_id} is verified before its deadline")

    def cleared(self, process: "Process", thread_id: str, call_id: str) -> None:
        """`verify` says that nothing happened; by the deadline, nothing can happen any more."""
        thread = self.threads[thread_id]
        if thread.holder == process.name:
            thread.calls[call_id].cleared = thread.calls[call_id].attempt

    def requested(self, thread_id: str, messages: Sequence[Message]) -> None:
        """A request reached the provider."""
        thread = self.threads[thread_id]
        waiting: list[str] = []
        for message in messages:
            match message:
                case ToolMessage(call_id=call_id, text=text):
                    paired = bool(waiting) and waiting.pop(0) == call_id
                    self.check(paired, "4 history", f"the result of {call_id} is out of place")
                    seen = thread.calls.get(call_id)
                    known = (
                        seen is not None and seen.finished is not None and text.endswith(seen.finished.text)
                    )
                    self.check(known, "4 history", f"{text!r} is not what was recorded for {call_id}")
                case _:
                    self.check(not waiting, "4 history", f"no result for {waiting}")
                    waiting = [c.id for c in message.calls] if isinstance(message, AssistantMessage) else []
        self.check(not waiting, "4 history", f"no result for {waiting}")
        read = [message.text for message in messages if isinstance(message, UserMessage)]
        self.check(read == thread.told[: len(read)], "no message lost", f"read {read}, said {thread.told}")
        thread.read.update(read)

    # -- at the end ----------------------------------------------------------------------------------

    def final(self, thread_id: str) -> None:
        """The thread rests for good: does what it says agree with what happened?"""
        thread = self.threads[thread_id]
        last = thread.entries[-1].event
        if isinstance(last, ThreadCompleted):
            lost = [text for text in thread.told if text not in thread.read]
            self.check(not lost, "no message lost", f"the model never read {lost}")
        for call_id, seen in thread.calls.items():
            done = self.world.ledger.done.get((thread_id, call_id), [])
            finished = seen.finished
            assert finished is not None
            self.check(
                len({one.key for one in done}) <= 1, "idempotency", f"{call_id} has several keys: {done}"
            )
            if seen.misled or seen.call.effect == "read" or seen.call.error:
                continue
            arguments = seen.allowed[0] if seen.allowed is not None and seen.call.gated else seen.call.exact
            for one in done:
                self.check(json.loads(arguments)["n"] == one.n, "3 approval", f"{one} is not {arguments}")
            self.check(len(done) <= 1, "2 once", f"{call_id} happened {len(done)} times: {done}")
            if finished.ok:
                self.check(bool(done), "truth", f"{finished} says it happened; it did not")
            elif not finished.unknown and seen.call.effect == "once":
                self.check(not done, "truth", f"{finished} says it did not happen; it did: {done}")


def _is(call: Call, tool: Tool, n: int) -> bool:
    return call.name == tool.name and not call.error and bool(json.loads(call.exact)["n"] == n)


def _is_valid(arguments: str) -> bool:
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    return isinstance(value, dict) and list(value) == ["n"] and type(value["n"]) is int

"""What came of one case of `tenuto crashtest`: the log held against the ledger of bodies that ran."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from tenuto.errors import TenutoError
from tenuto.events import (
    AnyEvent,
    CallFinished,
    InterruptKind,
    InterruptRaised,
    InterruptResolved,
    ModelReplied,
    ThreadId,
    encode,
)
from tenuto.runtime import Runtime, Settings
from tenuto.testing.watched import Ledger
from tenuto.thread import fold

How = Literal["no crash", "kill", "decide twice", "stale worker"]


class Case(msgspec.Struct, frozen=True):
    """One run of the matrix. `point` as in `tenuto.testing.watched`."""

    how: How
    point: str = ""

    @property
    def name(self) -> str:
        return f"{self.how} {self.point}".strip()


class Outcome(msgspec.Struct):
    """What came of a case. `bodies`: how often each tool's body began. `thread`: what the thread did.

    `idle`: the tools that were called and whose body never ran, each with why. `broken`: the promises that
    were. `reached` is False when the events came in another order, so that
    nothing was killed.
    """

    case: Case
    folder: str
    bodies: dict[str, int] = {}
    idle: dict[str, str] = {}
    status: str = ""
    thread: str = ""
    broken: list[str] = []
    reached: bool = True
    seconds: float = 0.0


async def audit(thread_id: ThreadId, outcome: Outcome, *, truthful: bool = True) -> None:
    """Hold the log against the ledger beside it, and say in the outcome what became of the thread.

    `truthful`: who says of a call that it did not happen is right, at that moment.
    """
    folder, broken = Path(outcome.folder), outcome.broken
    ledger = Ledger(folder / "ledger.jsonl")
    outcome.bodies = dict(Counter(line["tool"] for line in ledger.lines("start")))
    broken += [f"a request was not well formed: {line['repairs']}" for line in ledger.lines("malformed")]
    database = f"sqlite:///{folder / 'tenuto.db'}"
    try:
        async with Runtime(database=database, settings=Settings(worker=False)) as runtime:
            report = await runtime.verify(thread_id)
            if not report.ok:
                broken.append(f"the hash chain breaks at event {report.first_bad_seq}: {report.reason}")
            entries = await runtime.store.read(thread_id)
        events = [entry.event for entry in entries]
        broken += [*_lost(ledger, events), *_decisions(ledger, events), *_calls(ledger, events, truthful)]
        state = fold(entries, thread_id)
    except TenutoError as error:
        broken.append(str(error))
        return
    outcome.idle = dict(_idle(events, set(outcome.bodies)))
    way = [f"verify: {line['said']}" for line in ledger.lines("verify")]
    way += [f"review: {event.outcome}" for _, event in _decided(events, "review")]
    outcome.status = state.status
    outcome.thread = ", ".join([*way, state.status]) + (f": {state.error}" if state.error else "")


def _idle(events: list[AnyEvent], ran: set[str]) -> Iterator[tuple[str, str]]:
    """Tools that the model called and whose body never began, each with what its last call came to."""
    results = {event.call_id: event.text for event in events if isinstance(event, CallFinished)}
    for event in events:
        for call in event.calls if isinstance(event, ModelReplied) else ():
            if call.name not in ran and not call.question:
                said = results.get(call.id, "").partition("\n")[0][:200]
                yield call.name, said or "its call is not decided, so it waits"


def _lost(ledger: Ledger, events: list[AnyEvent]) -> Iterator[str]:
    """What an append confirmed and the log does not have."""
    digests = [hashlib.sha256(encode(event)).hexdigest() for event in events]
    for line in ledger.lines("append"):
        for place, digest in enumerate(line["digests"], line["first_seq"] - 1):
            if digests[place : place + 1] != [digest]:
                label = line["labels"][place + 1 - line["first_seq"]]
                yield f"event {place + 1}, {label}, was confirmed and is not in the log"


def _decided(events: list[AnyEvent], *kinds: str) -> list[tuple[InterruptRaised, InterruptResolved]]:
    asked = {
        event.id: event for event in events if isinstance(event, InterruptRaised) and event.kind in kinds
    }
    resolved = [event for event in events if isinstance(event, InterruptResolved) and event.id in asked]
    return [(asked[event.id], event) for event in resolved]


def _decisions(ledger: Ledger, events: list[AnyEvent]) -> Iterator[str]:
    accepted: Counter[str] = Counter()
    for line in ledger.lines("decided"):
        accepted[line["interrupt"]] += line["accepted"]
    recorded: Counter[str] = Counter(raised.id for raised, _ in _decided(events, *get_args(InterruptKind)))
    for interrupt in accepted.keys() | recorded.keys():
        times = max(accepted[interrupt], recorded[interrupt])
        if times > 1:
            yield f"interrupt {interrupt} was decided {times} times"


def _calls(ledger: Ledger, events: list[AnyEvent], truthful: bool) -> Iterator[str]:
    """Each call's runs against what the log says of it."""
    finished = [event for event in events if isinstance(event, CallFinished)]
    results = Counter(event.call_id for event in finished)
    yield from (f"call {call_id} has {times} results" for call_id, times in results.items() if times > 1)
    done = {event.call_id for event in finished if event.ok and event.by == "tool"}
    decided = _decided(events, "review")
    cleared = Counter(raised.call_id for raised, event in decided if event.outcome == "did_not_happen")
    lines = [line for line in ledger.lines("start", "end", "verify") if line["effect"] != "read"]
    for call_id in sorted({line["call"] for line in lines}):
        of_call = [line for line in lines if line["call"] == call_id]
        yield from _runs(of_call, call_id in done, cleared[call_id], truthful)


def _runs(lines: list[dict[str, Any]], done: bool, cleared: int, truthful: bool) -> Iterator[str]:
    """What is wrong with the runs of one call; `cleared`: how often a person said that it did not happen."""
    starts = [line for line in lines if line["kind"] == "start"]
    ends = [line for line in lines if line["kind"] == "end"]
    said = Counter(line["said"] for line in lines if line["kind"] == "verify")
    tool, effect = lines[0]["tool"], lines[0]["effect"]
    if effect == "once" and len(starts) > 1 + cleared + said["DidNotHappen"]:
        yield f"{tool} is once and ran {len(starts)} times, though nobody said that it did not happen"
    elif effect == "once" and len(ends) > 1 and (said["DidNotHappen"] or truthful):
        who = "its verify" if said["DidNotHappen"] else "a person"
        yield f"{tool} is once and came to its end {len(ends)} times: {who} said that it did not happen"
    if said["Happened"] and not starts:
        yield f"{tool} never ran, and its verify said that it happened"
    if effect == "idempotent" and len({line["result"] for line in ends}) > 1:
        yield f"{tool} is idempotent, and {len(ends)} runs under one key had different results"
    if len({line["key"] for line in starts}) > 1:
        yield f"{tool} ran under different keys for one call"
    if len({line["arguments"] for line in starts}) > 1:
        yield f"{tool} ran with different arguments for one call"
    if done and not ends and not said["Happened"]:
        yield f"{tool} is recorded as done, and never came to its end"

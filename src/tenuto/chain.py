"""Checking the hash chain of a thread, and that what is kept beside the log says the same.

It shows edits and damage, not a rewrite of all behind it by whoever owns the database: for that, keep heads
elsewhere and compare.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from tenuto.errors import StoreError, Undecodable
from tenuto.events import (
    Entry,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    ThreadId,
    body_hash,
    chain_hash,
)
from tenuto.limits import MAX_PAGE_ROWS
from tenuto.rows import InterruptRow, StoredEvent, ThreadRow
from tenuto.steps import Wait, next_step
from tenuto.thread import ThreadState, fold


class ChainReport(msgspec.Struct, frozen=True):
    """What a check found. `head_hash` is that of the last good event; `first_bad_seq` 0 when all are good."""

    ok: bool = True
    checked: int = 0
    erased: int = 0
    head_hash: bytes = bytes(32)
    first_bad_seq: int = 0
    reason: str = ""


class Log(Protocol):
    """What is read to check a thread: a store has it, and so has a server's client. As in `Store`."""

    async def stored(self, thread_id: ThreadId, after: int = 0, limit: int = 1000) -> list[StoredEvent]: ...
    async def read(self, thread_id: ThreadId) -> list[Entry]: ...
    async def thread(self, thread_id: ThreadId) -> ThreadRow: ...
    async def interrupts(
        self, *, thread_id: ThreadId | None, pending: bool | None, after: InterruptId | None, limit: int
    ) -> list[InterruptRow]: ...
    async def strays(self, thread_id: ThreadId | None = None) -> list[str]: ...


async def verify_thread(
    store: Log, thread_id: ThreadId, watch: Callable[[int], None] = lambda _checked: None
) -> ChainReport:
    """Check a whole thread, a page at a time; an event that is missing or cannot be read does not fit either,
    nor does a last one after which the thread's row or its interrupts say something else.

    `watch` hears how many events are checked. Raises `ThreadNotFound`.
    """
    report, limit = ChainReport(), MAX_PAGE_ROWS
    while report.ok:
        try:
            rows = await store.stored(thread_id, report.checked, limit)
        except StoreError as error:
            if limit == 1:
                seq = report.checked + 1
                return msgspec.structs.replace(report, ok=False, first_bad_seq=seq, reason=str(error))
            limit = 1  # one by one, those before the one at fault are checked too
            continue
        if not rows:
            row = await store.thread(thread_id)
            if row.head_seq > report.checked:
                continue  # it has grown meanwhile
            reason = _row_fault(row, report) or await _projection_fault(store, row, report)
            return (
                msgspec.structs.replace(report, ok=False, first_bad_seq=report.checked, reason=reason)
                if reason
                else report
            )
        report = verify_chain(thread_id, rows, report)
        watch(report.checked)
    with suppress(StoreError):  # once more with the next event in view: it tells what was changed
        return verify_chain(thread_id, await store.stored(thread_id, report.checked, 2), report)
    return report


def verify_chain(
    thread_id: ThreadId, rows: Iterable[StoredEvent], before: ChainReport | None = None
) -> ChainReport:
    """Follow the chain from behind what `before` found good to the first event that does not fit, if any."""
    before = before or ChainReport()
    previous, checked, erased = before.head_hash, before.checked, before.erased
    rows = iter(rows)
    for row in rows:
        if reason := _fault(thread_id, checked + 1, previous, row, rows):
            return ChainReport(False, checked, erased, previous, checked + 1, reason)
        previous = row.hash
        checked += 1
        erased += row.body is None
    return ChainReport(True, checked, erased, previous)


def _fault(
    thread_id: ThreadId, seq: int, previous: bytes, row: StoredEvent, following: Iterator[StoredEvent]
) -> str:
    """Why this row is not event `seq` of the chain, as far as it can be told; "" when it is."""
    if row.seq != seq:
        return f"event {seq} is missing; event {row.seq} is in its place"
    if (row.body is None) != (row.salt is None):
        return "of salt and body only one is there"
    if row.body is not None and row.salt is not None and body_hash(row.salt, row.body) != row.body_hash:
        return "the body is not the one that was hashed"
    expected = _hash(thread_id, previous, row)
    if expected == row.hash:
        return ""
    said = "what it says (body, type, version or time)"
    other = "the event before it was replaced" if seq > 1 else "it is from another thread"
    after = next(following, None)
    if after is None:
        return f"{said} or its hash was changed, or {other}"
    if _hash(thread_id, expected, after) == after.hash:
        return f"its hash was changed; {said} was not, for the next event fits that"
    if _hash(thread_id, row.hash, after) == after.hash:
        return f"{said} was changed, or {other}; its hash was not, for the next event fits that"
    return f"{said} was changed, or {other}; the next event does not fit either"


def _row_fault(row: ThreadRow, report: ChainReport) -> str:
    """Whether the thread's row ends where its events do: the next event is chained on what the row says."""
    if row.fault:
        return row.fault
    if row.head_seq < report.checked:
        return f"the thread's row says that event {row.head_seq} is the last"
    if row.head_hash != report.head_hash.hex():
        return "the thread's row names another last event: some were cut off, or the row was changed"
    return ""


async def _projection_fault(store: Log, row: ThreadRow, report: ChainReport) -> str:
    """Whether the inbox and the thread's row follow from the events. Not told of erased or new ones."""
    if strays := await store.strays(row.id):
        return strays[0]
    listed = [one async for one in _listed(store, row.id)]
    for one in listed:
        if one.fault:
            return f"interrupt {one.id}: {one.fault}"
    if report.erased:
        return ""
    try:
        entries = await store.read(row.id)
        state = fold(entries, row.id)
    except Undecodable:
        return ""  # a newer version wrote it
    except StoreError as error:
        return str(error)
    if await store.thread(row.id) != row:
        return ""
    return _inbox_fault(listed, entries) or _thread_fault(row, state, entries)


async def _listed(store: Log, thread_id: ThreadId) -> AsyncIterator[InterruptRow]:
    last: InterruptId | None = None
    while page := await store.interrupts(thread_id=thread_id, pending=None, after=last, limit=MAX_PAGE_ROWS):
        for row in page:
            yield row
        last = page[-1].id


def _inbox_fault(listed: Iterable[InterruptRow], entries: Iterable[Entry]) -> str:
    """Whether the inbox has each pause of the events once, and says of it what they say."""
    said: dict[InterruptId, dict[str, Any]] = {}
    for entry in entries:
        event = entry.event
        if isinstance(event, InterruptRaised):
            said[event.id] = {
                **{name: getattr(event, name) for name in ("kind", "call_id", "arguments", "digest")},
                "expires_at_ms": event.expires_at_ms,
                "raised_seq": entry.seq,
                "raised_at_ms": entry.at_ms,
                "outcome": None,
                "resolved_at_ms": None,
            }
        elif isinstance(event, InterruptResolved):
            said[event.id] |= {"outcome": event.outcome, "resolved_at_ms": entry.at_ms, "by": event.by}
    for row in listed:
        for name, value in said.pop(row.id, {"id": None}).items():
            if (told := getattr(row, name)) != value:
                return f"interrupt {row.id} has {name} {told!r} in the inbox, and {value!r} in the events"
    for interrupt_id, facts in said.items():
        # What one append has raised and resolved, the copied past of a fork, was never in it.
        if facts["resolved_at_ms"] != facts["raised_at_ms"]:
            return f"interrupt {interrupt_id} is in the events, and the inbox does not list it"
    return ""


def _thread_fault(row: ThreadRow, state: ThreadState, entries: Sequence[Entry]) -> str:
    """Whether the thread's row says what its events do, and whether somebody will look when there is work."""
    told = {
        "agent": (row.agent, state.agent),
        "metadata": (row.metadata, state.metadata),
        "created_at": (row.created_at_ms, entries[0].at_ms),
        "updated_at": (row.updated_at_ms, state.at_ms),
    }
    for name, (here, there) in told.items():
        if here != there:
            return f"the thread's row has {here!r} as {name}, its events have {there!r}"
    asleep = row.ready_at_ms is None and row.lease_owner is None
    # A message that came after a request to cancel begins a turn; nobody may have looked at it yet.
    passing = () if asleep else ("running", "cancelled")
    step = next_step(state, state.at_ms)
    if asleep and (not isinstance(step, Wait) or step.until_ms is not None):
        return f"the thread's row says {row.status}, its events do not, and no worker would look at it"
    if row.status not in (state.status, *passing):
        return f"the thread's row says {row.status}, its events say {state.status}"
    return ""


def _hash(thread_id: ThreadId, previous: bytes, row: StoredEvent) -> bytes:
    return chain_hash(previous, thread_id, row.seq, row.version, row.type, row.at_ms, row.body_hash)

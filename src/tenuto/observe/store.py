"""Around the store: whatever becomes a fact passes here, and so does every refusal."""

import logging
import time
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenuto import limits
from tenuto.errors import AlreadyDecided, Conflict, LeaseLost, Stale, StoreError
from tenuto.events import Entry, Event, InterruptResolved, ThreadId, ThreadStarted
from tenuto.observe import journal
from tenuto.observe.hold import Hold, holding
from tenuto.rows import Appended, Claim, Claimed, ThreadStatus
from tenuto.store.base import Store

if TYPE_CHECKING:
    from tenuto.observe.observing import Observe

logger = logging.getLogger("tenuto.observe")
T = TypeVar("T")
_REASONS: dict[type[Conflict], str] = {
    LeaseLost: "lease_lost",
    Stale: "stale",
    AlreadyDecided: "already_decided",
}
# The first outcome of a start that came twice is older than the second request, by more than clocks differ.
_OLD_MS = 1_000


class WatchedStore:
    """A `Store` that hands everything on, to and from the one that it is put around.

    It adds one thing: `trace` of the events that a later span will want to point back at. What is not
    looked at here has no name here.
    """

    def __init__(self, store: Store, observe: "Observe") -> None:
        self._store = store
        self._held = observe.held
        self._metrics = observe.metrics
        self._traces = observe.traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def create(self, thread_id: ThreadId, events: Sequence[Event], **given: Any) -> Appended:
        events = self._from_outside(events)
        asked_at_ms = self._store.now_ms()
        done = await self._timed(self._store.create(thread_id, events, **given))
        if done.at_ms + _OLD_MS >= asked_at_ms:
            await self._recorded(thread_id, None, events)
        return done

    async def append(
        self, thread_id: ThreadId, events: Sequence[Event], *, epoch: int | None = None, **given: Any
    ) -> Appended:
        hold = self._held.get(thread_id) if epoch is not None else None
        if hold is None:
            events = self._from_outside(events) if epoch is None else events
        elif hold.trace is not None:
            events = hold.trace.stamp(events)
        done = await self._timed(self._store.append(thread_id, events, epoch=epoch, **given))
        await self._recorded(thread_id, hold, events)
        if hold is not None:
            for seq, event in enumerate(events, done.first_seq):
                hold.see(seq, event)
        return done

    async def resolve(self, event: InterruptResolved, **given: Any) -> tuple[ThreadId, Appended]:
        (marked,) = self._from_outside((event,))
        assert isinstance(marked, InterruptResolved)
        asked_at_ms = self._store.now_ms()
        try:
            thread_id, done = await self._timed(self._store.resolve(marked, **given))
        except AlreadyDecided as refusal:
            # Late: what was written instead is that it expired.
            if refusal.outcome == "expired" and (refusal.at_ms or 0) >= asked_at_ms:
                expiry = InterruptResolved(event.id, "expired")
                await self._recorded(ThreadId(""), None, (expiry,))
            raise
        await self._recorded(thread_id, None, (marked,))
        return thread_id, done

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        entries = await self._store.read(thread_id, after, limit)
        # By the thread and not by the task: a holder also reads on tasks that others' appends began.
        if (hold := self._held.get(thread_id)) is not None:
            for entry in entries:
                hold.see(entry.seq, entry.event)
        return entries

    async def release(self, claim: Claim, *, status: ThreadStatus, **given: Any) -> bool:
        released = await self._store.release(claim, status=status, **given)
        hold = holding.get()
        if released and hold is not None and hold.trace is not None and hold.thread_id == claim.thread_id:
            hold.trace.close(status)
        return released

    async def claim(self, *asked: Any, **given: Any) -> Claimed:
        claimed = await self._store.claim(*asked, **given)
        for claim in claimed.claims:
            self._taken(claim)
        return claimed

    async def take(self, *asked: Any, **given: Any) -> Claim | None:
        claim = await self._store.take(*asked, **given)
        if claim is not None:
            self._taken(claim)
        return claim

    async def renew(self, owner: str, claims: Sequence[Claim], **given: Any) -> dict[ThreadId, int]:
        heads = await self._store.renew(owner, claims, **given)
        if self._metrics is not None:
            # One that was given back meanwhile is not lost.
            missing = {claim.thread_id for claim in claims}.difference(heads)
            self._metrics.leases_lost.inc(len(missing.intersection(self._held)))
        return heads

    # -- inside --------------------------------------------------------------------------------------

    def _taken(self, claim: Claim) -> None:
        if claim.deaths and self._metrics is not None:
            self._metrics.failovers.inc()

    def _from_outside(self, events: Sequence[Event]) -> Sequence[Event]:
        return self._traces.from_outside(events) if self._traces is not None else events

    async def _timed(self, work: Awaitable[T]) -> T:
        started = time.perf_counter()
        try:
            done = await work
        except Conflict as refusal:
            if self._metrics is not None:
                self._metrics.refusals.labels(_REASONS.get(type(refusal), "exists")).inc()
            raise
        except StoreError:
            if self._metrics is not None:
                self._metrics.append_failures.inc()
            raise
        seconds = time.perf_counter() - started
        if self._metrics is not None:
            self._metrics.append_seconds.observe(seconds)
        if seconds > limits.SLOW_APPEND_SECONDS:
            logger.warning("an append took %.1f s", seconds, extra={"seconds": round(seconds, 3)})
        return done

    async def _recorded(self, thread_id: ThreadId, hold: Hold | None, events: Sequence[Event]) -> None:
        """Count and tell what has become a fact."""
        agent = hold.agent.name if hold is not None else ""
        try:
            for event in events:
                row = None
                if hold is not None:
                    hold.learn(event)
                if isinstance(event, InterruptResolved):
                    row = await self._store.interrupt(event.id)
                elif isinstance(event, ThreadStarted):
                    agent = event.agent
                if self._metrics is not None:
                    self._metrics.recorded(event, agent, hold, row)
                journal.recorded(event, thread_id, agent, hold, row)
            if hold is not None:
                hold.fact_at = time.perf_counter()
        except Exception:
            # It is a fact whatever becomes of the telling.
            logger.exception("what was appended could not be counted")

"""A pause is decided once, by somebody who saw what it is about, and in time."""

import asyncio
from typing import Any

from tenuto.clock import FakeClock
from tenuto.errors import (
    AlreadyDecided,
    InterruptNotFound,
    Stale,
)
from tenuto.events import (
    InterruptId,
    InterruptResolved,
    ThreadId,
)
from tenuto.rows import Appended
from tenuto.store.base import Store
from tenuto.testing.store_contract.cases import (
    approved,
    refused,
    started,
    waiting,
)


class PeopleContract:
    """A pause is decided once, by somebody who saw what it is about, and in time."""

    async def test_an_interrupt_shows_what_will_run(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i", expires_at_ms=clock.at_ms + 1000)
        (row,) = await store.interrupts()
        assert row == await store.interrupt(InterruptId("i"))
        assert (row.id, row.thread_id, row.agent, row.kind) == ("i", thread_id, "ops", "approval")
        assert (row.call_id, row.name, row.arguments) == ("call i", "refund_order", '{"order_id":"17"}')
        assert (row.prompt, row.digest, row.options) == ("Refund?", "digest i", ("approve", "reject"))
        assert (row.raised_seq, row.raised_at_ms, row.expires_at_ms) == (3, clock.at_ms, clock.at_ms + 1000)
        assert (row.outcome, row.by, row.comment, row.resolved_at_ms) == (None, "", "", None)
        clock.advance(0.5)
        await store.resolve(approved("i"), append_id="a", digest="digest i")
        row = await store.interrupt(InterruptId("i"))
        assert (row.outcome, row.by, row.comment) == ("approved", "ana", "fine")
        assert row.resolved_at_ms == clock.at_ms

    async def test_a_decision_makes_the_thread_ready(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i")
        assert (await store.thread(thread_id)).status == "awaiting_approval"
        clock.advance(100)
        where, appended = await store.resolve(approved("i"), append_id="a")
        assert (where, appended) == (thread_id, Appended(4, 4, clock.at_ms))
        assert (await store.read(thread_id))[-1].event == approved("i")
        row = await store.thread(thread_id)
        assert (row.status, row.ready_at_ms) == ("running", clock.at_ms)

    async def test_of_twenty_decisions_one_wins(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i")
        attempts = (store.resolve(approved("i", f"person {n}"), append_id=f"a{n}") for n in range(20))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, tuple)]
        losers = [outcome for outcome in outcomes if isinstance(outcome, AlreadyDecided)]
        assert (len(winners), len(losers)) == (1, 19)
        for error in losers:
            assert (error.interrupt_id, error.outcome) == ("i", "approved")
            assert (error.by, error.at_ms) == (f"person {winners[0]}", clock.at_ms)
        assert len(await store.read(thread_id)) == 4

    async def test_of_decisions_in_two_stores_one_wins(self, store: Store, second: Store) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, *(str(number) for number in range(10)))
        attempts = [
            one.resolve(approved(str(number), by), append_id=f"{by} {number}")
            for number in range(10)
            for one, by in ((store, "ana"), (second, "bo"))
        ]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 10
        assert sum(isinstance(outcome, AlreadyDecided) for outcome in outcomes) == 10
        assert len(await second.read(thread_id)) == 22

    async def test_a_late_decision_is_an_expiry(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i", "j", expires_at_ms=clock.at_ms + 1000)
        clock.advance(0.999)
        await store.resolve(approved("j"), append_id="in time")
        clock.advance(0.001)
        for _ in range(2):  # the retry of a refused decision is refused again
            error = await refused(AlreadyDecided, store.resolve(approved("i"), append_id="late"))
            assert (error.interrupt_id, error.outcome, error.at_ms) == ("i", "expired", clock.at_ms)
        events = [entry.event for entry in await store.read(thread_id, after=4)]
        assert events == [approved("j"), InterruptResolved(InterruptId("i"), "expired")]
        assert (await store.interrupt(InterruptId("i"))).outcome == "expired"
        assert (await store.thread(thread_id)).status == "running"

    async def test_an_unseen_call_is_not_decided(self, store: Store) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i")
        await refused(Stale, store.resolve(approved("i"), append_id="a", digest="of another call"))
        assert (await store.interrupt(InterruptId("i"))).outcome is None
        assert len(await store.read(thread_id)) == 3

    async def test_a_holder_withdraws_what_is_pending(self, store: Store) -> None:
        thread_id, other = await started(store), await started(store, "thread-2")
        claim = await waiting(store, thread_id, "i", "j", release=False)
        await store.resolve(approved("j"), append_id="a")
        gone = [InterruptResolved(InterruptId(name), "withdrawn", by="runtime") for name in ("i", "j")]
        both = store.append(thread_id, gone, append_id="b", epoch=claim.epoch)
        error = await refused(AlreadyDecided, both)
        assert (error.interrupt_id, error.outcome, error.by) == ("j", "approved", "ana")
        assert (await store.interrupt(InterruptId("i"))).outcome is None
        await store.append(thread_id, gone[:1], append_id="c", epoch=claim.epoch)
        assert (await store.interrupt(InterruptId("i"))).outcome == "withdrawn"
        await refused(InterruptNotFound, store.append(other, gone[:1], append_id="d"))
        error = await refused(AlreadyDecided, store.resolve(approved("i"), append_id="e"))
        assert (error.outcome, error.by) == ("withdrawn", "runtime")

    async def test_pages_of_interrupts(self, store: Store, clock: FakeClock) -> None:
        first, second = await started(store, "t1", "a"), await started(store, "t2", "b")
        await waiting(store, first, "i1", "i3", "i2")
        clock.advance(1)
        await waiting(store, second, "i0")
        await store.resolve(approved("i2"), append_id="a")

        async def ids(**options: Any) -> list[str]:
            return [row.id for row in await store.interrupts(**options)]

        assert await ids() == ["i1", "i3", "i0"]
        (row,) = await store.interrupts(limit=1)
        assert await ids(after=row.id) == ["i3", "i0"]
        assert await ids(pending=None) == ["i1", "i3", "i2", "i0"]
        assert await ids(pending=False) == ["i2"]
        assert await ids(agent="b") == ["i0"]
        assert await ids(thread_id=first) == ["i1", "i3"]
        assert await ids(thread_id=first, pending=False) == ["i2"]
        assert await ids(thread_id=ThreadId("unknown")) == []

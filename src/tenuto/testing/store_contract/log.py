"""What is appended is there, once, in order, byte for byte, for everybody who has the database open."""

import asyncio
import hashlib
import itertools
from collections.abc import Callable

from tenuto.chain import verify_chain
from tenuto.clock import FakeClock
from tenuto.errors import (
    AlreadyDecided,
    Conflict,
    InterruptNotFound,
    InvalidInput,
    LeaseLost,
    NotFound,
    Stale,
    ThreadNotFound,
)
from tenuto.events import (
    CallFinished,
    CallId,
    Event,
    InterruptId,
    MessageReceived,
    ModelReplied,
    ThreadCompleted,
    ThreadId,
    ThreadStarted,
    encode,
)
from tenuto.limits import MAX_EVENT_BYTES, MAX_ID_CHARACTERS
from tenuto.rows import Appended, Change
from tenuto.store.base import Store
from tenuto.testing.store_contract.cases import (
    EXACT,
    LEASE,
    MESSAGE,
    STARTED,
    approved,
    held,
    refused,
    started,
    waiting,
)


class LogContract:
    """What is appended is there, once, in order, byte for byte, for everybody who has the database open."""

    async def test_a_created_thread_is_ready_and_read_back(self, store: Store, clock: FakeClock) -> None:
        at_ms = clock.at_ms
        created = await store.create(ThreadId("t"), [STARTED, MESSAGE], append_id="a")
        assert created == Appended(1, 2, at_ms)
        entries = await store.read(ThreadId("t"))
        assert [(entry.seq, entry.at_ms, entry.event) for entry in entries] == [
            (1, at_ms, STARTED),
            (2, at_ms, MESSAGE),
        ]
        row = await store.thread(ThreadId("t"))
        assert (row.agent, row.status, row.head_seq, row.ready_at_ms) == ("ops", "running", 2, at_ms)
        assert (row.created_at_ms, row.updated_at_ms, row.lease_owner) == (at_ms, at_ms, None)
        assert row.metadata == {"customer": "ana"}

    async def test_a_thread_is_created_once(self, store: Store) -> None:
        thread_id = await started(store)
        await refused(Conflict, store.create(thread_id, [STARTED], append_id="another"))
        await refused(InvalidInput, store.create(ThreadId("t"), [MESSAGE], append_id="b"))
        await refused(InvalidInput, store.create(ThreadId("t"), [], append_id="c"))
        assert len(await store.read(thread_id)) == 2
        await refused(ThreadNotFound, store.read(ThreadId("t")))

    async def test_what_does_not_exist_is_not_found(self, store: Store) -> None:
        unknown = ThreadId("unknown")
        await refused(ThreadNotFound, store.append(unknown, [MESSAGE], append_id="a"))
        await refused(ThreadNotFound, store.read(unknown))
        await refused(ThreadNotFound, store.stored(unknown))
        await refused(ThreadNotFound, store.thread(unknown))
        await refused(InterruptNotFound, store.interrupt(InterruptId("unknown")))
        await refused(InterruptNotFound, store.resolve(approved("unknown"), append_id="a"))
        await refused(NotFound, store.blob("00"))
        assert await store.take("worker-1", unknown, **LEASE) is None
        assert await store.threads() == []
        assert await store.interrupts() == []

    async def test_pages_of_a_log(self, store: Store) -> None:
        thread_id = await started(store)
        for number in range(3, 8):
            await store.append(thread_id, [MessageReceived(str(number))], append_id=str(number))
        assert [entry.seq for entry in await store.read(thread_id, after=2, limit=3)] == [3, 4, 5]
        assert [entry.seq for entry in await store.read(thread_id, after=5)] == [6, 7]
        assert [event.seq for event in await store.stored(thread_id, after=1, limit=2)] == [2, 3]
        assert await store.read(thread_id, after=7) == []
        assert await store.stored(thread_id, after=7) == []

    async def test_texts_come_back_byte_for_byte(self, store: Store) -> None:
        thread_id = await started(store)
        for number, text in enumerate(EXACT):
            await store.append(thread_id, [MessageReceived(text, by=text)], append_id=f"exact {number}")
        events = [entry.event for entry in await store.read(thread_id, after=2)]
        assert events == [MessageReceived(text, by=text) for text in EXACT]
        bodies = [event.body for event in await store.stored(thread_id, after=2)]
        assert bodies == [encode(event) for event in events]

    async def test_what_cannot_be_stored_is_refused_before_anything_is_written(self, store: Store) -> None:
        thread_id = await started(store)
        bad: list[Event] = [MessageReceived("\ud800"), MessageReceived("x" * MAX_EVENT_BYTES)]
        for number, event in enumerate(bad):
            await refused(InvalidInput, store.append(thread_id, [MESSAGE, event], append_id=f"bad {number}"))
        await refused(InvalidInput, store.append(thread_id, [MESSAGE], append_id="\ud800"))
        for name in ("\ud800", "a\0b", "x" * (MAX_ID_CHARACTERS + 1)):
            await refused(InvalidInput, store.create(ThreadId(name), [STARTED], append_id="a"))
            await refused(
                InvalidInput, store.create(ThreadId("u"), [ThreadStarted(name, "f")], append_id="a")
            )
        await refused(ThreadNotFound, store.read(ThreadId("u")))
        await refused(ThreadNotFound, store.thread(ThreadId("a\0b")))
        await refused(InterruptNotFound, store.interrupt(InterruptId("a\0b")))
        await refused(InvalidInput, store.append(thread_id, [], append_id="nothing"))
        assert len(await store.read(thread_id)) == 2

    async def test_time_never_goes_back_in_a_thread(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        clock.advance(-3600)
        appended = await store.append(thread_id, [MESSAGE], append_id="a")
        first, *_, last = await store.read(thread_id)
        assert appended.at_ms == last.at_ms == first.at_ms
        clock.advance(7200)
        assert (await store.append(thread_id, [MESSAGE], append_id="b")).at_ms == first.at_ms + 3_600_000

    async def test_the_chain_holds_over_appends(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        for number in range(20):
            clock.advance(1)
            await store.append(thread_id, [MessageReceived(str(number))] * 2, append_id=str(number))
        report = verify_chain(thread_id, await store.stored(thread_id))
        assert (report.ok, report.checked, report.erased) == (True, 42, 0)
        rows = await store.stored(thread_id)
        first = rows[0]
        assert first.salt is not None
        assert first.body is not None
        place = f"\nthread-1\n1\n1\nthread_started\n{first.at_ms}\n".encode()
        body_digest = hashlib.sha256(first.salt + first.body).digest()
        assert first.hash == hashlib.sha256(bytes(32) + place + body_digest).digest()
        assert len({row.salt for row in rows}) == 42

    # -- append ids ----------------------------------------------------------------------------------

    async def test_an_append_is_retried_by_its_id(self, store: Store, clock: FakeClock) -> None:
        thread_id = ThreadId("t")

        async def create() -> Appended:
            return await store.create(thread_id, [STARTED, MESSAGE], append_id="create")

        created = await create()
        external = await store.append(thread_id, [MESSAGE], append_id="external")
        claim = await held(store, thread_id)
        reply: list[Event] = [ModelReplied(1, 3), ModelReplied(2, 3)]
        own = await store.append(thread_id, reply, append_id="own", epoch=claim.epoch, head_seq=3)
        clock.advance(60)
        await store.append(thread_id, [MESSAGE], append_id="later")
        # Neither what came between nor what would now be refused matters: the first outcome is told.
        assert await create() == created
        assert await store.append(thread_id, [MESSAGE], append_id="external") == external
        again = await store.append(thread_id, reply, append_id="own", epoch=claim.epoch, head_seq=3)
        assert again == own == Appended(4, 5, created.at_ms)
        assert len(await store.read(thread_id)) == 6

    async def test_append_ids_belong_to_their_thread(self, store: Store) -> None:
        first, second = await started(store, "t1"), await started(store, "t2")
        await store.append(first, [MESSAGE], append_id="same")
        assert (await store.append(second, [MESSAGE], append_id="same")).head_seq == 3
        assert len(await store.read(second)) == 3

    async def test_a_resolution_is_retried_by_its_id(self, store: Store) -> None:
        thread_id = await started(store)
        await waiting(store, thread_id, "i")
        first = await store.resolve(approved("i"), append_id="a")
        assert await store.resolve(approved("i"), append_id="a") == first == (thread_id, first[1])
        await refused(AlreadyDecided, store.resolve(approved("i"), append_id="b"))

    # -- who may append ------------------------------------------------------------------------------

    async def test_only_external_events_need_no_lease(self, store: Store) -> None:
        thread_id = await started(store)
        await refused(InvalidInput, store.append(thread_id, [ThreadCompleted()], append_id="a"))
        assert (await store.thread(thread_id)).status == "running"

    async def test_a_holder_that_lost_its_lease_is_fenced_off(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        zombie = await held(store, thread_id)
        clock.advance(16)
        new = await held(store, thread_id, "worker-2")
        assert new.epoch == zombie.epoch + 1
        late = store.append(thread_id, [ModelReplied(1, 2)], append_id="a", epoch=zombie.epoch)
        await refused(LeaseLost, late)
        await refused(LeaseLost, store.release(zombie, seen_seq=2, wake_at_ms=None, status="completed"))
        assert await store.renew("worker-1", [zombie], **LEASE) == {}
        await store.append(thread_id, [ModelReplied(1, 2)], append_id="a", epoch=new.epoch)
        row = await store.thread(thread_id)
        assert (row.head_seq, row.lease_owner, row.status) == (3, "worker-2", "running")

    async def test_a_conditional_append_sees_what_slipped_in(self, store: Store) -> None:
        thread_id = await started(store)
        claim = await held(store, thread_id)
        await store.append(thread_id, [MESSAGE], append_id="slipped in")
        end: list[Event] = [ThreadCompleted("done")]
        await refused(Stale, store.append(thread_id, end, append_id="a", epoch=claim.epoch, head_seq=2))
        await store.append(thread_id, end, append_id="a", epoch=claim.epoch, head_seq=3)
        assert (await store.thread(thread_id)).status == "completed"

    # -- two stores on one database ----------------------------------------------------------------------

    async def test_racing_stores_append_in_one_order(self, store: Store, second: Store) -> None:
        thread_id = await started(store)
        both = itertools.cycle((store, second))
        appends = (
            one.append(thread_id, [MESSAGE], append_id=str(n))
            for n, one in zip(range(60), both, strict=False)
        )
        heads = sorted(appended.head_seq for appended in await asyncio.gather(*appends))
        assert heads == list(range(3, 63))
        assert verify_chain(thread_id, await second.stored(thread_id)).checked == 62

    async def test_changes_are_announced_once_to_everybody(self, store: Store, second: Store) -> None:
        seen: dict[str, list[Change]] = {"own": [], "other": []}
        arrived = asyncio.Event()

        def note(name: str) -> Callable[[list[Change]], None]:
            def callback(changes: list[Change]) -> None:
                seen[name] += changes
                arrived.set()

            return callback

        stop_own, stop_other = store.on_change(note("own")), second.on_change(note("other"))
        thread_id = await started(store)
        claim = await held(store, thread_id)
        await store.append(thread_id, [ModelReplied(1, 2)], append_id="a", epoch=claim.epoch)
        await store.append(thread_id, [CallFinished(CallId("c"))], append_id="b", epoch=claim.epoch)
        assert seen["own"] == [
            Change(thread_id, 2, True),
            Change(thread_id, 3, False),
            Change(thread_id, 4, False),
        ]
        async with asyncio.timeout(2):
            while not seen["other"] or seen["other"][-1].head_seq < 4:
                arrived.clear()
                await arrived.wait()
        assert all(change.external for change in seen["other"])
        assert sorted({change.head_seq for change in seen["other"]}) == [c.head_seq for c in seen["other"]]
        stop_own()
        stop_other()
        await store.append(thread_id, [MESSAGE], append_id="c")
        assert len(seen["own"]) == 3

    async def test_a_refused_append_does_not_undo_its_neighbours(self, store: Store) -> None:
        thread_id = await started(store)
        attempts = [store.append(ThreadId("unknown"), [MESSAGE], append_id="x")]
        attempts += [store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(50)]
        attempts.insert(25, store.append(thread_id, [ModelReplied(1, 1)], append_id="y", epoch=99))
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        failures = [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
        assert sorted(failures, key=str) == [LeaseLost, ThreadNotFound]
        assert len(await store.read(thread_id)) == 52

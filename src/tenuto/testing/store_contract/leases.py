"""Who advances a thread, when, and what is seen of it at a glance."""

import asyncio
import hashlib

from tenuto.clock import FakeClock
from tenuto.errors import (
    InterruptNotFound,
    InvalidInput,
    ThreadNotFound,
)
from tenuto.events import (
    CallFinished,
    CallId,
    CallStarted,
    CancelRequested,
    Event,
    InterruptId,
    ModelReplied,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
)
from tenuto.rows import ThreadStatus
from tenuto.store.base import Store
from tenuto.testing.store_contract.cases import (
    LEASE,
    MESSAGE,
    approved,
    held,
    refused,
    started,
    waiting,
)


class LeaseContract:
    """Who advances a thread, when, and what is seen of it at a glance."""

    async def test_terminal_events_and_reopening(self, store: Store, clock: FakeClock) -> None:
        ends: list[tuple[Event, ThreadStatus]] = [
            (ThreadCompleted("yes"), "completed"),
            (ThreadFailed("no"), "failed"),
            (ThreadHalted("steps"), "halted"),
            (ThreadCancelled(), "cancelled"),
        ]
        thread_id = await started(store)
        for number, (event, status) in enumerate(ends):
            claim = await held(store, thread_id)
            ended = await store.append(thread_id, [event], append_id=f"end {number}", epoch=claim.epoch)
            assert (await store.thread(thread_id)).status == status
            seq = ended.head_seq
            assert await store.release(claim, seen_seq=seq, wake_at_ms=None, status=status)
            assert (await store.thread(thread_id)).ready_at_ms is None
            clock.advance(1)
            await store.append(thread_id, [CancelRequested()], append_id=f"reopen {number}")
            row = await store.thread(thread_id)
            assert (row.status, row.ready_at_ms) == ("running", clock.at_ms)

    async def test_an_external_event_never_delays_a_thread(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        created_at = clock.at_ms
        clock.advance(5)
        await store.append(thread_id, [MESSAGE], append_id="a")
        assert (await store.thread(thread_id)).ready_at_ms == created_at
        claim = await held(store, thread_id)
        wake_at = clock.at_ms + 60_000
        assert await store.release(claim, seen_seq=3, wake_at_ms=wake_at, status="sleeping")
        row = await store.thread(thread_id)
        assert (row.status, row.ready_at_ms, row.lease_owner) == ("sleeping", wake_at, None)
        await store.append(thread_id, [MESSAGE], append_id="b")
        row = await store.thread(thread_id)
        assert (row.status, row.ready_at_ms) == ("running", clock.at_ms)

    async def test_pages_of_threads(self, store: Store, clock: FakeClock) -> None:
        for number in range(6):
            await started(store, f"t{number}", "even" if number % 2 == 0 else "odd")
            if number % 3 == 2:
                clock.advance(1)
        first = await store.threads(limit=4)
        assert [row.id for row in first] == ["t5", "t4", "t3", "t2"]
        rest = await store.threads(limit=4, before=(first[-1].created_at_ms, first[-1].id))
        assert [row.id for row in rest] == ["t1", "t0"]
        assert [row.id for row in await store.threads(agent="odd")] == ["t5", "t3", "t1"]
        claim = await held(store, ThreadId("t3"))
        await store.append(claim.thread_id, [ThreadFailed("no")], append_id="a", epoch=claim.epoch)
        assert [row.id for row in await store.threads(status="failed")] == ["t3"]
        assert await store.threads(status="failed", agent="even") == []
        assert len(await store.threads(status="running", agent="even")) == 3

    # -- leases ----------------------------------------------------------------------------------------

    async def test_claims_take_the_longest_ready_first(self, store: Store, clock: FakeClock) -> None:
        for number, agent in enumerate(("a", "b", "c", "a", "b")):
            await started(store, f"t{number}", agent)
            clock.advance(1)
        claimed = await store.claim("worker-1", ["b", "a"], limit=3, **LEASE)
        assert [(claim.thread_id, claim.agent) for claim in claimed.claims] == [
            ("t0", "a"),
            ("t1", "b"),
            ("t3", "a"),
        ]
        assert {(claim.epoch, claim.head_seq) for claim in claimed.claims} == {(1, 2)}
        assert claimed.next_ready_ms == clock.at_ms  # there is more
        rest = await store.claim("worker-2", ["b", "a"], limit=3, **LEASE)
        assert [claim.thread_id for claim in rest.claims] == ["t4"]
        assert (await store.thread(ThreadId("t4"))).lease_owner == "worker-2"
        assert rest.next_ready_ms == clock.at_ms + 15_000  # when a lease of worker-1 ends
        assert (await store.claim("worker-1", [], limit=3, **LEASE)) == type(rest)((), None)

    async def test_the_next_ready_moment(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        claim = await held(store, thread_id)
        nothing = await store.claim("worker-1", ["ops"], limit=1, **LEASE)
        assert (nothing.claims, nothing.next_ready_ms) == ((), None)  # its own lease is no news
        wake_at = clock.at_ms + 7_000
        await store.release(claim, seen_seq=2, wake_at_ms=wake_at, status="sleeping")
        assert (await store.claim("worker-1", ["ops"], limit=1, **LEASE)).next_ready_ms == wake_at
        assert await store.take("worker-1", thread_id, **LEASE) is None
        clock.advance(7)
        assert len((await store.claim("worker-1", ["ops"], limit=1, **LEASE)).claims) == 1

    async def test_a_lease_ends_unless_renewed(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        claim = await held(store, thread_id)
        assert await store.take("worker-2", thread_id, **LEASE) is None
        clock.advance(14)
        await store.append(thread_id, [MESSAGE], append_id="a")
        assert await store.renew("worker-1", [claim], **LEASE) == {thread_id: 3}
        assert await store.renew("worker-2", [claim], **LEASE) == {}
        clock.advance(14.999)
        assert await store.take("worker-2", thread_id, **LEASE) is None
        clock.advance(0.001)
        assert await store.take("worker-2", thread_id, **LEASE) is not None

    async def test_a_release_that_has_not_seen_everything_is_refused(self, store: Store) -> None:
        thread_id = await started(store)
        claim = await held(store, thread_id)
        await store.append(thread_id, [MESSAGE], append_id="a")
        assert not await store.release(claim, seen_seq=2, wake_at_ms=None, status="completed")
        row = await store.thread(thread_id)
        assert (row.lease_owner, row.status) == ("worker-1", "running")
        assert await store.release(claim, seen_seq=3, wake_at_ms=None, status="completed")
        row = await store.thread(thread_id)
        assert (row.lease_owner, row.status, row.ready_at_ms) == (None, "completed", None)

    async def test_a_decision_has_a_head_start_and_starves_nobody(
        self, store: Store, clock: FakeClock
    ) -> None:
        for name in ("decided", "long ready"):
            await started(store, name)
        await waiting(store, ThreadId("decided"), "i")
        clock.advance(20)
        await started(store, "just ready")
        clock.advance(1)
        await store.resolve(approved("i"), append_id="a")
        order = [(await store.claim("worker-1", ["ops"], limit=1, **LEASE)).claims[0] for _ in range(3)]
        assert [claim.thread_id for claim in order] == ["long ready", "decided", "just ready"]

    async def test_what_a_dead_holder_left_goes_before_all_others(
        self, store: Store, clock: FakeClock
    ) -> None:
        for name in ("decided", "long ready", "left"):
            await started(store, name)
        await waiting(store, ThreadId("decided"), "i")
        await store.resolve(approved("i"), append_id="a")
        clock.advance(1)
        assert (await store.take("worker-2", ThreadId("left"), **LEASE)) is not None
        clock.advance(15)
        order = [(await store.claim("worker-1", ["ops"], limit=1, **LEASE)).claims[0] for _ in range(3)]
        assert [claim.thread_id for claim in order] == ["left", "decided", "long ready"]

    async def test_what_was_given_back_has_no_head_start(self, store: Store, clock: FakeClock) -> None:
        for name in ("given back", "ended", "long ready"):
            await started(store, name)
            clock.advance(1)
        claim = await held(store, ThreadId("given back"))
        await store.release(claim, seen_seq=2, wake_at_ms=clock.at_ms, status="running")
        claim = await held(store, ThreadId("ended"))
        end = [ThreadCompleted()]
        await store.append(claim.thread_id, end, append_id="a", epoch=claim.epoch, head_seq=2)
        clock.advance(1)
        await store.append(claim.thread_id, [MESSAGE], append_id="b")
        order = [(await store.claim("worker-1", ["ops"], limit=1, **LEASE)).claims[0] for _ in range(3)]
        assert [claim.thread_id for claim in order] == ["long ready", "given back", "ended"]

    async def test_no_thread_is_claimed_twice(self, store: Store, second: Store) -> None:
        for number in range(30):
            await started(store, f"t{number}")
        owners = ((store, "worker-1"), (second, "worker-2"))
        claims = (one.claim(owner, ["ops"], limit=5, **LEASE) for one, owner in owners * 4)
        taken = [claim.thread_id for claimed in await asyncio.gather(*claims) for claim in claimed.claims]
        assert len(taken) == len(set(taken)) == 30

    async def test_no_more_of_an_agent_is_taken_than_there_is_room_for(
        self, store: Store, clock: FakeClock
    ) -> None:
        for number, agent in enumerate("aaaabb"):
            await started(store, f"t{number}", agent)
            clock.advance(1)
        due_at = clock.at_ms + 4_000
        claim = await held(store, await started(store, "later", "a"))
        await store.release(claim, seen_seq=2, wake_at_ms=due_at, status="sleeping")
        claimed = await store.claim("worker-1", {"a": 2, "b": 5}, limit=7, **LEASE)
        assert [claim.thread_id for claim in claimed.claims] == ["t0", "t4", "t1", "t5"]
        # What there is no room for is no reason to ask again at once.
        assert claimed.next_ready_ms == due_at
        claimed = await store.claim("worker-1", {"a": 9}, limit=1, **LEASE)
        assert [claim.thread_id for claim in claimed.claims] == ["t2"]
        assert claimed.next_ready_ms == clock.at_ms
        rest = await store.claim("worker-2", ["a", "b"], limit=7, **LEASE)
        assert [claim.thread_id for claim in rest.claims] == ["t3"]

    # -- holders that die ------------------------------------------------------------------------------

    async def test_holders_that_die_are_counted(self, store: Store, clock: FakeClock) -> None:
        thread_id = await started(store)
        assert (await held(store, thread_id)).deaths == 0
        for deaths in (1, 2):
            clock.advance(15)
            (claim,) = (await store.claim("worker-1", ["ops"], limit=1, **LEASE)).claims
            assert claim.deaths == deaths
            started_ = CallStarted(CallId("c"), attempt=deaths, key="k")
            await store.append(thread_id, [started_], append_id=f"try {deaths}", epoch=claim.epoch)
        clock.advance(15)
        assert (await held(store, thread_id, "worker-2")).deaths == 3

    async def test_whoever_gets_somewhere_begins_the_count_anew(self, store: Store, clock: FakeClock) -> None:
        replied = ModelReplied(step=1, seen_seq=2, text="so")
        steps: list[Event] = [CallFinished(CallId("c"), text="done"), replied]
        thread_id = await started(store)
        await held(store, thread_id)
        for number, event in enumerate(steps):
            clock.advance(15)
            claim = await held(store, thread_id)
            assert claim.deaths == 1
            await store.append(thread_id, [event], append_id=f"a{number}", epoch=claim.epoch)
        clock.advance(15)
        claim = await held(store, thread_id)
        assert claim.deaths == 1
        # What comes from outside is nothing that a holder did.
        await store.append(thread_id, [MESSAGE], append_id="m")
        clock.advance(15)
        claim = await held(store, thread_id)
        assert claim.deaths == 2
        # Handed over, it is no less suspect; at rest, it is.
        assert await store.release(claim, seen_seq=5, wake_at_ms=clock.at_ms, status="running")
        claim = await held(store, thread_id)
        assert claim.deaths == 2
        assert await store.release(claim, seen_seq=5, wake_at_ms=clock.at_ms, status="sleeping")
        claim = await held(store, thread_id)
        assert claim.deaths == 0
        clock.advance(15)
        claim = await held(store, thread_id)
        done = [ThreadCompleted("yes")]
        await store.append(thread_id, done, append_id="end", epoch=claim.epoch, head_seq=5)
        await store.append(thread_id, [MESSAGE], append_id="again")
        assert (await held(store, thread_id)).deaths == 0

    async def test_a_worker_that_closes_without_giving_back_counts_as_one_that_died(
        self, store: Store, second: Store
    ) -> None:
        thread_id = await started(store)
        await second.register("worker-2", ["ops"])
        await held(second, thread_id, "worker-2")
        await second.close()
        assert (await held(store, thread_id)).deaths == 1

    # -- the rest ----------------------------------------------------------------------------------------

    async def test_what_waits_is_counted_with_its_age(self, store: Store, clock: FakeClock) -> None:
        assert await store.waiting() == {}
        first, begun = await started(store, "t1", "a"), clock.at_ms
        assert await store.waiting() == {"runnable": (1, begun)}
        claim = await waiting(store, first, "i1", release=False)
        assert await store.waiting() == {"approval": (1, begun)}
        clock.advance(1)
        second = await started(store, "t2", "b")
        await waiting(store, second, "i2", "i3")
        await started(store, "t3", "b")
        assert await store.waiting() == {"approval": (3, begun), "runnable": (1, clock.at_ms)}
        # A thread whose holder is gone is nobody's; one that sleeps is not due.
        clock.advance(20)
        waits = {"approval": (3, begun), "runnable": (2, begun), "abandoned": (1, begun + 15_000)}
        assert await store.waiting() == waits
        await store.renew("worker-1", [claim], **LEASE)
        await store.release(claim, seen_seq=3, wake_at_ms=clock.at_ms + 5_000, status="sleeping")
        assert (await store.waiting())["runnable"] == (1, begun + 1_000)
        await store.resolve(approved("i2"), append_id="a")
        assert await store.waiting() == {"approval": (2, begun), "runnable": (2, begun + 1_000)}

    async def test_blobs(self, store: Store) -> None:
        bodies = [b"", b"\0\xff", b"prompt"]
        blobs = {hashlib.sha256(body).hexdigest(): body for body in bodies}
        await store.put_blobs(blobs)
        await store.put_blobs(blobs)
        for digest, body in blobs.items():
            assert await store.blob(digest) == body
        await refused(InvalidInput, store.put_blobs({"0" * 64: b"something else"}))

    async def test_workers_announce_themselves(self, store: Store, clock: FakeClock) -> None:
        assert await store.workers() == []
        await store.register("worker-1", ["b", "a"])
        (row,) = await store.workers()
        assert (row.owner, row.agents, row.started_at_ms) == ("worker-1", ("b", "a"), clock.at_ms)
        assert (row.host, row.leases) == (store.host, 0)
        assert row.seen_at_ms in (None, clock.at_ms)
        for number in range(3):
            assert await store.take("worker-1", await started(store, f"t{number}"), lease_seconds=5 + number)
        assert [row.leases for row in await store.workers()] == [3]
        clock.advance(6)
        assert [row.leases for row in await store.workers()] == [1]

    async def test_pruning_deletes_ended_threads_whole(self, store: Store, clock: FakeClock) -> None:
        for name in ("ended", "held", "waiting", "other"):
            await started(store, name)
        await waiting(store, ThreadId("waiting"), "i")
        await waiting(store, ThreadId("ended"), "j")
        await store.resolve(approved("j"), append_id="a")
        for name in ("ended", "held", "other"):
            claim = await held(store, ThreadId(name))
            done = await store.append(claim.thread_id, [ThreadCompleted()], append_id="z", epoch=claim.epoch)
            if name != "held":
                await store.release(claim, seen_seq=done.head_seq, wake_at_ms=None, status="completed")
        await store.append(ThreadId("waiting"), [MESSAGE], append_id="the newest event of all")
        assert await store.prune(ended_before_ms=clock.at_ms) == 0
        clock.advance(1)
        assert await store.prune(ended_before_ms=clock.at_ms) == 2
        await refused(ThreadNotFound, store.read(ThreadId("ended")))
        await refused(InterruptNotFound, store.interrupt(InterruptId("j")))
        assert {row.id for row in await store.threads()} == {"held", "waiting"}

    async def test_closing_twice_is_allowed(self, store: Store) -> None:
        await started(store)
        await store.close()
        await store.close()

"""What is kept beside the log: records, and the labels by which a thread is found."""

import asyncio

from tenuto.clock import FakeClock
from tenuto.errors import InvalidInput
from tenuto.events import (
    InterruptId,
    InterruptKind,
    InterruptRaised,
    ThreadCompleted,
    ThreadId,
    ThreadStarted,
)
from tenuto.limits import MAX_METADATA_FILTERS, MAX_NAME_CHARACTERS, MAX_RECORD_BYTES
from tenuto.store.base import Store
from tenuto.testing.store_contract.cases import EXACT, MESSAGE, approved, held, refused, started


class BesideContract:
    """What is kept beside the log: records, and the labels by which a thread is found."""

    async def test_of_racing_records_the_first_is_kept(self, store: Store) -> None:
        bodies = [bytes([number]) for number in range(20)]
        kept = await asyncio.gather(*(store.put_record("request", "k", body) for body in bodies))
        assert set(kept) == {kept[0]}
        assert kept[0] in bodies
        assert await store.record("request", "k") == kept[0]
        assert await store.put_record("request", "k", b"\0new", replace=True) == b"\0new"
        assert await store.put_record("request", "k", b"third") == b"\0new"
        assert await store.put_record("token", "k", b"") == b""
        assert await store.record("request", "k") == b"\0new"

    async def test_an_expired_record_counts_as_absent(self, store: Store, clock: FakeClock) -> None:
        soon = clock.at_ms + 1000
        for key in ("a", "b", "c"):
            await store.put_record("request", key, b"first", expires_at_ms=soon)
        await store.put_record("request", "d", b"for ever")
        clock.advance(0.999)
        assert await store.put_record("request", "a", b"second") == b"first"
        clock.advance(0.001)
        assert await store.record("request", "a") is None
        assert await store.records("request") == {"d": b"for ever"}
        assert not await store.drop_record("request", "b")
        assert await store.put_record("request", "a", b"second", expires_at_ms=soon + 1) == b"second"
        assert await store.record("request", "a") == b"second"
        # What is kept anew without an end does not take over the old one.
        assert await store.put_record("request", "c", b"again") == b"again"
        clock.advance(1_000_000)
        assert await store.records("request") == {"c": b"again", "d": b"for ever"}

    async def test_pages_of_records(self, store: Store) -> None:
        names = ["é", "e\u0301", "🎼", "\ue000", "b", "B", "a" * MAX_NAME_CHARACTERS]
        for name in names:
            await store.put_record("token", name, name.encode())
            await store.put_record("other", name, b"")
        expected = {name: name.encode() for name in sorted(names, key=str.encode)}
        assert list((await store.records("token")).items()) == list(expected.items())
        first = await store.records("token", limit=3)
        rest = await store.records("token", limit=100, after=list(first)[-1])
        assert list(first) + list(rest) == list(expected)
        assert await store.drop_record("token", "é")
        assert not await store.drop_record("token", "é")
        assert await store.record("token", "é") is None
        assert len(await store.records("other")) == len(names)

    async def test_a_record_that_cannot_be_kept_is_refused(self, store: Store) -> None:
        for kind, key, body in (
            ("token", "", b""),
            ("", "k", b""),
            ("token", "a\0b", b""),
            ("token", "\ud800", b""),
            ("token", "k" * (MAX_NAME_CHARACTERS + 1), b""),
            ("token", "k", bytes(MAX_RECORD_BYTES + 1)),
        ):
            await refused(InvalidInput, store.put_record(kind, key, body))
        largest = bytes(MAX_RECORD_BYTES)
        assert await store.put_record("token", "k", largest) == largest
        assert list(await store.records("token")) == ["k"]

    async def test_threads_are_found_by_their_metadata(self, store: Store, clock: FakeClock) -> None:
        for number in range(8):
            data = {
                "customer": "ana" if number % 2 else "bo",
                "shop": "x" if number < 4 else "y",
                "n": number,
            }
            event = ThreadStarted("odd" if number % 2 else "even", "f", metadata=data)
            await store.create(ThreadId(f"t{number}"), [event, MESSAGE], append_id="a")
            if number % 3 == 2:
                clock.advance(1)
        claim = await held(store, ThreadId("t3"))
        await store.append(claim.thread_id, [ThreadCompleted()], append_id="b", epoch=claim.epoch)

        async def ids(**wanted: str) -> list[str]:
            return [row.id for row in await store.threads(metadata=wanted)]

        assert await ids(customer="ana") == ["t7", "t5", "t3", "t1"]
        assert await ids(customer="ana", shop="y") == ["t7", "t5"]
        assert await ids(shop="y", customer="ana") == ["t7", "t5"]
        assert await ids(customer="x") == []
        assert await ids(n="7") == []  # a number is not a text
        assert len(await ids()) == 8
        first = await store.threads(metadata={"customer": "ana"}, limit=2)
        place = (first[-1].created_at_ms, first[-1].id)
        rest = await store.threads(metadata={"customer": "ana"}, limit=2, before=place)
        assert [row.id for row in (*first, *rest)] == ["t7", "t5", "t3", "t1"]
        assert [row.id for row in await store.threads(metadata={"shop": "x"}, agent="odd")] == ["t3", "t1"]
        assert [row.id for row in await store.threads(metadata={"shop": "x"}, status="completed")] == ["t3"]
        assert await store.threads(metadata={"shop": "y"}, status="completed") == []

    async def test_metadata_is_found_whatever_it_says(self, store: Store) -> None:
        texts = ["", *EXACT, "x" * 10_000]
        for number, text in enumerate(texts):
            event = ThreadStarted("ops", "f", metadata={"said": text, text: "name", "deep": {"said": text}})
            await store.create(ThreadId(f"t{number}"), [event], append_id="a")
        for number, text in enumerate(texts):
            for wanted in ({"said": text}, {text: "name"}, {"said": text, text: "name"}):
                (row,) = await store.threads(metadata=wanted)
                assert row.id == f"t{number}"
                assert row.metadata["said"] == text
        await refused(InvalidInput, store.threads(metadata={"said": "\ud800"}))
        many = {str(number): "" for number in range(MAX_METADATA_FILTERS + 1)}
        await refused(InvalidInput, store.threads(metadata=many))

    async def test_pruned_threads_are_found_no_more(self, store: Store, clock: FakeClock) -> None:
        for name in ("t1", "t2"):
            await started(store, name)
        claim = await held(store, ThreadId("t1"))
        await store.append(
            claim.thread_id, [ThreadCompleted()], append_id="a", epoch=claim.epoch, head_seq=claim.head_seq
        )
        await store.append(ThreadId("t2"), [MESSAGE], append_id="the newest event of all")
        clock.advance(1)
        assert await store.prune(ended_before_ms=clock.at_ms) == 1
        assert [row.id for row in await store.threads(metadata={"customer": "ana"})] == ["t2"]

    async def test_interrupts_of_one_kind(self, store: Store) -> None:
        kinds: list[InterruptKind] = ["approval", "question", "review", "approval", "review"]
        for name, agent in (("t1", "a"), ("t2", "b")):
            thread_id = await started(store, name, agent)
            claim = await held(store, thread_id)
            asked = [InterruptRaised(InterruptId(f"{name}.{n}"), kind) for n, kind in enumerate(kinds)]
            await store.append(thread_id, asked, append_id="ask", epoch=claim.epoch)
        await store.resolve(approved("t1.3"), append_id="a")

        async def ids(**filters: object) -> list[str]:
            return [row.id for row in await store.interrupts(**filters)]  # type: ignore[arg-type]  # as given

        assert await ids(kind="review") == ["t1.2", "t1.4", "t2.2", "t2.4"]
        assert await ids(kind="review", limit=2) == ["t1.2", "t1.4"]
        assert await ids(kind="review", after="t1.4") == ["t2.2", "t2.4"]
        assert await ids(kind="review", after="t1.3") == ["t1.4", "t2.2", "t2.4"]
        assert await ids(kind="approval") == ["t1.0", "t2.0", "t2.3"]
        assert await ids(kind="approval", pending=None, agent="a") == ["t1.0", "t1.3"]
        assert await ids(kind="approval", pending=False) == ["t1.3"]
        assert await ids(kind="question", thread_id="t2") == ["t2.1"]
        assert await ids(kind="approval", thread_id="t1") == ["t1.0"]

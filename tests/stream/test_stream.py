"""Following: every event once and in order, whatever happens beside it; deltas are hints."""

import asyncio
from typing import Any

import pytest
from tests.stream.conftest import THREAD, append, say, take

from tenuto import Agent, Runtime, ThreadNotFound, tool
from tenuto.events import Entry, MessageReceived, ModelReplied, ThreadId
from tenuto.limits import MAX_LIVE_BACKLOG, MAX_PAGE_ROWS
from tenuto.messages import AttemptFailed, ReasoningDelta, ReplySoFar, TextDelta
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import Claim
from tenuto.store.base import Store
from tenuto.stream import Hub, Replayed


async def test_replay_then_the_boundary_then_live(hub: Hub, store: Store) -> None:
    follower = hub.follow(THREAD)
    first, second, boundary = await take(follower, 3)
    assert [first.seq, second.seq, boundary] == [1, 2, Replayed(2)]
    hub.watch(THREAD)(TextDelta("he"))
    hub.watch(THREAD)(TextDelta("llo"))
    assert await take(follower, 2) == [TextDelta("he"), TextDelta("llo")]
    await say(store, "two")
    (third,) = await take(follower, 1)
    assert (third.seq, third.event) == (3, MessageReceived("two"))
    await follower.aclose()
    assert not hub._followed
    assert not hub._rests


@pytest.mark.parametrize(("after", "seqs"), [(0, [1, 2]), (1, [2]), (2, []), (99, [])])
async def test_the_cursor_is_the_seq(hub: Hub, after: int, seqs: list[int]) -> None:
    follower = hub.follow(THREAD, after)
    assert [item.seq for item in await take(follower, len(seqs) + 1)] == [*seqs, max(after, 2)]
    await follower.aclose()


async def test_every_event_once_and_in_order_under_concurrent_writes(hub: Hub, store: Store) -> None:
    total, stop = 300, asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(total // 3):
            await say(store, f"{writer}.{number}")

    async def read(after: int) -> list[int]:
        seqs: list[int] = []
        async for item in hub.follow(THREAD, after):
            if isinstance(item, Entry):
                seqs.append(item.seq)
                if item.seq % 7 == after % 7:
                    await asyncio.sleep(0)  # some are slower than others
                if item.seq == total + 2:
                    break
        stop.set()
        return seqs

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read(after)) for after in (0, 1, 2)]
        for writer in range(3):
            group.create_task(write(writer))
    for after, reader in enumerate(readers):
        assert reader.result() == list(range(after + 1, total + 3))


async def test_a_slow_follower_loses_deltas_but_no_event_and_holds_little(hub: Hub, store: Store) -> None:
    follower = hub.follow(THREAD)
    await take(follower, 3)
    emit = hub.watch(THREAD)
    for number in range(3):
        for _ in range(2 * MAX_LIVE_BACKLOG):
            emit(TextDelta("x"))
        await say(store, f"message {number}")
    (queue,) = hub._followed[THREAD].followers
    assert len(queue._items) <= MAX_LIVE_BACKLOG
    got: list[int] = []
    async for item in follower:
        if isinstance(item, Entry):
            got.append(item.seq)
            if item.seq == 5:
                break
    assert got == [3, 4, 5]
    await follower.aclose()


async def test_a_delta_never_comes_after_the_event_that_superseded_it(
    hub: Hub, store: Store, claim: Claim
) -> None:
    follower = hub.follow(THREAD)
    await take(follower, 3)
    emit = hub.watch(THREAD)
    emit(TextDelta("of three"))
    await append(store, claim, "three")
    emit(TextDelta("of four"))
    await append(store, claim, "four")
    emit(TextDelta("of what comes"))
    items = [item if isinstance(item, TextDelta) else item.seq for item in await take(follower, 4)]
    assert items == [TextDelta("of three"), 3, 4, TextDelta("of what comes")]
    await follower.aclose()


async def test_who_comes_in_the_middle_of_a_reply_is_told_the_reply_so_far(
    hub: Hub, store: Store, claim: Claim
) -> None:
    emit = hub.watch(THREAD)
    emit(ReasoningDelta("Hm"))
    emit(TextDelta("He"))
    follower = hub.follow(THREAD, 2)
    assert await take(follower, 1) == [Replayed(2)]
    emit(TextDelta("llo"))
    assert await take(follower, 2) == [ReplySoFar("He", "Hm"), TextDelta("llo")]
    # A failed attempt begins anew, for those who come then as well.
    emit(AttemptFailed("cut", 0.0))
    emit(TextDelta("Good"))
    assert await take(follower, 2) == [AttemptFailed("cut", 0.0), TextDelta("Good")]
    other = hub.follow(THREAD, 2)
    assert await take(other, 2) == [Replayed(2), ReplySoFar("Good")]
    # With its event a reply is over, and so it is when its worker lets go.
    await append(store, claim, "Good day")
    last = hub.follow(THREAD, 2)
    assert [type(item) for item in await take(last, 2)] == [Entry, Replayed]
    emit(TextDelta("Bye"))
    assert await take(last, 1) == [TextDelta("Bye")]
    hub.rested(THREAD)
    late = hub.follow(THREAD, 3)
    assert await take(late, 1) == [Replayed(3)]
    emit(TextDelta("Again"))
    assert await take(late, 1) == [TextDelta("Again")]
    for one in (follower, other, last, late):
        await one.aclose()


@pytest.mark.parametrize("before", ["the past", "a message", "an event"])
async def test_an_event_that_is_read_before_it_is_announced_supersedes_its_deltas(
    store: Store, claim: Claim, before: str
) -> None:
    hub, announced = Hub(store), list[Any]()
    store.on_change(announced.extend)

    def announce() -> None:
        hub.changed(announced)
        announced.clear()

    emit = hub.watch(THREAD)
    follower = hub.follower(THREAD, 2)
    emit(TextDelta("Hel"))
    if before != "the past":
        assert [type(told.item) for told in await follower.take()] == [Replayed, ReplySoFar]
        await (say(store, "three") if before == "a message" else append(store, claim, "three"))
        announce()
    emit(TextDelta("lo"))
    reply = ModelReplied(step=1, seen_seq=2, text="Hello")
    await store.append(THREAD, [reply], append_id="reply", epoch=claim.epoch)
    told = [told.seq for told in await follower.take()]
    assert told == ([3, 0] if before == "the past" else [3, 4])
    waiting = asyncio.create_task(follower.take())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    announce()
    emit(TextDelta("Hel"))  # the next reply begins as that one
    assert [told.item for told in await waiting] == [TextDelta("Hel")]
    await say(store, "more")
    announce()
    _, so_far = await follower.take()
    assert so_far.item == ReplySoFar("Hel")
    follower.close()


async def test_a_message_that_comes_in_meanwhile_takes_nothing_of_the_reply_away(
    hub: Hub, store: Store
) -> None:
    follower = hub.follow(THREAD, 2)
    await take(follower, 1)
    emit = hub.watch(THREAD)
    emit(TextDelta("He"))
    await say(store, "Are you there?")
    emit(TextDelta("llo"))
    told = await take(follower, 3)
    assert told[0] == TextDelta("He")
    assert told[1].event == MessageReceived("Are you there?")
    assert told[2] == ReplySoFar("Hello")
    emit(TextDelta("!"))
    assert await take(follower, 1) == [TextDelta("!")]
    await follower.aclose()


async def test_a_long_log_comes_in_pages(hub: Hub, store: Store) -> None:
    texts = [MessageReceived(str(number)) for number in range(2 * MAX_PAGE_ROWS + 5)]
    await store.append(THREAD, texts, append_id="many")
    total = len(texts) + 2
    items = await take(follower := hub.follow(THREAD), total + 1)
    assert [item.seq for item in items] == [*range(1, total + 1), total]
    await follower.aclose()


async def test_there_is_nothing_to_follow_of_an_unknown_thread(hub: Hub) -> None:
    with pytest.raises(ThreadNotFound):
        await anext(hub.follow(ThreadId("nobody")))
    with pytest.raises(ThreadNotFound):
        await hub.wait(ThreadId("nobody"))
    assert not hub._followed
    assert not hub._rests


async def test_following_to_the_rest_ends_when_the_thread_waits_for_somebody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The worker here says so: also to whoever is just being told the last event.
    monkeypatch.setattr("tenuto.limits.REST_POLL_SECONDS", 3600.0)

    @tool(effect="once", approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent("ops", tools=[pay])
    model = ScriptedModel([call("pay"), "all done"])
    async with Runtime([agent], "sqlite://:memory:", model=model) as runtime, asyncio.timeout(20):
        thread = await runtime.start("ops", "go")
        first = [item async for item in runtime.follow(thread, rest=True)]
        entries = [item for item in first if isinstance(item, Entry)]
        assert type(entries[-1].event).__name__ == "InterruptRaised"
        await runtime.resolve(entries[-1].event.id, "approve", by="ana")
        second = [item async for item in runtime.follow(thread, entries[-1].seq, rest=True)]
        assert (
            type([item for item in second if isinstance(item, Entry)][-1].event).__name__ == "ThreadCompleted"
        )
        whole = [item.seq for item in first + second if isinstance(item, Entry)]
        assert whole == list(range(1, len(whole) + 1))
        assert [item.text for item in second if isinstance(item, TextDelta)] in ([], ["all done"])

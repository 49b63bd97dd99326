"""Following: every event once and in order, whatever happens beside it; deltas are hints."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tenuto import Agent, Runtime, ThreadNotFound, tool
from tenuto.events import Entry, MessageReceived, ThreadId, ThreadStarted
from tenuto.limits import MAX_LIVE_BACKLOG, MAX_PAGE_ROWS
from tenuto.messages import TextDelta
from tenuto.models.scripted import ScriptedModel, call
from tenuto.store import open_store
from tenuto.store.base import Store
from tenuto.stream import Hub, Replayed

THREAD = ThreadId("5e9a1d5e-0000-4000-8000-000000000000")


@pytest.fixture
async def store() -> AsyncGenerator[Store]:
    store = open_store("sqlite://:memory:")
    await store.open()
    await store.create(THREAD, [ThreadStarted("ops", "f"), MessageReceived("one")], append_id="start")
    yield store
    await store.close()


@pytest.fixture
def hub(store: Store) -> Hub:
    hub = Hub(store)
    store.on_change(hub.changed)
    return hub


async def _say(store: Store, text: str) -> None:
    await store.append(THREAD, [MessageReceived(text)], append_id=text)


async def _take(follower: Any, count: int) -> list[Any]:
    return [await anext(follower) for _ in range(count)]


async def test_replay_then_the_boundary_then_live(hub: Hub, store: Store) -> None:
    follower = hub.follow(THREAD)
    first, second, boundary = await _take(follower, 3)
    assert [first.seq, second.seq, boundary] == [1, 2, Replayed(2)]
    hub.watch(THREAD)(TextDelta("he"))
    hub.watch(THREAD)(TextDelta("llo"))
    assert await _take(follower, 2) == [TextDelta("he"), TextDelta("llo")]
    await _say(store, "two")
    (third,) = await _take(follower, 1)
    assert (third.seq, third.event) == (3, MessageReceived("two"))
    await follower.aclose()
    assert not hub._followers
    assert not hub._rests


@pytest.mark.parametrize(("after", "seqs"), [(0, [1, 2]), (1, [2]), (2, []), (99, [])])
async def test_the_cursor_is_the_seq(hub: Hub, after: int, seqs: list[int]) -> None:
    follower = hub.follow(THREAD, after)
    assert [item.seq for item in await _take(follower, len(seqs) + 1)] == [*seqs, max(after, 2)]
    await follower.aclose()


async def test_every_event_once_and_in_order_under_concurrent_writes(hub: Hub, store: Store) -> None:
    total, stop = 300, asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(total // 3):
            await _say(store, f"{writer}.{number}")

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
    await _take(follower, 3)
    emit = hub.watch(THREAD)
    for number in range(3):
        for _ in range(2 * MAX_LIVE_BACKLOG):
            emit(TextDelta("x"))
        await _say(store, f"message {number}")
    (queue,) = hub._followers[THREAD]
    assert len(queue.items) <= MAX_LIVE_BACKLOG
    got: list[int] = []
    async for item in follower:
        if isinstance(item, Entry):
            got.append(item.seq)
            if item.seq == 5:
                break
    assert got == [3, 4, 5]
    await follower.aclose()


async def test_a_delta_never_comes_after_the_event_that_superseded_it(hub: Hub, store: Store) -> None:
    follower = hub.follow(THREAD)
    await _take(follower, 3)
    emit = hub.watch(THREAD)
    emit(TextDelta("of three"))
    await _say(store, "three")
    emit(TextDelta("of four"))
    await _say(store, "four")
    emit(TextDelta("of what comes"))
    items = [item if isinstance(item, TextDelta) else item.seq for item in await _take(follower, 4)]
    assert items == [TextDelta("of three"), 3, 4, TextDelta("of what comes")]
    await follower.aclose()


async def test_a_long_log_comes_in_pages(hub: Hub, store: Store) -> None:
    texts = [MessageReceived(str(number)) for number in range(2 * MAX_PAGE_ROWS + 5)]
    await store.append(THREAD, texts, append_id="many")
    total = len(texts) + 2
    items = await _take(follower := hub.follow(THREAD), total + 1)
    assert [item.seq for item in items] == [*range(1, total + 1), total]
    await follower.aclose()


async def test_there_is_nothing_to_follow_of_an_unknown_thread(hub: Hub) -> None:
    with pytest.raises(ThreadNotFound):
        await anext(hub.follow(ThreadId("nobody")))
    with pytest.raises(ThreadNotFound):
        await hub.wait(ThreadId("nobody"))
    assert not hub._followers
    assert not hub._rests


async def test_following_to_the_rest_ends_when_the_thread_waits_for_somebody() -> None:
    @tool(effect="once", approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent("ops", tools=[pay])
    model = ScriptedModel([call("pay"), "all done"])
    async with Runtime([agent], "sqlite://:memory:", model=model) as runtime:
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

"""Following: every event once and in order, whatever happens beside it; deltas are hints."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tenuto import Agent, Runtime, ThreadNotFound, tool
from tenuto.events import Entry, HistoryRepaired, MessageReceived, ModelReplied, ThreadId, ThreadStarted
from tenuto.limits import MAX_LIVE_BACKLOG, MAX_LIVE_BACKLOG_BYTES, MAX_PAGE_ROWS, MAX_TAIL_EVENTS
from tenuto.messages import AttemptFailed, ReasoningDelta, ReplySoFar, TextDelta
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import Claim
from tenuto.store import open_store
from tenuto.store.base import Store
from tenuto.stream import Follower, Hub, Replayed

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
    assert not hub._followed
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


async def _append(store: Store, claim: Claim, text: str) -> None:
    """An event of the thread's holder: the deltas before it were of this one."""
    await store.append(THREAD, [HistoryRepaired((text,))], append_id=text, epoch=claim.epoch)


@pytest.fixture
async def claim(store: Store) -> Claim:
    claim = await store.take("worker", THREAD, lease_seconds=60)
    assert claim is not None
    return claim


async def test_a_delta_never_comes_after_the_event_that_superseded_it(
    hub: Hub, store: Store, claim: Claim
) -> None:
    follower = hub.follow(THREAD)
    await _take(follower, 3)
    emit = hub.watch(THREAD)
    emit(TextDelta("of three"))
    await _append(store, claim, "three")
    emit(TextDelta("of four"))
    await _append(store, claim, "four")
    emit(TextDelta("of what comes"))
    items = [item if isinstance(item, TextDelta) else item.seq for item in await _take(follower, 4)]
    assert items == [TextDelta("of three"), 3, 4, TextDelta("of what comes")]
    await follower.aclose()


async def test_who_comes_in_the_middle_of_a_reply_is_told_the_reply_so_far(
    hub: Hub, store: Store, claim: Claim
) -> None:
    emit = hub.watch(THREAD)
    emit(ReasoningDelta("Hm"))
    emit(TextDelta("He"))
    follower = hub.follow(THREAD, 2)
    assert await _take(follower, 1) == [Replayed(2)]
    emit(TextDelta("llo"))
    assert await _take(follower, 2) == [ReplySoFar("He", "Hm"), TextDelta("llo")]
    # A failed attempt begins anew, for those who come then as well.
    emit(AttemptFailed("cut", 0.0))
    emit(TextDelta("Good"))
    assert await _take(follower, 2) == [AttemptFailed("cut", 0.0), TextDelta("Good")]
    other = hub.follow(THREAD, 2)
    assert await _take(other, 2) == [Replayed(2), ReplySoFar("Good")]
    # With its event a reply is over, and so it is when its worker lets go.
    await _append(store, claim, "Good day")
    last = hub.follow(THREAD, 2)
    assert [type(item) for item in await _take(last, 2)] == [Entry, Replayed]
    emit(TextDelta("Bye"))
    assert await _take(last, 1) == [TextDelta("Bye")]
    hub.rested(THREAD)
    late = hub.follow(THREAD, 3)
    assert await _take(late, 1) == [Replayed(3)]
    emit(TextDelta("Again"))
    assert await _take(late, 1) == [TextDelta("Again")]
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
        await (_say(store, "three") if before == "a message" else _append(store, claim, "three"))
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
    await _say(store, "more")
    announce()
    _, so_far = await follower.take()
    assert so_far.item == ReplySoFar("Hel")
    follower.close()


async def test_a_message_that_comes_in_meanwhile_takes_nothing_of_the_reply_away(
    hub: Hub, store: Store
) -> None:
    follower = hub.follow(THREAD, 2)
    await _take(follower, 1)
    emit = hub.watch(THREAD)
    emit(TextDelta("He"))
    await _say(store, "Are you there?")
    emit(TextDelta("llo"))
    told = await _take(follower, 3)
    assert told[0] == TextDelta("He")
    assert told[1].event == MessageReceived("Are you there?")
    assert told[2] == ReplySoFar("Hello")
    emit(TextDelta("!"))
    assert await _take(follower, 1) == [TextDelta("!")]
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
    assert not hub._followed
    assert not hub._rests


def _counting(store: Store, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each call of this verb from now on."""
    calls: list[Any] = []
    original = getattr(store, verb)

    async def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        await asyncio.sleep(0)  # as a store that has to wait for its answer
        return await original(*arguments)

    monkeypatch.setattr(store, verb, counted)
    return calls


async def _live(hub: Hub, count: int, **more: Any) -> list[Follower]:
    followers = [hub.follower(THREAD, 2, **more) for _ in range(count)]
    for follower in followers:
        assert [told.item for told in await follower.take()] == [Replayed(2)]
    return followers


async def test_all_who_are_live_are_told_the_same_object_which_is_read_once(
    hub: Hub, store: Store, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = await _live(hub, 10)
    reads = _counting(store, "read", monkeypatch)
    for seq in range(3, 3 + 2 * MAX_TAIL_EVENTS):
        hub.watch(THREAD)(TextDelta(f"of {seq}"))
        await _append(store, claim, str(seq))
        told = await asyncio.gather(*(follower.take() for follower in followers))
        assert [one.seq for one in told[0]] == [0, seq]
        for others in told[1:]:
            assert len(others) == 2
            assert all(mine is theirs for mine, theirs in zip(others, told[0], strict=True))
    assert len(reads) == 2 * MAX_TAIL_EVENTS
    for follower in followers:
        follower.close()
        follower.close()
    assert not hub._followed


async def test_who_is_far_behind_reads_alone_and_disturbs_nobody(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow, *_ = await _live(hub, 2)
    last = 2 + 3 * MAX_TAIL_EVENTS
    for seq in range(3, last + 1):
        await _say(store, str(seq))
        assert [told.seq for told in await quick.take()] == [seq]
    reads = _counting(store, "read", monkeypatch)
    seqs: list[int] = []
    while not seqs or seqs[-1] < last:
        seqs += [told.seq for told in await slow.take(most=4)]
        if last < 2 + 4 * MAX_TAIL_EVENTS:
            last += 1
            await _say(store, str(last))
            assert [told.seq for told in await quick.take()] == [last]
    assert seqs == list(range(3, last + 1))
    # The quick one reads what is new, and the slow one what nobody else wants any more.
    assert {after for _, after, _ in reads if after >= 2 + 3 * MAX_TAIL_EVENTS} == set(
        range(2 + 3 * MAX_TAIL_EVENTS, last)
    )
    assert len(reads) == len(set(reads))


async def test_what_others_were_told_last_is_not_all_there_is(hub: Hub, store: Store) -> None:
    quick, slow, asleep = await _live(hub, 3)
    await _say(store, "three")
    assert [told.seq for told in await quick.take()] == [3]
    await _say(store, "four")
    seqs: list[int] = []
    while len(seqs) < 2:
        seqs += [told.seq for told in await slow.take()]
    assert seqs == [3, 4]
    # One who came later has read beyond it, and leaves no gap in it.
    await _say(store, "five")
    late = hub.follower(THREAD, 2)
    assert [told.seq for told in await late.take()] == [3, 4, 5, 0]
    await _say(store, "six")
    assert [told.seq for told in await late.take()] == [6]
    seqs = []
    while len(seqs) < 4:
        seqs += [told.seq for told in await asleep.take()]
    assert seqs == [3, 4, 5, 6]
    for follower in (quick, slow, asleep, late):
        follower.close()


@pytest.mark.parametrize("large", [False, True])
async def test_who_is_slow_is_told_the_reply_so_far_unless_it_is_too_long(
    hub: Hub, store: Store, claim: Claim, large: bool
) -> None:
    (follower,) = await _live(hub, 1)
    emit = hub.watch(THREAD)
    emit(TextDelta("The beginning. "))
    assert [told.item for told in await follower.take()] == [TextDelta("The beginning. ")]
    count, piece = (5, "x" * (MAX_LIVE_BACKLOG_BYTES // 3)) if large else (MAX_LIVE_BACKLOG + 5, "x")
    for _ in range(count):
        emit(TextDelta(piece))
    assert follower._held <= MAX_LIVE_BACKLOG_BYTES
    if large:
        # What is shown stays the beginning, until the event or a new attempt.
        emit(TextDelta("The end."))
        emit(AttemptFailed("cut", 0.0))
        emit(TextDelta("Once more."))
        told = [told.item for told in await follower.take()]
        assert told == [AttemptFailed("cut", 0.0), TextDelta("Once more.")]
    else:
        assert [told.item for told in await follower.take()] == [
            ReplySoFar("The beginning. " + count * piece)
        ]
        emit(TextDelta("The end."))
        assert [told.item for told in await follower.take()] == [TextDelta("The end.")]
    for _ in range(MAX_LIVE_BACKLOG + 5):
        emit(TextDelta("x"))
    await _append(store, claim, "three")
    emit(TextDelta("of what comes"))
    told = [told.seq or told.item for told in await follower.take()]
    assert told == [3, TextDelta("of what comes")]
    assert follower._held == 0
    follower.close()


async def test_whether_it_rests_is_asked_once_for_all(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = await _live(hub, 10, rest=True)  # a thread that was never claimed still runs
    looks = _counting(store, "thread", monkeypatch)
    waiting = [asyncio.create_task(follower.take()) for follower in followers]
    await asyncio.sleep(0)
    hub.rested(THREAD)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(looks) == 1
    for follower in followers:
        follower.end()
    assert await asyncio.gather(*waiting) == [[]] * 10
    assert not any(follower.rested for follower in followers)
    assert await followers[0].take() == []
    for follower in followers:
        follower.close()
    assert not hub._followed


async def test_who_waits_can_be_let_go(hub: Hub, store: Store) -> None:
    (follower,) = await _live(hub, 1)
    follower.nudge()
    assert await follower.take() == []
    waiting = asyncio.create_task(follower.take())
    await asyncio.sleep(0)
    follower.nudge()
    assert await waiting == []
    assert not follower.ended
    await _say(store, "three")
    assert [told.seq for told in await follower.take()] == [3]
    follower.close()


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

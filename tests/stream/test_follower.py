"""Those who follow: what they share, and what they are told when they are late, slow or let go."""

import asyncio

import pytest
from tests.stream.conftest import THREAD, append, counting, live, say

from tenuto.limits import MAX_LIVE_BACKLOG, MAX_LIVE_BACKLOG_BYTES, MAX_TAIL_EVENTS
from tenuto.messages import AttemptFailed, ReplySoFar, TextDelta
from tenuto.rows import Claim
from tenuto.store.base import Store
from tenuto.stream import Hub


async def test_all_who_are_live_are_told_the_same_object_which_is_read_once(
    hub: Hub, store: Store, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = await live(hub, 10)
    reads = counting(store, "read", monkeypatch)
    for seq in range(3, 3 + 2 * MAX_TAIL_EVENTS):
        hub.watch(THREAD)(TextDelta(f"of {seq}"))
        await append(store, claim, str(seq))
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
    quick, slow, *_ = await live(hub, 2)
    last = 2 + 3 * MAX_TAIL_EVENTS
    for seq in range(3, last + 1):
        await say(store, str(seq))
        assert [told.seq for told in await quick.take()] == [seq]
    reads = counting(store, "read", monkeypatch)
    seqs: list[int] = []
    while not seqs or seqs[-1] < last:
        seqs += [told.seq for told in await slow.take(most=4)]
        if last < 2 + 4 * MAX_TAIL_EVENTS:
            last += 1
            await say(store, str(last))
            assert [told.seq for told in await quick.take()] == [last]
    assert seqs == list(range(3, last + 1))
    # The quick one reads what is new, and the slow one what nobody else wants any more.
    assert {after for _, after, _ in reads if after >= 2 + 3 * MAX_TAIL_EVENTS} == set(
        range(2 + 3 * MAX_TAIL_EVENTS, last)
    )
    assert len(reads) == len(set(reads))


async def test_what_others_were_told_last_is_not_all_there_is(hub: Hub, store: Store) -> None:
    quick, slow, asleep = await live(hub, 3)
    await say(store, "three")
    assert [told.seq for told in await quick.take()] == [3]
    await say(store, "four")
    seqs: list[int] = []
    while len(seqs) < 2:
        seqs += [told.seq for told in await slow.take()]
    assert seqs == [3, 4]
    # One who came later has read beyond it, and leaves no gap in it.
    await say(store, "five")
    late = hub.follower(THREAD, 2)
    assert [told.seq for told in await late.take()] == [3, 4, 5, 0]
    await say(store, "six")
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
    (follower,) = await live(hub, 1)
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
    await append(store, claim, "three")
    emit(TextDelta("of what comes"))
    told = [told.seq or told.item for told in await follower.take()]
    assert told == [3, TextDelta("of what comes")]
    assert follower._held == 0
    follower.close()


async def test_whether_it_rests_is_asked_once_for_all(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = await live(hub, 10, rest=True)  # a thread that was never claimed still runs
    looks = counting(store, "thread", monkeypatch)
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


async def test_a_look_that_comes_while_another_is_answered_asks_again(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (follower,) = await live(hub, 1, rest=True)
    looks = counting(store, "thread", monkeypatch)
    waiting = asyncio.create_task(follower.take())
    hub.rested(THREAD)
    for _ in range(20):
        await asyncio.sleep(0)
        if len(looks) == 1:
            hub.rested(THREAD)
    assert len(looks) == 2
    follower.end()
    await waiting
    follower.close()


async def test_who_waits_can_be_let_go(hub: Hub, store: Store) -> None:
    (follower,) = await live(hub, 1)
    follower.nudge()
    assert await follower.take() == []
    waiting = asyncio.create_task(follower.take())
    await asyncio.sleep(0)
    follower.nudge()
    assert await waiting == []
    assert not follower.ended
    await say(store, "three")
    assert [told.seq for told in await follower.take()] == [3]
    follower.close()

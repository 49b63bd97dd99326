"""Deltas between processes: whatever gets lost, comes twice or late, no text is shown with a hole, and none
after its event.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tenuto import limits
from tenuto.events import Entry, Event, MessageReceived, ModelReplied, ThreadId, ThreadStarted
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    Live,
    ReasoningDelta,
    ReplySoFar,
    StatusLine,
    TextDelta,
    ToolProgress,
)
from tenuto.rows import Change
from tenuto.store.sqlite import SQLiteStore
from tenuto.stream import Hub

THREAD = ThreadId("t")


class Side:
    """The store of one process: the log is the same for all, and what it publishes lies in `sent`."""

    publishes = True

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.sent: list[str] = []
        self.hear: Callable[[str], None] = lambda _text: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def publish(self, text: str) -> None:
        assert len(text.encode()) < limits.MAX_NOTIFY_BYTES
        self.sent.append(text)

    def on_published(self, callback: Callable[[str], None]) -> None:
        self.hear = callback


class World:
    """A process that runs the thread, and others that follow it."""

    def __init__(self, store: SQLiteStore, others: int = 1) -> None:
        self.store = store
        self.sides = [Side(store) for _ in range(1 + others)]
        self.hubs = [Hub(side) for side in self.sides]  # type: ignore[arg-type]  # all that a hub needs of one
        self.emit = self.hubs[0].watch(THREAD)
        self.head = 0

    async def begin(self) -> None:
        await self.store.create(THREAD, [ThreadStarted("ops", "f"), MessageReceived("go")], append_id="begin")
        self.head = 2

    async def append(self, event: Event) -> list[tuple[Hub, Change]]:
        """The worker's event, or one from outside; the news of it for every process, to be told."""
        external = isinstance(event, MessageReceived)
        claim = None if external else await self.store.take("w", THREAD, lease_seconds=0.0)
        done = await self.store.append(
            THREAD, [event], append_id=f"a{self.head}", epoch=claim.epoch if claim else None
        )
        self.head = done.head_seq
        return [(hub, Change(THREAD, self.head, external or hub is not self.hubs[0])) for hub in self.hubs]

    def carry(self) -> None:
        """Everything that was published, to everybody."""
        for side in self.sides:
            sent, side.sent = side.sent, []
            for text in sent:
                for other in self.sides:
                    other.hear(text)

    async def settle(self, seconds: float = 0.05) -> None:
        ends_at = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < ends_at:
            await asyncio.sleep(0.002)
            self.carry()


class Shown:
    """What a client shows, by the rules of a stream."""

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.replies = 0
        self.lines: list[Live] = []

    def take(self, item: object) -> None:
        match item:
            case Entry():
                self.text = self.reasoning = ""
                self.replies += isinstance(item.event, ModelReplied)
            case TextDelta(text):
                self.text += text
            case ReasoningDelta(text):
                self.reasoning += text
            case ReplySoFar(text, reasoning):
                self.text, self.reasoning = text, reasoning
            case AttemptFailed():
                self.text = self.reasoning = ""
            case StatusLine() | ToolProgress() | CallDelta():
                self.lines.append(item)


@pytest.fixture
async def store() -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(":memory:")
    await store.open()
    yield store
    await store.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIVE_SECONDS", 0.002)
    monkeypatch.setattr(limits, "ASK_AGAIN_SECONDS", 0.005)
    monkeypatch.setattr(limits, "WANT_SECONDS", 0.02)


@contextlib.asynccontextmanager
async def following(hub: Hub, check: Callable[[Shown], None] = lambda _shown: None) -> AsyncIterator[Shown]:
    shown = Shown()

    async def follow() -> None:
        async for item in hub.follow(THREAD):
            shown.take(item)
            check(shown)

    task = asyncio.create_task(follow())
    yield shown
    if task.done():
        task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def tell(news: list[tuple[Hub, Change]]) -> None:
    for hub, change in news:
        hub.changed([change])


async def test_nothing_is_published_for_a_thread_that_nobody_follows(store: SQLiteStore) -> None:
    world = World(store)
    await world.begin()
    async with following(world.hubs[0]):
        await world.settle(0.02)
        for _ in range(100):
            world.emit(TextDelta("so "))
        await asyncio.sleep(0.02)
        assert [text for text in world.sides[0].sent if "so so" in text] == []


async def test_deltas_are_gathered_and_told_elsewhere_before_their_event(store: SQLiteStore) -> None:
    world = World(store)
    await world.begin()
    async with following(world.hubs[1]) as shown:
        await world.settle()
        before = len(world.sides[0].sent)
        world.emit(ReasoningDelta("hm"))
        for n in range(200):
            world.emit(TextDelta(f"{n} "))
        for n in range(50):
            world.emit(StatusLine(f"line {n}"))
        world.emit(CallDelta(0, "pay", '{"a":'))
        world.emit(CallDelta(0, "", "1}"))
        world.emit(ToolProgress("c1", "half", 0.5))
        await asyncio.sleep(0.02)
        assert len(world.sides[0].sent) - before == 1
        await world.settle()
        assert (shown.text, shown.reasoning) == ("".join(f"{n} " for n in range(200)), "hm")
        assert shown.lines == [
            StatusLine("line 49"),
            CallDelta(0, "pay", '{"a":1}'),
            ToolProgress("c1", "half", 0.5),
        ]
        tell(await world.append(ModelReplied(1, 2, "0 1 2")))
        await world.settle()
        assert (shown.text, shown.replies) == ("", 1)


async def test_who_comes_in_the_middle_is_told_all_that_the_reply_said(store: SQLiteStore) -> None:
    """Also what is longer than a notification, and in characters that take room."""
    world = World(store, others=2)
    await world.begin()
    said = "é\0\ud800𝔘\n" * 3000
    world.emit(TextDelta(said))
    whole = said.replace("\ud800", "\ufffd")
    async with following(world.hubs[1]) as first:
        await world.settle(0.1)
        assert first.text == whole
        async with following(world.hubs[2]) as second, following(world.hubs[1]) as third:
            await world.settle(0.1)
            world.emit(TextDelta("end"))
            await world.settle()
            assert first.text == second.text == third.text == whole + "end"


async def test_what_comes_after_its_event_is_not_shown(store: SQLiteStore) -> None:
    world = World(store)
    await world.begin()
    async with following(world.hubs[1]) as shown:
        await world.settle()
        world.emit(TextDelta("late"))
        await asyncio.sleep(0.02)
        tell(await world.append(ModelReplied(1, 2, "late")))
        await asyncio.sleep(0.02)
        await world.settle()
        assert (shown.text, shown.replies) == ("", 1)
        world.emit(TextDelta("next"))
        await world.settle()
        assert shown.text == "next"


async def test_another_worker_begins_the_reply_again(store: SQLiteStore) -> None:
    world = World(store, others=2)
    await world.begin()
    async with following(world.hubs[2]) as shown:
        await world.settle()
        world.emit(TextDelta("of the first"))
        await world.settle()
        world.hubs[1].watch(THREAD)(TextDelta("of the second"))
        await world.settle()
        assert shown.text == "of the second"
        world.hubs[2].watch(THREAD)(TextDelta("here"))
        await world.settle()
        assert shown.text == "here"


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_gets_lost_no_text_is_wrong(store: SQLiteStore, seed: int) -> None:
    """A network that loses, repeats and holds up, under replies, failed attempts and messages."""
    chance = random.Random(seed)
    world = World(store)
    await world.begin()
    replies = ["", ""]  # texts; the one that arrives is the last
    reasoning = ["", ""]

    def check(shown: Shown) -> None:
        # Of the reply after those that were told, or of an attempt at it: a beginning.
        place = shown.replies + 1
        said = [*attempts.get(place, []), (replies[place], reasoning[place])] if place < len(replies) else []
        good = any(t.startswith(shown.text) and r.startswith(shown.reasoning) for t, r in said)
        assert good or not (shown.text or shown.reasoning), (seed, shown.text, said)

    attempts: dict[int, list[tuple[str, str]]] = {}
    late: list[tuple[Callable[..., None], Any]] = []

    def deliver(lossy: bool) -> None:
        for side in world.sides:
            sent, side.sent = side.sent, []
            for text in sent:
                late.extend((other.hear, text) for other in world.sides)
        due, late[:] = late[:], []
        for work, what in due:
            luck = chance.random() if lossy else 1.0
            if luck < 0.15 and not isinstance(what, list):
                continue
            if luck < 0.4:
                late.append((work, what))
                if luck < 0.3:
                    continue
            work(what)

    async with following(world.hubs[1], check) as shown:
        for step in range(400):
            match chance.randrange(12):
                case 0:
                    (mine, change), *news = await world.append(ModelReplied(len(replies), 2, replies[-1]))
                    mine.changed([change])
                    late.extend((hub.changed, [heard]) for hub, heard in news)
                    replies.append("")
                    reasoning.append("")
                case 1:
                    tell(await world.append(MessageReceived(f"m{step}")))
                case 2:
                    attempts.setdefault(len(replies) - 1, []).append((replies[-1], reasoning[-1]))
                    replies[-1] = reasoning[-1] = ""
                    world.emit(AttemptFailed("no", 0.0))
                case 3:
                    reasoning[-1] += f"r{step} "
                    world.emit(ReasoningDelta(f"r{step} "))
                case _:
                    replies[-1] += f"{step} "
                    world.emit(TextDelta(f"{step} "))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0.001, 0.004]))
                deliver(lossy=True)
        for n in range(60):
            await asyncio.sleep(0.003)
            deliver(lossy=False)
            if n % 10 == 0:
                replies[-1] += "end "
                world.emit(TextDelta("end "))
        await asyncio.sleep(0.02)
        deliver(lossy=False)
        await asyncio.sleep(0.02)
        assert (shown.replies, shown.text, shown.reasoning) == (len(replies) - 2, replies[-1], reasoning[-1])

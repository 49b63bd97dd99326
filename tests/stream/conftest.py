"""A store with one thread, and the hub where it is followed."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from tenuto.events import HistoryRepaired, MessageReceived, ThreadId, ThreadStarted
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


async def say(store: Store, text: str) -> None:
    await store.append(THREAD, [MessageReceived(text)], append_id=text)


async def take(follower: Any, count: int) -> list[Any]:
    return [await anext(follower) for _ in range(count)]


async def append(store: Store, claim: Claim, text: str) -> None:
    """An event of the thread's holder: the deltas before it were of this one."""
    await store.append(THREAD, [HistoryRepaired((text,))], append_id=text, epoch=claim.epoch)


@pytest.fixture
async def claim(store: Store) -> Claim:
    claim = await store.take("worker", THREAD, lease_seconds=60)
    assert claim is not None
    return claim


def counting(store: Store, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each call of this verb from now on."""
    calls: list[Any] = []
    original = getattr(store, verb)

    async def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        await asyncio.sleep(0)  # as a store that has to wait for its answer
        return await original(*arguments)

    monkeypatch.setattr(store, verb, counted)
    return calls


async def live(hub: Hub, count: int, **more: Any) -> list[Follower]:
    followers = [hub.follower(THREAD, 2, **more) for _ in range(count)]
    for follower in followers:
        assert [told.item for told in await follower.take()] == [Replayed(2)]
    return followers

"""Following a thread: replay the log, announce the boundary, go live.

Durable events come by seq out of the store; live deltas are hints that a later event supersedes, pushed
by whatever runs the thread in this process. A slow follower loses deltas, never events, and never slows
the worker: its backlog is bounded and pushing to it does not wait.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from tenuto import limits
from tenuto.events import Entry, ThreadId
from tenuto.messages import Live
from tenuto.store.base import Change, Store
from tenuto.thread import ThreadState


class Replayed(msgspec.Struct, frozen=True, tag="replayed", tag_field="type"):
    """The boundary: every event up to `seq` has been given, what follows happens now."""

    seq: int


class _Follower:
    """Live deltas and head marks, in the order in which they happened here."""

    def __init__(self) -> None:
        self.items: deque[Live | int] = deque()
        self.wake = asyncio.Event()

    def push(self, item: Live | int) -> None:
        if len(self.items) >= limits.MAX_LIVE_BACKLOG:
            heads = [entry for entry in self.items if isinstance(entry, int)]
            self.items = deque(heads[-1:])
        self.items.append(item)
        self.wake.set()

    def forget(self, seq: int) -> None:
        """Drop the deltas that the events up to `seq` have superseded."""
        done = [place for place, item in enumerate(self.items) if isinstance(item, int) and item <= seq]
        for _ in range(done[-1] + 1 if done else 0):
            self.items.popleft()


class _Waiter(asyncio.Event):
    """Somebody who waits for a thread to rest."""

    state: ThreadState | None = None


class Hub:
    """The meeting place of what runs threads and what follows them, one per process and store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followers: dict[ThreadId, set[_Follower]] = {}
        self._rests: dict[ThreadId, set[asyncio.Event]] = {}

    @property
    def followers(self) -> int:
        """How many follow a thread here now."""
        return sum(len(members) for members in self._followers.values())

    def changed(self, changes: list[Change]) -> None:
        """The store's change callback."""
        for change in changes:
            for follower in self._followers.get(change.thread_id, ()):
                follower.push(change.head_seq)
            if change.external:
                self.rested(change.thread_id)

    def rested(self, thread_id: ThreadId, state: ThreadState | None = None) -> None:
        """The thread was released in this `state`, or something else about it is worth a look."""
        for waiter in self._rests.get(thread_id, ()):
            if isinstance(waiter, _Waiter):
                waiter.state = state
            waiter.set()

    def watch(self, thread_id: ThreadId) -> Callable[[Live], None]:
        """Where a worker pushes this thread's deltas; costs one look-up when nobody follows."""

        def emit(item: Live) -> None:
            for follower in self._followers.get(thread_id, ()):
                follower.push(item)

        return emit

    async def follow(
        self, thread_id: ThreadId, after: int = 0, rest: bool = False
    ) -> AsyncGenerator[Entry | Replayed | Live, None]:
        """Events with seq > after, then `Replayed`, then events and deltas as they happen.

        Every event once and in order, whatever is lost between. Goes on until closed; with `rest` it ends
        when the thread ends or waits for somebody. Raises `ThreadNotFound`.
        """
        follower = _Follower()
        self._followers.setdefault(thread_id, set()).add(follower)
        self._rests.setdefault(thread_id, set()).add(follower.wake)
        try:
            replayed = False
            while True:
                # Asked before reading: what is appended after the answer is read all the same.
                resting = rest and (await self._store.thread(thread_id)).status != "running"
                while page := await self._store.read(thread_id, after, limits.MAX_PAGE_ROWS):
                    for entry in page:
                        yield entry
                    after = page[-1].seq
                if not replayed:
                    replayed = True
                    yield Replayed(after)
                if resting:
                    return
                async for item in self._live(follower, after, rest):
                    yield item
        finally:
            _discard(self._followers, thread_id, follower)
            _discard(self._rests, thread_id, follower.wake)

    async def _live(self, follower: _Follower, after: int, rest: bool) -> AsyncGenerator[Live, None]:
        """Deltas until the log has grown, or it is time to look whether the thread rests."""
        follower.forget(after)
        while True:
            while follower.items:
                item = follower.items.popleft()
                if not isinstance(item, int):
                    yield item
                elif item > after:
                    return
            follower.wake.clear()
            try:
                async with asyncio.timeout(limits.REST_POLL_SECONDS if rest else None):
                    await follower.wake.wait()
            except TimeoutError:
                return
            if rest and not follower.items:
                return

    async def wait(self, thread_id: ThreadId, timeout: float | None = None) -> ThreadState | None:
        """Until the thread ends, or waits for somebody or for a time, or `timeout` seconds have passed.

        A worker in this process wakes us, with its state where that is still true; one in another process is
        noticed by looking, more and more seldom. Raises `ThreadNotFound`.
        """
        waiter = _Waiter()
        self._rests.setdefault(thread_id, set()).add(waiter)
        pause = limits.CHANGE_POLL_SECONDS
        try:
            async with asyncio.timeout(timeout):
                while (row := await self._store.thread(thread_id)).status == "running":
                    waiter.clear()
                    try:
                        async with asyncio.timeout(pause):
                            await waiter.wait()
                    except TimeoutError:
                        pause = min(pause * 1.5, limits.REST_POLL_SECONDS)
        except TimeoutError:
            return None
        finally:
            _discard(self._rests, thread_id, waiter)
        state = waiter.state
        return state if state is not None and state.head_seq == row.head_seq else None


def _discard(table: dict[ThreadId, set[Any]], key: ThreadId, value: object) -> None:
    members = table.get(key, set())
    members.discard(value)
    if not members:
        table.pop(key, None)

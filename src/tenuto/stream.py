"""Following a thread: replay the log, announce the boundary, go live.

Durable events come by seq out of the store; live deltas are hints that a later event supersedes, pushed
by whatever runs the thread in this process, or heard from another one (`tenuto.relay`). A slow follower loses
deltas, never events, and never slows the worker. Who missed the beginning of a reply, or lost some of it, is
told the reply so far: what is shown of one is never a text with a hole.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Iterable

from tenuto import limits
from tenuto.events import Entry, ThreadId
from tenuto.follower import Followed, Follower, Replayed, Reply, Told
from tenuto.messages import AttemptFailed, Live, ReasoningDelta, TextDelta
from tenuto.relay import Relay
from tenuto.rows import Change
from tenuto.store.base import Store
from tenuto.thread import ThreadState

__all__ = ["Follower", "Hub", "Replayed", "Told"]


class _Waiter(asyncio.Event):
    """Somebody who waits for a thread to rest."""

    state: ThreadState | None = None

    def clear(self) -> None:
        super().clear()
        self.state = None

    async def woken(self, seconds: float) -> bool:
        """Whether anything came within that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self.wait()
        return False


class Hub:
    """The meeting place of what runs threads and what follows them, one per process and store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: dict[ThreadId, Followed] = {}
        self._replies: dict[ThreadId, Reply] = {}
        self._relay = Relay(store, self._replies, self._followed) if store.publishes else None
        self._rests: dict[ThreadId, set[_Waiter]] = {}
        self.runs_here: Callable[[ThreadId], bool] = lambda _: False  # the worker's to say

    @property
    def followed(self) -> Collection[ThreadId]:
        """The threads that somebody follows here now."""
        return self._followed.keys()

    @property
    def followers(self) -> int:
        """How many follow a thread here now."""
        return sum(len(followed.followers) for followed in self._followed.values())

    def changed(self, changes: Iterable[Change]) -> None:
        """The store's change callback."""
        for change in changes:
            if not change.external:
                self._replies.pop(change.thread_id, None)
            if self._relay is not None:
                self._relay.grew(change)
            if followed := self._followed.get(change.thread_id):
                followed.grew(change.head_seq)
            if change.external:
                self._look(change.thread_id, None)

    def rested(self, thread_id: ThreadId, state: ThreadState | None = None) -> None:
        """The worker here is done with the thread, in this `state` if it was released."""
        self._replies.pop(thread_id, None)
        self._look(thread_id, state)

    def watch(self, thread_id: ThreadId) -> Callable[[Live], None]:
        """Where a worker pushes this thread's deltas; costs little when nobody follows. They are of one reply
        until the worker's next event, or until a failed attempt.
        """

        relay = self._relay

        def emit(item: Live) -> None:
            followed = self._followed.get(thread_id)
            reply = self._replies.get(thread_id)
            if isinstance(item, TextDelta | ReasoningDelta):
                if reply is None or not (relay is None or relay.runs_here(reply)):
                    if reply is not None and followed is not None:
                        followed.miss()  # of a worker elsewhere that died: this one begins again
                    reply = self._replies[thread_id] = Reply() if relay is None else relay.begin()
                reply.add(item)
            elif isinstance(item, AttemptFailed):
                self._replies.pop(thread_id, None)
            if followed is not None:
                followed.tell(item)
            if relay is not None:
                relay.say(thread_id, item, reply)

        return emit

    def follower(self, thread_id: ThreadId, after: int = 0, rest: bool = False) -> Follower:
        """Somebody who is told the events with seq > after, then `Replayed`, then events and deltas as they
        happen; with `rest` until the thread ends or waits for somebody. To be closed.
        """
        followed = self._followed.get(thread_id)
        if followed is None:
            followed = self._followed[thread_id] = Followed(self._store, thread_id, self._replies)
            if self._relay is not None:
                self._relay.follow(thread_id)
        follower = Follower(followed, after, rest, self._leave)
        followed.followers.add(follower)
        followed.watch_rest()
        return follower

    async def follow(
        self, thread_id: ThreadId, after: int = 0, rest: bool = False
    ) -> AsyncGenerator[Entry | Replayed | Live, None]:
        """Events with seq > after, then `Replayed`, then events and deltas as they happen.

        Every event once and in order, whatever is lost between. Goes on until closed; with `rest` it ends
        when the thread ends or waits for somebody. Raises `ThreadNotFound`.
        """
        with contextlib.closing(self.follower(thread_id, after, rest)) as follower:
            while not follower.ended:
                for told in await follower.take():
                    yield told.item

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
                if self.runs_here(thread_id):
                    # It has more to ask the store than we, and tells us when it is done.
                    await waiter.woken(pause)
                while True:
                    state = waiter.state
                    waiter.clear()
                    row = await self._store.thread(thread_id)
                    # What a holder says, it may have released before what the row tells of.
                    if state is not None and state.status != "running" and state.head_seq >= row.head_seq:
                        return state
                    if row.status != "running":
                        return None
                    if not await waiter.woken(pause):
                        pause = min(pause * 1.5, limits.REST_POLL_SECONDS)
        except TimeoutError:
            return None
        finally:
            waiters = self._rests[thread_id]
            waiters.discard(waiter)
            if not waiters:
                del self._rests[thread_id]

    def _look(self, thread_id: ThreadId, state: ThreadState | None) -> None:
        """Whoever waits for the thread's rest looks whether it has come."""
        for waiter in self._rests.get(thread_id, ()):
            waiter.state = state
            waiter.set()
        if followed := self._followed.get(thread_id):
            followed.look()

    def _leave(self, follower: Follower) -> None:
        followed = follower._followed
        followed.followers.discard(follower)
        if not followed.followers and self._followed.get(followed.thread_id) is followed:
            followed.close()
            del self._followed[followed.thread_id]
            if self._relay is not None:
                self._relay.leave(followed.thread_id)

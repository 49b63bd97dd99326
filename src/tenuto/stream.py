"""Following a thread: replay the log, announce the boundary, go live.

Durable events come by seq out of the store; live deltas are hints that a later event supersedes, pushed
by whatever runs the thread in this process. A slow follower loses deltas, never events, and never slows
the worker: its backlog is bounded and pushing to it does not wait.

What happens now is read and made once for all who follow a thread: they are handed the same `Told`. A
follower costs neither a task nor a timer.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from itertools import islice

import msgspec

from tenuto import limits
from tenuto.events import Entry, ThreadId
from tenuto.messages import AttemptFailed, Live
from tenuto.rows import Change
from tenuto.store.base import Store
from tenuto.thread import ThreadState


class Replayed(msgspec.Struct, frozen=True, tag="replayed", tag_field="type"):
    """The boundary: every event up to `seq` has been given, what follows happens now."""

    seq: int


class Told:
    """One thing that followers are told, the same object for all who are told it live. `seq` is 0 for what is
    no event. `frame` is for who writes it out: its form on the wire, made by the first of them.
    """

    __slots__ = ("frame", "item", "seq")

    def __init__(self, item: Entry | Replayed | Live, seq: int = 0) -> None:
        self.item = item
        self.seq = seq
        self.frame: bytes | None = None


class _Followed:
    """A thread that somebody follows: who they are, and what those who are live were told last."""

    def __init__(self, store: Store, thread_id: ThreadId) -> None:
        self.thread_id = thread_id
        self.followers: set[Follower] = set()
        self._store = store
        self._tail: deque[Told] = deque()
        self._reading = asyncio.Lock()
        self._rests: bool | None = None
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def grew(self, head_seq: int) -> None:
        self._forget_rest()
        for follower in self.followers:
            follower.mark(head_seq)

    def tell(self, item: Live) -> None:
        told, again = Told(item), isinstance(item, AttemptFailed)
        size = len(getattr(item, "text", "")) + len(getattr(item, "arguments", ""))
        for follower in self.followers:
            follower.push(told, size, again)

    def look(self) -> None:
        """Those who want the end look whether it has come."""
        self._forget_rest()
        for follower in self.followers:
            if follower.rest:
                follower.wake.set()

    def watch_rest(self) -> None:
        """While anybody wants the end, it is looked for: another process may have run the thread."""
        if self._timer is None and any(follower.rest for follower in self.followers):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limits.REST_POLL_SECONDS, self._tick)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def page(self, after: int, most: int) -> list[Told]:
        """Events with seq > after, for a follower that is live: one reads, the others find them here."""
        async with self._reading:
            first, last = (self._tail[0].seq, self._tail[-1].seq) if self._tail else (0, 0)
            if first <= after + 1 <= last:
                place = after + 1 - first
                return list(islice(self._tail, place, place + most))
            page = await self.read(after, most)
            if after >= last:
                if after > last:
                    self._tail.clear()
                self._tail += page
                self._trim()
            return page

    async def read(self, after: int, most: int) -> list[Told]:
        return [Told(entry, entry.seq) for entry in await self._store.read(self.thread_id, after, most)]

    async def rests(self, fresh: bool) -> bool:
        """Does the thread rest now? Unless it has to be `fresh`, asked once after something has happened, for
        all who want to know.
        """
        async with self._reading:
            if self._rests is not None and not fresh:
                return self._rests
            look = self._looks
            rests = (await self._store.thread(self.thread_id)).status != "running"
            if look == self._looks:
                self._rests = rests
            return rests

    def _forget_rest(self) -> None:
        self._rests = None
        self._looks += 1

    def _tick(self) -> None:
        self._timer = None
        self.look()
        self.watch_rest()

    def _trim(self) -> None:
        size = sum(len(told.frame or b"") for told in self._tail)
        while len(self._tail) > 1 and (
            len(self._tail) > limits.MAX_TAIL_EVENTS or size > limits.MAX_TAIL_BYTES
        ):
            size -= len(self._tail.popleft().frame or b"")


class Follower:
    """One who follows a thread; made by `Hub.follower`, to be closed. `after`: the last event it was told.

    `ended`: there is nothing more to tell. `rested`: because the thread rests, and not because of `end`.
    """

    __slots__ = (
        "_behind",
        "_close",
        "_deaf",
        "_followed",
        "_head",
        "_held",
        "_items",
        "_live",
        "_nudged",
        "_resting",
        "after",
        "ended",
        "rest",
        "rested",
        "wake",
    )

    def __init__(
        self, followed: _Followed, after: int, rest: bool, close: Callable[["Follower"], None]
    ) -> None:
        self.after = after
        self.rest = rest
        self.ended = self.rested = False
        self.wake = asyncio.Event()
        self._followed = followed
        self._close = close
        self._items: deque[tuple[Told | int, int]] = (
            deque()
        )  # deltas and head marks as they came; their sizes
        self._held = 0
        self._deaf = False  # some of this reply was lost: what is told of it stays its beginning
        self._head = 0
        self._behind = True
        self._live = False
        self._resting: bool | None = None if rest else False
        self._nudged = False

    async def take(self, most: int = limits.FOLLOW_PAGE_EVENTS) -> list[Told]:
        """What there is to tell now, in order; waits until there is something. Empty when `ended`, and after
        a `nudge`. About `most` events at a time. Raises `ThreadNotFound`.
        """
        told: list[Told] = []
        while not self.ended:
            if self._resting is None:
                # Asked before reading: what is appended after the answer is read all the same.
                self._resting = await self._followed.rests(fresh=not self._live)
                self._behind = self._behind or self._resting
            if self._behind and (await self._read(told, most) or len(told) >= most):
                break
            if not self._live:
                self._live = True
                told.append(Told(Replayed(self.after)))
            if self._resting:
                self.ended = self.rested = True
                break
            if self._hear(told):
                continue
            if told or self._nudged:
                break
            self.wake.clear()
            await self.wake.wait()
            if self.rest and not self._items and not self._nudged:
                self._resting = None
        self._nudged = False
        return told

    def nudge(self) -> None:
        """Let whoever waits in `take` go, though there may be nothing to tell."""
        self._nudged = True
        self.wake.set()

    def end(self) -> None:
        """Whoever waits in `take` is let go, and nothing more is told."""
        self.ended = True
        self.wake.set()

    def close(self) -> None:
        """Nothing is kept for it any more. May be called again."""
        self._close(self)

    # -- pushed by what happens ---------------------------------------------------------------------------

    def mark(self, head_seq: int) -> None:
        """The log has grown: the deltas before are superseded, those that come are of what is next."""
        self._deaf = False
        if self._items and isinstance(self._items[-1][0], int):
            self._items.pop()
        self._items.append((head_seq, 0))
        self.wake.set()

    def push(self, told: Told, size: int, again: bool) -> None:
        """A delta. `again`: what was told of this reply is void, and it begins anew."""
        if self._deaf and not again:
            return
        self._deaf = False
        if len(self._items) >= limits.MAX_LIVE_BACKLOG or self._held + size > limits.MAX_LIVE_BACKLOG_BYTES:
            marks = [item for item in self._items if isinstance(item[0], int)]
            self._items = deque(marks[-1:])
            self._held = 0
            if not again:
                self._deaf = True
                return
        self._items.append((told, size))
        self._held += size
        self.wake.set()

    # -- inside -------------------------------------------------------------------------------------------

    async def _read(self, told: list[Told], most: int) -> bool:
        """Tell the next events of the log; is there more?"""
        page = await (self._followed.page if self._live else self._followed.read)(self.after, most)
        if page:
            told += page
            self.after = page[-1].seq
        self._behind = len(page) >= most or bool(page and self.after < self._head)
        self._forget()
        return self._behind

    def _forget(self) -> None:
        """Drop the deltas that the events up to `after` have superseded."""
        done = 0
        for place, (item, _) in enumerate(self._items, 1):
            if isinstance(item, int) and item <= self.after:
                done = place
        for _ in range(done):
            self._held -= self._items.popleft()[1]

    def _hear(self, told: list[Told]) -> bool:
        """Tell the deltas up to where the log has grown beyond what was told; has it?"""
        while self._items:
            item, size = self._items.popleft()
            self._held -= size
            if not isinstance(item, int):
                told.append(item)
            elif item > self.after:
                self._head = item
                self._behind = True
                return True
        return False


class _Waiter(asyncio.Event):
    """Somebody who waits for a thread to rest."""

    state: ThreadState | None = None


class Hub:
    """The meeting place of what runs threads and what follows them, one per process and store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: dict[ThreadId, _Followed] = {}
        self._rests: dict[ThreadId, set[_Waiter]] = {}

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
            if followed := self._followed.get(change.thread_id):
                followed.grew(change.head_seq)
            if change.external:
                self.rested(change.thread_id)

    def rested(self, thread_id: ThreadId, state: ThreadState | None = None) -> None:
        """The thread was released in this `state`, or something else about it is worth a look."""
        for waiter in self._rests.get(thread_id, ()):
            waiter.state = state
            waiter.set()
        if followed := self._followed.get(thread_id):
            followed.look()

    def watch(self, thread_id: ThreadId) -> Callable[[Live], None]:
        """Where a worker pushes this thread's deltas; costs one look-up when nobody follows."""

        def emit(item: Live) -> None:
            if followed := self._followed.get(thread_id):
                followed.tell(item)

        return emit

    def follower(self, thread_id: ThreadId, after: int = 0, rest: bool = False) -> Follower:
        """Somebody who is told the events with seq > after, then `Replayed`, then events and deltas as they
        happen; with `rest` until the thread ends or waits for somebody. To be closed.
        """
        followed = self._followed.get(thread_id)
        if followed is None:
            followed = self._followed[thread_id] = _Followed(self._store, thread_id)
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
            waiters = self._rests[thread_id]
            waiters.discard(waiter)
            if not waiters:
                del self._rests[thread_id]
        state = waiter.state
        return state if state is not None and state.head_seq == row.head_seq else None

    def _leave(self, follower: Follower) -> None:
        followed = follower._followed
        followed.followers.discard(follower)
        if not followed.followers and self._followed.get(followed.thread_id) is followed:
            followed.close()
            del self._followed[followed.thread_id]

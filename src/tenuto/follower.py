"""Those who follow a thread, and what they share.

What happens now is read and made once for all who follow a thread: they are handed the same `Told`. A
follower costs neither a task nor a timer: marks and deltas are pushed into its bounded backlog, which never
waits, and its reader asks it what there is to tell. `tenuto.stream` is what pushes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from tenuto import limits
from tenuto.errors import Undecodable
from tenuto.events import Entry, ModelReplied, ThreadId
from tenuto.messages import AttemptFailed, Live, ReasoningDelta, ReplySoFar, TextDelta
from tenuto.store.base import Store


class Replayed(msgspec.Struct, frozen=True, tag="replayed", tag_field="type"):
    """The boundary: every event up to `seq` has been given, what follows happens now."""

    seq: int


@dataclass(slots=True, eq=False)
class Told:
    """One thing that followers are told, the same object for all who are told it live. `seq` is 0 for what is
    no event. `frame` is for who writes it out: its form on the wire, made by the first of them.
    """

    item: Entry | Replayed | Live
    seq: int = 0
    frame: bytes | None = None


class Reply:
    """A reply that is arriving, as long as it is not too much to be told again. `id`: the process whose
    worker hears it, "" where no other knows of it, and which one of that process. Sizes are in characters.
    """

    __slots__ = ("_reasoning", "_text", "id", "reasoning_size", "text_size")

    def __init__(self, origin: str = "", number: int = 0) -> None:
        self.id = (origin, number)
        self.text_size = self.reasoning_size = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []

    def add(self, delta: TextDelta | ReasoningDelta) -> None:
        """It goes on."""
        if is_text := type(delta) is TextDelta:
            self.text_size += len(delta.text)
        else:
            self.reasoning_size += len(delta.text)
        if self.text_size + self.reasoning_size <= limits.MAX_LIVE_BACKLOG_BYTES:
            (self._text if is_text else self._reasoning).append(delta.text)
        elif self._text or self._reasoning:
            self._text, self._reasoning = [], []

    def so_far(self) -> ReplySoFar | None:
        """What it has said until now; None when that is too much to be told again."""
        if not (self._text or self._reasoning):
            return None
        return ReplySoFar("".join(self._text), "".join(self._reasoning))


class Followed:
    """A thread that somebody follows: who they are, and what those who are live were told last."""

    def __init__(self, store: Store, thread_id: ThreadId, replies: Mapping[ThreadId, Reply]) -> None:
        self.thread_id = thread_id
        self.replies = replies
        self.followers: set[Follower] = set()
        self._store = store
        self._tail: deque[Told] = deque()
        self._reading = asyncio.Lock()
        self._rests: bool | None = None
        self._looks = 0
        self._timer: asyncio.TimerHandle | None = None

    def grew(self, head_seq: int) -> None:
        self._forget_rest()
        # What comes in from outside while a reply arrives supersedes nothing of it.
        goes_on = self.thread_id in self.replies
        for follower in self.followers:
            follower.mark(head_seq, goes_on)

    def tell(self, item: Live) -> None:
        told, again = Told(item), isinstance(item, AttemptFailed)
        size = len(getattr(item, "text", "")) + len(getattr(item, "arguments", ""))
        for follower in self.followers:
            follower.push(told, size, again)

    def miss(self) -> None:
        """Something of the reply that arrives was missed: it is told as a whole once that can be done."""
        for follower in self.followers:
            follower.miss()

    def look(self) -> None:
        """Those who want the end look whether it has come."""
        self._forget_rest()
        for follower in self.followers:
            follower.look()

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


@dataclass(slots=True, eq=False, repr=False)
class Follower:
    """One who follows a thread; made by `Hub.follower`, to be closed. `after`: the last event it was told.

    `ended`: there is nothing more to tell. `rested`: because the thread rests, and not because of `end`.
    """

    _followed: Followed
    after: int
    rest: bool
    _close: Callable[["Follower"], None]
    ended: bool = False
    rested: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    # Deltas and head marks as they came; their sizes.
    _items: deque[tuple[Told | int, int]] = field(default_factory=deque)
    _held: int = 0
    # Some of the reply that arrives is missed: it is told as a whole when there is time for it.
    _deaf: bool = True
    _said: tuple[str, str] = ("", "")  # text and reasoning of the last reply of the past
    _marked: int = 0
    _beyond: bool = False
    _head: int = 0
    _behind: bool = True
    _live: bool = False
    _resting: bool | None = False
    _nudged: bool = False

    def __post_init__(self) -> None:
        if self.rest:
            self._resting = None

    async def take(self, most: int = limits.FOLLOW_PAGE_EVENTS) -> list[Told]:
        """What there is to tell now, in order; waits until there is something. Empty when `ended`, and after
        a `nudge`. About `most` events at a time. Raises `ThreadNotFound`.
        """
        told: list[Told] = []
        while not self.ended:
            if self._resting is None:
                self._resting = False  # until the answer is here; a `look` meanwhile asks again
                # Asked before reading: what is appended after the answer is read all the same.
                if await self._followed.rests(fresh=not self._live):
                    self._resting = self._behind = True
            if self._behind and (await self._read(told, most) or len(told) >= most):
                break
            if not self._live:
                self._live = True
                self._marked = max(self._marked, self.after)
                self._deaf = self._followed.thread_id in self._followed.replies
                told.append(Told(Replayed(self.after)))
            if self._resting:
                self.ended = self.rested = True
                break
            if self._hear(told):
                continue
            if told or self._nudged:
                break
            if self._is_to_ask():
                continue
            self.wake.clear()
            await self.wake.wait()
            if self.rest and not self._items and not self._nudged:
                self._resting = None
        self._nudged = False
        return told

    def look(self) -> None:
        """Whoever wants the end looks whether it has come, also who is just being told something."""
        if self.rest:
            self._resting = None
            self.wake.set()

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

    def mark(self, head_seq: int, goes_on: bool) -> None:
        """The log has grown: the deltas before are superseded, and those that come are of what is next,
        unless their reply `goes_on`.
        """
        self._marked = max(self._marked, head_seq)
        if self._live:
            self._deaf = goes_on
            if not goes_on:
                self._said = ("", "")
        if self._items and isinstance(self._items[-1][0], int):
            self._items.pop()
        self._items.append((head_seq, 0))
        self.wake.set()

    def miss(self) -> None:
        """The deltas that come have a hole before them."""
        self._deaf = True
        self.wake.set()

    def push(self, told: Told, size: int, again: bool) -> None:
        """A delta. `again`: what was told of this reply is void, and it begins anew."""
        if self._deaf and not again:
            self.wake.set()
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

    def _is_to_ask(self) -> bool:
        """Did a look come since it was asked last whether the thread rests?"""
        return self._resting is None

    async def _read(self, told: list[Told], most: int) -> bool:
        """Tell the next events of the log; is there more?"""
        look = self._followed.page if self._live else self._followed.read
        try:
            page = await look(self.after, most)
        except Undecodable as error:
            if error.seq <= self.after + 1:
                raise
            # What is before it is told first; then there is still more, and this comes again.
            most = error.seq - self.after - 1
            page = await look(self.after, most)
        if page:
            told += page
            self.after = page[-1].seq
            if self._live:
                self._beyond = self._beyond or self.after > self._marked
            else:
                self._learn(page)
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
        if self._beyond:
            # Events were read before they were announced: what waits may be of those, and so superseded.
            if self.after > self._marked:
                return False
            self._beyond = False
            self._forget()
        while self._items:
            item, size = self._items.popleft()
            self._held -= size
            if not isinstance(item, int):
                told.append(item)
            elif item > self.after:
                self._head = item
                self._behind = True
                return True
        reply = self._followed.replies.get(self._followed.thread_id) if self._deaf else None
        if reply is not None and (so_far := reply.so_far()) is not None:
            # A reply whose event was read before it was announced still seems to arrive.
            text, reasoning = self._said
            if not (text.startswith(so_far.text) and reasoning.startswith(so_far.reasoning)):
                self._deaf = False
                told.append(Told(so_far))
        return False

    def _learn(self, page: list[Told]) -> None:
        for told in page:
            if isinstance(told.item, Entry) and isinstance(told.item.event, ModelReplied):
                self._said = (told.item.event.text, told.item.event.reasoning)

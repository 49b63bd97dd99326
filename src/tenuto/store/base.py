"""The store contract: what every database must do, in one page, and what is the same for all of them.

The lease is the queue. A thread row has `ready_at`, `lease_owner`, `lease_until`, `epoch`, `head_seq` and
`head_hash`. An external append sets `ready_at` to now; `claim` takes rows whose `ready_at` has come and
that no live lease holds, and increments the epoch; `ready_at` stays until `release`, which refuses when
the log has grown past what the holder saw. So a thread whose holder died is simply claimable again when
its lease ends: no message exists that could be lost.

External events (message, resolution, cancel, extension) need no lease. All others carry the epoch of
their holder, and are refused (`LeaseLost`) once anybody claimed the thread after it.

Each append has an id chosen by the caller. The same id again on the same thread returns the first
outcome and writes nothing, so an append whose commit is unknown is safely tried again.
"""

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tenuto import limits
from tenuto import rows as values
from tenuto.clock import Clock, SystemClock
from tenuto.errors import InterruptNotFound, InvalidInput, NotFound, StoreError, TenutoError, ThreadNotFound
from tenuto.events import Entry, Event, InterruptId, InterruptKind, InterruptResolved, ThreadId
from tenuto.rows import (
    Appended,
    Change,
    Claim,
    Claimed,
    InterruptRow,
    StoredEvent,
    ThreadRow,
    ThreadStatus,
    WorkerRow,
)

LATEST: Final = 1 << 62


class Store(ABC):
    """All methods may raise `StoreError` (locked, full, corrupt, unreachable); then nothing was written
    unless the text says that the outcome is unknown, and the same append id may be tried again. They belong
    to the event loop that opened the store. Ids and agents' names may not have NUL: `InvalidInput`, or not
    found. `place` says in errors which database it is.
    """

    def __init__(
        self, place: str, clock: Clock | None, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.place = place
        self.host = ""  # where workers may be on other machines: the name of this one
        self.publishes = False  # can other processes be told something that is in no log?
        self._hear: Callable[[str], None] = lambda _text: None
        self._clock = clock or SystemClock()
        self._random_bytes = random_bytes
        self._callbacks: dict[Callable[[list[Change]], None], Callable[[], Iterable[ThreadId]]] = {}

    @abstractmethod
    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Raises `NewerSchema`."""

    @abstractmethod
    async def close(self) -> None:
        """Write what waits, close everything. Idempotent."""

    @abstractmethod
    async def schema(self) -> tuple[int, int]:
        """The version of the database's schema (0: none yet), and the one that `open` would bring it to.
        Changes nothing, and needs no open store.
        """

    @abstractmethod
    def now_ms(self) -> int:
        """The store's clock; where that is a server's, as it was asked within the last seconds."""

    @abstractmethod
    async def _perform(self, verb: str, **given: Any) -> Any:
        """Write, in a transaction. An error that is returned and not raised has written something."""

    @abstractmethod
    async def _fetch(self, query: str, *parameters: object) -> Sequence[Sequence[Any]]:
        """The rows of a named query."""

    # -- events ------------------------------------------------------------------------------------------

    async def create(self, thread_id: ThreadId, events: Sequence[Event], *, append_id: str) -> Appended:
        """Start a thread; the first event is `ThreadStarted`. It is ready at once.

        Raises `Conflict` when the thread exists and was not created by this append id.
        """
        given = values.beginning(thread_id, events)
        return await self._perform("create", **given, key=values.short_digest("append id", append_id))

    async def append(
        self,
        thread_id: ThreadId,
        events: Sequence[Event],
        *,
        append_id: str,
        epoch: int | None = None,
        head_seq: int | None = None,
    ) -> Appended:
        """Append all events or none, fsynced when this returns.

        Without `epoch` the events are external ones and make the thread ready now. With it they are the
        lease holder's; `LeaseLost` when the epoch has moved on. `head_seq` is a condition: `Stale` when the
        log has grown past it. A terminal event under this condition gives the thread back as well, as
        `release` would: asleep, but ready at once after `ThreadCancelled`, since a message that came after
        the request to cancel may begin a new turn. An `InterruptResolved` whose interrupt is not pending is
        `AlreadyDecided`. Raises `ThreadNotFound`.
        """
        rows = values.encoded(events, external=epoch is None)
        key = values.short_digest("append id", append_id)
        return await self._perform(
            "append", thread_id=thread_id, events=rows, key=key, epoch=epoch, head_seq=head_seq
        )

    async def resolve(
        self, event: InterruptResolved, *, append_id: str, digest: str | None = None
    ) -> tuple[ThreadId, Appended]:
        """Decide a pending interrupt, once: compare-and-set in the append's transaction.

        Late (past `expires_at` on the store's clock) means expired, whoever comes first: then the event
        written is the expiry and `AlreadyDecided` with outcome "expired" is raised. Raises
        `InterruptNotFound`; `AlreadyDecided` with who, what and when; `Stale` when `digest` is given and is
        not the pending one's.
        """
        rows = values.encoded([event]) + values.encoded([InterruptResolved(event.id, "expired")])
        key = values.short_digest("append id", append_id)
        # A key of its own: the caller's id stands for a decision that was not written.
        expiry_key = values.short_digest("interrupt", f"expiry of {event.id}")
        given = {"events": rows, "key": key, "expiry_key": expiry_key, "digest": digest}
        outcome = await self._perform("resolve", **given)
        if isinstance(outcome, TenutoError):
            raise outcome
        return outcome

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Events with seq > after, in order. Raises `ThreadNotFound`, `Undecodable`."""
        found = await self._log("events", thread_id, after, limit)
        return [Entry(seq, at, values.decode_event(thread_id, seq, v, body)) for _, seq, v, at, body in found]

    async def stored(self, thread_id: ThreadId, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """The same, undecoded. Raises `ThreadNotFound`."""
        rows = await self._log("stored", thread_id, after, _page(limit))
        return [values.to_stored(*row[1:]) for row in rows]

    async def _log(
        self, query: str, thread_id: ThreadId, after: int, limit: int | None
    ) -> list[Sequence[Any]]:
        """Rows that begin with the head and the seq; that no event is missing among them is checked here."""
        rows = await self._fetch(query, thread_id, after, LATEST if limit is None else limit)
        if not rows and limit != 0:
            raise ThreadNotFound(f"there is no thread {thread_id}")
        found = [row for row in rows if row[1] is not None]
        missing = next((place for place, row in enumerate(found, after + 1) if row[1] != place), None)
        last = after + len(found)
        if missing is None and rows and last < rows[0][0] and (limit is None or len(found) < limit):
            missing = last + 1
        if missing is not None:
            raise StoreError(f"{self.place}: event {missing} of thread {thread_id} is missing")
        return found

    # -- leases ------------------------------------------------------------------------------------------

    async def claim(
        self, owner: str, agents: Iterable[str] | Mapping[str, int], *, limit: int, lease_seconds: float
    ) -> Claimed:
        """Take up to `limit` ready threads; of an agent no more than a mapping says. The agents take turns;
        within one, those come first whose holder's lease has ended, then those that have been ready for
        longest, and threads about which a person just decided something have a head start of ten seconds.
        """
        limit, lease_ms = min(limit, limits.MAX_BATCH_APPENDS), round(lease_seconds * 1000)
        most = agents if isinstance(agents, Mapping) else dict.fromkeys(sorted(agents), LATEST)
        return await self._perform("claim", owner=owner, agents=most, limit=limit, lease_ms=lease_ms)

    async def take(self, owner: str, thread_id: ThreadId, *, lease_seconds: float) -> Claim | None:
        """Claim one given thread if it is ready and free; None otherwise."""
        lease_ms = round(lease_seconds * 1000)
        return await self._perform("take", owner=owner, thread_id=thread_id, lease_ms=lease_ms)

    async def renew(
        self, owner: str, claims: Sequence[Claim], *, lease_seconds: float
    ) -> dict[ThreadId, int]:
        """Extend leases; returns the head of each thread still held. One that is missing was lost."""
        return await self._perform("renew", owner=owner, claims=claims, lease_ms=round(lease_seconds * 1000))

    async def release(
        self, claim: Claim, *, seen_seq: int, wake_at_ms: int | None, status: ThreadStatus
    ) -> bool:
        """Give the thread back until `wake_at_ms` or the next external event.

        False, and the lease is kept, when the log has grown past `seen_seq`. Raises `LeaseLost`.
        """
        held = {"thread_id": claim.thread_id, "epoch": claim.epoch, "head_seq": seen_seq}
        return await self._perform("release", **held, wake_at_ms=wake_at_ms, status=status)

    # -- at a glance -------------------------------------------------------------------------------------

    async def thread(self, thread_id: ThreadId) -> ThreadRow:
        """Raises `ThreadNotFound`."""
        for row in await self._fetch("thread", thread_id):
            return values.thread_row(row)
        raise ThreadNotFound(f"there is no thread {thread_id}")

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: tuple[int, ThreadId] | None = None,
        limit: int = 100,
    ) -> list[ThreadRow]:
        """Newest first by (created_at_ms, id); `before` is the last row of the page before.

        `metadata`: only threads whose own has all these texts at its top level. Raises `InvalidInput`.
        """
        parameters = (*(before or (LATEST, "")), agent, _page(limit))
        if labels := values.labels_asked(metadata):
            others = msgspec.json.encode(labels[1:]).decode()
            rows = await self._fetch("threads_by_label", *parameters, status, labels[0], others)
        elif status is not None:
            rows = await self._fetch("threads_by_status", *parameters, status)
        else:
            rows = await self._fetch("threads", *parameters)
        return [values.thread_row(row) for row in rows]

    async def interrupt(self, interrupt_id: InterruptId) -> InterruptRow:
        """Raises `InterruptNotFound`."""
        for row in await self._fetch("interrupt", interrupt_id):
            return values.interrupt_row(row)
        raise InterruptNotFound(f"there is no interrupt {interrupt_id}")

    async def interrupts(
        self,
        *,
        pending: bool | None = True,
        thread_id: ThreadId | None = None,
        agent: str | None = None,
        kind: InterruptKind | None = None,
        after: InterruptId | None = None,
        limit: int = 100,
    ) -> list[InterruptRow]:
        """In the order in which they were raised; `after` is the last one of the page before.

        `pending` None: decided ones too.
        """
        parameters = (after, agent, _page(limit), kind, pending, thread_id)
        query, count = "interrupts_pending", 3
        if thread_id is not None:
            query, count = "interrupts_of_thread", 6
        elif not pending:
            query, count = "interrupts_any", 5
        elif kind is not None:
            query, count = "interrupts_pending_of_kind", 4
        try:
            rows = await self._fetch(query, *parameters[:count])
        except StoreError:
            # Where one event lies on a damaged page, it alone is not shown.
            heads = await self._fetch("interrupt_heads", *parameters)
            rows = [await self._whole(head) for head in heads]
        return [values.interrupt_row(row) for row in rows]

    async def _whole(self, head: Sequence[Any]) -> Sequence[Any]:
        try:
            return (await self._fetch("interrupt", head[0]))[0]
        except (StoreError, IndexError) as error:
            if getattr(error, "away", False):
                raise
            return (*head, None, str(error), None, None, None)

    async def doubtful(self, thread_id: ThreadId | None = None) -> list[ThreadId]:
        """Ready threads, or that one, without a live lease, in which a call started since the last reply."""
        rows = await self._fetch("doubtful", self.now_ms(), thread_id, limits.MAX_DOUBTFUL_THREADS)
        return [row[0] for row in rows]

    async def strays(self, thread_id: ThreadId | None = None) -> list[str]:
        """In words, what no log and no list shows: events out of their place, what removed rows have left."""
        return [row[0] for row in await self._fetch("strays", thread_id)]

    async def waiting(self) -> dict[str, tuple[int, int]]:
        """How many wait, since when (ms): pending interrupts by kind, "runnable" threads without a lease, and
        the "abandoned" ones among those, whose lease ended and was not given back.
        """
        rows = await self._fetch("waiting", self.now_ms())
        return {what: (count, since_ms) for what, count, since_ms in rows if count}

    # -- beside the log ----------------------------------------------------------------------------------

    async def put_blobs(self, blobs: dict[str, bytes]) -> None:
        """Keep bodies under their SHA-256 hex digest. Idempotent."""
        for digest, body in blobs.items():
            if hashlib.sha256(body).hexdigest() != digest:
                raise InvalidInput(f"blob {digest} is not under its SHA-256")
            if len(body) > limits.MAX_EVENT_BYTES:
                raise InvalidInput(f"blob {digest} has {len(body)} bytes; at most {limits.MAX_EVENT_BYTES}")
        await self._perform("put_blobs", blobs=blobs)

    async def blob(self, digest: str) -> bytes:
        """Raises `NotFound`."""
        for row in await self._fetch("blob", digest):
            return bytes(row[0])
        raise NotFound(f"there is no blob {digest}")

    async def put_record(
        self, kind: str, key: str, body: bytes, *, expires_at_ms: int | None = None, replace: bool = False
    ) -> bytes:
        """Keep a small body beside the log; returns what is kept now. Without `replace` that is the first
        one that has not expired: of racing callers all get the same. Raises `InvalidInput`.
        """
        place = values.record_place(kind, key, body)
        return await self._perform(
            "put_record", place=place, body=body, expires_at_ms=expires_at_ms, replace=replace
        )

    async def record(self, kind: str, key: str) -> bytes | None:
        """What is kept under this key; None when nothing is, or it has expired."""
        rows = await self._fetch("record", *values.record_place(kind, key), self.now_ms())
        return bytes(rows[0][0]) if rows else None

    async def records(self, kind: str, *, after: str = "", limit: int = 100) -> dict[str, bytes]:
        """Those of a kind that have not expired, by key; `after` is the last of the page before."""
        rows = await self._fetch("records", kind, after, self.now_ms(), _page(limit))
        return {key: bytes(body) for key, body in rows}

    async def drop_record(self, kind: str, key: str) -> bool:
        """Forget it; whether there was one."""
        return await self._perform("drop_record", place=values.record_place(kind, key))

    # -- workers, pruning, changes -----------------------------------------------------------------------

    @abstractmethod
    async def register(self, owner: str, agents: Sequence[str]) -> None:
        """Announce a live worker. It disappears by itself when its process dies: at once on SQLite, where
        the kernel tells; after `LEASE_SECONDS` of silence on PostgreSQL. Raises `InvalidInput`; `Conflict`
        when a live one has this name.
        """

    @abstractmethod
    async def workers(self) -> list[WorkerRow]:
        """The workers that are alive now, in any process."""

    async def prune(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Delete whole threads that ended before then; only ever on a person's command. Blobs stay: other
        threads may refer to them. So does, on SQLite, the thread with the newest event of all.
        """
        return await self._perform("prune", ended_before_ms=ended_before_ms, limit=_page(limit))

    def on_change(
        self,
        callback: Callable[[list[Change]], None],
        watched: Callable[[], Iterable[ThreadId]] = tuple,
    ) -> Callable[[], None]:
        """Call back, on the event loop that opened the store, after each commit by this process and soon
        after each commit by another. Returns the unsubscriber.

        News of other processes may get lost between machines. For the threads that are `watched` at that
        moment the store makes up for it every few seconds; then a head may be told twice. A callback must
        not block: it runs between two commits.
        """
        self._callbacks[callback] = watched
        self._listen()

        def unsubscribe() -> None:
            self._callbacks.pop(callback, None)
            self._listen()

        return unsubscribe

    def publish(self, text: str) -> None:
        """Tell the other processes something, before what is appended after this; or never: it may get lost.
        Less than `MAX_NOTIFY_BYTES`. Never waits. Only where the store `publishes`.
        """
        raise NotImplementedError

    def on_published(self, callback: Callable[[str], None]) -> None:
        """Call back with what is published, by this process too. One at a time: the last one given."""
        self._hear = callback

    @abstractmethod
    def _listen(self) -> None:
        """Begin or end to look for other processes' commits, as there are callbacks now."""

    def _announce(self, changes: list[Change]) -> None:
        for callback in list(self._callbacks):
            try:
                callback(changes)
            except Exception as error:  # noqa: BLE001 - a watcher's bug must not stop the writer
                report = {"message": "a callback of on_change failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)


def _page(limit: int) -> int:
    return min(limit, limits.MAX_PAGE_ROWS)

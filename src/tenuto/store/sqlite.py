"""The store on SQLite: one file, any number of processes on one machine, nothing to install.

sqlite.py           the store: opening, timers, workers; the verbs: reads at once, on the calling thread and a
                    connection of their own, writes handed on to
sqlite_write.py     ... writes, inside a transaction
sqlite_commit.py    the group commit around these transactions
sqlite_file.py      the file and its schema
sqlite_workers.py   who is alive
"""

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from tenuto import limits
from tenuto.clock import Clock, SystemClock
from tenuto.errors import Conflict, InterruptNotFound, InvalidInput, NotFound, StoreError, ThreadNotFound
from tenuto.events import Entry, Event, InterruptId, InterruptKind, InterruptResolved, ThreadId
from tenuto.store.base import (
    Appended,
    Change,
    Claim,
    Claimed,
    InterruptRow,
    StoredEvent,
    ThreadRow,
    ThreadStatus,
    WorkerRow,
    check_record,
    labels_asked,
    short_digest,
)
from tenuto.store.rows import decode_event, encoded, to_interrupt, to_stored, to_thread
from tenuto.store.sqlite_commit import GroupCommit
from tenuto.store.sqlite_file import open_file, store_error
from tenuto.store.sqlite_workers import (
    check_owner,
    is_alive,
    lock_worker,
    owners_with_files,
    sign_lock,
    unlock_worker,
)
from tenuto.store.sqlite_write import LATEST, SQL, Transaction

Result = TypeVar("Result")
ALL_ROWS: Final = -1


class SQLiteStore:
    """A `Store` (see there) on the file `path`, or in memory. All its methods belong to the event loop that
    opened it. `inline` has no thread, no timers and no group commit.
    """

    def __init__(
        self,
        path: str,
        *,
        inline: bool = False,
        clock: Clock | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.path = path
        self._inline = inline
        self._clock = clock or SystemClock()
        self._random_bytes = random_bytes
        self._commits: GroupCommit | None = None
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._closing = False
        self._callbacks: list[Callable[[list[Change]], None]] = []
        self._locks: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._burials: set[asyncio.Task[None]] = set()

    # -- opening and closing -----------------------------------------------------------------------------

    async def open(self) -> None:
        if self._commits is not None:
            return
        if self._inline or self.path == ":memory:":
            writing, reading = open_file(self.path)
        else:
            # A migration by another process can take a while; the loop goes on meanwhile.
            writing, reading = await asyncio.to_thread(open_file, self.path)
        self._writing, self._reading, self._closing = writing, reading, False
        self._commits = GroupCommit(
            self.path, writing, self._clock, self._random_bytes, self._announce, inline=self._inline
        )
        if self.path == ":memory:":
            return
        self._bury_dead(owners_with_files(self.path))
        await self._wait_for_burials()
        if not self._inline:
            self._every(limits.OWNER_SCAN_SECONDS, self._bury_dead)
            if self._callbacks:
                self._every(limits.CHANGE_POLL_SECONDS, self._commits.poll)

    async def close(self) -> None:
        if self._commits is None or self._closing:
            return
        self._closing = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await self._wait_for_burials()
        for owner in list(self._locks):
            await self._bury(owner, self._locks.pop(owner))
        await self._commits.close()
        for connection in (self._reading, self._writing):
            if connection is not None:
                connection.close()  # in memory both are one, and closing twice is allowed
        self._commits = self._writing = self._reading = None

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def _write(self, operation: Callable[[Transaction], Result]) -> Result:
        if self._commits is None:
            raise StoreError(f"{self.path}: the store is not open")
        return await self._commits.write(operation)

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        def tick() -> None:
            self._timers[work.__name__] = loop.call_later(seconds, tick)
            work()

        loop = asyncio.get_running_loop()
        self._timers[work.__name__] = loop.call_later(seconds, tick)

    # -- events ------------------------------------------------------------------------------------------

    async def create(self, thread_id: ThreadId, events: Sequence[Event], *, append_id: str) -> Appended:
        rows, key = encoded(events), short_digest("append id", append_id)
        return await self._write(lambda transaction: transaction.create(thread_id, rows, key))

    async def append(
        self,
        thread_id: ThreadId,
        events: Sequence[Event],
        *,
        append_id: str,
        epoch: int | None = None,
        head_seq: int | None = None,
    ) -> Appended:
        rows, key = encoded(events), short_digest("append id", append_id)
        return await self._write(
            lambda transaction: transaction.append(thread_id, rows, key, epoch, head_seq)
        )

    async def resolve(
        self, event: InterruptResolved, *, append_id: str, digest: str | None = None
    ) -> tuple[ThreadId, Appended]:
        (row,), key = encoded([event]), short_digest("append id", append_id)
        outcome = await self._write(lambda transaction: transaction.resolve(row, key, digest))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    # -- reading: one statement each, so that no read transaction stays open -----------------------------

    def _fetch(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        if self._reading is None:
            raise StoreError(f"{self.path}: the store is not open")
        try:
            return self._reading.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise store_error(self.path, error) from error

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        found = self._log(SQL.events, thread_id, after, ALL_ROWS if limit is None else limit)
        return [Entry(seq, at, decode_event(thread_id, seq, v, body)) for seq, v, at, body in found]

    async def stored(self, thread_id: ThreadId, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        rows = self._log(SQL.stored, thread_id, after, _page(limit))
        return [to_stored(*row) for row in rows]

    def _log(self, query: str, thread_id: ThreadId, after: int, limit: int) -> list[tuple[Any, ...]]:
        """Rows without the head; that no event is missing among them is checked here."""
        rows = self._fetch(query, (thread_id, after, limit))
        if not rows and limit:
            raise ThreadNotFound(f"there is no thread {thread_id}")
        found = [row[1:] for row in rows if row[1] is not None]
        for expected, row in enumerate(found, after + 1):
            if row[0] != expected:
                raise StoreError(f"{self.path}: event {expected} of thread {thread_id} is missing")
        last = after + len(found)
        if rows and last < rows[0][0] and (limit == ALL_ROWS or len(found) < limit):
            raise StoreError(f"{self.path}: event {last + 1} of thread {thread_id} is missing")
        return found

    async def thread(self, thread_id: ThreadId) -> ThreadRow:
        rows = self._fetch(SQL.thread, (thread_id,))
        if not rows:
            raise ThreadNotFound(f"there is no thread {thread_id}")
        return to_thread(*rows[0])

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: tuple[int, ThreadId] | None = None,
        limit: int = 100,
    ) -> list[ThreadRow]:
        parameters = (*(before or (LATEST, "")), agent, _page(limit))
        if labels := labels_asked(metadata):
            others = msgspec.json.encode(labels[1:]).decode()
            rows = self._fetch(SQL.threads_by_label, (*parameters, status, labels[0], others))
        elif status is not None:
            rows = self._fetch(SQL.threads_by_status, (*parameters, status))
        else:
            rows = self._fetch(SQL.threads, parameters)
        return [to_thread(*row) for row in rows]

    async def interrupt(self, interrupt_id: InterruptId) -> InterruptRow:
        rows = self._fetch(SQL.interrupt, (interrupt_id,))
        if not rows:
            raise InterruptNotFound(f"there is no interrupt {interrupt_id}")
        return to_interrupt(rows[0])

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
        parameters = (after, agent, _page(limit), kind)
        if thread_id is not None:
            rows = self._fetch(SQL.interrupts_of_thread, (*parameters, pending, thread_id))
        elif not pending:
            rows = self._fetch(SQL.interrupts_any, (*parameters, pending))
        elif kind is not None:
            rows = self._fetch(SQL.interrupts_pending_of_kind, parameters)
        else:
            rows = self._fetch(SQL.interrupts_pending, parameters[:3])
        return [to_interrupt(row) for row in rows]

    async def waiting(self) -> dict[str, tuple[int, int]]:
        return {row[0]: row[1:] for row in self._fetch(SQL.waiting, (self.now_ms(),)) if row[1]}

    async def blob(self, digest: str) -> bytes:
        rows = self._fetch(SQL.blob, (digest,))
        if not rows:
            raise NotFound(f"there is no blob {digest}")
        return bytes(rows[0][0])

    async def record(self, kind: str, key: str) -> bytes | None:
        check_record(kind, key)
        rows = self._fetch(SQL.record, (kind, key, self.now_ms()))
        return bytes(rows[0][0]) if rows else None

    async def records(self, kind: str, *, after: str = "", limit: int = 100) -> dict[str, bytes]:
        return dict(self._fetch(SQL.records, (kind, after, self.now_ms(), _page(limit))))

    # -- leases ------------------------------------------------------------------------------------------

    async def claim(self, owner: str, agents: Iterable[str], *, limit: int, lease_seconds: float) -> Claimed:
        names, limit = sorted(set(agents)), min(limit, limits.MAX_BATCH_APPENDS)
        return await self._write(lambda transaction: transaction.claim(owner, names, limit, lease_seconds))

    async def take(self, owner: str, thread_id: ThreadId, *, lease_seconds: float) -> Claim | None:
        return await self._write(lambda transaction: transaction.take(owner, thread_id, lease_seconds))

    async def renew(
        self, owner: str, claims: Sequence[Claim], *, lease_seconds: float
    ) -> dict[ThreadId, int]:
        return await self._write(lambda transaction: transaction.renew(owner, claims, lease_seconds))

    async def release(
        self, claim: Claim, *, seen_seq: int, wake_at_ms: int | None, status: ThreadStatus
    ) -> bool:
        return await self._write(lambda transaction: transaction.release(claim, seen_seq, wake_at_ms, status))

    # -- blobs, records, pruning -------------------------------------------------------------------------

    async def put_blobs(self, blobs: dict[str, bytes]) -> None:
        for digest, body in blobs.items():
            if hashlib.sha256(body).hexdigest() != digest:
                raise InvalidInput(f"blob {digest} is not under its SHA-256")
            if len(body) > limits.MAX_EVENT_BYTES:
                raise InvalidInput(
                    f"blob {digest} has {len(body)} bytes; at most {limits.MAX_EVENT_BYTES} are kept"
                )
        await self._write(lambda transaction: transaction.put_blobs(blobs))

    async def put_record(
        self, kind: str, key: str, body: bytes, *, expires_at_ms: int | None = None, replace: bool = False
    ) -> bytes:
        check_record(kind, key, body)
        return await self._write(lambda t: t.put_record((kind, key), body, expires_at_ms, replace))

    async def drop_record(self, kind: str, key: str) -> bool:
        check_record(kind, key)
        return await self._write(lambda transaction: transaction.drop_record((kind, key)))

    async def prune(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Blobs stay: other threads may refer to them. So does the thread with the newest event of all."""
        limit = _page(limit)
        return await self._write(lambda transaction: transaction.prune(ended_before_ms, limit))

    # -- workers -----------------------------------------------------------------------------------------

    async def register(self, owner: str, agents: Sequence[str]) -> None:
        """Raises `Conflict` when a live worker has this name."""
        check_owner(owner)
        if self.path != ":memory:" and owner not in self._locks:
            self._locks[owner] = await self._lock(owner)
        names = list(agents)
        await self._write(lambda transaction: transaction.add_worker(owner, names, os.getpid()))

    async def _lock(self, owner: str) -> int:
        # A process that opens the database has a new lock file for a moment, to see whether it is alive.
        for _ in range(10):
            descriptor = lock_worker(self.path, owner)
            if descriptor is not None:
                sign_lock(descriptor)
                return descriptor
            await asyncio.sleep(limits.OWNER_SCAN_SECONDS / 10)
        raise Conflict(f"worker {owner} is alive already")

    async def workers(self) -> list[WorkerRow]:
        rows = self._fetch(SQL.workers)
        return [
            WorkerRow(owner, tuple(msgspec.json.decode(agents)), pid, started_at)
            for owner, agents, pid, started_at in rows
            if self.path == ":memory:" or is_alive(self.path, owner)
        ]

    def _bury_dead(self, more: Iterable[str] = ()) -> None:
        """Remove each worker whose lock is free, and free what it held."""
        # What cannot be read or locked now is tried again at the next scan.
        with contextlib.suppress(StoreError):
            owners = {str(row[0]) for row in self._fetch(SQL.workers)}.union(more)
            for owner in owners.difference(self._locks):
                descriptor = lock_worker(self.path, owner)
                if descriptor is not None:
                    task = asyncio.ensure_future(self._bury(owner, descriptor))
                    self._burials.add(task)
                    task.add_done_callback(self._burials.discard)

    async def _bury(self, owner: str, descriptor: int) -> None:
        try:
            # When the row stays, the next scan of any process finds it without a holder.
            with contextlib.suppress(StoreError):
                await self._write(lambda transaction: transaction.remove_worker(owner))
        finally:
            unlock_worker(self.path, owner, descriptor)

    async def _wait_for_burials(self) -> None:
        while self._burials:
            await asyncio.wait(self._burials)

    # -- changes -----------------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[list[Change]], None]) -> Callable[[], None]:
        """A callback must not block: it runs between two commits."""
        self._callbacks.append(callback)
        poll_name = GroupCommit.poll.__name__
        if self._commits and not self._inline and self.path != ":memory:" and poll_name not in self._timers:
            self._every(limits.CHANGE_POLL_SECONDS, self._commits.poll)

        def unsubscribe() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)
            if not self._callbacks and poll_name in self._timers:
                self._timers.pop(poll_name).cancel()

        return unsubscribe

    def _announce(self, changes: list[Change]) -> None:
        for callback in list(self._callbacks):
            try:
                callback(changes)
            except Exception as error:  # noqa: BLE001 - a watcher's bug must not stop the writer
                report = {"message": "a callback of on_change failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(report)


def _page(limit: int) -> int:
    return min(limit, limits.MAX_PAGE_ROWS)

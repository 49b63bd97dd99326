"""The verbs that read: on the calling thread, one statement each, so that no read transaction stays open."""

import sqlite3
from typing import Any, Final

import msgspec

from tenuto.errors import InterruptNotFound, NotFound, StoreError, ThreadNotFound, Undecodable
from tenuto.events import Entry, InterruptId, ThreadId, decode
from tenuto.limits import MAX_PAGE_ROWS
from tenuto.store.base import InterruptRow, StoredEvent, ThreadRow, ThreadStatus, body_hash
from tenuto.store.sqlite_file import store_error
from tenuto.store.sqlite_write import LATEST, SQL, to_interrupt

ALL_ROWS: Final = -1


class Reads:
    """One half of the store. A WAL reader sees each commit as soon as the commit is acknowledged."""

    path: str
    _reading: sqlite3.Connection | None = None

    def _fetch(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        if self._reading is None:
            raise StoreError(f"{self.path}: the store is not open")
        try:
            return self._reading.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise store_error(self.path, error) from error

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        rows = self._log(SQL.events, thread_id, after, ALL_ROWS if limit is None else limit)
        return [
            Entry(seq, at_ms, _decode(thread_id, seq, version, body)) for seq, version, at_ms, body in rows
        ]

    async def stored(self, thread_id: ThreadId, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        rows = self._log(SQL.stored, thread_id, after, min(limit, MAX_PAGE_ROWS))
        return [_stored(*row) for row in rows]

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
        return _thread(*rows[0])

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        before: tuple[int, ThreadId] | None = None,
        limit: int = 100,
    ) -> list[ThreadRow]:
        parameters = (*(before or (LATEST, "")), agent, min(limit, MAX_PAGE_ROWS))
        if status is None:
            rows = self._fetch(SQL.threads, parameters)
        else:
            rows = self._fetch(SQL.threads_by_status, (*parameters, status))
        return [_thread(*row) for row in rows]

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
        after: InterruptId | None = None,
        limit: int = 100,
    ) -> list[InterruptRow]:
        parameters = (after, agent, min(limit, MAX_PAGE_ROWS))
        if thread_id is not None:
            rows = self._fetch(SQL.interrupts_of_thread, (*parameters, pending, thread_id))
        elif pending:
            rows = self._fetch(SQL.interrupts_pending, parameters)
        else:
            rows = self._fetch(SQL.interrupts_any, (*parameters, pending))
        return [to_interrupt(row) for row in rows]

    async def blob(self, digest: str) -> bytes:
        rows = self._fetch(SQL.blob, (digest,))
        if not rows:
            raise NotFound(f"there is no blob {digest}")
        return bytes(rows[0][0])


def _decode(thread_id: ThreadId, seq: int, version: int, body: bytes | None) -> Any:
    if body is None:
        raise Undecodable(f"event {seq} of thread {thread_id} was erased")
    try:
        return decode(body, version)
    except Undecodable as error:
        raise Undecodable(f"event {seq} of thread {thread_id}: {error}") from error


def _stored(*row: Any) -> StoredEvent:
    columns = dict(zip(StoredEvent.__struct_fields__, row, strict=True))
    if columns["body_hash"] is None:  # kept only of what was erased
        columns["body_hash"] = body_hash(columns["salt"], columns["body"])
    return StoredEvent(**columns)


def _thread(*row: Any) -> ThreadRow:
    columns = dict(zip(ThreadRow.__struct_fields__, row, strict=True))
    return ThreadRow(**columns | {"metadata": msgspec.json.decode(columns["metadata"])})

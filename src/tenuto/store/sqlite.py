"""The store on SQLite: one file, any number of processes on one machine, nothing to install.

sqlite.py           opening, timers, workers; reads at once, on the calling thread and a connection of their
                    own, one statement each, so that no read transaction stays open; writes handed on to
sqlite_write.py     ... the verbs, inside a transaction
sqlite_commit.py    the group commit around these transactions
sqlite_file.py      the file and its schema
"""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from tenuto import limits
from tenuto.clock import Clock
from tenuto.errors import Conflict, StoreError
from tenuto.locks import (
    check_owner,
    is_alive,
    lock_worker,
    owners_with_files,
    sign_lock,
    unlock_worker,
)
from tenuto.rows import WorkerRow, agent_names
from tenuto.store.base import Store
from tenuto.store.sqlite_commit import GroupCommit
from tenuto.store.sqlite_file import MIGRATIONS, open_file, schema_of, store_error
from tenuto.store.sqlite_write import SQL, Transaction

Result = TypeVar("Result")


class SQLiteStore(Store):
    """A `Store` (see there) on the file `path`, or in memory. `inline` has no thread, no timers and no group
    commit.
    """

    def __init__(
        self,
        path: str,
        *,
        inline: bool = False,
        clock: Clock | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(path, clock, random_bytes)
        self.path = path
        self._inline = inline
        self._commits: GroupCommit | None = None
        self._writing: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._closing = False
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
            self._listen()

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

    async def schema(self) -> tuple[int, int]:
        return schema_of(self.path), len(MIGRATIONS)

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def _perform(self, verb: str, **given: Any) -> Any:
        return await self._write(lambda transaction: getattr(transaction, verb)(**given))

    async def _write(self, operation: Callable[[Transaction], Result]) -> Result:
        if self._commits is None:
            raise StoreError(f"{self.path}: the store is not open")
        return await self._commits.write(operation)

    async def _fetch(self, query: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return self._rows(getattr(SQL, query), parameters)

    def _rows(self, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        if self._reading is None:
            raise StoreError(f"{self.path}: the store is not open")
        try:
            return self._reading.execute(query, parameters).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise store_error(self.path, error) from error

    def _every(self, seconds: float, work: Callable[[], None]) -> None:
        def tick() -> None:
            self._timers[work.__name__] = loop.call_later(seconds, tick)
            work()

        loop = asyncio.get_running_loop()
        if work.__name__ not in self._timers:
            self._timers[work.__name__] = loop.call_later(seconds, tick)

    # -- workers -----------------------------------------------------------------------------------------

    async def register(self, owner: str, agents: Sequence[str]) -> None:
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
        rows = self._rows(SQL.workers, (self.now_ms(),))
        return [
            WorkerRow(owner, agent_names(agents), pid, started_at, leases=leases)
            for owner, agents, pid, started_at, leases in rows
            if self.path == ":memory:" or is_alive(self.path, owner)
        ]

    def _bury_dead(self, more: Iterable[str] = ()) -> None:
        """Remove each worker whose lock is free, and free what it held."""
        # What cannot be read or locked now is tried again at the next scan.
        with contextlib.suppress(StoreError):
            owners = {str(row[0]) for row in self._rows(SQL.owners)}.union(more)
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

    def _listen(self) -> None:
        """Every commit of another process is seen by itself; none can be missed."""
        if not self._callbacks:
            if timer := self._timers.pop(GroupCommit.poll.__name__, None):
                timer.cancel()
        elif self._commits and not self._inline and self.path != ":memory:" and not self._closing:
            self._every(limits.CHANGE_POLL_SECONDS, self._commits.poll)

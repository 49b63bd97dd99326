"""Group commit: operations that wait at the same time share one transaction, and so one fsync.

Everything that became ready in one iteration of the event loop is performed at its end, on the loop's own
thread: elsewhere, each statement would have to win the interpreter's lock back from a busy loop, which can
take 5 ms. Only what waits for something outside goes to the writer thread: a COMMIT, unless it stands alone
and the one before it was quick (then the hand-over would cost more than the fsync), and the whole
transaction when another process holds the database. Meanwhile the next batch collects.

A commit that fails leaves its outcome unknown: the operations of the batch get an error that says so.
"""

import asyncio
import contextlib
import copy
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from tenuto import limits
from tenuto.clock import Clock
from tenuto.errors import StoreError, TenutoError
from tenuto.events import ThreadId
from tenuto.rows import Change
from tenuto.store.sqlite_file import store_error
from tenuto.store.sqlite_write import LATEST, SQL, Transaction

Result = TypeVar("Result")
Operation = Callable[[Transaction], Any]


class Waiting(NamedTuple):
    operation: Operation
    outcome: asyncio.Future[Any]


class Performed(NamedTuple):
    """A transaction to be committed: what each operation will be told, and what will be announced."""

    outcomes: list[Any]
    changes: list[Change]
    newest: int


class GroupCommit:
    """The only writer of this process. `inline`: each operation is committed on its caller's task."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        announce: Callable[[list[Change]], None],
        *,
        inline: bool,
    ) -> None:
        self._path = path
        self._connection = connection
        self._clock = clock
        self._random_bytes = random_bytes
        self._announce = announce
        self._inline = inline
        self._waiting: deque[Waiting] = deque()
        self._busy = False
        self._flush_is_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._commit_seconds = limits.QUICK_COMMIT_SECONDS
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop = asyncio.get_running_loop()
        self._foreign: list[Change] = []
        newest: int | None = connection.execute(SQL.newest_event).fetchone()[0]
        self._newest = newest or 0
        self._data_version = self._read_data_version()
        if inline or path == ":memory:":
            return
        connection.execute("PRAGMA busy_timeout = 0")
        self._thread = threading.Thread(target=self._work, name="tenuto-commit", daemon=True)
        self._thread.start()

    async def write(self, operation: Callable[[Transaction], Result]) -> Result:
        """Perform it in a transaction; on disk when this returns. Cancelling the caller undoes nothing."""
        if self._inline:
            outcome = self._write_inline(operation)
        else:
            if len(self._waiting) >= limits.MAX_WAITING_APPENDS:
                raise StoreError(
                    f"{self._path}: too many waiting writes ({limits.MAX_WAITING_APPENDS}); try again later"
                )
            future: asyncio.Future[Any] = self._loop.create_future()
            self._waiting.append(Waiting(operation, future))
            self._schedule()
            outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        result: Result = outcome
        return result

    def poll(self) -> None:
        """Announce what other processes committed. A few microseconds when there is nothing."""
        if self._busy:
            return  # a transaction that adds events looks for itself; the next poll is soon
        # An error will come up again where somebody can be told.
        with contextlib.suppress(sqlite3.Error):
            version = self._read_data_version()
            if version != self._data_version:
                self._data_version = version
                self._look_for_foreign(LATEST)
                self._announce_all([])

    async def close(self) -> None:
        """Write what waits, then end the thread. The connection stays open."""
        await self._idle.wait()
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    # -- one batch -------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        # By call_soon, so that whatever else is ready in this iteration of the loop joins the batch.
        self._idle.clear()
        if not self._busy and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), limits.MAX_BATCH_APPENDS))]
        self._busy = True
        written = self._connection.total_changes
        try:
            self._begin()
        except sqlite3.Error as error:
            if self._thread is None:
                self._finish(batch, store_error(self._path, error))
            else:
                self._jobs.put(lambda: self._perform_patiently(batch))
            return
        try:
            performed = self._perform([one.operation for one in batch])
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            self._roll_back()
            self._finish(batch, store_error(self._path, error))
            return
        quick = (
            len(batch) <= limits.QUICK_COMMIT_OPERATIONS
            and self._commit_seconds < limits.QUICK_COMMIT_SECONDS
        )
        if self._thread is None or quick or self._connection.total_changes == written:
            self._finish(batch, self._commit(performed))
        else:
            self._jobs.put(lambda: self._finish_soon(batch, self._commit(performed)))

    def _begin(self) -> None:
        if self._connection.in_transaction:
            self._roll_back()
        self._connection.execute("BEGIN IMMEDIATE")

    def _perform(self, operations: list[Operation]) -> Performed:
        """Run the operations in the open transaction.

        They are run a second time, each in a savepoint, when one fails in a way that was not checked for
        beforehand: then only that one is undone.
        """
        transaction = self._transaction()
        try:
            outcomes = [_outcome(transaction, operation) for operation in operations]
        except Exception:  # noqa: BLE001 - found again below, by the operation at fault
            self._roll_back()
            self._connection.execute("BEGIN IMMEDIATE")
            transaction = self._transaction()
            outcomes = [self._outcome_in_savepoint(transaction, operation) for operation in operations]
        if not transaction.added:
            return Performed(outcomes, transaction.changes, self._newest)
        if transaction.first_num > self._newest + 1:
            self._look_for_foreign(transaction.first_num)
        return Performed(outcomes, transaction.changes, transaction.first_num + transaction.added - 1)

    def _transaction(self) -> Transaction:
        return Transaction(self._connection, self._clock.now_ms(), self._random_bytes)

    def _outcome_in_savepoint(self, transaction: Transaction, operation: Operation) -> Any:
        announced, added = len(transaction.changes), transaction.added
        self._connection.execute("SAVEPOINT operation")
        try:
            outcome = _outcome(transaction, operation)
        except Exception as error:
            if not self._connection.in_transaction:
                raise  # a full disk has rolled back everything: the whole batch fails, of this
            self._connection.execute("ROLLBACK TO operation")
            del transaction.changes[announced:]
            transaction.added = added
            outcome = store_error(self._path, error)
        self._connection.execute("RELEASE operation")
        return outcome

    def _commit(self, performed: Performed) -> Performed | Exception:
        started = self._clock.monotonic()
        try:
            self._end_transaction()
        except sqlite3.Error as error:
            self._roll_back()
            return store_error(self._path, error, unknown=True)
        self._commit_seconds = self._clock.monotonic() - started
        self._newest = performed.newest
        return performed

    def _end_transaction(self) -> None:
        self._connection.execute("COMMIT")

    def _roll_back(self) -> None:
        # It may have been rolled back already, by the error that brought us here.
        with contextlib.suppress(sqlite3.Error):
            self._connection.rollback()

    def _finish(self, batch: list[Waiting], result: Performed | Exception) -> None:
        """Back on the loop: wake those who wait, then announce, then go on with what has collected."""
        self._busy = False
        if isinstance(result, Performed):
            outcomes, changes = result.outcomes, result.changes
        else:
            # One error each: an exception that several tasks raise would gather all their tracebacks.
            outcomes, changes = [copy.copy(result) for _ in batch], []
        for one, outcome in zip(batch, outcomes, strict=True):
            if not one.outcome.done():
                one.outcome.set_result(outcome)
        self._announce_all(changes)
        if self._waiting:
            self._schedule()
        else:
            self._idle.set()

    def _announce_all(self, changes: list[Change]) -> None:
        foreign, self._foreign = self._foreign, []
        if foreign or changes:
            self._announce(foreign + changes)

    def _write_inline(self, operation: Operation) -> Any:
        try:
            self._begin()
            result = self._commit(self._perform([operation]))
        except Exception as error:  # noqa: BLE001 - told to the caller, as in a batch
            self._roll_back()
            result = store_error(self._path, error)
        self._announce_all(result.changes if isinstance(result, Performed) else [])
        return result.outcomes[0] if isinstance(result, Performed) else result

    # -- the writer thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _perform_patiently(self, batch: list[Waiting]) -> None:
        """The whole transaction, in the writer thread: another process has the database just now."""
        result: Performed | Exception
        try:
            self._connection.execute(f"PRAGMA busy_timeout = {int(limits.BUSY_TIMEOUT_SECONDS * 1000)}")
            try:
                self._begin()
            finally:
                self._connection.execute("PRAGMA busy_timeout = 0")
            result = self._commit(self._perform([one.operation for one in batch]))
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            self._roll_back()
            result = store_error(self._path, error)
        self._finish_soon(batch, result)

    def _finish_soon(self, batch: list[Waiting], result: Performed | Exception) -> None:
        # The loop is closed when its owner went without closing the store; nobody waits then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, batch, result)

    # -- other processes ---------------------------------------------------------------------------------

    def _look_for_foreign(self, before: int) -> None:
        """Note what others committed since the last look, to be announced at the next occasion.

        Numbers grow by one in commit order, over all processes, and each transaction knows its own. So what
        lies between the last number seen and the first of a transaction is not ours.
        """
        for thread_id, head_seq, newest in self._connection.execute(SQL.feed, (self._newest, before)):
            self._foreign.append(Change(ThreadId(thread_id), head_seq, True))
            self._newest = max(self._newest, newest)

    def _read_data_version(self) -> int:
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version


def _outcome(transaction: Transaction, operation: Operation) -> Any:
    """A refusal is an outcome like any other: it was found before anything was written."""
    try:
        return operation(transaction)
    except TenutoError as refusal:
        return refusal

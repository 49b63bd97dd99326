"""The verbs that write, inside a transaction that the group commit began and will end.

Each verb checks all that it has to check before its first write. So a refusal (any `TenutoError`) leaves the
transaction as it was, and the verbs of other callers in it are not undone.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tenuto import limits
from tenuto.errors import (
    AlreadyDecided,
    Conflict,
    InterruptNotFound,
    LeaseLost,
    Stale,
    ThreadNotFound,
    Undecodable,
)
from tenuto.events import (
    ENDED_AS,
    VERSION,
    CallFinished,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    ModelReplied,
    ThreadId,
    body_hash,
    chain_hash,
)
from tenuto.rows import (
    SALT_BYTES,
    Appended,
    Change,
    Claim,
    Claimed,
    Encoded,
    InterruptRow,
    ThreadStatus,
    already_decided,
    interrupt_row,
)
from tenuto.store.queries import load_queries

SQL: Final = load_queries(Path(__file__).with_name("sqlite.sql"))
LATEST: Final = 1 << 62


class Head(NamedTuple):
    """The end of a log, and where an earlier append of the same id began in it."""

    num: int
    seq: int
    hash: bytes
    at_ms: int
    epoch: int
    first_seq: int | None


class Transaction:
    """The verbs. `changes`, `added` (how many events) and `first_num` (of the first of these) tell what
    will be true once the transaction is committed.
    """

    def __init__(
        self, connection: sqlite3.Connection, now_ms: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._execute: Callable[..., sqlite3.Cursor] = connection.execute
        self._executemany = connection.executemany
        self._random_bytes = random_bytes
        self.now_ms = now_ms
        self.changes: list[Change] = []
        self.added = 0
        self.first_num = 0

    # -- events --------------------------------------------------------------------------------------

    def create(
        self,
        thread_id: ThreadId,
        events: list[Encoded],
        key: bytes,
        agent: str,
        metadata: str,
        labels: list[str],
    ) -> Appended:
        if head := self._head(thread_id, key):
            if head.first_seq == 1:
                return self._first_outcome(head.num, 1)
            raise Conflict(f"thread {thread_id} exists already")
        num = self._execute(SQL.create_thread, (thread_id, agent, self.now_ms, metadata)).lastrowid
        assert num is not None
        self._executemany(SQL.add_label, ((label, num, self.now_ms, thread_id) for label in labels))
        new = Head(num, 0, bytes(32), self.now_ms, 0, None)
        return self._grow(thread_id, new, events, key, external=True)

    def append(
        self, thread_id: ThreadId, events: list[Encoded], key: bytes, epoch: int | None, head_seq: int | None
    ) -> Appended:
        head = self._head(thread_id, key)
        if head is None:
            raise ThreadNotFound(f"there is no thread {thread_id}")
        if head.first_seq is not None:
            return self._first_outcome(head.num, head.first_seq)
        if epoch is not None and epoch != head.epoch:
            raise LeaseLost(f"thread {thread_id} is at epoch {head.epoch}; this holder's was {epoch}")
        if head_seq is not None and head.seq > head_seq:
            raise Stale(f"thread {thread_id} has grown to event {head.seq}; {head_seq} was the last one seen")
        for row in events:
            if isinstance(row.inbox, InterruptResolved):
                interrupt = self._interrupt(row.inbox.id)
                if interrupt.thread_id != thread_id:
                    raise InterruptNotFound(f"there is no interrupt {interrupt.id} in thread {thread_id}")
                if interrupt.outcome is not None:
                    raise already_decided(interrupt)
        done = self._grow(thread_id, head, events, key, external=epoch is None)
        ended = ENDED_AS.get(type(events[-1].event))
        if epoch is not None and head_seq is not None and ended is not None:
            ready_at_ms = self.now_ms if ended == "cancelled" else None
            self._execute(SQL.end, (ended, ready_at_ms, head.num))
        return done

    def resolve(
        self, events: list[Encoded], key: bytes, expiry_key: bytes, digest: str | None
    ) -> tuple[ThreadId, Appended] | AlreadyDecided:
        """`events`: the decision, and the expiry that is written in its place when it comes too late; then
        the refusal is returned, because something was written.
        """
        event = events[0].event
        assert isinstance(event, InterruptResolved)
        interrupt = self._interrupt(event.id)
        thread_id = interrupt.thread_id
        head = self._head(thread_id, key)
        assert head is not None
        if head.first_seq is not None:
            return thread_id, self._first_outcome(head.num, head.first_seq)
        if interrupt.fault:
            raise Undecodable(f"interrupt {event.id} cannot be decided: {interrupt.fault}")
        if interrupt.outcome is not None:
            raise already_decided(interrupt)
        if digest is not None and digest != interrupt.digest:
            raise Stale(f"interrupt {event.id} is about another call than the one that was seen")
        if event.outcome == "expired" or not 0 < interrupt.expires_at_ms <= self.now_ms:
            return thread_id, self._grow(thread_id, head, events[:1], key, external=True)
        self._grow(thread_id, head, events[1:], expiry_key, external=True)
        return already_decided(self._interrupt(event.id))

    def _head(self, thread_id: ThreadId, key: bytes) -> Head | None:
        row = self._execute(SQL.thread_head, (key, thread_id)).fetchone()
        return None if row is None else Head(*row)

    def _first_outcome(self, num: int, first_seq: int) -> Appended:
        last_seq, at_ms = self._execute(SQL.append_end, (num, first_seq)).fetchone()
        return Appended(first_seq, last_seq, at_ms)

    def _interrupt(self, interrupt_id: InterruptId) -> InterruptRow:
        row = self._execute(SQL.interrupt, (interrupt_id,)).fetchone()
        if row is None:
            raise InterruptNotFound(f"there is no interrupt {interrupt_id}")
        return interrupt_row(row)

    def _grow(
        self, thread_id: ThreadId, head: Head, rows: list[Encoded], key: bytes, *, external: bool
    ) -> Appended:
        at_ms = max(self.now_ms, head.at_ms)
        salts = self._random_bytes(SALT_BYTES * len(rows))
        previous = head.hash
        for place, row in enumerate(rows):
            seq, salt = head.seq + 1 + place, salts[SALT_BYTES * place : SALT_BYTES * (place + 1)]
            hashed_body = body_hash(salt, row.body)
            previous = chain_hash(previous, thread_id, seq, VERSION, row.type, at_ms, hashed_body)
            append_id = key if place == 0 else None
            cursor = self._execute(
                SQL.add_event, (head.num, seq, VERSION, row.type, at_ms, append_id, previous, salt, row.body)
            )
            if not self.added:
                assert cursor.lastrowid is not None
                self.first_num = cursor.lastrowid
            self.added += 1
        head_seq = head.seq + len(rows)
        stuck = not any(isinstance(row.event, ModelReplied | CallFinished) for row in rows)
        self._execute(SQL.grow, (head_seq, previous, at_ms, stuck, head.num))
        self._project(head, rows, at_ms, external=external)
        self.changes.append(Change(thread_id, head_seq, external))
        return Appended(head.seq + 1, head_seq, at_ms)

    def _project(self, head: Head, rows: list[Encoded], at_ms: int, *, external: bool) -> None:
        """Keep `threads.status`, `ready_at` and `interrupts` in step with the events."""
        decided = False
        for seq, row in enumerate(rows, head.seq + 1):
            if isinstance(event := row.inbox, InterruptRaised):
                values = (event.id, head.num, event.kind, seq, at_ms, event.expires_at_ms)
                self._execute(SQL.add_interrupt, values)
            elif isinstance(event, InterruptResolved):
                self._execute(SQL.decide_interrupt, (event.outcome, seq, at_ms, event.id))
                decided = True
            elif not external and (status := ENDED_AS.get(type(row.event))):
                self._execute(SQL.set_status, (status, head.num))
        if external and head.seq:
            self._execute(SQL.make_ready, (self.now_ms, head.num, decided))

    # -- leases --------------------------------------------------------------------------------------

    def claim(self, owner: str, agents: Mapping[str, int], limit: int, lease_ms: int) -> Claimed:
        # Short index ranges; a single IN would have to sort all that is ready.
        free: list[tuple[Any, ...]] = []
        for agent, most in agents.items():
            ranges = ((agent, decided, self.now_ms, self.now_ms, min(most, limit + 1)) for decided in (1, 0))
            ready = sorted(row for values in ranges for row in self._execute(SQL.claimable, values))[:most]
            free += [(turn, *row) for turn, row in enumerate(ready)]
        free.sort()
        claims = tuple(self._lease(owner, row[3:], lease_ms) for row in free[:limit])
        if len(free) > limit:
            return Claimed(claims, self.now_ms)
        times = (self._execute(SQL.next_ready, (a, self.now_ms, owner)).fetchone()[0] for a in agents)
        return Claimed(claims, min((time for time in times if time is not None), default=None))

    def take(self, owner: str, thread_id: ThreadId, lease_ms: int) -> Claim | None:
        row = self._execute(SQL.claimable_one, (thread_id, self.now_ms, self.now_ms)).fetchone()
        return None if row is None else self._lease(owner, row, lease_ms)

    def _lease(self, owner: str, row: tuple[Any, ...], lease_ms: int) -> Claim:
        num, thread_id, agent, epoch, head_seq, deaths = row
        self._execute(SQL.lease, (owner, self.now_ms + lease_ms, deaths, num))
        return Claim(thread_id, agent, epoch + 1, head_seq, deaths)

    def renew(self, owner: str, claims: Sequence[Claim], lease_ms: int) -> dict[ThreadId, int]:
        heads: dict[ThreadId, int] = {}
        for claim in claims:
            row = self._execute(SQL.held, (claim.thread_id, claim.epoch, owner)).fetchone()
            if row is not None:
                self._execute(SQL.renew, (self.now_ms + lease_ms, row[0]))
                heads[claim.thread_id] = row[1]
        return heads

    def release(
        self,
        thread_id: ThreadId,
        epoch: int,
        head_seq: int,
        wake_at_ms: int | None,
        status: ThreadStatus,
    ) -> bool:
        head = self._head(thread_id, b"")
        if head is None or head.epoch != epoch:
            raise LeaseLost(f"thread {thread_id} is no longer held at epoch {epoch}")
        if head.seq > head_seq:
            return False
        self._execute(SQL.release, (wake_at_ms, status, head.num))
        return True

    # -- workers, blobs, records, pruning --------------------------------------------------------------

    def add_worker(self, owner: str, agents: Sequence[str], pid: int) -> None:
        self._execute(SQL.add_worker, (owner, msgspec.json.encode(agents).decode(), pid, self.now_ms))

    def remove_worker(self, owner: str) -> None:
        """Free what it held, and let those who wait for work hear of it."""
        held = self._execute(SQL.leases_of, (owner,)).fetchall()
        self.changes += [Change(ThreadId(thread_id), head_seq, True) for _, thread_id, head_seq in held]
        self._execute(SQL.end_leases, (owner,))
        self._execute(SQL.remove_worker, (owner,))

    def put_blobs(self, blobs: dict[str, bytes]) -> None:
        self._executemany(SQL.add_blob, blobs.items())

    def put_record(
        self, place: tuple[str, str], body: bytes, expires_at_ms: int | None, replace: bool
    ) -> bytes:
        self._execute(SQL.drop_expired, (self.now_ms, limits.MAX_EXPIRED_AT_ONCE))
        self._execute(SQL.put_record, (*place, body, expires_at_ms, replace, self.now_ms))
        return bytes(self._execute(SQL.kept, place).fetchone()[0])

    def drop_record(self, place: tuple[str, str]) -> bool:
        return bool(self._execute(SQL.drop_record, (*place, self.now_ms)).rowcount)

    def prune(self, ended_before_ms: int, limit: int) -> int:
        found = self._execute(SQL.prunable, (ended_before_ms, self.now_ms, limit)).fetchall()
        for statement in (SQL.prune_events, SQL.prune_interrupts, SQL.prune_labels, SQL.prune_thread):
            self._executemany(statement, found)
        return len(found)

"""Checking the hash chain of a thread.

It shows edits and damage, not a rewrite of all that follows by whoever owns the database: for that, keep
heads elsewhere and compare.
"""

from collections.abc import Iterable

import msgspec

from tenuto.events import ThreadId, body_hash, chain_hash
from tenuto.store.base import StoredEvent

FIRST_HASH = bytes(32)


class ChainReport(msgspec.Struct, frozen=True):
    """What a check found. `head_hash` is that of the last good event; `first_bad_seq` 0 when all are good."""

    ok: bool
    checked: int
    erased: int
    head_hash: bytes
    first_bad_seq: int = 0
    reason: str = ""


def verify_chain(thread_id: ThreadId, rows: Iterable[StoredEvent]) -> ChainReport:
    """Follow the chain from event 1. Stops at the first event that does not fit; erased ones do fit.

    A removed tail leaves a whole chain: compare `head_hash` and `checked` with the thread's row.
    """
    previous, checked, erased = FIRST_HASH, 0, 0
    for row in rows:
        reason = _fault(thread_id, checked + 1, previous, row)
        if reason:
            return ChainReport(False, checked, erased, previous, checked + 1, reason)
        previous = row.hash
        checked += 1
        erased += row.body is None
    return ChainReport(True, checked, erased, previous)


def _fault(thread_id: ThreadId, seq: int, previous: bytes, row: StoredEvent) -> str:
    """Why this row is not event `seq` of the chain; "" when it is."""
    if row.seq != seq:
        return f"event {seq} is missing; event {row.seq} is in its place"
    if (row.body is None) != (row.salt is None):
        return "of salt and body only one is there"
    if row.body is not None and row.salt is not None and body_hash(row.salt, row.body) != row.body_hash:
        return "the body is not the one that was hashed"
    if chain_hash(previous, thread_id, seq, row.version, row.type, row.at_ms, row.body_hash) != row.hash:
        return "the hash does not follow from the event and the one before it"
    return ""

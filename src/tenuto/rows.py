"""What a store tells and is told: threads, interrupts and workers at a glance, claims, and what has changed.

Values, with which everything above speaks about the log without knowing where it lies.
"""

from typing import Any, Literal

import msgspec

from tenuto.errors import AlreadyDecided
from tenuto.events import InterruptId, InterruptKind, Outcome, ThreadId

ThreadStatus = Literal[
    "running",
    "sleeping",
    "awaiting_approval",
    "awaiting_answer",
    "awaiting_review",
    "completed",
    "failed",
    "halted",
    "cancelled",
]
ENDED: frozenset[str] = frozenset({"completed", "failed", "halted", "cancelled"})


class ThreadRow(msgspec.Struct, frozen=True):
    """A thread at a glance, from the projection.

    `status` is "running" from any external event until the holder has dealt with it, and while somebody holds
    the thread. `ready_at_ms` is None when only an external event can move it. `head_hash` (hex) is that of
    the last event, on which the next one will be chained.
    """

    id: ThreadId
    agent: str
    status: ThreadStatus
    head_seq: int
    created_at_ms: int
    updated_at_ms: int
    ready_at_ms: int | None
    lease_owner: str | None
    metadata: dict[str, Any]
    head_hash: str


class InterruptRow(msgspec.Struct, frozen=True):
    """A pause that needs or needed a person. `outcome` is None while it is pending."""

    id: InterruptId
    thread_id: ThreadId
    agent: str
    kind: InterruptKind
    call_id: str
    name: str
    arguments: str
    prompt: str
    digest: str
    options: tuple[str, ...]
    raised_seq: int
    raised_at_ms: int
    expires_at_ms: int
    outcome: Outcome | None = None
    by: str = ""
    comment: str = ""
    resolved_at_ms: int | None = None


class WorkerRow(msgspec.Struct, frozen=True):
    """A live worker, and the agents whose threads it takes. `host`: "" where all are on one machine."""

    owner: str
    agents: tuple[str, ...]
    pid: int
    started_at_ms: int
    host: str = ""


class Appended(msgspec.Struct, frozen=True):
    """Where an append landed: its events are `first_seq` .. `head_seq`, all at `at_ms`."""

    first_seq: int
    head_seq: int
    at_ms: int


class Claim(msgspec.Struct, frozen=True):
    """The right to advance one thread, fenced by `epoch`, until the lease ends.

    `deaths`: how many holders in a row died or lost their lease before this claim, and got neither a model's
    reply nor a call's result into the log. An orderly release begins the count anew.
    """

    thread_id: ThreadId
    agent: str
    epoch: int
    head_seq: int
    deaths: int = 0


class Claimed(msgspec.Struct, frozen=True):
    """What a claim took, and when (ms, None for never) the next thread of these agents becomes ready."""

    claims: tuple[Claim, ...]
    next_ready_ms: int | None


class Change(msgspec.Struct, frozen=True):
    """A thread's log has grown to `head_seq`. `external`: by something else than its lease holder here."""

    thread_id: ThreadId
    head_seq: int
    external: bool


class StoredEvent(msgspec.Struct, frozen=True):
    """An event as it lies in the database, for `verify` and export. `body` and `salt` are None once erased;
    `body_hash`, SHA-256(salt, body), outlives them.
    """

    seq: int
    version: int
    type: str
    at_ms: int
    salt: bytes | None
    body: bytes | None
    body_hash: bytes
    hash: bytes


def already_decided(interrupt: InterruptRow) -> AlreadyDecided:
    """The conflict that says who decided what, and when."""
    by = f" by {interrupt.by}" if interrupt.by else ""
    return AlreadyDecided(
        f"{interrupt.kind} {interrupt.id} is decided already: {interrupt.outcome}{by}",
        interrupt_id=interrupt.id,
        outcome=interrupt.outcome,
        by=interrupt.by,
        at_ms=interrupt.resolved_at_ms,
    )

"""What the parts of the contract have in common: small histories, and how a refusal is asserted."""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from tenuto.errors import (
    TenutoError,
)
from tenuto.events import (
    CallId,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    MessageReceived,
    ThreadId,
    ThreadStarted,
)
from tenuto.rows import Claim
from tenuto.store.base import Store

Refusal = TypeVar("Refusal", bound=TenutoError)
STARTED = ThreadStarted("ops", "fingerprint", metadata={"customer": "ana"})
MESSAGE = MessageReceived("Refund order 17.")
LEASE: dict[str, float] = {"lease_seconds": 15.0}


async def refused(kind: type[Refusal], attempt: Awaitable[object]) -> Refusal:
    """The error of an attempt that must be refused with exactly this kind."""
    (outcome,) = await asyncio.gather(attempt, return_exceptions=True)
    assert type(outcome) is kind, f"not refused with {kind.__name__}: {outcome!r}"
    return outcome


async def started(store: Store, name: str = "thread-1", agent: str = "ops") -> ThreadId:
    thread_id = ThreadId(name)
    events = [ThreadStarted(agent, "fingerprint", metadata={"customer": "ana"}), MESSAGE]
    await store.create(thread_id, events, append_id=f"create {name}")
    return thread_id


async def held(store: Store, thread_id: ThreadId, owner: str = "worker-1") -> Claim:
    claim = await store.take(owner, thread_id, **LEASE)
    assert claim is not None
    return claim


async def waiting(
    store: Store, thread_id: ThreadId, *ids: str, expires_at_ms: int = 0, release: bool = True
) -> Claim:
    """The thread has asked for approvals of these ids, and its holder has let go of it."""
    claim = await held(store, thread_id)
    asked = [
        InterruptRaised(
            InterruptId(name),
            "approval",
            CallId(f"call {name}"),
            name="refund_order",
            arguments='{"order_id":"17"}',
            prompt="Refund?",
            digest=f"digest {name}",
            options=("approve", "reject"),
            expires_at_ms=expires_at_ms,
        )
        for name in ids
    ]
    appended = await store.append(thread_id, asked, append_id=f"ask {ids}", epoch=claim.epoch)
    if release:
        head = appended.head_seq
        assert await store.release(claim, seen_seq=head, wake_at_ms=None, status="awaiting_approval")
    return claim


def approved(name: str, by: str = "ana") -> InterruptResolved:
    return InterruptResolved(InterruptId(name), "approved", by=by, comment="fine")


# Texts that must come back byte for byte.
EXACT: Final = (
    "\0",
    "a\0b",
    "é",
    "e\u0301",
    "🎼",
    "\u2028",
    "\ufeff",
    "\x7f\x1b",
    '"\\',
    "\r\n",
    "\ue000",
)

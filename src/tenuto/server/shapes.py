"""What comes in and goes out under /v1, as msgspec Structs: read and written by them, and described by them.

Times are RFC 3339 in UTC. Bodies that come in are read strictly: nothing is coerced and an unknown field is
refused, so that a misspelt one is not silently without effect.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType

from tenuto import limits
from tenuto.doubt import InDoubt
from tenuto.events import InterruptKind, InterruptRaised, InterruptResolved, Outcome
from tenuto.rows import InterruptRow, ThreadRow, ThreadStatus, WorkerRow
from tenuto.server.problems import iso
from tenuto.thread import ThreadState

Id = Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})]
Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Said = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.MAX_MESSAGE_CHARACTERS, pattern=r"\S")]
Comment = Annotated[str, msgspec.Meta(max_length=limits.MAX_COMMENT_CHARACTERS)]
By = Annotated[str, msgspec.Meta(max_length=limits.MAX_BY_CHARACTERS)]


class NewThread(msgspec.Struct, forbid_unknown_fields=True):
    """`agent`: by default the server's first. With a `thread_id` of your own it is idempotent. `by`: for whom
    it is; the log names the caller besides.
    """

    message: Said
    agent: str | None = None
    metadata: dict[str, Any] = {}
    thread_id: Id | None = None
    by: By = ""


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """What to say. `by`: who says it; the log names the caller besides."""

    text: Said
    by: By = ""


class Cancellation(msgspec.Struct, forbid_unknown_fields=True):
    """Why; the thread's error will say so."""

    reason: Comment = ""
    by: By = ""


class Extension(msgspec.Struct, forbid_unknown_fields=True):
    """What the turn gets more; nothing at all lets a failed thread go on as it is."""

    steps: Count = 0
    tokens: Count = 0
    cost: Amount = 0.0
    seconds: Amount = 0.0
    by: By = ""


Verb = Literal["approve", "reject", "edit", "answer", "happened", "did_not_happen", "drop"]


class Resolution(msgspec.Struct, forbid_unknown_fields=True):
    """`verb`: approve, reject or edit (approval); answer (question); happened, did_not_happen or drop
    (review). `outcome` is its old name: one of the two is there. `arguments` go with edit; `answer` with
    answer, and with happened as the result of the call. `digest`: that of the call that was seen; refused
    (409) when another one is pending. `by`: who decided; the log names the caller besides.
    """

    verb: Verb | UnsetType = UNSET
    outcome: Annotated[Verb, msgspec.Meta(extra_json_schema={"deprecated": True})] | UnsetType = UNSET
    comment: Comment = ""
    arguments: dict[str, Any] | None = None
    answer: Comment = ""
    digest: str | None = None
    by: By = ""


class PendingInterrupt(msgspec.Struct):
    """A pause that needs a person. `arguments` are the exact ones that will run; null without a call."""

    id: Id
    kind: InterruptKind
    call_id: str
    name: str
    arguments: msgspec.Raw | None
    prompt: str
    digest: str
    options: tuple[str, ...]
    expires_at: Time | None


class Interrupt(PendingInterrupt):
    """... and what became of it: `outcome` is null while it is pending. `raised_seq` is the event that raised
    it.
    """

    thread_id: Id
    agent: str
    raised_seq: int
    raised_at: Time | None
    outcome: Outcome | None
    by: str
    comment: str
    resolved_at: Time | None


class CallInDoubt(msgspec.Struct):
    """A call that started, has no result and runs in no live worker: it may have happened. It becomes an
    interrupt, is asked about or runs again once a worker of its agent looks at its thread.
    """

    thread_id: Id
    agent: str
    call_id: str
    name: str
    arguments: msgspec.Raw
    started_at: Time | None
    worker: str
    text: str


class InterruptPage(msgspec.Struct):
    """Oldest first. `next`: the `after` of the next page, null on the last. `in_doubt`: what is no interrupt
    yet, and may have happened.
    """

    interrupts: list[Interrupt]
    next: Id | None
    in_doubt: list[CallInDoubt]


class State(msgspec.Struct):
    """What is true of a thread now. `answer`, `error` and `limit` only where it ended so."""

    id: Id
    agent: str
    status: ThreadStatus
    steps: int
    head_seq: int
    answer: str | None
    error: str | None
    limit: str | None
    interrupts: list[PendingInterrupt]


class Sent(State):
    """... with the place of the message that was added."""

    seq: int


class Resolved(State):
    """... with the event that records the decision."""

    resolution: InterruptResolved  # for the description: it has its place and time besides


class Thread(State):
    """... with what a list shows of it. `head_hash` is that of event `head_seq`. `in_doubt`: calls of it that
    may have happened.
    """

    created_at: Time | None
    updated_at: Time | None
    ready_at: Time | None
    lease_owner: str | None
    metadata: dict[str, Any]
    head_hash: str
    in_doubt: list[CallInDoubt]


class ThreadSummary(msgspec.Struct):
    """A thread at a glance. `ready_at`: when it goes on by itself; null when somebody has to move it.
    `lease_owner`: the worker that runs it. `head_hash`: that of the last event, in the chain of hashes.
    """

    id: Id
    agent: str
    status: ThreadStatus
    head_seq: int
    created_at: Time | None
    updated_at: Time | None
    ready_at: Time | None
    lease_owner: str | None
    metadata: dict[str, Any]
    head_hash: str


class ThreadPage(msgspec.Struct):
    """Newest first. `next`: the `cursor` of the next page, null on the last."""

    threads: list[ThreadSummary]
    next: str | None


class Worker(msgspec.Struct):
    """A process that advances threads of these agents (none: only those that it is given), and lives. `host`
    is "" where all are on one machine; `leases`: how many threads it holds; `seen_at`: when it last said that
    it lives, null where the kernel tells.
    """

    owner: str
    agents: tuple[str, ...]
    pid: int
    started_at: Time | None
    host: str
    leases: int
    seen_at: Time | None


class WorkerList(msgspec.Struct):
    """The workers that live now, in any process on this database."""

    workers: list[Worker]


class Waits(msgspec.Struct):
    """How many wait, and since when the first of them."""

    count: int
    since: Time | None


class FleetNow(msgspec.Struct):
    """Who works, and what waits: interrupts by kind, `runnable` threads that no worker holds, and of those
    the `abandoned` ones, whose worker's lease ended.
    """

    at: Time | None
    workers: list[Worker]
    waiting: dict[str, Waits]


def worker_body(row: WorkerRow, agents: tuple[str, ...]) -> Worker:
    """A worker as it is shown to who may see these agents."""
    times = iso(row.started_at_ms), row.host, row.leases, iso(row.seen_at_ms)
    return Worker(row.owner, agents, row.pid, *times)


def state_body(state: ThreadState, added: int | msgspec.Raw | None = None) -> State:
    """A state as it is shown; `added`: the seq of the message or the decision that led to it."""
    if isinstance(added, msgspec.Raw):
        return Resolved(**_state(state), resolution=cast("InterruptResolved", added))
    return State(**_state(state)) if added is None else Sent(**_state(state), seq=added)


def thread_body(state: ThreadState, row: ThreadRow, head_hash: str, doubts: list[InDoubt]) -> Thread:
    """A state as it is shown, with what only the row knows."""
    return Thread(
        **_state(state),
        created_at=iso(row.created_at_ms),
        updated_at=iso(state.at_ms),
        ready_at=iso(row.ready_at_ms),
        lease_owner=row.lease_owner,
        metadata=row.metadata,
        head_hash=head_hash,
        in_doubt=doubt_bodies(doubts),
    )


def doubt_bodies(doubts: Iterable[InDoubt]) -> list[CallInDoubt]:
    """Calls in doubt as they are shown."""
    return [
        CallInDoubt(
            thread_id=one.thread_id,
            agent=one.agent,
            call_id=one.call_id,
            name=one.name,
            arguments=msgspec.Raw(one.arguments.encode()),
            started_at=iso(one.started_at_ms),
            worker=one.worker,
            text=one.text,
        )
        for one in doubts
    ]


def summary_body(row: ThreadRow) -> ThreadSummary:
    """A thread of a list as it is shown."""
    return ThreadSummary(
        id=row.id,
        agent=row.agent,
        status=row.status,
        head_seq=row.head_seq,
        created_at=iso(row.created_at_ms),
        updated_at=iso(row.updated_at_ms),
        ready_at=iso(row.ready_at_ms),
        lease_owner=row.lease_owner,
        metadata=row.metadata,
        head_hash=row.head_hash,
    )


def interrupt_body(row: InterruptRow) -> Interrupt:
    """An interrupt as it is shown."""
    return Interrupt(
        **_pending(row),
        thread_id=row.thread_id,
        agent=row.agent,
        raised_seq=row.raised_seq,
        raised_at=iso(row.raised_at_ms),
        outcome=row.outcome,
        by=row.by,
        comment=row.comment,
        resolved_at=iso(row.resolved_at_ms),
    )


def _state(state: ThreadState) -> dict[str, Any]:
    return {
        "id": state.id,
        "agent": state.agent,
        "status": state.status,
        "steps": state.step,
        "head_seq": state.head_seq,
        "answer": state.answer if state.ended == "completed" else None,
        "error": state.error if state.ended in ("failed", "cancelled") else None,
        "limit": state.limit or None,
        "interrupts": [PendingInterrupt(**_pending(raised)) for raised in state.interrupts],
    }


def _pending(raised: InterruptRaised | InterruptRow) -> dict[str, Any]:
    return {
        "id": raised.id,
        "kind": raised.kind,
        "call_id": raised.call_id,
        "name": raised.name,
        "arguments": msgspec.Raw(raised.arguments.encode()) if raised.arguments else None,
        "prompt": raised.prompt,
        "digest": raised.digest,
        "options": raised.options,
        "expires_at": iso(raised.expires_at_ms),
    }

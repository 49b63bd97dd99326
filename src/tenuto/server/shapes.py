"""What comes in and goes out under /v1, as msgspec Structs: read and written by them, and described by them.

Times are RFC 3339 in UTC. Bodies that come in are read strictly: nothing is coerced and an unknown field is
refused, so that a misspelt one is not silently without effect.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from tenuto import limits
from tenuto.doubt import InDoubt
from tenuto.events import InterruptKind, InterruptResolved, Outcome
from tenuto.rows import ThreadRow, ThreadStatus
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


B = TypeVar("B", bound=msgspec.Struct)


def body(shape: type[B], row: Any, **said: Any) -> B:
    """A row as it is shown: fields of the same names, times in words, arguments as the JSON that they are.
    `said`: what the row does not say, or not so.
    """
    for name in shape.__struct_fields__:
        if name in said:
            continue
        if name.endswith("_at"):
            said[name] = iso(getattr(row, f"{name}_ms"))
        elif name == "arguments":
            said[name] = msgspec.Raw(row.arguments.encode()) if row.arguments else None
        else:
            said[name] = getattr(row, name)
    return shape(**said)


def state_body(state: ThreadState, added: int | msgspec.Raw | None = None) -> State:
    """A state as it is shown; `added`: the seq of the message or the decision that led to it."""
    if isinstance(added, msgspec.Raw):
        return Resolved(**_state(state), resolution=cast("InterruptResolved", added))
    return State(**_state(state)) if added is None else Sent(**_state(state), seq=added)


def thread_body(state: ThreadState, row: ThreadRow, head_hash: str, doubts: list[InDoubt]) -> Thread:
    """A state as it is shown, with what only the row knows."""
    now = _state(state) | {"updated_at": iso(state.at_ms), "head_hash": head_hash}
    return body(Thread, row, **now, in_doubt=doubt_bodies(doubts))


def doubt_bodies(doubts: Iterable[InDoubt]) -> list[CallInDoubt]:
    """Calls in doubt as they are shown."""
    return [body(CallInDoubt, one) for one in doubts]


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
        "interrupts": [body(PendingInterrupt, raised) for raised in state.interrupts],
    }

"""The store contract: what every database must do, in one page.

The lease is the queue. A thread row has `ready_at`, `lease_owner`, `lease_until`, `epoch`, `head_seq` and
`head_hash`. An external append sets `ready_at` to now; `claim` takes rows whose `ready_at` has come and
that no live lease holds, and increments the epoch; `ready_at` stays until `release`, which refuses when
the log has grown past what the holder saw. So a thread whose holder died is simply claimable again when
its lease ends: no message exists that could be lost.

External events (message, resolution, cancel, extension) need no lease. All others carry the epoch of
their holder, and are refused (`LeaseLost`) once anybody claimed the thread after it.

Each append has an id chosen by the caller. The same id again on the same thread returns the first
outcome and writes nothing, so an append whose commit is unknown is safely tried again.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from tenuto import limits
from tenuto.errors import AlreadyDecided, ConfigurationError, InvalidInput
from tenuto.events import Entry, Event, InterruptId, InterruptKind, InterruptResolved, Outcome, ThreadId

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
    """A live worker, and the agents whose threads it takes."""

    owner: str
    agents: tuple[str, ...]
    pid: int
    started_at_ms: int


class Appended(msgspec.Struct, frozen=True):
    """Where an append landed: its events are `first_seq` .. `head_seq`, all at `at_ms`."""

    first_seq: int
    head_seq: int
    at_ms: int


class Claim(msgspec.Struct, frozen=True):
    """The right to advance one thread, fenced by `epoch`, until the lease ends."""

    thread_id: ThreadId
    agent: str
    epoch: int
    head_seq: int


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


class Store(Protocol):
    """All methods may raise `StoreError` (locked, full, corrupt, unreachable); then nothing was written
    unless the text says that the outcome is unknown, and the same append id may be tried again.
    """

    async def open(self) -> None:
        """Open or create the database and bring its schema up to date. Raises `NewerSchema`."""

    async def close(self) -> None:
        """Write what waits, close everything. Idempotent."""

    def now_ms(self) -> int:
        """The store's clock."""

    async def create(self, thread_id: ThreadId, events: Sequence[Event], *, append_id: str) -> Appended:
        """Start a thread; the first event is `ThreadStarted`. It is ready at once.

        Raises `Conflict` when the thread exists and was not created by this append id.
        """

    async def append(
        self,
        thread_id: ThreadId,
        events: Sequence[Event],
        *,
        append_id: str,
        epoch: int | None = None,
        head_seq: int | None = None,
    ) -> Appended:
        """Append all events or none, fsynced when this returns.

        Without `epoch` the events are external ones and make the thread ready now. With it they are the
        lease holder's; `LeaseLost` when the epoch has moved on. `head_seq` is a condition: `Stale` when the
        log has grown past it. A terminal event under this condition gives the thread back as well, as
        `release` would: asleep, but ready at once after `ThreadCancelled`, since a message that came after
        the request to cancel may begin a new turn. An `InterruptResolved` whose interrupt is not pending is
        `AlreadyDecided`. Raises `ThreadNotFound`.
        """

    async def resolve(
        self, event: InterruptResolved, *, append_id: str, digest: str | None = None
    ) -> tuple[ThreadId, Appended]:
        """Decide a pending interrupt, once: compare-and-set in the append's transaction.

        Late (past `expires_at` on the store's clock) means expired, whoever comes first: then the event
        written is the expiry and `AlreadyDecided` with outcome "expired" is raised. Raises
        `InterruptNotFound`; `AlreadyDecided` with who, what and when; `Stale` when `digest` is given and is
        not the pending one's.
        """

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Events with seq > after, in order. Raises `ThreadNotFound`, `Undecodable`."""

    async def stored(self, thread_id: ThreadId, after: int = 0, limit: int = 1000) -> list[StoredEvent]:
        """The same, undecoded. Raises `ThreadNotFound`."""

    async def claim(self, owner: str, agents: Iterable[str], *, limit: int, lease_seconds: float) -> Claimed:
        """Take up to `limit` ready threads of these agents, longest ready first."""

    async def take(self, owner: str, thread_id: ThreadId, *, lease_seconds: float) -> Claim | None:
        """Claim one given thread if it is ready and free; None otherwise."""

    async def renew(
        self, owner: str, claims: Sequence[Claim], *, lease_seconds: float
    ) -> dict[ThreadId, int]:
        """Extend leases; returns the head of each thread still held. One that is missing was lost."""

    async def release(
        self, claim: Claim, *, seen_seq: int, wake_at_ms: int | None, status: ThreadStatus
    ) -> bool:
        """Give the thread back until `wake_at_ms` or the next external event.

        False, and the lease is kept, when the log has grown past `seen_seq`. Raises `LeaseLost`.
        """

    async def thread(self, thread_id: ThreadId) -> ThreadRow:
        """Raises `ThreadNotFound`."""

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: tuple[int, ThreadId] | None = None,
        limit: int = 100,
    ) -> list[ThreadRow]:
        """Newest first by (created_at_ms, id); `before` is the last row of the page before.

        `metadata`: only threads whose own has all these texts at its top level. Raises `InvalidInput`.
        """

    async def interrupt(self, interrupt_id: InterruptId) -> InterruptRow:
        """Raises `InterruptNotFound`."""

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
        """In the order in which they were raised; `after` is the last one of the page before.

        `pending` None: decided ones too.
        """

    async def waiting(self) -> dict[str, tuple[int, int]]:
        """How many wait, since when (ms): pending interrupts by kind, "runnable" threads without a lease."""

    async def put_blobs(self, blobs: dict[str, bytes]) -> None:
        """Keep bodies under their SHA-256 hex digest. Idempotent."""

    async def blob(self, digest: str) -> bytes:
        """Raises `NotFound`."""

    async def put_record(
        self, kind: str, key: str, body: bytes, *, expires_at_ms: int | None = None, replace: bool = False
    ) -> bytes:
        """Keep a small body beside the log; returns what is kept now. Without `replace` that is the first
        one that has not expired: of racing callers all get the same. Raises `InvalidInput`.
        """

    async def record(self, kind: str, key: str) -> bytes | None:
        """What is kept under this key; None when nothing is, or it has expired."""

    async def records(self, kind: str, *, after: str = "", limit: int = 100) -> dict[str, bytes]:
        """Those of a kind that have not expired, by key; `after` is the last of the page before."""

    async def drop_record(self, kind: str, key: str) -> bool:
        """Forget it; whether there was one."""

    async def register(self, owner: str, agents: Sequence[str]) -> None:
        """Announce a live worker. It disappears by itself when its process dies."""

    async def workers(self) -> list[WorkerRow]:
        """The workers that are alive now, in any process."""

    async def prune(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Delete whole threads that ended before then; only ever on a person's command."""

    def on_change(self, callback: Callable[[list[Change]], None]) -> Callable[[], None]:
        """Call back, on the event loop that opened the store, after each commit by this process and soon
        after each commit by another. Returns the unsubscriber.
        """


def short_digest(what: str, text: str) -> bytes:
    """16 bytes that stand for a text: enough never to meet another's. Raises `InvalidInput`."""
    try:
        return hashlib.sha256(text.encode()).digest()[:16]
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} that UTF-8 cannot carry: {error.reason}") from error


def labels_of(metadata: Mapping[str, Any]) -> list[str]:
    """What a thread is found by: a digest of each text at the top level of its metadata."""
    texts = ((name, value) for name, value in metadata.items() if isinstance(value, str))
    return [short_digest("metadata", f"{len(name)} {name}{value}").hex() for name, value in texts]


def labels_asked(metadata: Mapping[str, str] | None) -> list[str]:
    """Raises `InvalidInput`: values that are no texts, or too many."""
    labels = labels_of(metadata or {})
    if len(labels) != len(metadata or {}) or len(labels) > limits.MAX_METADATA_FILTERS:
        raise InvalidInput(f"metadata is asked for by at most {limits.MAX_METADATA_FILTERS} texts")
    return labels


def check_record(kind: str, key: str, body: bytes = b"") -> None:
    """Raises `InvalidInput`."""
    for name in (kind, key):
        if not 0 < len(name) <= limits.MAX_NAME_CHARACTERS or "\0" in name:
            raise InvalidInput(f"a record's key has 1 to {limits.MAX_NAME_CHARACTERS} characters, and no NUL")
    if len(body) > limits.MAX_RECORD_BYTES:
        raise InvalidInput(f"record {key} has {len(body)} bytes; at most {limits.MAX_RECORD_BYTES} are kept")


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


def open_store(url: str, *, inline: bool = False) -> Store:
    """The store for a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`, `sqlite://:memory:`.

    `inline` runs the writer on the caller's own task, for simulations. Raises `ConfigurationError`. Nothing
    is opened yet.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        from tenuto.store.sqlite import SQLiteStore

        return SQLiteStore(rest.removeprefix("/") or ":memory:", inline=inline)
    raise ConfigurationError(
        f"database URL {url!r} is not supported; use sqlite:///file.db or sqlite://:memory:"
    )

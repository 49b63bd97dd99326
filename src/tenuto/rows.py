"""What a store tells and is told: threads, interrupts and workers at a glance, claims, and what has changed.

Values, with which everything above speaks about the log without knowing where it lies; and how they become
what is stored and come back, the same for every database.
"""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from tenuto import limits
from tenuto.errors import AlreadyDecided, InvalidInput, Undecodable
from tenuto.events import (
    EXTERNAL,
    Event,
    InterruptId,
    InterruptKind,
    InterruptRaised,
    InterruptResolved,
    Outcome,
    ThreadId,
    ThreadStarted,
    body_hash,
    decode,
    encode,
)

SALT_BYTES: Final = 16
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
    the last event, on which the next one will be chained. `fault` names columns that hold what they may not;
    they are shown empty.
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
    fault: str = ""


class InterruptRow(msgspec.Struct, frozen=True):
    """A pause that needs or needed a person. `outcome` is None while it is pending. One that cannot be read,
    or whose events say something else, has a `fault`: then `prompt` says so, and nothing can be decided.
    """

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
    fault: str = ""


class WorkerRow(msgspec.Struct, frozen=True):
    """A live worker, the agents whose threads it takes (none: only those that it is given), and how many it
    holds. `host`: "" where all are on one machine. `seen_at_ms`: when it last said that it lives; None where
    the kernel tells that it lives now.
    """

    owner: str
    agents: tuple[str, ...]
    pid: int
    started_at_ms: int
    host: str = ""
    leases: int = 0
    seen_at_ms: int | None = None


class Fleet(msgspec.Struct, frozen=True):
    """Who works at `at_ms`, and what waits; `waiting` is as `Store.waiting` has it."""

    at_ms: int
    workers: tuple[WorkerRow, ...]
    waiting: dict[str, tuple[int, int]]


class Appended(msgspec.Struct, frozen=True):
    """Where an append landed: its events are `first_seq` .. `head_seq`, all at `at_ms`."""

    first_seq: int
    head_seq: int
    at_ms: int


class Claim(msgspec.Struct, frozen=True):
    """The right to advance one thread, fenced by `epoch`, until the lease ends.

    `deaths`: how many holders in a row died or lost their lease before this claim, and got neither a model's
    reply nor a call's result into the log. Rest begins the count anew; handing over does not.
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


# -- to what is stored, refused before a database sees it --------------------------------------------------


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


def check_names(*names: str) -> None:
    """Raises `InvalidInput` for NUL and for length: PostgreSQL searches by neither, so no database does."""
    for name in names:
        if "\0" in name or len(name) > limits.MAX_ID_CHARACTERS:
            most = limits.MAX_ID_CHARACTERS
            raise InvalidInput(f"an id or name has at most {most} characters, and no NUL: {name[:80]!r}")


def record_place(kind: str, key: str, body: bytes = b"") -> tuple[str, str]:
    """Raises `InvalidInput`: a name or body that is not kept."""
    check_names(kind, key)
    if not 0 < min(len(kind), len(key)) <= max(len(kind), len(key)) <= limits.MAX_NAME_CHARACTERS:
        raise InvalidInput(f"a record's kind and key have 1 to {limits.MAX_NAME_CHARACTERS} characters each")
    if len(body) > limits.MAX_RECORD_BYTES:
        raise InvalidInput(f"record {key} has {len(body)} bytes; at most {limits.MAX_RECORD_BYTES} are kept")
    return kind, key


class Encoded(NamedTuple):
    """An event beside its stored form. `inbox`: the event once more, where it changes the inbox."""

    type: str
    body: bytes
    event: Event
    inbox: InterruptRaised | InterruptResolved | None = None


def beginning(thread_id: ThreadId, events: Sequence[Event]) -> dict[str, Any]:
    """A thread's first events, and what its row takes from them. Raises `InvalidInput`."""
    rows, first = encoded(events), events[0]
    if not isinstance(first, ThreadStarted):
        raise InvalidInput(f"a thread begins with thread_started, not {rows[0].type}")
    check_names(thread_id, first.agent)
    metadata = msgspec.json.encode(first.metadata).decode()
    return {
        "thread_id": thread_id,
        "events": rows,
        "agent": first.agent,
        "metadata": metadata,
        "labels": labels_of(first.metadata),
    }


def encoded(events: Sequence[Event], *, external: bool = False) -> list[Encoded]:
    """Raises `InvalidInput`: nothing to append, text that UTF-8 cannot carry, an event that is too large or
    not an external one, one interrupt resolved twice.

    An interrupt raised and resolved by the same append does not change the inbox: that is the copied history
    of a fork, whose ids belong to the original.
    """
    if not events:
        raise InvalidInput("an append needs at least one event")
    rows = [_encoded(event) for event in events]
    raised: dict[InterruptId, int] = {}
    resolved: set[InterruptId] = set()
    for place, event in enumerate(events):
        if external and not isinstance(event, EXTERNAL):
            raise InvalidInput(f"{rows[place].type} can be appended by the thread's holder only")
        if isinstance(event, InterruptRaised):
            check_names(event.id, event.digest)
            raised[event.id] = place
            rows[place] = rows[place]._replace(inbox=event)
        elif isinstance(event, InterruptResolved):
            if event.id in resolved:
                raise InvalidInput(f"one append resolves interrupt {event.id} twice")
            resolved.add(event.id)
            if event.id in raised:
                rows[raised[event.id]] = rows[raised[event.id]]._replace(inbox=None)
            else:
                rows[place] = rows[place]._replace(inbox=event)
    return rows


def _encoded(event: Event) -> Encoded:
    type_name = str(event.__struct_config__.tag)
    try:
        body = encode(event)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{type_name} cannot be stored as JSON in UTF-8: {error}") from error
    if len(body) > limits.MAX_EVENT_BYTES:
        raise InvalidInput(f"{type_name} has {len(body)} bytes; at most {limits.MAX_EVENT_BYTES} are kept")
    return Encoded(type_name, body, event)


# -- from what is stored ---------------------------------------------------------------------------------

E = TypeVar("E", InterruptRaised, InterruptResolved)
Row = TypeVar("Row", ThreadRow, InterruptRow)
_HEAD: Final = (
    *("id", "thread_id", "agent", "kind", "raised_seq", "raised_at_ms", "expires_at_ms", "outcome"),
    "resolved_at_ms",
)
_TEXTS: Final = ("call_id", "name", "arguments", "prompt", "digest", "options")
_text = operator.attrgetter(*_TEXTS)
# What an event and the row of its interrupt both say.
_SAME: Final = {InterruptRaised: ("id", "kind", "expires_at_ms"), InterruptResolved: ("id", "outcome")}
_BLANKS: Final[tuple[Any, ...]] = (None, "", 0, {}, "running", "question")


def interrupt_row(row: Sequence[Any]) -> InterruptRow:
    """A row of the view `interrupt_rows`. Erased events leave their texts empty; what cannot be read, or is
    about another interrupt than the row, leaves a `fault` and nothing to decide.
    """
    columns = dict(zip(_HEAD, row, strict=False))
    raised = told = InterruptRaised(row[0], row[3], expires_at_ms=row[6])
    resolved = InterruptResolved(row[0], row[7])
    fault = ""
    try:
        raised = _said(columns, f"event {row[4]}", row[10:12], told)
        if row[7] is not None:
            resolved = _said(columns, "the event that decided it", row[12:14], resolved)
    except Undecodable as error:
        raised, fault = told, str(error)
    columns.update(zip(_TEXTS, _text(raised), strict=True))
    found = _read(InterruptRow, columns | {"by": resolved.by, "comment": resolved.comment}, fault)
    if not found.fault:
        return found
    prompt = f"This cannot be read, nor decided: {found.fault}; `tenuto verify {found.thread_id}` tells more"
    return msgspec.structs.replace(found, prompt=prompt, arguments="", digest="", options=())


def _said(columns: dict[str, Any], where: str, stored: Sequence[Any], told: E) -> E:
    """The event that is stored there; what the row has told where it is erased. Raises `Undecodable`, also
    when the two do not say the same.
    """
    version, body = stored
    if body is None and isinstance(version, int):
        return told
    try:
        if not isinstance(version, int):
            raise Undecodable(version or "it is missing")  # noqa: TRY301 - said below of which event
        event = decode(body, version)
    except Undecodable as error:
        raise Undecodable(f"{where} of thread {columns['thread_id']}: {error}") from error
    same = _SAME[type(told)] if type(event) is type(told) else ("id", "kind")
    for name in same:
        if getattr(event, name, None) != getattr(told, name, None):
            where = f"{where} of thread {columns['thread_id']}"
            raise Undecodable(f"{where} has another {name} than the row of interrupt {told.id}")
    return cast("E", event)


def _read(kind: type[Row], columns: dict[str, Any], fault: str = "") -> Row:
    """A row of ours. What its columns may not hold is shown empty, and named in its `fault`."""
    try:
        return msgspec.convert(columns | {"fault": fault}, kind)
    except msgspec.ValidationError:
        types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    wrong = [name for name, value in columns.items() if not _fits(value, types[name])]
    blank = {name: next(value for value in _BLANKS if _fits(value, types[name])) for name in wrong}
    named = ", ".join(name.removesuffix("_ms") for name in wrong)
    fault = fault or f"what its row has as {named} cannot be read"
    return msgspec.convert(columns | blank | {"fault": fault}, kind)


def _fits(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def thread_row(row: Sequence[Any]) -> ThreadRow:
    """The columns of a thread's row, in the order of `ThreadRow`."""
    columns = dict(zip(ThreadRow.__struct_fields__, row, strict=False))
    with suppress(msgspec.DecodeError, TypeError, UnicodeError):
        columns["metadata"] = msgspec.json.decode(columns["metadata"])
    return _read(ThreadRow, columns)


def agent_names(text: object) -> tuple[str, ...]:
    """Whose threads a worker takes; none, when its row cannot be read."""
    with suppress(msgspec.MsgspecError, TypeError, UnicodeError):
        return msgspec.json.decode(str(text), type=tuple[str, ...])
    return ()


def decode_event(thread_id: ThreadId, seq: int, version: int, body: bytes | None) -> Any:
    if body is None:
        raise Undecodable(f"event {seq} of thread {thread_id} was erased", seq=seq)
    try:
        return decode(body, version)
    except Undecodable as error:
        raise Undecodable(
            f"event {seq} of thread {thread_id}: {error}", seq=seq, newer=error.newer
        ) from error


def to_stored(*row: Any) -> StoredEvent:
    columns = dict(zip(StoredEvent.__struct_fields__, row, strict=True))
    if columns["body_hash"] is None:  # kept only of what was erased
        columns["body_hash"] = body_hash(columns["salt"] or b"", columns["body"] or b"")
    return StoredEvent(**columns)

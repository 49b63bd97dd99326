"""Between events and rows, the same for every database: what is written, and what is made of what is read."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tenuto import limits
from tenuto.errors import InvalidInput, Undecodable
from tenuto.events import (
    AnyEvent,
    Event,
    InterruptId,
    InterruptKind,
    InterruptRaised,
    InterruptResolved,
    Outcome,
    ThreadId,
    body_hash,
    decode,
    encode,
)
from tenuto.store.base import InterruptRow, StoredEvent, ThreadRow


class Encoded(NamedTuple):
    """An event beside its stored form."""

    type: str
    body: bytes
    event: Event


def encoded(events: Sequence[Event]) -> list[Encoded]:
    """Raises `InvalidInput`: nothing to append, text that UTF-8 cannot carry, an event that is too large."""
    if not events:
        raise InvalidInput("an append needs at least one event")
    return [encode_one(event) for event in events]


def encode_one(event: Event) -> Encoded:
    type_name = str(event.__struct_config__.tag)
    try:
        body = encode(event)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{type_name} cannot be stored as JSON in UTF-8: {error}") from error
    if len(body) > limits.MAX_EVENT_BYTES:
        raise InvalidInput(
            f"{type_name} has {len(body)} bytes; at most {limits.MAX_EVENT_BYTES} can be stored"
        )
    return Encoded(type_name, body, event)


def to_interrupt(row: tuple[object, ...]) -> InterruptRow:
    """A row of the view `interrupt_rows`. Erased events leave their texts empty."""
    fields = msgspec.convert(row[:9], _InterruptHead)
    raised, resolved = (_decoded(row[10], row[11]), _decoded(row[12], row[13]))
    texts = raised if isinstance(raised, InterruptRaised) else InterruptRaised(fields.id, fields.kind)
    answer = resolved if isinstance(resolved, InterruptResolved) else None
    return InterruptRow(
        **msgspec.structs.asdict(fields),
        call_id=texts.call_id,
        name=texts.name,
        arguments=texts.arguments,
        prompt=texts.prompt,
        digest=texts.digest,
        options=texts.options,
        by=answer.by if answer else "",
        comment=answer.comment if answer else "",
    )


class _InterruptHead(msgspec.Struct, array_like=True):
    id: InterruptId
    thread_id: ThreadId
    agent: str
    kind: InterruptKind
    raised_seq: int
    raised_at_ms: int
    expires_at_ms: int
    outcome: Outcome | None
    resolved_at_ms: int | None


def _decoded(version: object, body: object) -> AnyEvent | None:
    return decode(body, version) if isinstance(body, bytes) and isinstance(version, int) else None


def decode_event(thread_id: ThreadId, seq: int, version: int, body: bytes | None) -> Any:
    if body is None:
        raise Undecodable(f"event {seq} of thread {thread_id} was erased")
    try:
        return decode(body, version)
    except Undecodable as error:
        raise Undecodable(f"event {seq} of thread {thread_id}: {error}") from error


def to_stored(*row: Any) -> StoredEvent:
    columns = dict(zip(StoredEvent.__struct_fields__, row, strict=True))
    if columns["body_hash"] is None:  # kept only of what was erased
        columns["body_hash"] = body_hash(columns["salt"] or b"", columns["body"] or b"")
    return StoredEvent(**columns)


def to_thread(*row: Any) -> ThreadRow:
    columns = dict(zip(ThreadRow.__struct_fields__, row, strict=True))
    return ThreadRow(**columns | {"metadata": msgspec.json.decode(columns["metadata"])})

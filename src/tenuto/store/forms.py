"""How values become what is stored and come back, and what is refused before a database sees it. The same for
every database.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tenuto import limits
from tenuto.errors import InvalidInput, Undecodable
from tenuto.events import (
    EXTERNAL,
    Event,
    InterruptId,
    InterruptRaised,
    InterruptResolved,
    ThreadId,
    ThreadStarted,
    body_hash,
    decode,
    encode,
)
from tenuto.rows import StoredEvent

SALT_BYTES: Final = 16


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

"""What a server sends, as the rows, events and entries that a runtime would return.

Fields that are not read here are passed over: a newer server may send more. Those that a row or an
answer needs must be there; a server that leaves one out is of another version, and is said to be.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from tenuto.errors import StoreError, Undecodable
from tenuto.events import Entry, ThreadId, decode
from tenuto.rows import Fleet, StoredEvent, WorkerRow

T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Told(msgspec.Struct):
    """A problem, as far as it is one."""

    type: str = ""
    detail: str = ""
    interrupt_id: str = ""
    outcome: str | None = None
    by: str = ""
    at: str | None = None
    seq: int = 0


class Seen(msgspec.Struct):
    """A thread's state in an answer, as far as the log does not say it better. `seq`: that of the event that
    the request added. `resolution`: the event that a decision is.
    """

    id: ThreadId
    head_seq: int
    seq: int | None = None
    resolution: msgspec.Raw = msgspec.Raw(b"null")


class Place(msgspec.Struct):
    """Where an event stands; the event's own fields are beside these."""

    seq: int
    at: str


class EventPage(msgspec.Struct):
    events: list[msgspec.Raw]
    next: int | None


class ThreadPage(msgspec.Struct):
    threads: list[msgspec.Raw]
    next: str | None


class InterruptPage(msgspec.Struct):
    interrupts: list[msgspec.Raw]
    next: str | None
    in_doubt: list[msgspec.Raw] = []  # servers before this had none


class StoredBody(msgspec.Struct):
    """A line of an export. `body` is the stored text to the letter; it and `salt` are null once erased."""

    seq: int
    v: int
    at: str
    type: str
    hash: str
    body_hash: str
    salt: str | None
    body: msgspec.Raw


def at_ms(text: str | None) -> int:
    """RFC 3339 in milliseconds since the epoch; 0 for no time. Raises `StoreError`."""
    if text is None:
        return 0
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError) as error:
        raise StoreError(f"the server sent a time that is none: {text[:60]!r}") from error


def entry(raw: bytes | msgspec.Raw) -> Entry:
    """An event as it is shown. Raises `Undecodable` for one of a newer version."""
    place = msgspec.json.decode(raw, type=Place)
    try:
        return Entry(place.seq, at_ms(place.at), decode(bytes(raw)))
    except Undecodable as error:
        raise Undecodable(f"event {place.seq}: {error}", seq=place.seq) from error


def entries(page: Iterable[msgspec.Raw], found: list[Entry]) -> list[Entry]:
    """A page of them, added to `found`, where those before one that cannot be read are. Raises `Undecodable`,
    `StoreError`.
    """
    try:
        found.extend(map(entry, page))
    except msgspec.DecodeError as error:
        raise StoreError(f"the server sent what is no event: {error}") from error
    return found


def row_of(sent: msgspec.Raw, kind: type[T]) -> T:
    """The row that the server tells of: fields of the same names, times as RFC 3339; arguments are the JSON
    that they are the text of, to the letter. Raises `StoreError`.
    """
    told: dict[str, Any] = {}
    try:
        fields = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
        for name, wanted in kind.__annotations__.items():
            raw = fields.get(name.removesuffix("_ms"))
            if raw is None:
                continue  # the row has it by default, or else it cannot be made
            if name.endswith("_ms"):
                text = msgspec.json.decode(raw, type=str | None)
                told[name] = None if text is None and wanted is not int else at_ms(text)
            elif name == "arguments":
                text = bytes(raw).decode()
                told[name] = "" if text == "null" else text
            else:
                told[name] = msgspec.json.decode(raw, type=wanted)
        return kind(**told)
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise StoreError(f"the server sent no {kind.__name__}; it is of another version: {error}") from error


def stored_event(body: StoredBody) -> StoredEvent:
    """An event as it lies in the server's database. Raises `StoreError`."""
    text = bytes(body.body)
    try:
        return StoredEvent(
            seq=body.seq,
            version=body.v,
            type=body.type,
            at_ms=at_ms(body.at),
            salt=None if body.salt is None else bytes.fromhex(body.salt),
            body=None if text == b"null" else text,
            body_hash=bytes.fromhex(body.body_hash),
            hash=bytes.fromhex(body.hash),
        )
    except ValueError as error:
        raise StoreError(f"the server sent a stored event that cannot be read: {error}") from error


def stored_events(lines: bytes) -> list[StoredEvent]:
    """The lines of an export. Raises `StoreError` for one that cannot be read."""
    try:
        return [stored_event(msgspec.json.decode(line, type=StoredBody)) for line in lines.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"the server sent a stored event that cannot be read: {error}") from error


class TokenBody(msgspec.Struct):
    """A user of the server; `token` only when it was made just now."""

    name: str
    roles: tuple[str, ...]
    agents: tuple[str, ...]
    works: bool
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    token: str = ""


class TokenList(msgspec.Struct):
    tokens: list[TokenBody]


class WorkerList(msgspec.Struct):
    workers: list[msgspec.Raw]


class WaitsBody(msgspec.Struct):
    count: int
    since: str


class FleetBody(msgspec.Struct):
    at: str
    workers: list[msgspec.Raw]
    waiting: dict[str, WaitsBody]


def fleet(body: FleetBody) -> Fleet:
    """Who works and what waits."""
    waiting = {what: (waits.count, at_ms(waits.since)) for what, waits in body.waiting.items()}
    return Fleet(at_ms(body.at), tuple(row_of(each, WorkerRow) for each in body.workers), waiting)

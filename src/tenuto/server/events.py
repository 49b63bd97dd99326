"""A thread's events: as JSON pages, as server-sent events, and as they are stored.

Pages and streams show an event as one and the same JSON object: `seq`, `at`, `type` and the fields of its
type. A stream (WHATWG HTML, section 9.2) has these:

    id: 17 · event: call_finished · data: the object     an event of the log; `id` is its seq
    event: replayed               · data: {"seq":17}     the past is told up to there, the rest happens now
    event: text_delta, …          · data: the delta      seen while it arrives, superseded by the next event
    event: rested                 · data: {"seq":21}     with until=rest, the last: the thread rests

Only events of the log have ids. So a client that comes back with its `Last-Event-ID` gets each of them once
and in order, wherever its connection broke. Deltas are of threads that run in this server, and can be missed.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import Depends, Header, Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.events import TYPES, AnyEvent, Entry, ThreadId, encode
from tenuto.messages import Live
from tenuto.runtime import Runtime
from tenuto.server.problems import Problem, iso
from tenuto.server.streaming import Stream, Streams
from tenuto.store.base import StoredEvent
from tenuto.stream import Replayed

MOST = 2**53
EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/x-ndjson"


class EventPage(msgspec.Struct):
    """Each event is an object of `seq`, `at`, `type` and the fields of its type. `next`: the `after` of the
    next page, null on the last.
    """

    events: list[AnyEvent]  # for the description: each has its place and time besides
    next: int | None


class StoredLine(msgspec.Struct):
    """One line of an export, with all that a check of the chain needs. `v`: version of the event's schema.
    `hash`: that of the chain; `body_hash`: SHA-256 of salt and body, to the letter. Bytes are in hexadecimal.
    `salt` and `body`: null once erased.
    """

    seq: int
    v: int
    at: str | None
    type: str
    hash: str
    body_hash: str
    salt: str | None
    body: msgspec.Raw | None


class Asked(NamedTuple):
    """A stream is asked for: `last` is the event that the client had last, `rest` that it shall end."""

    last: int | None
    rest: bool


# A coroutine, though it awaits nothing: FastAPI would run a plain function on a thread.
async def _asked(
    request: Request,
    stream: bool | None = None,
    until: Literal["rest"] | None = None,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID")] = "",
) -> Asked | None:
    """None: a page is asked for. Raises `Problem` 400 for a Last-Event-ID that was never one."""
    if not (_accepts_stream(request) if stream is None else stream):
        return None
    if not last_event_id:
        return Asked(None, until == "rest")
    if not (last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= 16):
        raise Problem(400, "Last-Event-ID is not the seq of an event")
    return Asked(int(last_event_id), until == "rest")


def _accepts_stream(request: Request) -> bool:
    for line in request.headers.getlist("accept"):
        for media in line.split(","):
            kind, _, parameters = media.partition(";")
            if kind.strip().lower() == EVENT_STREAM:
                return "q=0" not in [parameter.strip() for parameter in parameters.split(";")]
    return False


class Events:
    """The endpoints of one thread's events."""

    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams

    async def events(
        self,
        request: Request,
        thread_id: str,
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_PAGE_ROWS)] = limits.MAX_PAGE_ROWS,
        asked: Annotated[Asked | None, Depends(_asked)] = None,
    ) -> Response:
        """The events with seq > after, in order: a page, or with `Accept: text/event-stream` or `stream=true`
        a stream that goes on, or with `until=rest` ends when the thread rests. There `Last-Event-ID` goes
        before `after`, and 204 says to a client that comes back that it has all of a thread that rests.
        """
        if asked is None:
            return await self._page(thread_id, after, limit)
        if asked.last is not None:
            after = asked.last
        row = await self._runtime.store.thread(ThreadId(thread_id))
        if after > row.head_seq:
            raise Problem(400, f"there is no event {after}; the last of this thread is {row.head_seq}")
        if asked.rest and asked.last == row.head_seq and row.status != "running":
            return Response(status_code=204)
        return Stream(self._streams, self._frames(thread_id, after, asked.rest), EVENT_STREAM, idle=b":\n\n")

    async def export(
        self,
        thread_id: str,
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    ) -> Response:
        """The events with seq > after as they are stored, one JSON object a line; by default all of them."""
        first = await self._runtime.stored(thread_id, after, limit or MOST)
        return Stream(self._streams, self._lines(thread_id, first, limit or MOST), JSON_LINES)

    # -- inside ------------------------------------------------------------------------------------------

    async def _page(self, thread_id: str, after: int, limit: int) -> Response:
        page = await self._runtime.events(thread_id, after, limit)
        last = page[-1].seq if page else after
        more = len(page) == limit and await self._runtime.events(thread_id, last, 1)
        events = b",".join(_shown(entry) for entry in page)
        body = b'{"events":[%s],"next":%s}' % (events, b"%d" % last if more else b"null")
        return Response(body, media_type="application/json")

    async def _frames(self, thread_id: str, after: int, rest: bool) -> AsyncGenerator[bytes]:
        yield b"retry: %d\n\n" % limits.STREAM_RETRY_MS
        async with contextlib.aclosing(self._runtime.follow(thread_id, after, rest=rest)) as items:
            async for item in items:
                if isinstance(item, Entry):
                    after = item.seq
                yield _frame(item)
        yield b'event: rested\ndata: {"seq":%d}\n\n' % after

    async def _lines(self, thread_id: str, page: list[StoredEvent], left: int) -> AsyncGenerator[bytes]:
        while page:
            for event in page:
                yield msgspec.json.encode(_stored(event)) + b"\n"
            left -= len(page)
            page = await self._runtime.stored(thread_id, page[-1].seq, left) if left else []


def _shown(entry: Entry) -> bytes:
    """The stored form of an event is an object that begins with its type: seq and time go before it."""
    return b'{"seq":%d,"at":"%s",' % (entry.seq, str(iso(entry.at_ms)).encode()) + encode(entry.event)[1:]


def _frame(item: Entry | Replayed | Live) -> bytes:
    """JSON has its line feeds escaped: each datum is one line."""
    if isinstance(item, Entry):
        name = str(item.event.__struct_config__.tag).encode()
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (item.seq, name, _shown(item))
    if isinstance(item, Replayed):
        return b'event: replayed\ndata: {"seq":%d}\n\n' % item.seq
    name = str(item.__struct_config__.tag).encode()
    return b"event: %s\ndata: %s\n\n" % (name, msgspec.json.encode(item))


def _stored(event: StoredEvent) -> StoredLine:
    return StoredLine(
        seq=event.seq,
        v=event.version,
        at=iso(event.at_ms),
        type=event.type,
        hash=event.hash.hex(),
        body_hash=event.body_hash.hex(),
        salt=None if event.salt is None else event.salt.hex(),
        body=None if event.body is None else msgspec.Raw(event.body),
    )


def add_places(schemas: dict[str, Any]) -> None:
    """Add to msgspec's schemas of the events what is shown before their own fields."""
    for kind in TYPES.values():
        schema = schemas[kind.__name__]
        schema["properties"] = _PLACE | schema["properties"]
        schema["required"] = [*_PLACE, *schema["required"]]


_PLACE = {"seq": {"type": "integer", "minimum": 1}, "at": {"type": "string", "format": "date-time"}}

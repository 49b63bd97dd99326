"""A thread's events: as JSON pages, as server-sent events, and as they are stored.

Pages and streams show an event as one and the same JSON object: `seq`, `at`, `type` and the fields of its
type. A stream (WHATWG HTML, section 9.2) has these:

    id: 17 · event: call_finished · data: the object     an event of the log; `id` is its seq
    event: replayed               · data: {"seq":17}     the past is told up to there, the rest happens now
    event: text_delta, …          · data: the delta      seen while it arrives, superseded by the next event
    event: reply_so_far           · data: its text       replaces what was shown of the reply that arrives
    event: tool_progress, …       · data: the line       how far a call is; status_line: what is being done
    event: rested                 · data: {"seq":21}     with until=rest, the last: the thread rests

Only events of the log have ids. So a client that comes back with its `Last-Event-ID` gets each of them once
and in order, wherever its connection broke, from whichever server. Deltas can be missed: what was shown of a
reply is void at `replayed`, and who comes in its middle is told the reply so far. Of a thread that runs in
another process they come ten times a second, where the database is PostgreSQL; elsewhere not at all.
"""

import json
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import Depends, Header, Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import Undecodable
from tenuto.events import TYPES, AnyEvent, Entry, ThreadId, clean, encode
from tenuto.rows import StoredEvent
from tenuto.runtime import Runtime
from tenuto.server.problems import Problem, iso
from tenuto.server.streaming import Stream, Streams
from tenuto.stream import Follower, Replayed, Told

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
        before `after`, and 204 says to a client that comes back that it has all of a thread that rests. An
        event that cannot be read ends a page and breaks a stream off; asked for as the first it is 500, with
        its `seq`, and behind that the others can be had. After a place that the thread has not reached a page
        is empty, and a stream is 400.
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
        if after < row.head_seq:
            await self._runtime.events(thread_id, after, 1)  # refused while there is a status to say it with
        follower = self._runtime.hub.follower(ThreadId(thread_id), after, asked.rest)
        return Stream(self._streams, _Frames(follower), EVENT_STREAM, idle=b":\n\n")

    async def export(
        self,
        thread_id: str,
        after: Annotated[int, Query(ge=0, le=MOST)] = 0,
        limit: Annotated[int | None, Query(ge=1, le=MOST)] = None,
    ) -> Response:
        """The events with seq > after as they are stored, one JSON object a line; by default all of them."""
        lines = _Lines(self._runtime, thread_id, after, limit or MOST)
        await lines.read()
        return Stream(self._streams, lines, JSON_LINES)

    # -- inside ------------------------------------------------------------------------------------------

    async def _page(self, thread_id: str, after: int, limit: int) -> Response:
        page, size, last, most = list[bytes](), 0, after, limits.FOLLOW_PAGE_EVENTS
        while len(page) < limit and size < limits.MAX_PAGE_BYTES:
            try:
                read = await self._runtime.events(thread_id, last, min(most, limit - len(page)))
            except Undecodable:
                if page:
                    break
                raise
            page += [shown(entry) for entry in read]
            size, last = sum(map(len, page)), read[-1].seq if read else last
            if len(read) < most:
                break
            most *= 2
        more = bool(page) and await self._more(thread_id, last)
        body = b'{"events":[%s],"next":%s}' % (b",".join(page), b"%d" % last if more else b"null")
        return Response(body, media_type="application/json")

    async def _more(self, thread_id: str, after: int) -> bool:
        try:
            return bool(await self._runtime.events(thread_id, after, 1))
        except Undecodable:
            return True  # what it is, the next page says


class _Frames:
    """A `Source` of what a follower is told, as server-sent events."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._head = b"retry: %d\n\n" % limits.STREAM_RETRY_MS
        self._most = limits.FIRST_PAGE_EVENTS
        self.nudge, self.end, self.close = follower.nudge, follower.end, follower.close

    @property
    def ended(self) -> bool:
        return self._follower.ended

    async def take(self) -> bytes:
        if self._follower.ended:
            return b""
        told = await self._follower.take(self._most)
        piece = b"".join([one.frame or _framed(one) for one in told])
        if told and told[-1].seq:
            self._most = _next_page(len(told), len(piece))
        if self._head:
            piece, self._head = self._head + piece, b""
        if self._follower.rested:
            piece += b'event: rested\ndata: {"seq":%d}\n\n' % self._follower.after
        return piece


class _Lines:
    """A `Source` of a thread's events as they are stored."""

    def __init__(self, runtime: Runtime, thread_id: str, after: int, left: int) -> None:
        self._runtime = runtime
        self._thread_id = thread_id
        self._after = after
        self._left = left
        self._page: list[StoredEvent] = []
        self._most = limits.FIRST_PAGE_EVENTS
        self.ended = False

    async def read(self) -> None:
        """The next page. Raises `ThreadNotFound`."""
        most = min(self._most, self._left)
        self._page = await self._runtime.stored(self._thread_id, self._after, most) if most else []

    async def take(self) -> bytes:
        if not self._page:
            await self.read()
        page, self._page = self._page, []
        if not page:
            self.ended = True
            return b""
        piece = b"".join([_ENCODER.encode(_stored(event)) + b"\n" for event in page])
        self._left -= len(page)
        self._after, self._most = page[-1].seq, _next_page(len(page), len(piece))
        return piece

    def nudge(self) -> None:
        """It never waits for anything to happen."""

    end = close = nudge


def _next_page(count: int, size: int) -> int:
    """How many events to read next, so that they are about as much as is written at a time. Guessed from the
    page before, and never many more than it had: the next events may be large.
    """
    fit = count * limits.MAX_STREAM_BUFFER_BYTES // max(size, 1)
    return max(min(fit, 2 * count, limits.MAX_FOLLOW_PAGE_EVENTS), 1)


_ENCODER = msgspec.json.Encoder()


def shown(entry: Entry) -> bytes:
    """An event as it is shown. Its stored form begins with its type: seq and time go before that."""
    return b'{"seq":%d,"at":"%s",' % (entry.seq, str(iso(entry.at_ms)).encode()) + encode(entry.event)[1:]


def _framed(told: Told) -> bytes:
    """Made once for all who are told it. JSON has its line feeds escaped: each datum is one line."""
    item = told.item
    if isinstance(item, Entry):
        name = str(item.event.__struct_config__.tag).encode()
        told.frame = b"id: %d\nevent: %s\ndata: %s\n\n" % (item.seq, name, shown(item))
    elif isinstance(item, Replayed):
        told.frame = b'event: replayed\ndata: {"seq":%d}\n\n' % item.seq
    else:
        name = str(item.__struct_config__.tag).encode()
        try:
            data = _ENCODER.encode(item)
        except UnicodeEncodeError:
            # A user's own model may emit half a character; its reply will have U+FFFD there.
            data = clean(json.dumps(msgspec.to_builtins(item), ensure_ascii=False)).encode()
        told.frame = b"event: %s\ndata: %s\n\n" % (name, data)
    return told.frame


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

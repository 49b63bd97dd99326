"""A thread's event stream over HTTP (`tenuto.server.events`), taken up again where it broke off.

Every event comes once and in order: what came already is passed over, and a place that was left out is asked
for again. Deltas are those of the connection that is open, and can be missed: what was shown of a reply
before is void when the next one begins another without telling it so far, and an empty `ReplySoFar` says so.
A connection that brings nothing, not even the server's keep-alive, for CLIENT_SILENCE_SECONDS is given up. So
many connections in a row that brought no event and broke soon are an error: nobody follows a dead server in
silence.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from tenuto import limits
from tenuto.client.bodies import entry
from tenuto.client.transport import Again, Transport, pause_seconds
from tenuto.errors import ModelError, StoreError
from tenuto.events import Entry, ModelFailed, ModelReplied, ThreadId
from tenuto.messages import AttemptFailed, Live, ReasoningDelta, ReplySoFar, TextDelta
from tenuto.models.sse import EventStream, Frame
from tenuto.stream import Replayed

EVENT_STREAM = "text/event-stream"
_live: msgspec.json.Decoder[Live] = msgspec.json.Decoder(Live)


class Rested:
    """The stream's last word: the thread rests."""


Item = Entry | Replayed | Live


async def follow(
    transport: Transport, thread_id: ThreadId, after: int, rest: bool
) -> AsyncGenerator[Item, None]:
    """As `Runtime.follow`, over however many connections. Raises `ThreadNotFound`, `StoreError`."""
    loop = asyncio.get_running_loop()
    met, replayed, failures = False, False, 0
    partial = void = False  # some of a reply was told, and over a connection that is gone
    while True:
        began = heard = loop.time()
        try:
            async with contextlib.aclosing(_connection(transport, thread_id, after, rest, met)) as items:
                async for item in items:
                    heard = loop.time()
                    if item is None:
                        continue
                    if replayed and isinstance(item, Replayed):
                        void = partial
                        continue
                    if isinstance(item, Rested):
                        if not replayed:
                            yield Replayed(after)
                        return
                    met, failures = True, 0
                    replayed = replayed or isinstance(item, Replayed)
                    after = item.seq if isinstance(item, Entry) else after
                    if void and isinstance(item, TextDelta | ReasoningDelta):
                        # Its attempt failed meanwhile; else the server would have told it so far before.
                        yield ReplySoFar("")
                    partial = _is_partial(item, partial)
                    void = void and partial and not isinstance(item, TextDelta | ReasoningDelta | ReplySoFar)
                    yield item
        except Again as error:
            if heard - began >= limits.KEEP_ALIVE_SECONDS:
                failures = 0  # it kept us company until now
            failures += 1
            if failures >= (limits.CLIENT_STREAM_ATTEMPTS if met else limits.CLIENT_ATTEMPTS):
                raise StoreError(str(error)) from error
            await asyncio.sleep(pause_seconds(failures, error))


def _is_partial(item: Item, before: bool) -> bool:
    if isinstance(item, TextDelta | ReasoningDelta | ReplySoFar):
        return True
    ended = isinstance(item, AttemptFailed) or (
        isinstance(item, Entry) and isinstance(item.event, ModelReplied | ModelFailed)
    )
    return before and not ended


async def _connection(
    transport: Transport, thread_id: ThreadId, after: int, rest: bool, again: bool
) -> AsyncGenerator[Item | Rested | None, None]:
    """What one connection brings, from behind `after`; None for a sign of life. Raises `Again` at its end."""
    path, query = f"/v1/threads/{thread_id}/events", {"until": "rest" if rest else None}
    headers = {"Accept": EVENT_STREAM}
    place: dict[str, Any] = {"after": after}
    if again:
        headers["Last-Event-ID"] = str(after)
        place = {}
    async with transport.stream(path, query | place, headers) as response:
        if response.status_code == 204:
            yield Rested()
            return
        if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
            raise StoreError(f"the server {transport.url} sent no event stream: it is of another version")
        # An event that is larger than this cannot have been stored.
        stream = EventStream(limits.MAX_EVENT_BYTES + limits.MAX_BODY_BYTES)
        async with contextlib.aclosing(response.aiter_bytes()) as chunks:
            async for chunk in chunks:
                yield None
                # What a connection leaves unfinished is dropped: it comes whole over the next one.
                for frame in _frames(stream, chunk):
                    item = _item(frame)
                    if isinstance(item, Entry):
                        if item.seq > after + 1:
                            raise Again(f"the server {transport.url} left out event {after + 1}")
                        if item.seq <= after:
                            continue
                        after = item.seq
                    yield item
    raise Again(f"the server {transport.url} ended the stream")


def _frames(stream: EventStream, chunk: bytes) -> list[Frame]:
    try:
        return stream.feed(chunk)
    except ModelError as error:
        raise StoreError(f"the server sent an event that is too large: {error}") from error


def _item(frame: Frame) -> Item | Rested | None:
    """None for what a newer server may tell live. Raises `Undecodable` for an event of a newer version."""
    name, data = frame
    try:
        if name == b"rested":
            return Rested()
        if name == b"replayed":
            return msgspec.json.decode(data, type=Replayed)
        return entry(data) if data.startswith(b'{"seq":') else _live.decode(data)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError as error:
        raise StoreError(f"the server sent what is no event: {error}") from error

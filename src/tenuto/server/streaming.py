"""Answers that go on: written as fast as their reader takes them, and never further ahead than that.

What a stream has to say is asked for when its reader has room: so only its own stream ever waits for a slow
reader, and what it holds is one piece and what the connection buffers. A stream costs two tasks, that of the
request and one that hears that the client is gone; one more, for all streams, looks after those that are idle
or stuck.
"""

import asyncio
import contextlib
import logging
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenuto import limits
from tenuto.observe import Observe
from tenuto.server.files import most_streams
from tenuto.server.problems import problem
from tenuto.server.waiting import gone

logger = logging.getLogger("tenuto.server")


class Source(Protocol):
    """What a stream has to say."""

    @property
    def ended(self) -> bool:
        """There is nothing more, now or later."""
        ...

    async def take(self) -> bytes:
        """What there is to say now; may be empty when it `ended`, and after a `nudge`."""
        ...

    def nudge(self) -> None:
        """Let whoever waits in `take` go."""
        ...

    def end(self) -> None:
        """The same, for ever."""
        ...

    def close(self) -> None:
        """Nobody asks any more."""
        ...


class Streams:
    """The streams of one application. `stopping` set: those that have no end of their own end now."""

    def __init__(self, stopping: asyncio.Event, observe: Observe | None = None) -> None:
        self.stopping = stopping
        self._observe = observe
        self.now = 0.0  # when it was last looked at: near enough for seconds, and free
        self._open: set[Stream] = set()
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= most_streams()

    def enter(self, stream: "Stream") -> None:
        """Look after it until it leaves."""
        self._open.add(stream)
        if self._looking is None:
            self.now = asyncio.get_running_loop().time()
            self._looking = asyncio.create_task(self._look_after())

    def leave(self, stream: "Stream") -> None:
        self._open.discard(stream)
        if not self._open and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def count_dropped(self) -> None:
        """One is broken off because its reader takes nothing."""
        logger.info("a stream is broken off: its reader takes nothing")
        if self._observe is not None and self._observe.metrics is not None:
            self._observe.metrics.streams_dropped.inc()

    async def _look_after(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping.is_set():
            pause = min(limits.KEEP_ALIVE_SECONDS, limits.STREAM_WRITE_SECONDS) / 8
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.stopping.wait()
            self.now = loop.time()
            # `now` lags behind by one round at most: nobody is dropped early.
            for stream in list(self._open):
                stream.look(self.now - pause)
        for stream in list(self._open):
            stream.stop()
        await asyncio.sleep(limits.STOP_SECONDS)
        for stream in list(self._open):
            if stream.stopped:
                stream.drop()
        while True:
            await asyncio.sleep(limits.STREAM_WRITE_SECONDS / 8)
            self.now = loop.time()
            for stream in list(self._open):
                stream.look(self.now - limits.STREAM_WRITE_SECONDS / 8)


class Stream(Response):
    """What `source` says, until it has ended or the client is gone. With `idle` it has no end that must be
    reached: the server's stop ends it, and `idle` is written when there was nothing else for
    KEEP_ALIVE_SECONDS.

    The body is ended only after all that there was to say, or at the server's stop. When something cannot be
    had, or nothing is taken for STREAM_WRITE_SECONDS, the connection is broken off: nobody takes a part for
    the whole. 503 when too many are open; HEAD begins no body. However it ends, the source is closed before
    this returns.
    """

    def __init__(self, streams: Streams, source: Source, media_type: str, idle: bytes = b"") -> None:
        # A proxy must not collect what is to be seen at once.
        headers = {"X-Accel-Buffering": "no"}
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)
        self._streams = streams
        self._source = source
        self._idle = idle
        self._gone = False
        self._receive: Receive | None = None
        self._task: asyncio.Task[object] | None = None
        self._writing = False
        self._since = 0.0
        self.dropped = self.stopped = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._streams.full:
                later = {"Retry-After": str(limits.STREAM_LATER_SECONDS)}
                await problem(503, "too many streams are open here", later)(scope, receive, send)
            elif scope["method"] == "HEAD":
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._carry(receive, send)
        finally:
            self._source.close()

    def look(self, now: float) -> None:
        """Somebody comes by: is it time for a sign of life, or is the reader stuck?"""
        if self._writing:
            if now - self._since > limits.STREAM_WRITE_SECONDS:
                self.drop()
        elif self._idle and now - self._since > limits.KEEP_ALIVE_SECONDS:
            self._source.nudge()

    def stop(self) -> None:
        """The server stops: what has no end of its own ends here."""
        if self._idle:
            self.stopped = True
            self._source.end()

    def drop(self) -> None:
        """Break off a stream whose reader takes nothing."""
        if self.dropped:
            return
        self._streams.count_dropped()
        self.dropped = True
        if not self._abort() and self._task is not None:
            self._task.cancel()

    # -- inside ------------------------------------------------------------------------------------------

    async def _carry(self, receive: Receive, send: Send) -> None:
        self._receive, self._task = receive, asyncio.current_task()
        leaving = asyncio.create_task(gone(receive))
        leaving.add_done_callback(self._left)
        self._streams.enter(self)
        if self._streams.stopping.is_set():
            self.stop()
        try:
            await self._write(send)
        except asyncio.CancelledError:
            # Where the connection could not be closed, only this task could be.
            if not self.dropped or (self._task is not None and self._task.uncancel()):
                raise
        except Exception:
            logger.exception("a stream broke off")
            if not self._abort():
                raise
        finally:
            self._streams.leave(self)
            if self._is_over():
                # The server is to know that the client is gone before it sees a body that was not ended.
                await asyncio.wait((leaving,), timeout=limits.STOP_SECONDS)
            leaving.cancel()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not self._is_over():
            self._since = self._streams.now
            piece = await self._source.take()
            if self._is_over():
                return
            if piece:
                await self._put(send, piece)
            elif self._source.ended:
                await self._put(send, b"", more=False)
                return
            elif self._idle:
                await self._put(send, self._idle)

    async def _put(self, send: Send, piece: bytes, more: bool = True) -> None:
        self._writing = True
        # In parts: a reader that takes a long event slowly does take it.
        for place in range(0, len(piece) or 1, limits.MAX_STREAM_BUFFER_BYTES):
            self._since = self._streams.now
            part = piece[place : place + limits.MAX_STREAM_BUFFER_BYTES]
            await send({"type": "http.response.body", "body": part, "more_body": more})
        self._writing = False

    def _is_over(self) -> bool:
        return self._gone or self.dropped

    def _left(self, leaving: asyncio.Task[bool]) -> None:
        if not leaving.cancelled():
            self._gone = True
            self._source.end()

    def _abort(self) -> bool:
        """Close the connection at once, with the body not ended and whatever its reader did not take.

        ASGI has no word for it. Uvicorn's transport is found behind its `receive`; another server will see an
        answer that was not ended, and close the connection as it can.
        """
        transport = getattr(getattr(self._receive, "__self__", None), "transport", None)
        if not isinstance(transport, asyncio.WriteTransport):
            return False
        self._gone = True
        transport.abort()
        return True

"""Answers that go on: written as fast as their reader takes them, and never further ahead than that.

One task reads what there is to say, one writes it, and between them are at most MAX_STREAM_BUFFER_BYTES and
one frame. What is read in one go is written in one go. Only its own stream ever waits for a slow reader.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tenuto import limits
from tenuto.observe import Observe
from tenuto.server.problems import problem
from tenuto.server.waiting import gone

logger = logging.getLogger("tenuto.server")


class Streams:
    """The streams of one application. `stopping` set: those that have no end of their own end now."""

    def __init__(self, stopping: asyncio.Event, observe: Observe | None = None) -> None:
        self.stopping = stopping
        self.open = 0
        self._observe = observe

    def drop(self) -> None:
        """One is broken off because its reader takes nothing."""
        logger.info("a stream is broken off: its reader takes nothing")
        if self._observe is not None and self._observe.metrics is not None:
            self._observe.metrics.streams_dropped.inc()


class Stream(StreamingResponse):
    """`frames`, until they end or the client is gone. With `idle` they have no end that must be reached: the
    server's stop ends them, and `idle` is written when there was nothing else for KEEP_ALIVE_SECONDS.

    The body is ended only after all frames, or at the server's stop. When a frame cannot be had, or nothing
    is taken for STREAM_WRITE_SECONDS, the connection is broken off: nobody takes a part for the whole.
    503 when MAX_STREAMS are open. However it ends, the generator is closed before this returns.
    """

    def __init__(
        self, streams: Streams, frames: AsyncGenerator[bytes], media_type: str, idle: bytes = b""
    ) -> None:
        # A proxy must not collect what is to be seen at once.
        super().__init__(frames, headers={"X-Accel-Buffering": "no"}, media_type=media_type)
        self._streams = streams
        self._frames = frames
        self._idle = idle
        self._waiting: list[bytes] = []
        self._size = 0
        self._wake = asyncio.Event()
        self._room = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._streams.open >= limits.MAX_STREAMS:
            later = {"Retry-After": str(limits.STREAM_LATER_SECONDS)}
            await problem(503, "too many streams are open here", later)(scope, receive, send)
            return
        self._streams.open += 1
        try:
            await self._carry(receive, send)
        finally:
            self._streams.open -= 1

    async def _carry(self, receive: Receive, send: Send) -> None:
        start = asyncio.create_task
        reading = start(self._read())
        reading.add_done_callback(lambda _: self._wake.set())
        writing = start(self._write(send, reading))
        leaving, stopping = start(gone(receive)), start(self._streams.stopping.wait())
        tasks = (reading, writing, leaving, stopping)
        try:
            await asyncio.wait(
                (writing, leaving, stopping) if self._idle else (writing, leaving),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self._idle and stopping.done():
                reading.cancel()
                leavers = (writing, leaving)
                await asyncio.wait(leavers, timeout=limits.STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                error = writing.exception() if writing.done() else TimeoutError()
                if isinstance(error, TimeoutError):
                    self._streams.drop()
                elif error is not None:
                    logger.error("a stream broke off", exc_info=error)
                if error is not None:
                    await _break_off(receive, leaving)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        async with contextlib.aclosing(self._frames) as frames:
            async for frame in frames:
                self._waiting.append(frame)
                self._size += len(frame)
                self._wake.set()
                if self._size > limits.MAX_STREAM_BUFFER_BYTES:
                    self._room.clear()
                    await self._room.wait()

    async def _write(self, send: Send, reading: asyncio.Task[None]) -> None:
        """Raises `TimeoutError` for a reader that takes nothing, and what reading raised."""
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head)
        while not (reading.done() and not self._waiting):
            try:
                async with asyncio.timeout(limits.KEEP_ALIVE_SECONDS if self._idle else None):
                    await self._wake.wait()
            except TimeoutError:
                self._waiting.append(self._idle)
            self._wake.clear()
            chunk = b"".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            self._room.set()
            # In parts: a reader that takes a long event slowly does take it.
            for place in range(0, len(chunk), limits.MAX_STREAM_BUFFER_BYTES):
                await _put(send, chunk[place : place + limits.MAX_STREAM_BUFFER_BYTES])
        if not reading.cancelled():
            reading.result()
        await _put(send, b"", more=False)


async def _put(send: Send, body: bytes, more: bool = True) -> None:
    async with asyncio.timeout(limits.STREAM_WRITE_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _break_off(receive: Receive, leaving: asyncio.Task[bool]) -> None:
    """Close the connection at once, with the body not ended and whatever its reader did not take.

    ASGI has no word for it. Uvicorn's transport is found behind its `receive`; another server will see an
    answer that was not ended, and close the connection as it can.
    """
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
        await asyncio.wait((leaving,), timeout=limits.STOP_SECONDS)

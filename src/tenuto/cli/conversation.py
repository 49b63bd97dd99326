"""One thread, turn by turn: what is said, and all that happens until the thread rests.

Here the thread runs in this process, as long as no other one has it; on a server it is only followed.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final

from tenuto.cli.find import AnyRuntime
from tenuto.cli.terminal import now_ms
from tenuto.errors import Conflict
from tenuto.events import Entry, ThreadId
from tenuto.messages import Live
from tenuto.rows import ThreadRow
from tenuto.runtime import Runtime
from tenuto.stream import Replayed

LOOK_AGAIN_SECONDS: Final = 0.5
Happening = Entry | Replayed | Live


class Conversation:
    """`thread_id` is None until the first message is said; `seq` is that of the last event that was shown."""

    def __init__(
        self,
        runtime: AnyRuntime,
        by: str,
        thread_id: ThreadId | None = None,
        seq: int = 0,
        *,
        agent: str = "",
        channel: str = "chat",
    ) -> None:
        self.runtime = runtime
        self.by = by
        self.channel = channel
        self.thread_id = thread_id
        self.seq = seq
        self._agent = agent
        self._mine: set[int] = set()

    async def say(self, message: str) -> ThreadId:
        """Add a message, the first one to a new thread. Raises `InvalidInput`, `UnknownAgent`."""
        if self.thread_id is None:
            self.thread_id = await self.runtime.start(self._agent, message, by=self.by)
            self.seq = 2  # its beginning and what was just said
        else:
            self._mine.add(await self.runtime.send(self.thread_id, message, by=self.by, channel=self.channel))
        return self.thread_id

    async def turn(self) -> AsyncGenerator[Happening, None]:
        """Everything that happens until the thread rests, but what was said here. Close it when done.

        Raises what kept the thread from being run here.
        """
        assert self.thread_id is not None
        here = isinstance(self.runtime, Runtime)
        driving = asyncio.create_task(self._drive(self.thread_id)) if here else None
        items = self.runtime.follow(self.thread_id, self.seq, rest=not here)
        coming: asyncio.Future[Happening] | None = None
        try:
            while driving is None or not driving.done() or self.seq < driving.result():
                coming = coming or asyncio.ensure_future(anext(items))
                if driving is not None and not driving.done():
                    both: set[asyncio.Future[Any]] = {coming, driving}
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                    if not coming.done():
                        continue
                try:
                    item = await coming
                except StopAsyncIteration:
                    return
                coming = None
                if isinstance(item, Entry):
                    self.seq = item.seq
                    if item.seq in self._mine:
                        self._mine.discard(item.seq)
                        continue
                yield item
        finally:
            waiting: list[asyncio.Future[Any]] = [task for task in (coming, driving) if task is not None]
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
            await items.aclose()

    async def sleep(self, row: ThreadRow) -> None:
        """Until the time of a thread that sleeps has come, or something else wakes it."""
        while True:
            left_seconds = max(0.0, ((row.ready_at_ms or 0) - now_ms()) / 1000)
            await asyncio.sleep(min(left_seconds or LOOK_AGAIN_SECONDS, LOOK_AGAIN_SECONDS))
            if (row.ready_at_ms or 0) <= now_ms() or (await self.row()).status != "sleeping":
                return

    async def stop(self) -> None:
        """Ask for the turn to stop; nothing when it has come to its end already."""
        if self.thread_id is not None:
            with contextlib.suppress(Conflict):
                await self.runtime.cancel(self.thread_id, by=self.by, reason="stopped at the terminal")

    async def row(self) -> ThreadRow:
        """Where the thread stands."""
        assert self.thread_id is not None
        return await self.runtime.thread(self.thread_id)

    async def _drive(self, thread_id: ThreadId) -> int:
        """Run it here until it rests; the seq of its last event then."""
        assert isinstance(self.runtime, Runtime)
        while True:
            if not await self.runtime.drive(thread_id):
                # Another process has it, or its time has not come.
                await self.runtime.wait(thread_id, LOOK_AGAIN_SECONDS)
            row = await self.runtime.thread(thread_id)
            if row.status != "running":
                return row.head_seq

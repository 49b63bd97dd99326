"""The endpoints of threads. Every POST answers the thread's state, put off as `Prefer: wait=SECONDS` says."""

import base64
import re
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.events import ThreadId
from tenuto.runtime import Runtime
from tenuto.server.access import Access
from tenuto.server.bodies import read
from tenuto.server.problems import Problem, encoded
from tenuto.server.shapes import (
    Cancellation,
    Extension,
    NewMessage,
    NewThread,
    ThreadPage,
    summary_body,
    thread_body,
)
from tenuto.server.waiting import Waiting
from tenuto.store.base import ThreadRow, ThreadStatus


class Threads:
    """`agent` is who gets the threads that name none."""

    def __init__(self, runtime: Runtime, access: Access, waiting: Waiting, agent: str) -> None:
        self._runtime = runtime
        self._access = access
        self._waiting = waiting
        self._agent = agent

    async def start_thread(self, request: Request) -> Response:
        """Start a thread with a first message."""
        body = await read(request, NewThread)
        thread_id = await self._runtime.start(
            body.agent or self._agent,
            body.message,
            by=self._who(request, body.by),
            metadata=body.metadata,
            thread_id=body.thread_id,
        )
        return await self._waiting.state(request, thread_id, 201, Location=f"/v1/threads/{thread_id}")

    async def list_threads(
        self,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_THREADS)] = 100,
    ) -> Response:
        """Threads, newest first. A cursor stays good: threads that start later shift nothing."""
        rows = await self._runtime.threads(
            status=status, agent=agent, before=None if cursor is None else _place(cursor), limit=limit + 1
        )
        page = rows[:limit]
        more = _cursor(page[-1]) if len(rows) > limit else None
        return encoded(200, ThreadPage([summary_body(row) for row in page], more))

    async def get_thread(self, thread_id: str) -> Response:
        """The state of a thread."""
        row = await self._runtime.store.thread(ThreadId(thread_id))
        state = await self._runtime.state(thread_id)
        # The thread may have grown since: the hash is that of the event that the state ends with.
        (last,) = await self._runtime.store.stored(ThreadId(thread_id), state.head_seq - 1, 1)
        return encoded(200, thread_body(state, row, last.hash.hex()))

    async def send_message(self, request: Request, thread_id: str) -> Response:
        """Add a message; a thread that ended goes on."""
        body = await read(request, NewMessage)
        await self._runtime.send(thread_id, body.text, by=self._who(request, body.by), channel="http")
        return await self._waiting.state(request, thread_id)

    async def cancel_thread(self, request: Request, thread_id: str) -> Response:
        """Ask for a thread to stop; whoever runs it does so within a second."""
        body = await read(request, Cancellation)
        await self._runtime.cancel(thread_id, by=self._who(request, body.by), reason=body.reason)
        return await self._waiting.state(request, thread_id)

    async def extend_thread(self, request: Request, thread_id: str) -> Response:
        """Give this turn more; a halted or failed thread goes on."""
        more = await read(request, Extension)
        await self._runtime.extend(
            thread_id,
            by=self._who(request, more.by),
            steps=more.steps,
            tokens=more.tokens,
            cost=more.cost,
            seconds=more.seconds,
        )
        return await self._waiting.state(request, thread_id)

    def _who(self, request: Request, by: str) -> str:
        return self._access.who(request.headers.raw, by)


def _cursor(row: ThreadRow) -> str:
    return base64.urlsafe_b64encode(f"{row.created_at_ms} {row.id}".encode()).decode().rstrip("=")


def _place(cursor: str) -> tuple[int, ThreadId]:
    """The row that a cursor names. Raises `Problem` 400 for what `_cursor` never made."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except ValueError:
        text = ""
    found = re.fullmatch(r"([0-9]{1,16}) ([0-9a-f-]{36})", text)
    if found is None:
        raise Problem(400, "this cursor is none of a list of threads")
    return int(found[1]), ThreadId(found[2])

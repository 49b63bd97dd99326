"""Requests that wait until a thread rests, or until their time, their client or the server is gone."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from tenuto import limits
from tenuto.events import ThreadId
from tenuto.runtime import Runtime
from tenuto.server.problems import encoded
from tenuto.server.shapes import state_body
from tenuto.thread import ThreadState, apply


class Waiting:
    """`stopping` set: every waiting request is answered at once with what is true then."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.stopping = asyncio.Event()

    async def state(
        self,
        request: Request,
        thread_id: str,
        status: int = 200,
        added: int | msgspec.Raw | None = None,
        before: ThreadState | None = None,
        **headers: str,
    ) -> Response:
        """The thread's state as an answer, put off as `Prefer: wait` says; `added` as in `state_body`.
        `before`: its state before the request changed it; what has happened since is put on top.
        """
        seconds = preferred_wait(request)
        if seconds is None:
            state = await self._now(thread_id, before)
        else:
            state = await self.rest(request, thread_id, seconds)
            headers["Preference-Applied"] = f"wait={seconds}"
        return encoded(status, state_body(state, added), headers)

    async def _now(self, thread_id: str, before: ThreadState | None) -> ThreadState:
        if before is None:
            return await self._runtime.state(thread_id)
        for entry in await self._runtime.store.read(ThreadId(thread_id), before.head_seq):
            apply(before, entry)
        return before

    async def rest(self, request: Request, thread_id: str, seconds: float) -> ThreadState:
        """The state once the thread rests, or as it is after `seconds`. The request's body has been read.

        Only looks: whether anybody still waits makes no difference to the thread.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        ends: set[asyncio.Task[Any]] = {
            loop.create_task(gone(request.receive)),
            loop.create_task(self.stopping.wait()),
        }
        try:
            while True:
                left = max(until - loop.time(), 0.0)
                waiting = loop.create_task(self._runtime.wait(thread_id, left))
                ends.add(waiting)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    return await self._runtime.state(thread_id)
                state = waiting.result()
                ends.discard(waiting)
                if state.status != "running" or not left:
                    return state
                # It rested, and something moved it on before we looked.
                await asyncio.sleep(limits.CHANGE_POLL_SECONDS)
        finally:
            for task in ends:
                task.cancel()


async def gone(receive: Receive) -> bool:
    """Until the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    return True


def preferred_wait(request: Request) -> int | None:
    """The seconds of `Prefer: wait=` (RFC 7240), bounded; None without one that can be understood."""
    for line in request.headers.getlist("prefer"):
        for preference in line.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            value = value.strip().strip('"')
            if name.strip().lower() == "wait" and value.isascii() and value.isdecimal():
                return min(int(value[:9]), int(limits.MAX_WAIT_SECONDS))
    return None

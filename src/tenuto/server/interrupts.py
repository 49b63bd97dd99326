"""The endpoints of the inbox: what waits for a person, what became of it, and deciding it."""

from typing import Annotated, Literal

from fastapi import Query, Request
from starlette.responses import Response

from tenuto import limits
from tenuto.events import InterruptId, ThreadId
from tenuto.runtime import Runtime
from tenuto.server.access import Access
from tenuto.server.bodies import read
from tenuto.server.problems import Problem, encoded
from tenuto.server.shapes import InterruptPage, Resolution, interrupt_body
from tenuto.server.waiting import Waiting


class Interrupts:
    """Listed oldest first: who waits longest comes first."""

    def __init__(self, runtime: Runtime, access: Access, waiting: Waiting) -> None:
        self._runtime = runtime
        self._access = access
        self._waiting = waiting

    async def list_interrupts(
        self,
        status: Literal["pending", "all"] = "pending",
        thread_id: str | None = None,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_INTERRUPTS)] = 100,
    ) -> Response:
        """The inbox, oldest first; `after` is the id of the last interrupt of the page before."""
        if after is not None:
            await self._runtime.store.interrupt(InterruptId(after))  # an unknown place is 404, not page one
        rows = await self._runtime.interrupts(
            pending=True if status == "pending" else None,
            thread_id=ThreadId(thread_id) if thread_id else None,
            after=InterruptId(after) if after is not None else None,
            limit=limit + 1,
        )
        page = [interrupt_body(row) for row in rows[:limit]]
        return encoded(200, InterruptPage(page, page[-1].id if len(rows) > limit else None))

    async def get_interrupt(self, interrupt_id: str) -> Response:
        """One interrupt, pending or decided."""
        return encoded(200, interrupt_body(await self._runtime.store.interrupt(InterruptId(interrupt_id))))

    async def resolve_interrupt(self, request: Request, interrupt_id: str) -> Response:
        """Decide a pending interrupt, once. 409 says by whom, what and when it was decided before."""
        body = await read(request, Resolution)
        if body.verb and body.outcome not in (None, body.verb):
            raise Problem(422, "verb and outcome, its old name, say different things")
        verb = body.verb or body.outcome
        if verb is None:
            raise Problem(422, "say with verb what is decided")
        row = await self._runtime.store.interrupt(InterruptId(interrupt_id))
        await self._runtime.resolve(
            interrupt_id,
            verb,
            by=self._access.who(request.headers.raw, body.by),
            channel="http",
            comment=body.comment,
            arguments=body.arguments,
            answer=body.answer,
            digest=body.digest,
        )
        return await self._waiting.state(request, row.thread_id)

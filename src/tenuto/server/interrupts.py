"""The endpoints of the inbox: what waits for a person, what became of it, and deciding it."""

from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from fastapi import Depends, Query, Request
from msgspec import UNSET
from starlette.responses import Response

from tenuto import limits
from tenuto.events import InterruptId, InterruptKind, InterruptResolved, ThreadId
from tenuto.rows import InterruptRow
from tenuto.runtime import Runtime
from tenuto.server.callers import caller_of
from tenuto.server.events import shown
from tenuto.server.listed import Listed, in_scope
from tenuto.server.posts import Post, Posts
from tenuto.server.problems import Problem, encoded
from tenuto.server.shapes import Interrupt, InterruptPage, Resolution, body, doubt_bodies
from tenuto.server.waiting import Waiting

Decided = Literal["pending", "decided", "all"]
_PENDING: Final[dict[Decided, bool | None]] = {"pending": True, "decided": False, "all": None}


class Which(NamedTuple):
    """Those that are asked for."""

    status: Decided
    thread_id: ThreadId | None
    agent: str | None
    kind: InterruptKind | None


# A coroutine, though it awaits nothing: FastAPI would run a plain function on a thread.
async def _which(
    status: Decided = "pending",
    thread_id: str | None = None,
    agent: str | None = None,
    kind: InterruptKind | None = None,
) -> Which:
    return Which(status, ThreadId(thread_id) if thread_id is not None else None, agent, kind)


class Interrupts:
    """Listed oldest first: who waits longest comes first."""

    def __init__(self, runtime: Runtime, posts: Posts, waiting: Waiting) -> None:
        self._runtime = runtime
        self._posts = posts
        self._waiting = waiting

    async def list_interrupts(
        self,
        request: Request,
        which: Annotated[Which, Depends(_which)],
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LISTED_INTERRUPTS)] = 100,
    ) -> Response:
        """The inbox, oldest first, as far as it is in the caller's scope; `after` is the `next` of the page
        before, or the id of any interrupt.
        """
        if after is not None:
            await self._runtime.store.interrupt(InterruptId(after))  # an unknown place is 404, not page one

        async def fetch(agent: str | None, place: InterruptId | None, count: int) -> list[InterruptRow]:
            return await self._runtime.interrupts(
                pending=_PENDING[which.status],
                thread_id=which.thread_id,
                agent=agent,
                kind=which.kind,
                after=place,
                limit=count,
            )

        start = InterruptId(after) if after is not None else None
        listed = Listed(fetch, lambda row: row.id, which.agent, limit)
        caller = caller_of(request)
        page = await in_scope(caller, listed, start)
        doubts = [
            one
            for one in await self._runtime.in_doubt(which.thread_id)
            if caller.sees(one.agent) and which.agent in (None, one.agent)
        ]
        rows = [body(Interrupt, row) for row in page.rows]
        return encoded(200, InterruptPage(rows, page.next, doubt_bodies(doubts)))

    async def get_interrupt(self, interrupt_id: str) -> Response:
        """One interrupt, pending or decided."""
        row = await self._runtime.store.interrupt(InterruptId(interrupt_id))
        return encoded(200, body(Interrupt, row))

    async def resolve_interrupt(self, request: Request, interrupt_id: str) -> Response:
        """Decide a pending interrupt, once. 409 says by whom, what and when it was decided before."""

        async def work(post: Post[Resolution]) -> Response:
            told = post.body
            verb = told.outcome if told.verb is UNSET else told.verb
            if verb is UNSET or UNSET not in (told.verb, told.outcome):
                raise Problem(422, "say once what is decided, with verb; outcome is its old name")
            row = await self._runtime.store.interrupt(InterruptId(interrupt_id))
            before = await self._runtime.state(row.thread_id)  # first: it may be that it cannot be read
            resolve = self._runtime.resolve(
                interrupt_id,
                verb,
                by=post.caller.by(told.by),
                channel="http",
                comment=told.comment,
                arguments=told.arguments,
                answer=told.answer,
                digest=told.digest,
                append_id=post.append_id,
            )
            await self._posts.change(row.thread_id, post.append_id, resolve)
            added = await self._decision(row)
            return await self._waiting.state(request, row.thread_id, added=added, before=before)

        return await self._posts.once(request, Resolution, work)

    async def _decision(self, row: InterruptRow) -> msgspec.Raw | None:
        """The event that decided it, as it is shown."""
        seq = row.raised_seq
        while page := await self._runtime.events(row.thread_id, seq):
            for entry in page:
                if isinstance(entry.event, InterruptResolved) and entry.event.id == row.id:
                    return msgspec.Raw(shown(entry))
            seq = page[-1].seq
        return None
